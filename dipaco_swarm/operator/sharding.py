"""`dipaco-bootstrap shard`: the corpus read, cut and routed once, and written by path.

    corpus --chunks--> texts --router--> rows of each path, appended     --64 MB--> path-003/part-00000.parquet

What has been written and where reading goes on is noted together, so that an interruption costs some seconds of work.
Memory holds a chunk of documents and the rows of `FLUSH_BYTES`, whatever the number of paths.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import DataError, UsageError, cannot_write
from dipaco_swarm.files import flush, replace_whole
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.training.documents import Document, cut, split_of
from dipaco_swarm.training.encoding import encoder
from dipaco_swarm.training.prepared import INDEX, Index, PathFiles, folder_of, rules_of, write_index
from dipaco_swarm.training.reading.cheap import CheapRouting
from dipaco_swarm.training.reading.places import Place, Position, corpus_of
from dipaco_swarm.training.routed import Fetch, load_routing

FLUSH_BYTES = 32 << 20
"""Of rows in memory."""
FLUSH_SECONDS = 30.0
"""Work that an interruption costs, at most."""
PART_BYTES = 64 << 20
"""Of rows in a file of Parquet, before it compresses them."""
ROWS_A_GROUP = 2048
"""So that a peer's portions are some megabytes."""
PROGRESS, ROWS = "progress.json", "rows"


@dataclass(frozen=True)
class SoFar:
    """How far the work has come."""

    documents: int = 0
    """Read, of all splits."""
    split: int = 0
    """Of them for training."""
    characters: int = 0
    """Read."""
    texts: int = 0
    """Routed."""
    written: tuple[int, ...] = ()
    """Characters of each path."""
    seconds: float = 0.0
    """Of this call."""


@dataclass
class _OfPath:
    """The files of one path."""

    texts: int = 0
    characters: int = 0
    parts: int = 0
    """Whole files."""
    rows: int = 0
    """Bytes of its rows that are in no file yet."""


@dataclass
class _State:
    """What is noted, after a flush."""

    rules: dict[str, Any]
    spots: dict[str, Any] = field(default_factory=dict)
    documents: int = 0
    split: int = 0
    characters: int = 0
    texts: int = 0
    paths: list[_OfPath] = field(default_factory=list)


class Sharding:
    """Writes the shards of a manifest's stage into a folder."""

    def __init__(self, manifest: Manifest, fetch: Fetch, out: Path, device: str = "cpu") -> None:
        """Raises UsageError where there is nothing to split by, or the folder has something else in it."""
        stage = manifest.stage
        if stage.router is None:
            raise UsageError(
                f"stage {stage.index} has one path, so there is nothing to split by; shard when a stage with a router "
                "has begun"
            )
        self._manifest = manifest
        self._out = out
        self._rules = {**rules_of(manifest), "data": manifest.rules.data.model_dump(mode="json", exclude={"reading"})}
        self._state = self._resumed()
        routing, rules = load_routing(manifest, stage, fetch, device=device), manifest.rules
        length, prefix = rules.data.sequence_length, rules.router.prefix_tokens
        self._routing = CheapRouting(
            encoder(routing.tokenizer), routing.assign, PathIndex(0), length, prefix, stage.text_characters
        )
        self._pending: list[list[bytes]] = [[] for _ in stage.table]
        self._pending_bytes = 0

    @property
    def is_whole(self) -> bool:
        """Whether all of it was done before."""
        return (self._out / INDEX).exists()

    def work(self, tell: Callable[[SoFar], None]) -> Index:
        """To the end. `tell` is called after each chunk. Raises DataError, and HomeError when nothing can be written.

        May be interrupted at any time: the same call goes on.
        """
        state, config, began = self._state, self._manifest.rules, time.monotonic()
        at = Place.from_fields({"pending": (), **state.spots})
        flushed = began
        try:
            for chunk, after in corpus_of(config.data, config.seed, 0).chunks(at):
                self._take(chunk)
                now = time.monotonic()
                if self._pending_bytes > FLUSH_BYTES or now - flushed > FLUSH_SECONDS:
                    self._flush(after)
                    flushed = now
                written = tuple(each.characters for each in state.paths)
                tell(SoFar(state.documents, state.split, state.characters, state.texts, written, now - began))
            self._flush(None)
            return self._finish()
        except OSError as error:
            raise cannot_write("the shards", self._out, error) from error

    # ------------------------------------------------------------------------------------------------------ the texts

    def _take(self, chunk: Sequence[Document]) -> None:
        state, config = self._state, self._manifest.rules
        state.documents += len(chunk)
        state.characters += sum(len(document.text) for document in chunk)
        training = [document for document in chunk if split_of(document.text, config.data) == "train"]
        state.split += len(training)
        longest = self._routing.longest
        texts = [part for document in training for part in cut(document.text, document.domain, longest)]
        for text, paths in zip(texts, self._paths_of([text.text for text in texts]), strict=True):
            row = json.dumps({"text": text.text, "domain": text.domain}).encode() + b"\n"
            for path in paths:
                self._pending[path].append(row)
                self._pending_bytes += len(row)
                state.paths[path].texts += 1
                state.paths[path].characters += len(text.text)

    def _paths_of(self, texts: Sequence[str]) -> Iterator[Sequence[int]]:
        """The paths of each text; none for what is too short to be routed."""
        for paths in self._routing.paths_of(self._routing.begin(texts)).tolist():
            routed = [path for path in paths if path >= 0]
            self._state.texts += bool(routed)
            yield routed

    # ------------------------------------------------------------------------------------------------------- the files

    def _flush(self, after: Position | None) -> None:
        """Write what is in memory; `after`: where reading goes on, None: nowhere."""
        state = self._state
        for path, rows in enumerate(self._pending):
            of_path = state.paths[path]
            if rows:
                with open(self._rows(path), "ab") as file:
                    file.truncate(of_path.rows)  # what was written and not noted
                    of_path.rows += file.write(b"".join(rows))
                    flush(file)
                rows.clear()
            if of_path.rows > PART_BYTES or (after is None and of_path.rows):
                self._to_parquet(path)
        self._pending_bytes = 0
        if after is not None:
            state.spots = {"group": after.group, "documents": after.documents, "spots": list(map(asdict, after.spots))}
            replace_whole(self._out / PROGRESS, json.dumps(asdict(state)).encode(), durable=True)
            for path, of_path in enumerate(state.paths):
                if not of_path.rows:  # they are in a file now, and that is noted
                    self._rows(path).unlink(missing_ok=True)

    def _to_parquet(self, path: int) -> None:
        """Make a file of the rows of a path; made again, it has the same name and the same rows."""
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        of_path = self._state.paths[path]
        file = self._part(path, of_path.parts)
        file.parent.mkdir(exist_ok=True)
        with open(self._rows(path), "rb") as rows:
            read = [json.loads(line) for line in rows.read(of_path.rows).splitlines()]
        columns = {name: [row[name] for row in read] for name in ("text", "domain")}
        parquet.write_table(
            arrow.table({name: arrow.array(values, arrow.large_string()) for name, values in columns.items()}),
            file,
            compression="zstd",
            row_group_size=ROWS_A_GROUP,
        )
        of_path.parts, of_path.rows = of_path.parts + 1, 0

    def _finish(self) -> Index:
        state, stage = self._state, self._manifest.stage
        rules = {key: value for key, value in self._rules.items() if key != "data"}
        index = Index.model_validate(
            {
                **rules,
                "run": self._manifest.config.name,
                "stage": stage.index,
                "documents": state.split,
                "paths": tuple(
                    PathFiles(
                        texts=each.texts,
                        characters=each.characters,
                        files=tuple(str(self._part(path, i).relative_to(self._out)) for i in range(each.parts)),
                    )
                    for path, each in enumerate(state.paths)
                ),
            }
        )
        if not any(each.texts for each in state.paths):
            raise DataError(f"none of {state.documents:,} documents is long enough to be routed; check [data]")
        write_index(self._out, index)
        shutil.rmtree(self._out / ROWS, ignore_errors=True)
        (self._out / PROGRESS).unlink(missing_ok=True)
        return index

    def _part(self, path: int, number: int) -> Path:
        return self._out / folder_of(path) / f"part-{number:05d}.parquet"

    def _rows(self, path: int) -> Path:
        return self._out / ROWS / f"{path}.jsonl"

    def _resumed(self) -> _State:
        """What an earlier call has noted, or the beginning; the folder is made."""
        fresh = _State(rules=self._rules, paths=[_OfPath() for _ in self._manifest.stage.table])
        try:
            there = sorted(os.listdir(self._out)) if self._out.exists() else []
            if there and not {INDEX, PROGRESS} & set(there):
                raise UsageError(f"--out {self._out} has other files in it, such as {there[0]}; name a new folder")
            if INDEX not in there:
                (self._out / ROWS).mkdir(parents=True, exist_ok=True)
            if not there:
                replace_whole(self._out / PROGRESS, json.dumps(asdict(fresh)).encode(), durable=True)
                return fresh
            noted = json.loads((self._out / (INDEX if INDEX in there else PROGRESS)).read_text(encoding="utf-8"))
        except OSError as error:
            raise cannot_write("the shards", self._out, error) from error
        except ValueError:
            raise UsageError(f"{PROGRESS} in --out {self._out} is damaged; name a new folder") from None
        known = json.loads(json.dumps(self._rules))
        rules = noted if INDEX in there else noted["rules"]
        other = [key for key, value in known.items() if key in rules and rules[key] != value]
        if other:
            raise UsageError(f"--out {self._out} was begun with another {' and '.join(other)}; name a new folder")
        if INDEX in there:
            return fresh
        return replace(_State(**noted), rules=self._rules, paths=[_OfPath(**each) for each in noted["paths"]])


def shares_of(index: Index) -> Sequence[tuple[PathIndex, float]]:
    """The share of the characters that each path has."""
    total = sum(path.characters for path in index.paths) or 1
    return [(PathIndex(number), path.characters / total) for number, path in enumerate(index.paths)]
