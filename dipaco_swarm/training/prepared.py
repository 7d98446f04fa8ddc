"""A corpus that was split by path once, for everybody: its layout, and how a peer reads its own path of it.

    shards.json                    which router and tokenizer split it, and the files of each path
    README.md                      says the same to Hugging Face `datasets`: a configuration for each path
    path-003/part-00000.parquet    texts of about a sequence, in the column `text`; `domain` beside it

`dipaco-bootstrap shard` writes it. It holds training documents alone: what is held out stays in the corpus. A peer
whose stage has the same router and tokenizer reads the files of its path as if they were all that there is.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import DataError
from dipaco_swarm.files import replace_whole
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.run.data import SourceConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.problems import explain
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.run.values import Digest, Frozen
from dipaco_swarm.training.documents import ANYWHERE
from dipaco_swarm.training.pinning import NO_ANSWER

NOTHING = 5e-324
"""The share of the documents that are set apart: above zero, as the key has to be, and no document is below it."""
INDEX = "shards.json"
LARGEST_INDEX = 64 << 20


class PathFiles(Frozen):
    """What a path trains on."""

    texts: int = Field(ge=0)
    characters: int = Field(ge=0)
    files: tuple[str, ...]
    """Within the folder."""


class Index(Frozen):
    """`shards.json`."""

    format: Literal[1] = 1
    run: str
    stage: int = Field(ge=0)
    router: Digest
    tokenizer: Digest
    overlap: int
    prefix_tokens: int
    sequence_length: int
    holdout: float
    routing_sample: float
    documents: int = Field(ge=0)
    """Training documents that were split."""
    paths: tuple[PathFiles, ...]


def rules_of(manifest: Manifest) -> dict[str, object]:
    """What has to be alike for the shards of one stage to be those of another."""
    config, stage = manifest.rules, manifest.stage
    return {
        "router": stage.router,
        "tokenizer": manifest.tokenizer,
        "overlap": stage.overlap,
        "prefix_tokens": config.router.prefix_tokens,
        "sequence_length": config.data.sequence_length,
        "holdout": config.data.holdout,
        "routing_sample": config.data.routing_sample,
    }


def why_not(index: Index, manifest: Manifest) -> str | None:
    """Why these shards are not those of the run's stage; None: they are."""
    other = [key for key, value in rules_of(manifest).items() if getattr(index, key) != value]
    if other:
        return f"another {' and '.join(other)} made them"
    if len(index.paths) != len(manifest.stage.table):
        return f"they have {len(index.paths)} paths, and the stage {len(manifest.stage.table)}"
    return None


def for_reading(manifest: Manifest, path: PathIndex, reach: Reach = ANYWHERE) -> tuple[Manifest, str | None]:
    """The manifest as whoever reads for a path takes it: where its shards are prepared, without a router.

    Otherwise the same, and in words why what the run file names as prepared is of no use here; None: it names nothing.
    """
    name = manifest.rules.data.prepared
    if name is None or manifest.stage.router is None:
        return manifest, None
    try:
        index = index_of(name, reach)
    except DataError as error:
        return manifest, str(error)
    if (why := why_not(index, manifest)) is not None:
        return manifest, f"data.prepared={name!r}: {why}"
    files = index.paths[path]
    if not files.texts:
        raise DataError(f"path {path} has no documents in data.prepared={name!r}; train another path")
    data = manifest.rules.data
    where: dict[str, object] = {"source": "huggingface", "path": name, "config": folder_of(path)}
    if not reach.is_name_of_hub(name):
        where = {"source": "parquet", "path": os.path.join(name, folder_of(path), "*.parquet")}
    split = DataConfig.model_validate(
        {
            **where,
            "reading": data.reading,
            "sequence_length": data.sequence_length,
            "holdout": NOTHING,  # that was left out when it was split
            "routing_sample": NOTHING,
        }
    )
    stages = tuple(
        stage.model_copy(update={"from_here": {key: value for key, value in stage.from_here.items() if key != "data"}})
        for stage in manifest.config.stages
    )
    config = manifest.config.model_copy(update={"data": split, "stages": stages})
    stage = manifest.stage.model_copy(update={"router": None})
    return manifest.model_copy(update={"config": config, "stages": (*manifest.stages[:-1], stage)}), None


def index_of(name: str, reach: Reach) -> Index:
    """Of the folder or data set that [data] prepared names. Raises DataError when there is none."""
    try:
        file = _on_hub(name) if reach.is_name_of_hub(name) else _in_folder(name, reach)
        with open(file, "rb") as opened:
            said = opened.read(LARGEST_INDEX + 1)
        if len(said) > LARGEST_INDEX:
            raise DataError(_too_large(name))
        return Index.model_validate_json(said)
    except OSError as error:
        raise DataError(f"data.prepared={name!r} has no {INDEX}: {error.strerror or error}") from None
    except ValidationError as error:
        raise DataError(f"{INDEX} of data.prepared={name!r} is none: {explain(error)}") from None


def _in_folder(name: str, reach: Reach) -> str:
    """Raises DataError when it may not be read."""
    if reach.reads_no_folder:  # in the few words that a peer's line has room for
        raise DataError(f"data.prepared={name!r}: name the folder that it lies in with --data-root")
    data = SourceConfig(source="parquet", path=os.path.join(name, INDEX))
    file = reach.located(data)
    reach.check_files(data, [file])
    return file


def _on_hub(name: str) -> str:
    """Its file in the cache. The hub is asked for its size first: whoever owns the data set chooses it."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    with suppress(*NO_ANSWER):  # what the cache has is taken where the hub does not answer
        size = get_hf_file_metadata(hf_hub_url(name, INDEX, repo_type="dataset")).size
        if size is None or size > LARGEST_INDEX:
            raise DataError(_too_large(name))
    try:
        return hf_hub_download(name, INDEX, repo_type="dataset")
    except NO_ANSWER as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(f"data.prepared={name!r}: the hub does not give its {INDEX}: {reason}") from None


def _too_large(name: str) -> str:
    return f"{INDEX} of data.prepared={name!r} is larger than {LARGEST_INDEX >> 20} MB, which no index of shards is"


def folder_of(path: int) -> str:
    return f"path-{path:03d}"


def write_index(folder: Path, index: Index) -> None:
    """As the last file: where there is one, the rest is there. Raises OSError."""
    paths = "".join(
        f"- config_name: {folder_of(number)}\n  data_files: {folder_of(number)}/*.parquet\n"
        for number, path in enumerate(index.paths)
        if path.files
    )
    readme = f"---\nconfigs:\n{paths}---\n\nTexts by path, for stage {index.stage} of the DiPaCo run `{index.run}`.\n"
    replace_whole(folder / "README.md", readme.encode(), durable=True)
    text = json.dumps(index.model_dump(mode="json"), indent=1)
    replace_whole(folder / INDEX, text.encode(), durable=True)
