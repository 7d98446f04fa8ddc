"""The demo's screen: a live picture on a terminal, calm lines elsewhere, and the end of the story."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from dipaco_swarm.dashboard.shapes import BAD, BOLD, CALM, GOOD, QUIET
from dipaco_swarm.dashboard.views import duration
from dipaco_swarm.demo.scene import Scene, draw_scene

SUMMARY_SECONDS = 20.0
"""How often lines say how far training is."""


class Audience:
    """Whoever watches: `show` is called again and again."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._said: dict[str, str] = {}
        self._summarised_at = -math.inf

    def show(self, scene: Scene) -> None:
        """This is how things are now."""
        if self._live is not None:
            self._live.update(draw_scene(scene))
            return
        for actor in scene.actors:
            said, self._said[actor.name] = self._said.get(actor.name), actor.says
            # how training goes is in the summary
            if actor.says not in ("starting", said) and not actor.says.startswith("training path"):
                self._line(scene, f"{actor.name}: {actor.says}")
        if scene.agreement.shared and scene.seconds - self._summarised_at >= SUMMARY_SECONDS:
            self._summarised_at = scene.seconds
            self._line(scene, scene.summary())

    def _line(self, scene: Scene, text: str) -> None:
        minutes, seconds = divmod(int(scene.seconds), 60)
        self._console.file.write(f"{minutes}:{seconds:02}  {text}\n")  # never wrapped, unlike console.print
        self._console.file.flush()


class Show:
    """What a person sees of the demo, from the first line to the last."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def title(self, folder: Path, paths: int) -> None:
        """What is about to happen."""
        self._console.print(
            Text.assemble(
                ("A small swarm on this machine: ", BOLD),
                f"a bootstrap node and {paths} peers, each a process that talks to the others over libp2p, and beside "
                "them one dense model to compare with. Some minutes on two CPU cores. Everything is kept in ",
                (str(folder), CALM),
            )
        )

    @contextmanager
    def live(self) -> Iterator[Audience]:
        """While the processes run."""
        if not self._console.is_terminal:
            yield Audience(self._console, None)
            return
        with Live(console=self._console, refresh_per_second=4, vertical_overflow="crop") as live:
            yield Audience(self._console, live)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """While the audience waits for the end."""
        if not self._console.is_terminal:
            self._console.print(what)
            yield
            return
        with self._console.status(what):
            yield

    def result(self, ok: bool, verdict: str, table: RenderableType, folder: Path, seconds: float) -> None:
        """The end of the story."""
        kept = (
            ("report.md", "all figures, and what they mean"),
            ("curves.png", "loss curves, and perplexity by domain"),
            ("model", "one path as a transformers folder"),
            ("logs", "what each process said"),
        )
        self._console.print(Padding(table, (1, 0, 1, 2)))
        self._console.print(
            Text.assemble(
                ("● ", GOOD if ok else BAD),
                (verdict, BOLD),
                (f"; equal steps, not equal compute; {duration(seconds)} in all", QUIET),
            )
        )
        for name, what in kept:
            self._console.print(Text.assemble("  ", (str(folder / name), CALM), (f"  {what}", QUIET)), soft_wrap=True)

    def failure(self, text: str) -> None:
        """Why there is no end to tell."""
        self._console.print(Text(text, BAD), soft_wrap=True)
