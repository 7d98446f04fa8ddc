"""Whose contributions do harm, whom a peer doubts, and who is left out by whose word."""

from collections.abc import Sequence

import pytest

from dipaco_swarm.algorithm.doubts import FIRST, LONGEST, MAX_DOUBTS, Doubts, Trial, harmful, left_out

NOISE = Trial(0.3, 0.01, 1.0)


def said(words: Sequence[str]) -> dict[str, list[int]]:
    """Whom each of some members doubts -> by which of them each is doubted."""
    return {name: [i for i, names in enumerate(words) if name in names] for name in "abcde"}


def trials(**bends: float) -> dict[str, Trial]:
    return {name: Trial(bend, 0.002, 1.0) for name, bend in bends.items()}


@pytest.mark.parametrize(
    ("found", "bends"),
    [
        ({"x"}, {"a": 0.05, "b": 0.07, "us": 0.02, "x": 0.29}),
        ({"x", "y"}, {"a": 0.05, "b": 0.07, "us": 0.06, "x": 0.4, "y": 0.3}),
        ({"x"}, {"a": 0.05, "us": 0.07, "x": 0.29}),
        # two of three: nobody can say which of them are the ordinary ones
        (set(), {"us": 0.05, "x": 0.29, "y": 0.3}),
        # on our documents ours bends as much as noise: they tell nothing of anybody
        (set(), {"a": 0.05, "b": 0.07, "us": 0.29}),
        (set(), {"a": 0.05, "b": 0.07, "us": 0.16, "x": 0.9}),
        # nor do those of who was in the round for nothing
        (set(), {"a": 0.05, "b": 0.07, "c": 0.02, "x": 0.29}),
        # far more than the others, and far less than noise: a path whose documents are of another kind
        (set(), {"a": 0.005, "us": 0.007, "x": 0.1}),
        # more than noise, as all do in this module
        (set(), {"a": 0.9, "us": 0.7, "x": 1.4}),
        (set(), {"x": 0.3, "us": 0.01}),
        (set(), {"a": -0.05, "b": -0.2, "c": -0.1}),
    ],
)
def test_what_bends_the_loss_far_more_than_the_others_do_does_harm(found: set[str], bends: dict[str, float]) -> None:
    assert harmful(trials(**bends), "us", NOISE) == found


def of_lengths(**of: tuple[float, float]) -> dict[str, Trial]:
    """How much each bends, and how long it is."""
    return {name: Trial(bend, 0.002, length) for name, (bend, length) in of.items()}


def test_of_who_trains_what_we_do_twice_what_ours_bends_at_its_length_is_ordinary() -> None:
    of_another_domain = {"a": (0.02, 1.0), "b": (0.03, 1.0)}
    assert harmful(of_lengths(us=(0.10, 1.0), x=(0.19, 1.0), **of_another_domain), "us", NOISE) == set()
    assert harmful(of_lengths(us=(0.10, 1.0), x=(0.31, 1.0), **of_another_domain), "us", NOISE) == {"x"}
    assert harmful(of_lengths(us=(0.01, 0.4), x=(0.16, 1.2), **of_another_domain), "us", NOISE) == set()
    assert harmful(of_lengths(us=(0.01, 1.2), x=(0.16, 1.2), **of_another_domain), "us", NOISE) == {"x"}


def test_how_much_ours_bends_is_compared_at_a_usual_length() -> None:
    others = {"a": (0.02, 1.0), "b": (0.03, 1.0), "x": (0.9, 1.0)}
    assert harmful(of_lengths(us=(0.04, 0.5), **others), "us", NOISE) == set()
    assert harmful(of_lengths(us=(0.04, 1.0), **others), "us", NOISE) == {"x"}
    assert harmful(of_lengths(us=(0.0, 0.0), **others), "us", NOISE) == set(), "we have trained nothing"


def test_documents_on_which_not_even_noise_is_seen_tell_nothing() -> None:
    assert harmful(trials(a=0.01, us=0.01, x=0.5), "us", Trial(0.03, 0.01, 1.0)) == set()
    assert harmful(trials(a=0.01, us=0.01, x=0.5), "us", Trial(-0.03, 0.001, 1.0)) == set()


def test_a_bend_within_its_errors_is_none() -> None:
    assert harmful({**trials(a=0.01, us=0.01), "x": Trial(0.5, 0.2, 1.0)}, "us", NOISE) == set()


def test_a_doubt_lasts_longer_each_time() -> None:
    doubts, lasted = Doubts(), []
    for _ in range(7):
        assert doubts.note({"x", "a"}, {"x"}) == {"x"}
        assert doubts.note({"x", "a"}, {"x"}) == set()  # it is not new
        count = 0
        while doubts.peers == ("x",):
            assert doubts.note({"x", "a"}, set()) == set()
            count += 1
        lasted.append(count)
    assert lasted == [FIRST, 8, 16, 32, LONGEST, LONGEST, LONGEST]


def test_who_was_not_tried_is_doubted_on() -> None:
    doubts = Doubts()
    doubts.note({"x"}, {"x"})
    for _ in range(100):
        doubts.note({"a", "b"}, set())
    assert doubts.peers == ("x",)


def test_of_too_many_those_are_said_who_did_harm_most_often() -> None:
    names = {f"peer-{i:02}" for i in range(MAX_DOUBTS + 5)}
    doubts = Doubts()
    doubts.note({"again"}, {"again"})
    for _ in range(FIRST):
        doubts.note({"again"}, set())
    doubts.note({"again", *names}, {"again", *names})
    assert len(doubts.peers) == MAX_DOUBTS
    assert doubts.peers[0] == "again"


@pytest.mark.parametrize(
    ("out", "doubts"),
    [
        (set(), ["", "", "", ""]),
        ({3}, ["d", "d", "", ""]),
        ({3}, ["d", "d", "d", ""]),
        (set(), ["d", "", "", ""]),
        (set(), ["", "", "", "abc"]),  # one who slanders all
        ({0, 1}, ["", "", "ab", "ab"]),  # two of four are more than half of the other three
        ({3}, ["d", "d", "d", "abc"]),
        (set(), ["a", "", "", "d"]),  # nobody has a word about itself
        ({0, 1, 2, 3}, ["bcd", "acd", "abd", "abc"]),
        (set(), ["ddd", "", "", ""]),
        (set(), ["e", "e", "e", "e"]),  # somebody who is not there
    ],
)
def test_who_is_doubted_by_more_than_half_of_the_others_is_left_out(out: set[int], doubts: list[str]) -> None:
    assert left_out(list("abcd"), said(doubts), [0.25] * 4) == out


def test_a_voice_counts_what_it_counts() -> None:
    assert left_out(list("abcd"), said(["d", "", "", ""]), [0.5, 0.2, 0.2, 0.1]) == {3}
    assert left_out(list("abcd"), said(["", "d", "d", ""]), [0.5, 0.2, 0.2, 0.1]) == set()


def test_a_half_is_not_more_than_half() -> None:
    assert left_out(list("abcde"), said(["", "", "", "a", "a"]), [0.2] * 5) == set()
    assert left_out(list("abc"), said(["", "a", ""]), [1 / 3] * 3) == set()


def test_of_two_nobody_is_left_out() -> None:
    assert left_out(["a", "b"], said(["b", "a"]), [0.5, 0.5]) == set()
