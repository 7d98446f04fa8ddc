"""What answers cost a peer that really trains: its speed while it gives what it has saved up; then, in turn, its speed
while it gives what it goes on giving, and alone."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.chaos.crew import Crew, Here, Member
from benchmarks.chaos.story import Story, Verdict
from benchmarks.serving.rows import Beside
from benchmarks.serving.size import Size
from benchmarks.utilisation import to_stderr
from dipaco_swarm.client.sources import visit
from dipaco_swarm.events.usage import Usage
from dipaco_swarm.events.volunteer import Joined
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.swarm.asking import Asking, UnansweredError
from dipaco_swarm.swarm.questions import AskText, Tokens

READY_SECONDS = 240.0
SAYS_SECONDS = 120.0
"""Within which a peer says again what it has trained; every ten, where the machine has time for it."""
ASKERS = 4
USED_UP = "as much as it may"


class Askers:
    """Ask one peer, while a block lasts, again and again, whenever it answers. They compute nothing, and nobody writes
    in its place."""

    def __init__(self, asking: Asking, peer: str, question: AskText) -> None:
        self._asking = asking
        self._peer = peer
        self._question = question
        self._over = threading.Event()
        self.refused = threading.Event()
        """It has given what it had saved up."""
        self.tokens = 0

    @contextmanager
    def at_it(self) -> Iterator[None]:
        self._over.clear()
        self.refused.clear()
        with ThreadPoolExecutor(ASKERS) as pool:
            asking = [pool.submit(self._ask) for _ in range(ASKERS)]
            try:
                yield
            finally:
                self._over.set()
        for each in asking:
            each.result()

    def _ask(self) -> None:
        while not self._over.is_set():
            try:
                for said in self._asking.ask(self._peer, self._question, patience=20.0):
                    if isinstance(said, Tokens):
                        self.tokens += len(said.tokens)
                    if self._over.is_set():
                        return
            except UnansweredError as error:
                if USED_UP in str(error):
                    self.refused.set()
                self._over.wait(min(5.0, max(0.5, error.again_seconds)))


def training_beside(folder: Path, size: Size) -> Beside:
    """One peer in training, on one thread of this machine."""
    folder.mkdir()
    with Crew(folder) as crew:
        config = parse_run_file(size.run_file(rounds=100_000, steps=100))
        story = Story(Here, crew, config, 0, folder / "cache", Verdict(), to_stderr)
        story.bootstrap(until_finished=False)
        peer = story.peer("peer", 0)
        story.until(lambda: bool(peer.reported(Joined)), "the peer joins", READY_SECONDS)
        with visit(RunAddress.parse(story.address)) as (swarm, manifest):
            question = AskText(stage=manifest.stage.index, path=0, text=(60, 61, 62), most_tokens=size.tokens)
            askers = Askers(swarm.asking, peer.reported(Joined)[-1].peer, question)
            story.until(lambda: bool(peer.reported(Usage)), "the peer says what it has trained", READY_SECONDS)
            alone, bursts, asked, written = [_speed(story, peer, size.seconds)], [], [], []
            for _ in range(size.turns):
                with askers.at_it():
                    bursts.append(_speed(story, peer, 1.0, askers.refused.is_set))
                    had, begun = askers.tokens, time.monotonic()
                    asked.append(_speed(story, peer, size.asked_seconds))
                    written.append((askers.tokens - had) / (time.monotonic() - begun))
                alone.append(_speed(story, peer, size.seconds))
    return Beside(alone, bursts[0], asked, statistics.mean(written))


def _speed(story: Story, peer: Member, seconds: float, over: Callable[[], bool] = lambda: True) -> float:
    """Tokens a second that it trains on, from when it last said so, which was a moment ago, for at least so long and
    until it is `over`."""
    begin = peer.reported(Usage)[-1]
    end = _next(story, peer)
    while end.seconds - begin.seconds < seconds or not over():
        end = _next(story, peer)
    return (end.tokens - begin.tokens) / (end.seconds - begin.seconds)


def _next(story: Story, peer: Member) -> Usage:
    """What it says next of its time."""
    had = len(peer.reported(Usage))
    story.until(lambda: len(peer.reported(Usage)) > had, "it says what it has trained", SAYS_SECONDS)
    return peer.reported(Usage)[-1]
