"""All that is wrong with a run file, key by key, found without torch and in less than a second.

`read_run_file` stops at the first class of mistakes. Here a key that is wrong is taken out, and the rest is looked at
once more, so that a person is told all of it at once. Then come files that are not there.
"""

import difflib
import glob
import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from dipaco_swarm.errors import RunFileError
from dipaco_swarm.run.config import DataConfig, ModelConfig, RunConfig
from dipaco_swarm.run.file import not_json
from dipaco_swarm.run.problems import reasons_of
from dipaco_swarm.strategies import SOURCES

LOOKS = 50
"""A file that is still wrong after so many keys were taken out of it is wrong as a whole."""

Location = tuple[int | str, ...]


@dataclass(frozen=True)
class Problem:
    """One mistake."""

    key: str
    """`inner.learning_rate`, `stages[1].rounds`."""
    what: str
    """Why it is one, and what to do."""


def problems_in(text: str) -> tuple[RunConfig | None, Sequence[Problem]]:
    """The run file, if it can be read as one, and all that is wrong with it.

    Raises RunFileError when the text is not TOML.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RunFileError(
            f"the run file is not valid TOML: {error}; look at that line, and at the one before it"
        ) from None
    return problems_of(document)


def problems_of(document: dict[str, Any]) -> tuple[RunConfig | None, Sequence[Problem]]:
    """As `problems_in`, of what the text says; keys that are wrong are taken out of it."""
    found: dict[str, Problem] = {}
    taken_out: set[Location] = set()
    for _ in range(LOOKS):
        try:
            config = RunConfig.model_validate_json(json.dumps(document, default=not_json))
        except ValidationError as error:
            said = reasons_of(error)
            for key, what in said.items():
                in_parts = any(other.startswith((f"{key}[", f"{key}.")) for other in said)
                if not (in_parts or _comes_of(taken_out, key, what)):
                    found.setdefault(key, Problem(key, what + _meant(key, what)))
            wrong = [place["loc"] for place in error.errors() if place["type"] != "missing"]
            out = {taken for place in wrong if (taken := _take_out(document, place)) is not None}
            if not out:
                break
            taken_out |= out
        else:
            if found:
                break
            found = {problem.key: problem for problem in chain(_model_type(config.model), _files(config))}
            return config, tuple(found.values())
    return None, tuple(found.values())


def _comes_of(taken_out: set[Location], key: str, what: str) -> bool:
    """Whether something is only wrong because keys were taken out that were wrong: it is about one of them."""
    return any(key == _name(place) or re.search(rf"\b{place[-1]}\b", what) for place in taken_out)


def _take_out(document: Any, place: Location) -> Location | None:
    """Remove the key that a mistake is in, so that its default counts; where it was, or None: there is no such key."""
    holder, at = None, 0
    for depth, part in enumerate(place):
        there = (isinstance(document, dict) and part in document) or (
            isinstance(document, list) and isinstance(part, int) and part < len(document)
        )
        if not there:
            break  # pydantic adds the types of a union, which nobody wrote
        if isinstance(document, dict):
            holder, at = document, depth
        document = document[part]
    if holder is None:
        return None
    del holder[place[at]]
    return place[: at + 1]


def _name(place: Location) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _meant(key: str, what: str) -> str:
    """For a key that is not known: the one that it looks like."""
    if "not known" not in what:
        return ""
    section, _, name = key.rpartition(".")
    known = _keys_of(section)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}" if known else ""


def _keys_of(section: str) -> list[str]:
    """The keys of a section of the run file, written `stages[1]`; of the top for ""."""
    model: type[BaseModel] | None = RunConfig
    for part in [part.partition("[")[0] for part in section.split(".") if part]:
        field = model.model_fields.get(part) if model is not None else None
        model = None if field is None else next(iter(sections_in(field.annotation)), None)
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field of the run file holds: of `tuple[StageConfig, ...]`, StageConfig."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from sections_in(argument)


# ------------------------------------------------------------------------------------------- what this machine can know


def _model_type(model: ModelConfig) -> Iterator[Problem]:
    """Whether the installed transformers has such a model; looked up by its folders, as importing it takes seconds."""
    spec = importlib.util.find_spec("transformers")
    if model.checkpoint is not None or spec is None or not spec.submodule_search_locations:
        return
    folder = Path(spec.submodule_search_locations[0]) / "models"
    names = {path.name for path in folder.iterdir() if (path / "__init__.py").exists()}
    if names and model.model_type.replace("-", "_") not in names:
        near = difflib.get_close_matches(model.model_type, sorted(names), n=3)
        yield Problem(
            "model.model_type",
            f'"{model.model_type}" is not known to the installed transformers; use a Llama-style one such as "llama", '
            f'"mistral" or "qwen2"{", or did you mean " + " or ".join(near) + "?" if near else ""}',
        )


def _files(config: RunConfig) -> Iterator[Problem]:
    """Files of the run that are not where they should be."""
    tokenizer = config.tokenizer.path
    if (problem := config.model.folder_problem) is not None:
        yield Problem("model.from", problem)
    if tokenizer is not None:
        file = Path(tokenizer).expanduser()
        if not (file / "tokenizer.json" if file.is_dir() else file).exists():
            yield Problem(
                "tokenizer.path",
                f"there is no tokenizer.json at {tokenizer}; give a folder that has one, or leave the key out and one "
                "is trained on the documents",
            )
    yield from _documents("data", config.data)
    for index, stage in enumerate(config.stages):
        if "data" in stage.from_here:
            yield from _documents(f"stages[{index}].from_here.data", config.at(index).data)


def _documents(section: str, data: DataConfig) -> Iterator[Problem]:
    for number, part in enumerate(data.parts):
        source = SOURCES[part.source]
        if not source.needs_path or source.is_remote or part.path is None or "://" in part.path:
            continue
        if next(glob.iglob(str(Path(part.path).expanduser()), recursive=True), None) is None:
            yield Problem(
                f"{section}.sources[{number}].path" if data.sources else f"{section}.path",
                f"no file here matches {part.path} (from {Path.cwd()}); the node needs the documents as well as the "
                "peers do: copy them here, or correct the pattern",
            )
