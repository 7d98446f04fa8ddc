"""What looks at simulated programs from outside: how long they wait, and what is left of those that are killed."""

import asyncio
import contextlib
import gc
import sys
import warnings
from typing import Any, cast

import pytest
import torch

from dipaco_swarm.algorithm.outer import OuterGradient
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.swarm.interface import Contribution, ModuleGroup, NotAgreed, Outcome
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.testing.ledger import Ledger
from dipaco_swarm.testing.virtual_time import VirtualLoop, context_of
from dipaco_swarm.testing.watched import WatchedSwarm
from tests.clocks import HandClock

OVER = NotAgreed("the peer that led this round went away")


class LongRound:
    """A swarm whose one round ends at a moment; whoever waits for it waits until then at most."""

    peer = "ada"

    def __init__(self, clock: HandClock, ends: float) -> None:
        self.clock = clock
        self._ends = ends

    def begin_round(self, *args: Any, **options: Any) -> "LongRound":
        return self

    def outcome(self, *, timeout: float | None = 0.0) -> Outcome | None:
        if self.clock.now < self._ends and timeout:
            self.clock.now = min(self.clock.now + timeout, self._ends)
        return OVER if self.clock.now >= self._ends else None


def contribution() -> Contribution:
    group = ModuleGroup(0, ModuleId(0, 0), {PathIndex(0): 1.0})
    return Contribution(group, PathIndex(0), 0, OuterGradient(torch.zeros(4), torch.ones(4)), 8, "seed")


@pytest.mark.parametrize("timeout", [0.0, 0.5])
@pytest.mark.parametrize(("ends", "rules"), [(1010.0, []), (1095.0, ["no wait beyond its bound"])])
def test_a_round_is_as_long_as_it_was_seen_to_go_on(ends: float, rules: list[str], timeout: float) -> None:
    clock, ledger = HandClock(), Ledger()
    swarm = WatchedSwarm(cast(NetworkedSwarm, LongRound(clock, ends)), ledger, None)
    under_way = swarm.begin_round(contribution(), patience=6.0)
    clock.now = 1090.0  # a step that takes a minute and a half
    while under_way.outcome(timeout=timeout) is None:
        clock.now += 0.0 if timeout else 1.0
    assert [found.rule for found in ledger.violations] == rules


def killed_before_its_next_step(ended: list[str]) -> None:
    loop = VirtualLoop()  # type: ignore[abstract]

    async def begins() -> None:
        ended.append("what never began")

    async def goes_on(word: asyncio.Event) -> None:
        try:
            await word.wait()
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1.0)
            ended.append("what waits in its end")

    async def story() -> None:
        word = asyncio.Event()
        loop.create_task(goes_on(word), context=context_of("ada"))
        await asyncio.sleep(1.0)
        loop.create_task(begins(), context=context_of("ada"))
        word.set()
        loop.kill("ada")
        await asyncio.sleep(1.0)
        assert not ended

    loop.run_until_complete(story())
    loop.end()


def test_nothing_is_left_to_the_collector_of_who_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        killed_before_its_next_step(ended)
        gc.collect()
    assert ended == ["what waits in its end"]
    assert not heard
    assert not ignored
