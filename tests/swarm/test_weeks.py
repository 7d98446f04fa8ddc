"""What must not add up over weeks of rounds, heartbeats and newcomers, over real libp2p."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.round.exchange import PieceExchange
from tests.hub import until

from .test_contract import MODULE, agreed, gather, group, part, reduce_together

pytestmark = pytest.mark.swarm

MakeSwarms = Callable[[int], list[NetworkedSwarm]]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only what nobody refers to any more is freed, as between two passes of the collector, which are hours apart."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_a_round_that_is_over_holds_no_vectors(
    make_libp2p_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    made: list[weakref.ref[PieceExchange]] = []
    begin = PieceExchange.__init__

    def noted(self: PieceExchange, *arguments: Any) -> None:
        begin(self, *arguments)
        made.append(weakref.ref(self))

    monkeypatch.setattr(PieceExchange, "__init__", noted)
    swarms = make_libp2p_swarms(3)
    weights = group(1 / 3, 1 / 3, 1 / 3)
    gather(swarms, {MODULE: weights}, range(3))
    for swarm in swarms:
        swarm.configure_rounds(codec, 4.0)
    for _ in range(2):
        for outcome in reduce_together(swarms, [[part(i, torch.ones(300_000), weights)] for i in range(3)]):
            agreed(outcome[MODULE])
    assert len(made) == 6
    until(lambda: not any(exchange() for exchange in made))
