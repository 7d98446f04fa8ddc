"""All that can be said of a run file before the run is opened: for people, and for programs."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dipaco_swarm.algorithm.stages import check_tables
from dipaco_swarm.errors import DataError, RunFileError, SwarmError
from dipaco_swarm.events import words
from dipaco_swarm.operator.check.mixing import SourceSample
from dipaco_swarm.operator.check.pace import Crowd, RoundTime, round_time
from dipaco_swarm.operator.check.sample import DocumentSample, Read, look_at, read_some
from dipaco_swarm.operator.check.sizes import Sizes, StageSize, sizes_of
from dipaco_swarm.run.checking import Problem
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.training.modules import level_sizes
from dipaco_swarm.training.pretrained import resolved
from dipaco_swarm.training.tokenizer import load_tokenizer, tokenizer_from_path, vocabulary_size

SMALL_SHARE = 0.1
"""Of an equal split: a path with less hardly trains."""
SHORT_OF = 0.8
"""Of its share: a source with less has run dry."""


@dataclass(frozen=True)
class Report:
    """What was found. Where something is None, a problem says why."""

    name: str
    problems: tuple[Problem, ...]
    sizes: Sizes | None = None
    rounds: tuple[RoundTime, ...] = ()
    documents: DocumentSample | None = None
    notes: tuple[str, ...] = ()
    """What works, and could be better."""

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> str:
        found: dict[str, Any] = {"ok": self.ok, **dataclasses.asdict(self)}
        return json.dumps(found, indent=2)

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, style="bold")
        table.add_column()
        for name, text in _lines(self):
            table.add_row(name, Text(text))
        for note in self.notes:
            table.add_row(Text("note", "yellow"), Text(note))
        for problem in self.problems:
            table.add_row(Text(problem.key, "red"), Text(problem.what))
        return table


def examine(config: RunConfig, crowd: Crowd, documents: int) -> Report:
    """`documents`: so many are read, at most; 0: none."""
    found: list[Problem] = []
    try:
        config = resolved(config)
    except RunFileError as error:
        return Report(config.name, (Problem("model", str(error)),))
    read: Read | None = None
    sample: DocumentSample | None = None
    if documents:
        read = read_some(config, documents, found)
        try:
            sample = None if read is None else look_at(config, read)
        except DataError as error:
            found.append(Problem("data", str(error)))
    try:
        check_tables(config)
        vocabulary = _vocabulary(config, read)
        levels = level_sizes(config.model, config.levels, vocabulary)
        sizes = sizes_of(config, vocabulary, levels)
    except SwarmError as error:
        found.append(Problem("model", str(error)))
        return Report(config.name, tuple(found), documents=sample)
    rounds = tuple(round_time(config, index, levels, crowd) for index in range(len(config.stages)))
    return Report(config.name, tuple(found), sizes, rounds, sample, tuple(_notes(config, rounds, sample)))


def _vocabulary(config: RunConfig, read: Read | None) -> int:
    """Tokens; of a tokenizer that is yet to be trained as many as it may have. Raises SwarmError."""
    if config.model.vocab_size is not None:
        return config.model.vocab_size
    if config.tokenizer.path is None:
        return config.tokenizer.vocab_size
    return vocabulary_size(read.tokenizer if read else load_tokenizer(tokenizer_from_path(config.tokenizer.path)))


def _notes(config: RunConfig, rounds: Sequence[RoundTime], sample: DocumentSample | None) -> Iterator[str]:
    for time in rounds:
        if time.advice:
            yield f"stage {time.stage}: {time.advice}"
    for stage, last in zip(config.stages, range(1, len(config.stages) + 1), strict=True):
        if config.rounds_of(stage) is None and last < len(config.stages):
            yield f"stage {last - 1} has neither rounds nor tokens: it ends when you say `dipaco-bootstrap advance`"
    steps = config.steps_of(config.stages)
    if steps and not 0.8 <= config.inner.schedule_steps / steps <= 1.25:
        yield (
            f"the stages have {steps:,} inner steps of a path, and inner.schedule_steps = "
            f"{config.inner.schedule_steps:,}: the learning rate falls over those, and then stays at its last value"
        )
    ratios = {key: getattr(config.inner, key) for key in ("embedding_learning_rate_ratio", "head_learning_rate_ratio")}
    large = [f"{key} = {ratio:g}" for key, ratio in ratios.items() if ratio > 1]
    if config.model.checkpoint is not None and large:
        yield (
            f"inner.{' and '.join(large)}: for small models that begin from nothing; a model that goes on from "
            f"{config.model.checkpoint} wants 1"
        )
    for source in sample.sources if sample is not None else ():
        if source.reached is not None and source.reached < SHORT_OF * source.wanted and source.epochs is not None:
            yield (
                f"{source.called} is read {words.times(source.epochs)} and then left out: it makes "
                f"{words.percent(source.reached)} of the text and not {words.percent(source.wanted)}, unless the run "
                "ends before; bring more of it, raise its epochs, or lower its weight"
            )
    for routed in sample.routed if sample is not None else ():
        if routed.problem:
            yield f"stage {routed.stage}: {routed.problem}"
        elif routed.smallest is not None and routed.smallest < SMALL_SHARE:
            yield (
                f"stage {routed.stage}: the smallest path gets {words.percent(routed.smallest)} of an equal split of "
                "these documents; raise router.min_share"
            )


# ---------------------------------------------------------------------------------------------------------- for people


def _lines(report: Report) -> Iterator[tuple[str, str]]:
    yield "run", f"{report.name}: {'nothing wrong found' if report.ok else _mistakes(len(report.problems))}"
    if report.sizes is not None:
        yield from _of_sizes(report.sizes)
    for time in report.rounds:
        yield f"a round of stage {time.stage}", _of_round(time)
    if report.documents is not None:
        yield from _of_documents(report.documents)


def _of_source(source: SourceSample) -> str:
    text = f"{source.source} {source.path or ''}".strip() + f": {words.percent(source.wanted)} of the text"
    if source.size is not None:
        text += f", {words.size(source.size)}"
    if source.epochs is not None:
        text += f", read {words.times(source.epochs)} until each was read once"
    return f"{text}; {source.documents:,} documents looked at, {words.count(source.characters)} characters"


def _mistakes(count: int) -> str:
    return f"{words.counted(count, 'mistake')}, in red below"


def _of_sizes(sizes: Sizes) -> Iterator[tuple[str, str]]:
    levels = ", ".join(words.count(level) for level in sizes.levels)
    yield "a path", f"{words.count(sizes.path)} parameters; a module of each level: {levels}"
    peer = sizes.peer
    yield (
        "a volunteer",
        f"{words.size(peer.memory)} of memory, or {words.size(peer.gpu)} on a GPU and "
        f"{words.size(peer.memory_beside_gpu)} beside it; {words.size(peer.disk)} of disk; and what a batch and the "
        "documents take",
    )
    yield "this node", f"{words.size(sizes.node_disk)} of disk"
    for stage in sizes.stages:
        yield f"stage {stage.index}", _of_stage(stage)


def _of_stage(stage: StageSize) -> str:
    until = "until you say so"
    if stage.rounds is not None and stage.tokens is not None:
        until = f"{words.counted(stage.rounds, 'round')}, {words.count(stage.tokens)} tokens a path"
    return (
        f"{stage.router}: {words.counted(stage.paths, 'path')}, {words.counted(stage.modules, 'module')}, "
        f"{words.count(stage.parameters)} parameters in all; {until}"
    )


def _of_round(time: RoundTime) -> str:
    text = f"up to {words.counted(time.members, 'member')} a module; a peer sends {words.size(time.sends)}"
    text += f" in {words.how_long(time.exchange)}"
    if time.training is not None and time.seconds is not None:
        text += f", trains {words.how_long(time.training)}; one every {words.how_long(time.seconds)}"
    if time.stage_seconds is not None:
        text += f", the stage {_days(time.stage_seconds)}"
    return text


def _days(seconds: float) -> str:
    return words.how_long(seconds) if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


def _of_documents(found: DocumentSample) -> Iterator[tuple[str, str]]:
    domains = ", ".join(f"{name} {count}" for name, count in found.domains.items())
    splits = ", ".join(f"{count} {name}" for name, count in sorted(found.splits.items()))
    yield (
        "documents",
        f"the first {found.documents:,} in {found.seconds:.1f} s: {words.count(found.characters)} characters, "
        f"{words.count(found.tokens)} tokens in {found.pieces:,} pieces; {splits}",
    )
    yield "domains", domains
    for source in found.sources:
        yield f"source {source.index}", _of_source(source)
    for routed in found.routed:
        if routed.smallest is not None and routed.largest is not None:
            yield (
                f"routed, stage {routed.stage}",
                f"smallest path {routed.smallest:.2f}, largest {routed.largest:.2f} of an equal split (with an "
                "untrained model)",
            )
