"""What is going on, as a picture of all processes at one moment: read from their metrics and logs, then drawn."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dipaco_swarm.dashboard.drawing import BOLD, CALM, GOOD, QUIET, WARN, Bar, frame, sparkline
from dipaco_swarm.dashboard.metrics import read_metrics
from dipaco_swarm.dashboard.views import duration

Line = dict[str, Any]
SPARKS = 18
"""Characters of a loss curve on the screen."""


@dataclass(frozen=True)
class Curve:
    """A training loss over the steps of one process."""

    name: str
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    stages: tuple[int, ...]
    """The stage of each point."""


@dataclass(frozen=True)
class Actor:
    """One process, as the audience sees it."""

    name: str
    says: str
    """The last event of its log."""
    finished: bool
    stage: int | None = None
    curve: Curve | None = None
    rounds: int | None = None
    tokens: int = 0
    tokens_per_second: float = 0.0

    @property
    def step(self) -> int:
        return self.curve.steps[-1] if self.curve and self.curve.steps else 0


@dataclass(frozen=True)
class Agreement:
    """Over all (stage, module, version) that more than one peer made: whether all made the same bytes."""

    shared: int = 0
    same: int = 0


@dataclass(frozen=True)
class Scene:
    """All of it."""

    seconds: float
    stages: int
    total_steps: int
    actors: tuple[Actor, ...]
    agreement: Agreement

    @property
    def stage(self) -> int:
        """The stage that the peers are in."""
        return max((actor.stage or 0 for actor in self.actors), default=0)

    @property
    def share(self) -> float:
        """How much of all training is done, 0 to 1."""
        training = [actor for actor in self.actors if actor.name != "bootstrap"]
        done = sum(min(1.0, actor.step / self.total_steps) for actor in training)
        return done / len(training) if training else 0.0

    def summary(self) -> str:
        """One line for a log."""
        parts = [f"stage {self.stage} (of {self.stages})"]
        for actor in self.actors:
            if actor.curve and actor.curve.losses:
                parts.append(f"{actor.name} step {actor.step} loss {actor.curve.losses[-1]:.2f}")
        if self.agreement.shared:
            parts.append(f"same bytes {self.agreement.same} of {self.agreement.shared}")
        return ", ".join(parts)


# ------------------------------------------------------------------------------------------------------------- reading


def actor_of(name: str, says: str, finished: bool, home: Path) -> Actor:
    """A process as its home folder tells it."""
    if "tokens/s" in says:  # a summary, not an event: "path 0: waiting for 2 more peers to start, 0 tokens/s, ..."
        says = re.sub(r"^path \d+: ", "", says).split(",")[0]
    lines = read_metrics(home / "metrics.jsonl")
    steps = [line for line in lines if line["kind"] == "steps"]
    if not steps:
        return Actor(name, says.split(";")[0] or "starting", finished)
    rounds = [line["round"] for line in lines if line["kind"] == "round"]
    if says.startswith("round ") or says == "training":  # the figures are in the columns beside it
        says = f"training path {steps[-1]['path']}, round {rounds[-1] + 1 if rounds else 1}"
    says = says.split(";")[0]
    return Actor(
        name,
        says,
        finished,
        steps[-1]["stage"],
        curve_of(name, lines),
        rounds[-1] if rounds else None,
        steps[-1]["tokens"],
        steps[-1]["tokens_per_second"],
    )


def curve_of(name: str, lines: Sequence[Line]) -> Curve:
    """The loss curve in a metrics file."""
    steps = [line for line in lines if line["kind"] == "steps"]
    return Curve(
        name,
        tuple(line["step"] for line in steps),
        tuple(line["loss"] for line in steps),
        tuple(line["stage"] for line in steps),
    )


def agreement_of(homes: Sequence[Path]) -> Agreement:
    """Compare the digests that peers wrote down, module by module and version by version."""
    digests: dict[tuple[int, str, int], Counter[str]] = {}
    for home in homes:
        for line in read_metrics(home / "metrics.jsonl"):
            for module, made in (line["modules"] if line["kind"] == "round" else {}).items():
                digests.setdefault((line["stage"], module, made["version"]), Counter())[made["digest"]] += 1
    shared = [found for found in digests.values() if found.total() > 1]
    return Agreement(len(shared), sum(len(found) == 1 for found in shared))


# ------------------------------------------------------------------------------------------------------------- drawing


def draw_scene(scene: Scene) -> RenderableType:
    """The live picture."""
    table = Table.grid(padding=(0, 2), expand=True)
    for width in (11, 5, 6, 8):
        table.add_column(width=width, no_wrap=True, justify="left" if width == 11 else "right")
    table.add_column(width=SPARKS, no_wrap=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_row(*(Text(word, QUIET) for word in ("", "step", "loss", "tokens/s", "loss so far", "doing")))
    for actor in scene.actors:
        table.add_row(*_row(actor))
    progress = Bar(scene.share, f"{scene.share:.0%} of all steps")
    body = Group(Text(_headline(scene), BOLD), Text(), table, Text(), progress, _agreement(scene.agreement))
    title = Text.assemble(
        ("dipaco-swarm demo", f"{BOLD} {CALM}"),
        (f"  ·  stage {scene.stage} (of {scene.stages})  ·  {duration(scene.seconds)}", QUIET),
    )
    return frame(title, body, "Ctrl+C stops everything")


def _headline(scene: Scene) -> str:
    """What the audience should know now."""
    if all(actor.curve is None for actor in scene.actors):
        return "Getting ready: programs start, a tokenizer is trained, documents are read"
    if scene.stage == 0:
        return "Everybody trains one small model together: the seed of all modules"
    return "Each path trains on its own kind of documents and shares its modules with others"


def _row(actor: Actor) -> list[Text]:
    dot = ("● ", QUIET if actor.finished else GOOD)
    name = Text.assemble(dot, (actor.name, BOLD))
    says = Text(actor.says, QUIET)
    if actor.curve is None or not actor.curve.losses:
        return [name, Text(), Text(), Text(), Text(), says]
    return [
        name,
        Text(f"{actor.step:,}"),
        Text(f"{actor.curve.losses[-1]:.3f}", BOLD),
        Text("" if actor.finished else f"{actor.tokens_per_second:,.0f}"),
        Text(sparkline(actor.curve.losses, SPARKS), CALM),
        says,
    ]


def _agreement(agreement: Agreement) -> Text:
    if not agreement.shared:
        return Text("no outer round yet", QUIET)
    style = GOOD if agreement.same == agreement.shared else WARN
    return Text.assemble(
        (f"{agreement.same} of {agreement.shared}", style), (" shared modules have the same bytes on every peer", QUIET)
    )
