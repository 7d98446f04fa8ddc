"""Which announced state is asked for, when nobody sends some of them."""

from collections.abc import Sequence
from typing import cast

import pytest
import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.swarm.encoded_average import MAX_CHAIN
from dipaco_swarm.swarm.fetching import Older
from dipaco_swarm.swarm.interface import Announcement, PeerName, Swarm
from dipaco_swarm.swarm.newest import FORGIVEN_SECONDS, InVainBy, NewestStates, Trust
from tests.fetches import Over

MODULE, OTHER = ModuleId(0, 0), ModuleId(1, 0)
LIAR, HONEST = PeerName("liar"), PeerName("honest")
SEED = ModuleState.seed(torch.zeros(3))
OURS, NEWER, NEWEST = Claim.of(SEED), Claim(1, "a" * 64, 100), Claim(2, "b" * 64, 200)


class Holders:
    """A swarm in which only some states are sent, at a time that the test sets."""

    def __init__(self, sent: Sequence[Claim] = ()) -> None:
        self.sent = {claim.digest for claim in sent}
        self.now = 1000.0
        self.clock = self
        self.doubted: list[Claim] = []
        self.older: Older | None = None
        """What the last one who asked had."""

    def monotonic(self) -> float:
        return self.now

    def begin_fetch(
        self, stage: int, module: ModuleId, digest: str, *, older: Older | None = None, **_: object
    ) -> Over:
        self.older = older
        return Over(SEED if digest in self.sent else None)

    def believed(
        self, stage: int, module: ModuleId, ours: Claim, claims: Sequence[Claim], *, timeout: float
    ) -> list[Claim]:
        return [claim for claim in claims if claim.beats(ours) and claim not in self.doubted]

    def newest(self, *, again_after: float = 0.0, give_up_after: float = float("inf")) -> NewestStates:
        return NewestStates(cast(Swarm, self), again_after=again_after, give_up_after=give_up_after)


def said(*claims: Claim, peers: str = "") -> list[Announcement]:
    """One peer for each, or those whose names are these letters."""
    names = peers or "abcdefgh"
    return [
        Announcement(PeerName(name), 0, MODULE, PathIndex(0), claim.version, claim.digest, claim.work)
        for name, claim in zip(names, claims, strict=False)
    ]


def test_the_best_state_is_asked_for_and_ours_is_not() -> None:
    newest = Holders([NEWEST]).newest()
    assert newest.better(0, MODULE, OURS, said(NEWER, NEWEST, OURS)) == NEWEST
    assert newest.better(0, MODULE, NEWEST, said(NEWER, NEWEST)) is None
    assert newest.better(0, MODULE, OURS, []) is None
    assert newest.fetch(0, MODULE, NEWEST) is SEED


def test_averages_are_asked_for_by_who_is_a_few_versions_behind() -> None:
    holders = Holders([NEWEST])
    newest = NewestStates(cast(Swarm, holders), follow=lambda module: lambda state, averages, room: None)
    newest.fetch(0, MODULE, NEWEST)  # a guest has nothing to go on from
    assert holders.older is None
    for behind, asked in ((MAX_CHAIN, True), (MAX_CHAIN + 1, False), (0, True)):  # 0: one of the two went astray
        newest.fetch(0, MODULE, Claim(behind, NEWEST.digest), ours=SEED)
        assert (holders.older is not None) == asked, behind
    holders.newest().fetch(0, MODULE, NEWEST, ours=SEED)  # who does not know the outer steps
    assert holders.older is None


def test_a_state_that_nobody_sent_is_left_alone_for_a_while_and_others_are_not() -> None:
    holders = Holders()
    newest = holders.newest(again_after=10)
    assert newest.fetch(0, MODULE, NEWEST) is None
    holders.now += 9.9
    assert newest.better(0, MODULE, OURS, said(NEWEST)) is None
    assert newest.better(0, OTHER, OURS, said(NEWEST)) == NEWEST
    further = Claim(3, "c" * 64, 300)  # the group has gone on, and holds the newest one
    assert newest.better(0, MODULE, OURS, said(NEWEST, further)) == further
    holders.now += 0.1
    assert newest.better(0, MODULE, OURS, said(NEWEST)) == NEWEST


def test_a_state_that_nobody_sends_for_long_is_not_believed_any_more() -> None:
    holders = Holders()
    newest = holders.newest(give_up_after=30)
    newest.fetch(0, MODULE, NEWEST)
    holders.now += 29
    newest.fetch(0, MODULE, NEWEST)  # it counts from the first time
    assert newest.better(0, MODULE, OURS, said(NEWER, NEWEST)) == NEWEST
    holders.now += 1
    assert newest.better(0, MODULE, OURS, said(NEWER, NEWEST)) == NEWER


def test_a_guest_asks_once_for_each_state_the_best_first() -> None:
    newest = Holders([NEWER]).newest(give_up_after=0)
    asked = []
    while (claim := newest.better(0, MODULE, Claim(-1, ""), said(OURS, NEWER, NEWEST))) is not None:
        asked.append(claim)
        if newest.fetch(0, MODULE, claim) is not None:
            break
    assert asked == [NEWEST, NEWER]


@pytest.mark.parametrize(("seconds", "rests"), [(1.0, 10.0), (60.0, 600.0)])
def test_who_announces_what_does_not_come_is_asked_after_others_a_new_state_each_time(
    seconds: float, rests: float
) -> None:
    holders = Holders([NEWER])
    newest = holders.newest()
    liar, others = "x", "ab"

    def announced(number: int) -> list[Announcement]:
        return [*said(Claim(9, f"{number:064x}", 900), peers=liar), *said(NEWER, OURS, peers=others)]

    first = newest.better(0, MODULE, OURS, announced(1))
    assert first is not None
    begun = newest.begin(0, MODULE, first)
    holders.now += seconds
    assert newest.take(MODULE, first, begun) is None
    assert newest.better(0, MODULE, OURS, announced(2)) == NEWER
    is_asked = newest.better(0, MODULE, NEWER, announced(3)) is not None  # there is nothing else that we have not
    assert is_asked == (seconds < 5.0)
    holders.now += rests
    assert newest.better(0, MODULE, NEWER, announced(4)) is not None


def test_who_does_so_again_and_again_is_asked_ever_less_and_who_sends_some_of_it_is_not() -> None:
    """Each time it kept everybody from the round that was under way."""
    by, now = InVainBy(), 0.0
    rests = []
    for _ in range(6):
        by.note([LIAR], 1.0, now)
        began, least = now, by.trust([LIAR], now)
        while by.trust([LIAR], now) is not Trust.FULL:
            now += 1.0
        rests.append((least, now - began))
    assert rests == [*[(Trust.LESS, 10.0)] * 2, *((Trust.NONE, 10.0 * times) for times in (1, 2, 4, 8))]
    by.note([LIAR], 1.0, now + FORGIVEN_SECONDS + 1.0)
    assert by.trust([LIAR], now + FORGIVEN_SECONDS + 1.0) is Trust.LESS, "it begins anew"
    for now in range(0, 100, 5):  # two of three come: its group is faster than our line
        by.note([HONEST], 1.0, now)
        by.note_sent([HONEST])
        by.note_sent([HONEST])
        assert by.trust([HONEST], now) is Trust.LESS


def test_who_does_so_for_weeks_rests_no_longer_than_eleven_minutes() -> None:
    """Where nobody else is there it is asked all the same: twice as long again each time is soon no number any more."""
    by = InVainBy()
    for _ in range(2000):
        by.note([LIAR], 1.0, 0.0)
    assert by.trust([LIAR], 639.0) is Trust.NONE
    assert by.trust([LIAR], 640.0) is Trust.FULL


def test_where_nothing_came_from_anybody_all_are_asked_again() -> None:
    """It was our line."""
    holders = Holders()
    newest = holders.newest()
    members = said(NEWEST, NEWEST)
    assert newest.better(0, MODULE, OURS, members) == NEWEST
    begun = newest.begin(0, MODULE, NEWEST)
    holders.now += 60.0
    assert newest.take(MODULE, NEWEST, begun) is None
    assert newest.better(0, MODULE, OURS, members) == NEWEST
    assert newest.better(0, MODULE, OURS, [*members, *said(OURS, peers="c")]) is None
    assert newest.better(0, MODULE, OURS, [*members, *said(NEWEST, peers="c")]) == NEWEST
