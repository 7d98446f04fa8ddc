"""When a claim is believed: the table of `algorithm/evidence.py`, row by row, and what holds in every case."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco_swarm.algorithm.evidence import Evidence, Votes, is_believed


@pytest.mark.parametrize(
    ("seen", "believed"),
    [
        (Evidence(), False),
        (Evidence(root=True), True),
        (Evidence(root=True, known=Votes(5, 0)), True),
        # members that we know
        (Evidence(root=False, known=Votes(5, 1)), True),
        (Evidence(root=False, known=Votes(5, 0)), False),
        (Evidence(known=Votes(1, 0), strangers=Votes(9, 9), for_long=True), False),
        # nobody whom we know there
        (Evidence(strangers=Votes(9, 9), known_here=True, for_long=True), False),
        (Evidence(strangers=Votes(9, 9), known_elsewhere=True), False),
        (Evidence(strangers=Votes(9, 9), known_elsewhere=True, for_long=True), True),
        (Evidence(strangers=Votes(9, 4), known_elsewhere=True, for_long=True, made_here=True), False),
        (Evidence(root=False, strangers=Votes(9, 9), for_long=True), False),
        (Evidence(strangers=Votes(2, 2)), True),
        (Evidence(strangers=Votes(2, 1)), False),
        (Evidence(strangers=Votes(2, 1), for_long=True), True),
        (Evidence(strangers=Votes(2, 2), made_here=True), True),
        (Evidence(strangers=Votes(1, 1), made_here=True), False),
        (Evidence(strangers=Votes(1, 1), made_here=True, for_long=True), False),
    ],
)
def test_every_row(seen: Evidence, believed: bool) -> None:
    assert is_believed(seen) is believed


@st.composite
def ballots(draw: st.DrawFn) -> Votes:
    asked = draw(st.integers(0, 16))
    return Votes(asked, draw(st.integers(0, asked)))


evidence = st.builds(
    Evidence,
    root=st.sampled_from([None, False]),
    known=ballots(),
    known_here=st.booleans(),
    known_elsewhere=st.booleans(),
    strangers=ballots(),
    made_here=st.booleans(),
    for_long=st.booleans(),
)


@given(evidence)
def test_strangers_alone_move_nobody_who_knows_somebody_that_is_there(seen: Evidence) -> None:
    assert not is_believed(replace(seen, known=Votes(max(1, seen.known.asked), 0)))


@given(evidence)
def test_what_no_one_has_had_is_not_believed(seen: Evidence) -> None:
    nobody = replace(seen, known=Votes(seen.known.asked), strangers=Votes(seen.strangers.asked))
    assert not is_believed(nobody)


@given(evidence)
def test_time_makes_nobody_doubt(seen: Evidence) -> None:
    assert is_believed(replace(seen, for_long=True)) >= is_believed(replace(seen, for_long=False))
