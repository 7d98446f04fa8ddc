"""When a claim is believed: the table of `algorithm/evidence.py`, row by row, and what holds in every case."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco_swarm.algorithm.evidence import Belief, Evidence, Votes, belief, is_open

NO, BY_AVERAGES, WHOLE = Belief.NO, Belief.BY_AVERAGES, Belief.WHOLE


def votes(asked: int, for_it: int, for_ours: int = 0, makers: int | None = None) -> Votes:
    return Votes(asked, for_it, for_ours, asked if makers is None else makers)


@pytest.mark.parametrize(
    ("seen", "believed"),
    [
        (Evidence(), NO),
        (Evidence(root=True), WHOLE),
        (Evidence(root=True, known=votes(5, 0)), WHOLE),
        # members that we know
        (Evidence(root=False, known=votes(4, 2)), WHOLE),
        (Evidence(root=False, known=votes(5, 2, for_ours=3)), NO),
        (Evidence(known=votes(5, 1, for_ours=1, makers=2)), BY_AVERAGES),
        (Evidence(known=votes(5, 1, for_ours=1, makers=2), for_long=True), WHOLE),
        (Evidence(known=votes(3, 1, for_ours=1)), NO),
        (Evidence(known=votes(3, 1, for_ours=1), for_long=True), WHOLE),
        (Evidence(known=votes(3, 1, for_ours=2), for_long=True), NO),
        (Evidence(known=votes(3, 0, for_ours=1), for_long=True), NO),
        # nobody whom we know
        (Evidence(root=False, strangers=votes(9, 9)), NO),
        (Evidence(strangers=votes(2, 2)), WHOLE),
        (Evidence(strangers=votes(2, 1)), NO),
        (Evidence(strangers=votes(2, 1), for_long=True), WHOLE),
        (Evidence(strangers=votes(2, 1), known=votes(1, 0), made_here=True, for_long=True), NO),
        (Evidence(strangers=votes(2, 2), is_root=True), BY_AVERAGES),
        (Evidence(strangers=votes(2, 2), is_root=True, for_long=True), WHOLE),
    ],
)
def test_every_row(seen: Evidence, believed: Belief) -> None:
    assert belief(seen) == believed


@st.composite
def ballots(draw: st.DrawFn) -> Votes:
    asked = draw(st.integers(0, 16))
    for_it, for_ours = draw(st.integers(0, asked)), draw(st.integers(0, asked))
    return Votes(asked, for_it, for_ours, draw(st.integers(for_it, asked)))


evidence = st.builds(
    Evidence,
    root=st.sampled_from([None, False]),
    known=ballots(),
    strangers=ballots(),
    made_here=st.booleans(),
    is_root=st.booleans(),
    for_long=st.booleans(),
)


@given(evidence)
def test_strangers_alone_move_nobody_who_knows_somebody_that_is_there(seen: Evidence) -> None:
    alone = replace(seen, known=replace(seen.known, for_it=0, asked=max(2, seen.known.asked)))
    assert belief(alone) is NO


@given(evidence)
def test_what_no_one_has_had_is_not_believed(seen: Evidence) -> None:
    nobody = replace(seen, known=replace(seen.known, for_it=0), strangers=replace(seen.strangers, for_it=0))
    assert belief(nobody) is NO


@given(evidence)
def test_time_makes_nobody_doubt_and_decides_what_is_open_only(seen: Evidence) -> None:
    soon, late = replace(seen, for_long=False), replace(seen, for_long=True)
    assert belief(late) >= belief(soon)
    if belief(late) > belief(soon):
        assert is_open(soon)


@given(evidence)
def test_a_vote_more_for_it_is_never_a_reason_against_it(seen: Evidence) -> None:
    known = seen.known
    if known.for_it < known.asked:
        more = replace(known, for_it=known.for_it + 1, makers=min(known.asked, max(known.makers, known.for_it + 1)))
        assert belief(replace(seen, known=more)) >= belief(seen)
