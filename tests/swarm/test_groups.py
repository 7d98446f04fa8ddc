"""Whose word makes a round due: of those who say more than rounds have of them, nobody's."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.swarm.directory import Directory
from dipaco_swarm.swarm.encoded_average import EncodedAverage
from dipaco_swarm.swarm.groups import Groups
from dipaco_swarm.swarm.interface import Agreed, Contribution, ModuleGroup, PeerName

MODULE, OTHER = ModuleId(0, 0), ModuleId(0, 1)
GROUP = ModuleGroup(0, MODULE, {PathIndex(0): 1.0})
PART = Contribution(GROUP, PathIndex(0), 3, torch.zeros(1), 5, "0" * 64, 0)
US, BEN, CLEO = map(PeerName, ("ada", "ben", "cleo"))


def agreed(tokens: dict[PeerName, int], *left_out: PeerName) -> Agreed:
    return Agreed(cast(EncodedAverage, None), tuple(tokens), tokens, left_out)


@pytest.fixture
def groups() -> Groups:
    """Of a peer that knows all who are there but one."""
    there = [SimpleNamespace(peer=peer, trains=True) for peer in (US, BEN, CLEO, "stranger")]
    return Groups(US, cast(Directory, SimpleNamespace(members=lambda *_: there)), lambda peer: peer != "stranger")


def test_who_has_nothing_in_the_last_round_of_a_module_is_not_heeded_until_the_next(groups: Groups) -> None:
    heeds = groups.heeds
    assert heeds(0, MODULE, BEN)
    groups.agreed(PART, agreed({US: 5, CLEO: 5}, BEN, CLEO))
    assert not heeds(0, MODULE, BEN)
    assert heeds(0, MODULE, CLEO), "most of it counted"
    assert heeds(0, OTHER, BEN)
    groups.agreed(PART, agreed({BEN: 5}, US))
    assert heeds(0, MODULE, BEN)
    assert heeds(0, MODULE, US), "it calls the others itself, by what it has trained since"


def test_it_is_remembered_which_version_was_made_with_others(groups: Groups) -> None:
    has_made = groups.has_made
    assert not has_made(0, MODULE, 4)
    groups.agreed(PART, agreed({US: 5, CLEO: 5}))
    assert has_made(0, MODULE, 4)
    assert not has_made(0, MODULE, 5)
    assert not has_made(0, OTHER, 4)


def test_neither_a_stranger_nor_who_keeps_rounds_waiting_is_heeded(groups: Groups) -> None:
    heeds = groups.heeds
    assert not heeds(0, MODULE, "stranger")
    groups.waits_for = lambda peer: peer != BEN
    assert not heeds(0, MODULE, BEN)
    assert heeds(0, MODULE, CLEO)


@pytest.mark.parametrize(
    ("version", "made_with", "counts"),
    [
        (0, None, True),  # everybody is new there
        (4, None, False),
        (4, [US], False),  # beside the others, who may have made another one
        (4, [US, "stranger"], False),
        (4, [US, CLEO], True),
    ],
)
def test_we_count_in_a_module_once_we_have_made_a_version_with_half_of_those_whom_we_know_there(
    groups: Groups, version: int, made_with: list[PeerName] | None, counts: bool
) -> None:
    if made_with is not None:
        groups.agreed(PART, agreed(dict.fromkeys(made_with, 5)))
    assert groups.counts_us(0, MODULE, version) == counts
    assert not groups.counts_us(0, OTHER, 4)
