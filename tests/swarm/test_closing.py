"""When a leader stops gathering a round: its table, row by row, and who is missing."""

from dataclasses import replace

import pytest

from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm.round.closing import Begin, CatchUpFirst, Closing, GatheringView, JoinThere, Wait, close

BETTER = Claim(5, "b" * 64, 900)


def view(seated: str, live: str = "", lately: str = "", elsewhere: str = "", gone: str = "") -> GatheringView:
    """Names parted by spaces; two seconds of a patience of ten are over."""
    sets = [frozenset(names.split()) for names in (seated, live, lately, elsewhere, gone)]
    return GatheringView(sets[0], sets[1], 2.0, 10.0, lately=sets[2], elsewhere=sets[3], gone=sets[4])


HALF = view("nora", live="nora ole")


@pytest.mark.parametrize(
    ("now", "closing"),
    [
        (replace(HALF, ahead=(BETTER, "pia"), first="pia", waited=99.0), CatchUpFirst(BETTER, "pia")),
        (replace(HALF, first="pia", waited=99.0), JoinThere("pia")),
        (view("nora ole", live="nora ole"), Begin()),
        (view("", live="nora ole"), Begin()),  # all who had joined have left
        (replace(HALF, waited=10.1), Begin()),
        (replace(HALF, waited=9.9), Wait()),
        # strangers begin nothing while somebody known may come
        (replace(HALF, known=frozenset({"ole"}), waited=99.0), Wait()),
        (replace(HALF, known=frozenset({"ole"}), elsewhere=frozenset({"ole"})), Begin()),
        (replace(HALF, known=frozenset({"nora", "ole"}), waited=99.0), Begin()),
    ],
)
def test_the_first_row_that_fits_decides(now: GatheringView, closing: Closing) -> None:
    assert close(now) == closing


@pytest.mark.parametrize(
    ("now", "missing", "missing_if_whole"),
    [
        (HALF, "ole", "ole"),
        (view("nora", live="nora ole pia", elsewhere="ole"), "pia", "pia"),
        # one question without an answer may be a slow line
        (replace(HALF, unanswered={"ole": 1}), "ole", "ole"),
        (replace(HALF, unanswered={"ole": 2}), "", "ole"),
        # announced, and nobody could dial it for long: it is asked once in each gathering
        (view("nora", live="nora ole", gone="ole"), "ole", "ole"),
        (replace(view("nora", live="nora ole", gone="ole"), unanswered={"ole": 2}), "", ""),
        # who was there lately: missed where hardly anybody has come, and always where everybody is waited for
        (view("nora", live="nora", lately="ole pia"), "ole pia", "ole pia"),
        (view("nora quinn rea", live="nora quinn rea", lately="ole pia"), "", "ole pia"),
        (replace(view("nora", lately="ole pia"), unanswered={"ole": 1}), "pia", "ole pia"),
        (view("nora", lately="ole pia", gone="ole"), "ole pia", "pia"),
        # a stranger: for a twentieth of the patience, and no less than a moment
        (replace(HALF, strangers=frozenset({"ole"}), waited=0.5), "ole", "ole"),
        (replace(HALF, strangers=frozenset({"ole"}), waited=0.6), "", ""),
        (replace(HALF, strangers=frozenset({"ole"}), waited=0.6, moment=1.0), "ole", "ole"),
    ],
)
def test_who_is_missing(now: GatheringView, missing: str, missing_if_whole: str) -> None:
    assert now.missing == set(missing.split())
    assert replace(now, whole=True).missing == set(missing_if_whole.split())


@pytest.mark.parametrize(
    ("now", "few"),
    [
        (HALF, True),
        (view("nora ole", live="nora ole pia"), False),
        (view("nora ole", live="nora ole pia quin"), True),
        (view("nora ole", live="nora ole"), False),
        (view("", live="nora ole"), False),
    ],
)
def test_who_is_no_more_than_are_missing_asks_once_more(now: GatheringView, few: bool) -> None:
    assert now.is_of_few == few
