"""Rounds that are under way while the program does something else, on every network."""

import time

import pytest
import torch

from dipaco_swarm.swarm.interface import Agreed, NotAgreed
from tests.hub import until

from .conftest import MakeSwarms
from .test_contract import MODULE, gather, group, part

ONES = torch.ones(5000)


def test_a_round_goes_on_while_the_program_looks_elsewhere(make_swarms: MakeSwarms) -> None:
    swarms, weights = make_swarms(2), group(0.5, 0.5)
    gather(swarms, {MODULE: weights}, [0, 1])
    for swarm in swarms:
        swarm.configure_rounds("fp32", 4.0)
    first = swarms[0].begin_round(part(0, ONES, weights), patience=20.0)
    until(lambda: swarms[1].is_gathering(0, MODULE, 0))  # and the other is called
    assert first.outcome() is None
    second = swarms[1].begin_round(part(1, 3 * ONES, weights), patience=20.0)
    for under_way in (first, second):
        outcome = under_way.outcome(timeout=30.0)
        assert isinstance(outcome, Agreed)
        assert torch.equal(outcome.mean, 2 * ONES)
        assert under_way.outcome() is outcome  # however often it is asked
    assert not swarms[1].is_gathering(0, MODULE, 0)


def test_a_round_that_is_left_is_over_and_gave_nothing(make_swarms: MakeSwarms) -> None:
    swarms, weights = make_swarms(2), group(0.5, 0.5)
    gather(swarms, {MODULE: weights}, [0, 1])
    for swarm in swarms:  # the other can say that it is there, and comes later
        swarm.configure_rounds("fp32", 4.0)
    under_way = swarms[0].begin_round(part(0, ONES, weights), patience=60.0)
    assert under_way.outcome(timeout=0.2) is None
    under_way.cancel()
    assert under_way.outcome(timeout=10.0) == NotAgreed("interrupted")


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_ctrl_c_ends_what_is_under_way(make_swarms: MakeSwarms, when: str) -> None:
    swarms, weights = make_swarms(2), group(0.5, 0.5)
    gather(swarms, {MODULE: weights}, [0, 1])
    swarms[0].configure_rounds("fp32", 4.0)
    if when == "before":
        swarms[0].interrupt()
    under_way = swarms[0].begin_round(part(0, ONES, weights), patience=60.0)
    swarms[0].interrupt()
    began = time.monotonic()
    assert under_way.outcome(timeout=None) == NotAgreed("interrupted")
    assert time.monotonic() - began < 5
