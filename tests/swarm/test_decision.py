"""What a leader decides about a round: each row of the table in decision.py is a line here."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco_swarm.swarm.round.decision import (
    Abort,
    Commit,
    Compare,
    Decision,
    Drop,
    MemberView,
    Memory,
    RoundView,
    Wait,
    decide,
    stragglers,
)
from dipaco_swarm.swarm.round.reduction import mask_of
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.wire import Alive, Ready

TIMING = Timing()
A, B = b"a" * 32, b"b" * 32
NAMES = "nora", "ole", "pia", "quin"
FRESH = Memory(moved_since=0.0)
LONG_AGO = Memory(moved_since=0.0, few_slow_since=1.0)
"""Stragglers since one second after the beginning: the others needed a second."""


def ready(digest: bytes = A, generation: int = 0, waits_for: Iterable[str] = ()) -> MemberView:
    report = Alive(awaits_averages=mask_of([NAMES.index(name) for name in waits_for]))
    return MemberView("", report=report, ready=Ready(generation=generation, digest=digest))


def waiting(contributions: str = "", averages: str = "", moved: int = 0) -> MemberView:
    """A member without an average. `contributions`, `averages`: the names it waits for, parted by spaces."""
    awaits = [mask_of([NAMES.index(name) for name in names.split()]) for names in (contributions, averages)]
    return MemberView("", report=Alive(awaits_contributions=awaits[0], awaits_averages=awaits[1], moved=moved))


def view(
    *members: MemberView, now: float = 2.0, dropped: Iterable[int] = (), generation: int = 0, waived: Iterable[int] = ()
) -> RoundView:
    named = tuple(replace(member, peer=name) for member, name in zip(members, NAMES, strict=False))
    alive = frozenset(range(len(members))) - set(dropped)
    return RoundView(named, alive, generation, now=now, began=0.0, patience=0.0, waived=frozenset(waived))


def gone(member: MemberView) -> MemberView:
    return replace(member, gone=True)


def whole(view: RoundView) -> RoundView:
    """The same, in a round that waits for everybody."""
    return replace(view, whole=True, patience=60.0)


SLOW_PIA = ready(), ready(), waiting("nora ole")
"""One misses what two send, so it is the one that cannot take it in."""


@pytest.mark.parametrize(
    ("now", "memory", "decision"),
    [
        # gone, though everything else that could be decided is there to be decided
        (view(gone(ready()), ready(B), *SLOW_PIA[2:], now=99.0), LONG_AGO, Drop(frozenset({0}), "went away")),
        (view(*SLOW_PIA, now=9.0), LONG_AGO, Drop(frozenset({2}), "was much slower")),
        (view(*SLOW_PIA, now=5.0), LONG_AGO, Wait()),
        (view(ready(), ready(), ready(), dropped=(1, 2)), FRESH, Abort("more than half of the peers left")),
        (view(ready(), ready(), ready(), ready(), dropped=(1, 2)), FRESH, Commit(A, 0)),
        (view(ready(), waiting(moved=1), now=16.0), Memory(moved_since=0.0, moved=2), Abort("nothing moved for 15 s")),
        (view(ready(), MemberView(""), now=16.0), Memory(moved_since=0.0, moved=1), Drop(frozenset({1}), "has said n")),
        # the others needed ten seconds: it may need thirty, but not without a byte
        (view(*SLOW_PIA, now=16.0), Memory(0.0, moved=2, few_slow_since=10.0), Drop(frozenset({2}), "was much slower")),
        (view(*SLOW_PIA, now=16.0), Memory(5.0, moved=2, few_slow_since=10.0), Wait()),
        (view(*SLOW_PIA[:2], MemberView(""), now=1.0, waived=(2,)), FRESH, Commit(A, 0)),
        (view(ready(), ready(B), ready(), now=1.0, waived=(1,)), FRESH, Commit(A, 0)),
        (view(ready(), ready(), dropped=(0,), waived=(1,)), FRESH, Abort("all who are left")),
        (view(ready(), MemberView(""), now=14.0), Memory(moved_since=0.0, moved=1), Wait()),
        (view(ready(), ready(B)), FRESH, Compare()),
        (view(ready(), ready(B, generation=1)), FRESH, Wait()),
        (view(ready(), ready()), FRESH, Commit(A, 0)),
        (view(ready(B, 1), ready(B, 1), gone(waiting()), dropped=(2,), generation=1), FRESH, Commit(B, 1)),
        # a round that waits for everybody goes on without nobody
        (whole(view(gone(ready()), ready(B), *SLOW_PIA[2:], now=99.0)), LONG_AGO, Abort("nora went away")),
        (whole(view(*SLOW_PIA, now=59.0)), LONG_AGO, Wait()),
        (
            whole(view(ready(), MemberView(""), now=61.0)),
            Memory(moved_since=0.0, moved=1),
            Abort("nothing moved for 60"),
        ),
    ],
)
def test_the_first_row_that_fits_decides(now: RoundView, memory: Memory, decision: Decision) -> None:
    decided, _ = decide(now, memory, TIMING)
    assert type(decided) is type(decision)
    match decided, decision:
        case Drop(members, why), Drop(expected, begins):
            assert members == expected
            assert why.startswith(begins)
        case Abort(reason), Abort(begins):
            assert reason.startswith(begins)
        case _:
            assert decided == decision


def standing_still(now: float) -> RoundView:
    """Of two none has what the other one sends: nobody alone is to blame."""
    return view(waiting("ole", moved=3), waiting("nora", moved=3), ready(), dropped=(2,), now=now)


def test_bytes_that_move_put_the_end_of_a_standing_round_off() -> None:
    _, memory = decide(standing_still(14.0), FRESH, TIMING)
    assert (memory.moved, memory.moved_since) == (6, 14.0)
    decided, memory = decide(standing_still(28.0), memory, TIMING)
    assert (decided, memory.moved_since) == (Wait(), 14.0)
    decided, _ = decide(standing_still(29.5), memory, TIMING)
    assert isinstance(decided, Abort)


@pytest.mark.parametrize(
    ("needed", "patience", "allowed"),
    [
        (1.0, 0.0, 5.0),  # the floor
        (20.0, 0.0, 60.0),  # three times what the others needed
        (20.0, 400.0, 100.0),  # a quarter of the patience
    ],
)
def test_a_straggler_is_waited_for_as_long_as_the_others_needed_several_times(
    needed: float, patience: float, allowed: float
) -> None:
    round_ = replace(view(*SLOW_PIA), patience=patience)
    _, memory = decide(replace(round_, now=needed), FRESH, TIMING)
    assert memory.few_slow_since == needed
    memory = replace(memory, moved_since=1000.0)  # it is not a round in which nothing moves
    decided, _ = decide(replace(round_, now=needed + allowed), memory, TIMING)
    assert decided == Wait()
    decided, memory = decide(replace(round_, now=needed + allowed + 0.1), memory, TIMING)
    assert isinstance(decided, Drop)
    assert memory.few_slow_since is None, "who is left has its time anew"
    left = replace(view(ready(), waiting(averages="nora"), SLOW_PIA[2], dropped=(2,)), patience=patience)
    since = needed + allowed + 1.1  # they needed another second
    _, memory = decide(replace(left, now=since), memory, TIMING)
    memory = replace(memory, moved_since=1000.0)
    again = max(TIMING.slow_floor, 3 * (needed + 1.0), 0.25 * patience)
    assert decide(replace(left, now=since + again), memory, TIMING)[0] == Wait(), "and no longer: that was not theirs"
    assert isinstance(decide(replace(left, now=since + again + 0.1), memory, TIMING)[0], Drop)


@pytest.mark.parametrize(
    ("members", "slow"),
    [
        (SLOW_PIA, {2}),
        ((ready(), ready(), waiting()), {2}),  # waits for nobody, and is not ready
        ((ready(), ready(), MemberView("")), set()),  # has not reported
        ((waiting("pia"), waiting("pia"), ready()), {2}),  # two complain of one
        ((waiting("ole"), ready(), ready()), {1}),  # a sender has one link
        ((ready(), ready(), waiting(averages="nora")), {2}),  # a receiver of averages would have company
        ((ready(), waiting(averages="nora")), {0}),  # unless there are two in all
        ((waiting("pia"), waiting(averages="nora"), ready()), {2}),  # nora cannot average yet
    ],
)
def test_of_the_two_sides_of_a_complaint_the_one_with_more_complaints_is_slow(
    members: tuple[MemberView, ...], slow: set[int]
) -> None:
    assert stragglers(view(*members)).slow == slow


@pytest.mark.parametrize("dropped", [(), (0,)])
def test_who_complains_of_somebody_who_was_dropped_waits_for_nobody(dropped: tuple[int, ...]) -> None:
    members = ready(), ready(), waiting("nora")
    assert stragglers(view(*members, dropped=dropped)).slow == ({0} if not dropped else {2})


@pytest.mark.parametrize(
    ("members", "slow"),
    [
        ((waiting("ole pia"), waiting("nora"), waiting("nora")), {1, 2}),  # by number it would be nora
        ((ready(), waiting("nora"), waiting("nora")), {1, 2}),
        ((ready(), MemberView(""), ready()), {1}),  # whose words are not waited for
        ((MemberView(""), ready(), waiting("nora")), set()),
        ((waiting(averages="ole"), waiting("pia"), ready()), {1, 2}),  # one stranger is no excuse for another
    ],
)
def test_of_a_stranger_and_somebody_known_the_stranger_is_slow(members: tuple[MemberView, ...], slow: set[int]) -> None:
    assert stragglers(of_strangers(view(*members), 1, 2)).slow == slow


def of_strangers(now: RoundView, *members: int) -> RoundView:
    return replace(now, strangers=frozenset(members))


def test_strangers_do_not_keep_the_others() -> None:
    held = of_strangers(view(waiting("ole pia"), waiting("nora", moved=9), waiting("nora", moved=9), now=9.0), 1, 2)
    _, memory = decide(replace(held, now=1.0), FRESH, TIMING)
    assert memory.few_slow_since == 1.0
    decided, _ = decide(held, memory, TIMING)
    assert isinstance(decided, Drop)
    assert decided.members == {1, 2}
    assert decided.late
    slowly = replace(held, usual=20.0)
    assert decide(slowly, memory, TIMING)[0] == Wait(), "who is alone has nobody to measure them by, but a usual line"
    left = of_strangers(view(ready(), ready(), ready(), dropped=(1, 2)), 1, 2)
    assert decide(left, FRESH, TIMING)[0] == Commit(A, 0), "more than half have left, and nobody that is known"
    alone = of_strangers(view(ready(), ready(), ready(), dropped=(0,)), 1, 2)
    assert isinstance(decide(alone, FRESH, TIMING)[0], Abort)


def test_a_stranger_that_keeps_the_others_and_goes_was_late() -> None:
    held = of_strangers(view(ready(), gone(waiting("nora")), gone(ready()), now=4.0), 1, 2)
    decided, memory = decide(held, Memory(moved_since=0.0, few_slow_since=1.0), TIMING)
    assert (decided, memory.waited) == (Drop(frozenset({1}), "went away", late=True), 3.0)
    decided, _ = decide(replace(held, now=0.5), FRESH, TIMING)
    assert decided == Drop(frozenset({1, 2}), "went away"), "at once: that was its line, and cost nothing"
    decided, _ = decide(replace(held, strangers=frozenset()), FRESH, TIMING)
    assert decided == Drop(frozenset({1, 2}), "went away")


def test_who_says_nothing_is_not_waited_for_whatever_moves() -> None:
    pumped = view(ready(), MemberView(""), waiting("nora", moved=99), now=16.0)
    decided, _ = decide(pumped, Memory(moved_since=15.9, moved=98), TIMING)
    assert decided == Drop(frozenset({1}), "has said nothing about it", late=True)


def test_while_those_who_are_known_wait_for_each_other_strangers_are_not_late() -> None:
    going_on = of_strangers(view(waiting("ole quin"), waiting("nora pia"), waiting("ole"), waiting("nora")), 2, 3)
    assert stragglers(going_on).slow == {0, 1, 2, 3}
    decided, memory = decide(going_on, FRESH, TIMING)
    assert (decided, memory.few_slow_since) == (Wait(), None)


awaited = st.binary(max_size=3)  # also of members that there are not
reports = st.builds(
    Alive, awaits_contributions=awaited, awaits_averages=awaited, moved=st.integers(min_value=0, max_value=3)
)
averages = st.builds(Ready, generation=st.integers(0, 2), digest=st.sampled_from([A, B]))
seconds = st.floats(0.0, 200.0)


@st.composite
def rounds(draw: st.DrawFn) -> RoundView:
    size = draw(st.integers(1, len(NAMES)))
    members = tuple(
        MemberView(name, draw(st.booleans()) and draw(st.booleans()), draw(st.none() | reports), draw(averages))
        for name in NAMES[:size]
    )
    return RoundView(
        members=members,
        alive=frozenset(draw(st.sets(st.integers(0, size - 1)))),
        generation=draw(st.integers(0, 2)),
        now=draw(seconds),
        began=0.0,
        patience=draw(seconds),
    )


memories = st.builds(
    Memory, moved_since=seconds, moved=st.integers(0, 12), few_slow_since=st.none() | st.floats(0.0, 100.0)
)


@given(rounds(), memories)
def test_whoever_is_gone_is_dropped_before_anything_else(now: RoundView, memory: Memory) -> None:
    decided, after = decide(now, memory, TIMING)
    lost = {i for i in now.alive if now.members[i].gone}
    assert (isinstance(decided, Drop) and decided.members == lost) == bool(lost)
    if lost:
        since = now.now if memory.few_slow_since is None else memory.few_slow_since
        assert after == replace(memory, few_slow_since=None, waited=memory.waited + now.now - since)


@given(rounds(), memories)
def test_a_round_that_waits_for_everybody_drops_nobody(now: RoundView, memory: Memory) -> None:
    decided, _ = decide(replace(now, whole=True), memory, TIMING)
    assert not isinstance(decided, Drop)
    if isinstance(decided, Commit):
        assert all(now.ready(i) is not None and not now.members[i].gone for i in now.alive)


@given(rounds(), memories)
def test_no_more_than_half_of_the_members_are_dropped_as_stragglers(now: RoundView, memory: Memory) -> None:
    decided, _ = decide(now, memory, TIMING)
    if isinstance(decided, Drop) and not any(now.members[i].gone for i in decided.members):
        assert 0 < 2 * len(decided.members) <= len(now.alive)
        assert decided.members <= now.alive
        if all(now.members[i].report is None for i in decided.members):
            assert now.now - now.began > TIMING.standstill
            return
        assert memory.few_slow_since is not None
        assert now.now - memory.few_slow_since > TIMING.slow_floor


@given(rounds(), memories)
def test_a_commit_is_one_digest_that_everybody_alive_holds_and_half_of_the_roster(
    now: RoundView, memory: Memory
) -> None:
    decided, _ = decide(now, memory, TIMING)
    if isinstance(decided, Commit):
        assert decided.generation == now.generation
        assert {now.members[i].ready for i in now.alive} == {Ready(generation=now.generation, digest=decided.digest)}
        assert 2 * len(now.alive) >= len(now.members)


@given(rounds(), memories)
def test_the_same_view_gives_the_same_decision(now: RoundView, memory: Memory) -> None:
    again = replace(now, alive=frozenset(sorted(now.alive, reverse=True)))
    assert decide(now, memory, TIMING) == decide(again, memory, TIMING)


@given(rounds())
def test_a_decision_that_waits_drops_or_ends_never_waits_for_ever(now: RoundView) -> None:
    """The members say nothing new: within a bounded time, and with bounded drops, the round is over."""
    memory = Memory(moved_since=now.began)
    for _ in range(2 * len(now.members) + 3):
        decided, memory = decide(now, memory, TIMING)
        if isinstance(decided, Commit | Abort | Compare):  # which ends it, or leaves somebody out
            return
        if isinstance(decided, Drop):
            now = replace(now, alive=now.alive - decided.members, generation=now.generation + 1)
        else:
            now = replace(now, now=now.now + max(1000.0, 4 * now.now))
    raise AssertionError(f"still undecided: {now}")
