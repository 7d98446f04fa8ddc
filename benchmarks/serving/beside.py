"""What answers cost a peer that really trains: its speed alone, while it gives what it has saved up, and after that."""

import threading
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

READY_SECONDS, BURST_SECONDS = 240.0, 300.0
ASKERS = 4
USED_UP = "as much as it may"


class Askers:
    """Ask one peer, again and again, whenever it answers. They compute nothing, and nobody writes in its place."""

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
        story.until(lambda: len(peer.reported(Usage)) > 1, "the peer says what it has trained", READY_SECONDS)
        with visit(RunAddress.parse(story.address)) as (swarm, manifest):
            question = AskText(stage=manifest.stage.index, path=0, text=(60, 61, 62), most_tokens=size.tokens)
            askers = Askers(swarm.asking, peer.reported(Joined)[-1].peer, question)
            before, _ = _speed(story, peer, lambda passed: passed >= size.seconds)
            with askers.at_it():
                at_first, _ = _speed(story, peer, lambda passed: passed >= 10.0 and askers.refused.is_set())
                had = askers.tokens
                later, seconds = _speed(story, peer, lambda passed: passed >= 2 * size.seconds)
                written = (askers.tokens - had) / seconds
            after, _ = _speed(story, peer, lambda passed: passed >= size.seconds)
    return Beside(before, at_first, later, after, written)


def _speed(story: Story, peer: Member, over: Callable[[float], bool]) -> tuple[float, float]:
    """Tokens a second that it trains on until then, and the seconds. `over`: is told how many have passed."""
    begin = _last(peer)
    most = 3 * BURST_SECONDS
    story.until(
        lambda: _last(peer).seconds > begin.seconds and over(_last(peer).seconds - begin.seconds), "it trains on", most
    )
    end = _last(peer)
    return (end.tokens - begin.tokens) / (end.seconds - begin.seconds), end.seconds - begin.seconds


def _last(peer: Member) -> Usage:
    """What it said last of its time."""
    return peer.reported(Usage)[-1]
