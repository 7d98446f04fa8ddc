"""What is going on, as a picture of all processes at one moment: read from their metrics and logs, then drawn."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dipaco_swarm.dashboard.metrics import Following, metrics_file
from dipaco_swarm.dashboard.shapes import BOLD, CALM, GOOD, QUIET, WARN, Bar, frame, sparkline
from dipaco_swarm.dashboard.views import duration
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.training import Round, Steps

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
    """What it reported last."""
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


def actor_of(name: str, finished: bool, home: Path) -> Actor:
    """A process as its home folder tells it."""
    events = events_at(home)
    says = _doing(events)
    steps = [event for event in events if isinstance(event, Steps)]
    if not steps:
        return Actor(name, says, finished)
    rounds = [event.round for event in events if isinstance(event, Round)]
    last = steps[-1]
    return Actor(
        name,
        says,
        finished,
        last.stage,
        curve_of(name, events),
        rounds[-1] if rounds else None,
        last.tokens,
        last.tokens_per_second,
    )


def events_at(home: Path) -> list[Event]:
    """All that a program with this home has reported, the oldest first."""
    return _told_at(home).events()


@cache
def _told_at(home: Path) -> Following:
    return Following(metrics_file(home))


def _doing(events: Sequence[Event]) -> str:
    """What a program is about, in a few words: what it reported last."""
    for event in reversed(events):
        match event:
            case Steps(path=path) | Round(path=path):
                rounds = next((event.round for event in reversed(events) if isinstance(event, Round)), 0)
                return f"training path {path}, round {rounds + 1}"
            case _ if event.for_people:
                return str(event).split(";")[0]
    return "starting"


def curve_of(name: str, events: Sequence[Event]) -> Curve:
    """The loss curve in what a program has reported."""
    steps = [event for event in events if isinstance(event, Steps)]
    return Curve(
        name,
        tuple(event.step for event in steps),
        tuple(event.loss for event in steps),
        tuple(event.stage for event in steps),
    )


def agreement_of(homes: Sequence[Path]) -> Agreement:
    """Compare the digests that peers wrote down, module by module and version by version."""
    digests: dict[tuple[int, str, int], Counter[str]] = {}
    for home in homes:
        for event in events_at(home):
            if isinstance(event, Round):
                for module, made in event.modules.items():
                    digests.setdefault((event.stage, module, made.version), Counter())[made.digest] += 1
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
