"""Where members meet who have joined several leaders: each row of the table in meeting.py is a line here."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.round.gathering import Gathering
from dipaco_swarm.swarm.round.meeting import LONGEST_CHAIN, where_all_meet
from dipaco_swarm.swarm.transport import Transport

US = "n-us"


def met(
    follows: Mapping[str, str], more: str | None = None, says: Mapping[str, str | None] | None = None
) -> str | None:
    """`says`: whom each has joined where that is another than `follows` has."""
    known: dict[str, str | None] = {**follows, **(says or {})}

    async def ask(peer: str) -> str | None:
        return known.get(peer)

    def order(names: Sequence[str]) -> Sequence[str]:
        return sorted(names)

    return asyncio.run(where_all_meet(US, follows, more, order, ask))


@pytest.mark.parametrize(
    ("follows", "there"),
    [
        ({}, None),
        ({"b": US}, None),
        ({"a-first": "a-first"}, "a-first"),
        ({"z-later": "z-later"}, None),
        ({"b": "a-first", "a-first": "a-first"}, "a-first"),
        ({US: "z-later", "z-later": "z-later"}, "z-later"),  # we have joined it
        ({US: "b", "b": "z-later", "z-later": "z-later"}, "z-later"),  # and it has joined another
        ({US: "z-later", "z-later": US}, None),  # each has joined the other: we come first
        ({US: "a-first", "a-first": US}, "a-first"),
        ({US: "b", "b": "c", "c": US}, "b"),  # a circle
        ({US: "y", "y": "z", "z": US}, None),
        ({US: "b", "b": "c", "c": "b"}, None),  # a circle of others, who see to it themselves
    ],
)
def test_all_meet_at_one_leader(follows: Mapping[str, str], there: str | None) -> None:
    assert met(follows) == there


def test_where_more_have_joined_another_all_go_there_whoever_comes_first() -> None:
    follows = {"x": "z-later", "y": "z-later", "z-later": "z-later"}
    assert met(follows, more="z-later") == "z-later"
    assert met(follows) is None


def test_who_has_joined_us_and_is_on_its_way_is_here_and_not_elsewhere() -> None:
    """A leader sent its first member to itself, where the others had joined it as well and had not come yet."""
    transport = cast(Transport, SimpleNamespace(peer=US))
    weights = {PathIndex(0): 1.0}
    key = (0, ModuleId(0, 0), 0)
    group = ModuleGroup(0, ModuleId(0, 0), weights)
    nobody = cast(Any, None)
    gathering = Gathering(key, group, Claim(0, "0" * 64), transport, nobody, nobody, since=0.0)
    gathering.seats["a"] = nobody
    assert gathering.more_elsewhere({"b": US, "c": US}, at_once=True) is None
    assert gathering.more_elsewhere({"b": US, "x": "z-later", "y": "z-later"}, at_once=True) is None
    there = {"b": US, "x": "z-later", "y": "z-later", "z-later": "z-later"}
    assert gathering.more_elsewhere(there, at_once=True) == "z-later"


def test_nobody_is_sent_to_a_leader_that_does_not_lead_any_more_or_does_not_answer() -> None:
    assert met({"b": "a-first"}, says={"a-first": None}) is None
    assert met({"b": "a-first"}, says={"a-first": "c"}) is None
    assert met({"x": "z-later", "y": "z-later"}, more="z-later", says={"z-later": None}) is None
    assert met({US: "b"}, says={"b": None}) is None


def test_a_long_chain_is_not_asked_to_its_end() -> None:
    names = [US, *(f"p{i}" for i in range(LONGEST_CHAIN))]
    follows = dict(itertools.pairwise(names)) | {names[-1]: names[-1]}
    assert met(follows) is None
