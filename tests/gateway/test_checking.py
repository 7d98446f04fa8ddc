"""Second opinions: whoever gives one may be slow on purpose, and holds up nobody."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.gateway import checking
from dipaco_swarm.gateway.asked import Asked, Piece, Task
from dipaco_swarm.gateway.checking import Answered, Checks
from dipaco_swarm.gateway.peers import PeerWriter
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.training.inference import Sampling
from dipaco_swarm.training.writing import Written
from tests.gateway.scripted import origin_of
from tests.hub import until
from tests.patience import PATIENCE

TASK = Task(PathIndex(0), (5, 6), 0, 0, 500, Asked((5, 6), Sampling(1.0), 7, 500))


@dataclass
class Drip:
    """A writer that is never silent: a token now and then."""

    name: str = "drip"
    began: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def write(self, task: Task) -> Iterator[Piece]:
        self.began.set()
        try:
            for _ in range(task.most_tokens):
                self.over.wait(0.02)
                yield Piece(Written(1, None), origin_of(0))
        finally:
            self.over.set()


def checks_of(*writers: Drip) -> Checks:
    """No run is looked at: what nobody else writes is not checked."""
    checks = Checks(
        cast(Any, SimpleNamespace()),
        lambda module, digest: None,
        lambda peer, why: None,
        lambda path: cast(Iterator[PeerWriter], iter(writers)),
    )
    checks.__dict__["_is_small"] = False
    return checks


def answered(peer: str = "one", tokens: int = 500) -> Answered:
    return Answered(PeerName(peer), TASK, (1,) * tokens, origin_of(0))


def test_a_second_opinion_has_to_be_there_in_the_time_that_one_answer_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "longest", lambda tokens: 0.001 * tokens)
    slow, never_asked = Drip(), Drip("another")
    checks = checks_of(slow, never_asked)
    assert checks._second_opinion(answered()) is None
    assert slow.over.is_set()
    assert not never_asked.began.is_set()


def test_what_another_writes_in_time_is_a_second_opinion() -> None:
    opinion = checks_of(Drip())._second_opinion(answered(tokens=3))
    assert opinion is not None
    assert (opinion.peer, opinion.tokens) == ("drip", (1, 1, 1))


@pytest.mark.parametrize("way", ["close", "finish"])
def test_nobody_waits_for_a_check_that_a_peer_draws_out(way: str) -> None:
    drip = Drip()
    checks = checks_of(drip)
    checks.note(answered())
    checks.note(answered("two"))  # waits
    until(drip.began.is_set)
    closing = threading.Thread(target=checks.close if way == "close" else lambda: checks.finish(0.0), daemon=True)
    closing.start()
    closing.join(2 * PATIENCE)
    assert not closing.is_alive()
    until(drip.over.is_set)
    until(lambda: checks.checked == 1)
    checks.note(answered("three"))
    assert not checks._waiting


def test_those_that_wait_are_checked_where_there_is_time() -> None:
    checks = checks_of(Drip())
    for peer in ("one", "two", "three"):
        checks.note(answered(peer, tokens=1))
    assert checks.finish(20.0 * PATIENCE)
    assert checks.checked == 3


def test_an_answer_that_cannot_be_checked_does_not_end_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = checks_of()
    check, failed = checks.check, threading.Event()

    def fail_once(answered: Answered) -> None:
        if not failed.is_set():
            failed.set()
            raise ValueError("what nobody thought of")
        check(answered)

    monkeypatch.setattr(checks, "check", fail_once)
    checks.note(answered())
    checks.note(answered("two"))
    until(lambda: checks.checked == 2)
    checks.close()
