"""Whom a gateway asks first: who has answered, before names with nobody behind them."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.gateway.asked import Asked, SilentError, Task
from dipaco_swarm.gateway.peers import CANDIDATES, Peers
from dipaco_swarm.swarm.asking import UnansweredError
from dipaco_swarm.swarm.interface import Announcement, PeerName
from dipaco_swarm.swarm.questions import AskText, Begins, Tokens
from dipaco_swarm.training.inference import Sampling
from tests.clocks import HandClock

HONEST, SILENT = [f"honest-{n}" for n in range(3)], [f"silent-{n}" for n in range(40)]
TASK = Task(PathIndex(0), (5,), 0, 0, 1, Asked((5,), Sampling(1.0), 7, 1))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock(1000.0)
    monkeypatch.setattr("dipaco_swarm.gateway.peers.time.monotonic", clock.monotonic)
    return clock


def test_who_answers_is_asked_though_many_names_have_nobody_behind_them(clock: HandClock) -> None:
    def ask(peer: str, asked: AskText, *, patience: float) -> Iterator[object]:
        if peer in SILENT:
            clock.now += patience
            raise UnansweredError("not there")
        clock.now += 0.3
        yield Begins(modules=(("L0M0", 1, "0" * 64),))
        yield Tokens(tokens=(7,))

    said = [
        Announcement(PeerName(name), 0, ModuleId(0, 0), PathIndex(0), 1, "0" * 64, 0) for name in (*HONEST, *SILENT)
    ]
    swarm = SimpleNamespace(
        members=lambda stage, module: said,
        look_up=lambda stage, modules, **how: None,
        asking=SimpleNamespace(ask=ask),
    )
    found = Peers(cast(Any, swarm), 0, PathTable(((0,),)), set())
    answered = 0
    for _ in range(100):
        for writer in found.writers(PathIndex(0)):
            try:
                answered += len(list(writer.write(TASK)))
                break
            except SilentError:
                continue
    assert answered >= 100 - len(SILENT) / CANDIDATES
    assert all(found._record(PeerName(name)).silences <= 2 for name in SILENT)
