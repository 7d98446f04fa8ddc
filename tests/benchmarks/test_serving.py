"""The benchmark of answers judges what it has seen: each aim that is missed is said, and no other."""

from collections.abc import Sequence

import pytest

from benchmarks.serving.rows import (
    GENERATED,
    SERVED_AFTER,
    SERVED_BY_PEERS,
    SERVED_HERE,
    Answer,
    Beside,
    Killed,
    Results,
    Row,
)


def row(way: str, clients: int, speed: float, *, first: float = 0.1, lost: int = 0, line: str = "no delay") -> Row:
    """`speed`: tokens a second, where a loop beside it has 100."""
    answers = [Answer(first, 64 / speed, 64) for _ in range(16)]
    in_a_loop = [Answer(0.0, 0.64, 64) for _ in answers] if clients == 1 and line == "no delay" else []
    return Row(way, clients, answers, 16 * 64 / speed, lost, line, in_a_loop=in_a_loop)


def results(*others: Row, beside: float = 96.0, identical: int = 200, killed: Sequence[int] = (3, 5)) -> Results:
    """All is well, but for what is given; a later row of the same kind counts."""
    well = {
        (each.way, each.line, each.clients): each
        for each in (
            row(GENERATED, 1, 100),
            row(SERVED_HERE, 1, 95),
            row(SERVED_HERE, 16, 300),
            row(SERVED_BY_PEERS, 1, 95),
            row(SERVED_BY_PEERS, 1, 60, first=0.8, line="home line"),
            row(SERVED_BY_PEERS, 16, 95),
            row(SERVED_AFTER, 1, 95),
            row(SERVED_AFTER, 16, 300),
            *others,
        )
    }
    return Results(
        list(well.values()),
        Beside([102.0, 98.0, 102.0], 80.0, [beside, beside], 4.0),
        Killed(200, identical, list(killed), 3, 1, found=True),
    )


def test_nothing_is_missed_where_all_is_well() -> None:
    assert results().missed == []
    assert any("`serve, here`: 16 clients have 3.2 times the tokens of one" in said for said in results().said)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (results(row(SERVED_HERE, 1, 89)), "serve, here, no delay, one client: 89% of a loop's tokens"),
        (results(row(SERVED_BY_PEERS, 1, 95, first=0.4)), "the first token comes after 0.40 s, aim 0.3 s"),
        (results(row(SERVED_BY_PEERS, 1, 60, first=1.1, line="home line")), "after 1.10 s, aim 1.0 s"),
        (results(row(SERVED_BY_PEERS, 16, 95, lost=1)), "16 clients: 1 answers lost"),
        (results(row(SERVED_HERE, 16, 120)), "serve, here: the most clients have 1.3 times the tokens of one"),
        (results(row(SERVED_AFTER, 16, 120)), "the run is over: the most clients have 1.3 times"),
        (results(beside=94.0), "answers cost 6.0% of training"),
        (results(identical=199), "1 of 200 texts are not the undisturbed ones"),
        (results(killed=(3,)), "1 peers were killed"),
    ],
)
def test_what_is_missed_is_said(found: Results, words: str) -> None:
    (missed,) = found.missed
    assert words in missed


def test_answers_are_compared_with_what_a_loop_wrote_just_before_and_one_stall_says_nothing() -> None:
    served = [Answer(0.1, seconds, 64) for seconds in (1.0, 2.0, 3.0)]
    loop = [Answer(0.0, seconds, 64) for seconds in (0.9, 1.8, 0.3)]
    assert Row(SERVED_HERE, 1, served, 6.0, in_a_loop=loop).of_a_loop == pytest.approx(0.9)
    assert Row(SERVED_HERE, 4, served, 6.0).of_a_loop is None


def test_training_with_askers_is_compared_with_the_training_around_it() -> None:
    slowing_down = Beside([100.0, 90.0, 80.0, 70.0], 50.0, [95 * 0.97, 85 * 0.96, 75 * 0.95], 4.0)
    assert slowing_down.slower == pytest.approx(0.04)
