"""The benchmark of hostile peers, short: what it says of one who is left out, and of one who only talks."""

import gc
import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from benchmarks.hostile import seeds, text, virtual
from benchmarks.hostile.__main__ import main
from benchmarks.hostile.alarms import GROUPS, PACES, Witness
from benchmarks.hostile.columns import OUT_WITHIN, Columns, is_role
from benchmarks.hostile.cost import cost_of
from benchmarks.hostile.pure import SETTINGS, Bench, Defence, play
from benchmarks.hostile.real import processors_left, versions_a_minute
from benchmarks.hostile.seeds import Kept
from benchmarks.hostile.text import DOMAINS
from benchmarks.hostile.trainee import BATCH, Trainee
from benchmarks.hostile.virtual import NOBODY, SIZES, WORST, Seen, Window
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.repeats import Earlier, repeated
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.testing.cast import ROLES
from dipaco_swarm.training.documents import Document
from tests.long import cases


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The benchmark sets its process up for itself: other tests want their log, their threads and their collector."""
    for module, name, _ in virtual.INSTEAD:
        monkeypatch.setattr(module, name, getattr(module, name))
    threads, thresholds = torch.get_num_threads(), gc.get_threshold()
    yield
    logging.disable(logging.NOTSET)
    torch.set_num_threads(threads)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that keeps the text, once it was read."""
    return tmp_path_factory.mktemp("text")


def test_who_flips_is_as_if_it_were_not_there_and_ruins_a_plain_mean(read: Path) -> None:
    bench = Bench(read, seed=0, rounds=3)
    setting = SETTINGS["1 of 5 replicas"]
    alone = play(bench, setting, Defence(), None)
    flipped = play(bench, setting, Defence(), "flip")
    assert flipped.losses == alone.losses
    assert flipped.counted == {"honest": [24, 24], "hostile": [0, 6]}
    assert play(bench, setting, Defence("mean", 4.0), "flip").losses[-1] > alone.losses[-1] + 0.05


def test_a_python_without_the_text_is_told_of_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = [Document("def f(): ...", domain) for domain in DOMAINS if domain != "stubs"]
    monkeypatch.setattr(text, "read_documents", lambda data: iter(bare))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.chdir(tmp_path)
    assert main(["--poison", "--quick", "--out", str(tmp_path)]) == 2
    assert "has no stubs among its sources" in capsys.readouterr().err


@pytest.mark.parametrize("attack", cases("mixed", long=["stale"]))
def test_who_is_found_by_trying_is_left_out_and_nobody_honest_is(attack: str, read: Path) -> None:
    tried, longer = (
        play(Bench(read, seed=0, rounds=rounds), SETTINGS["1 of 5 paths"], Defence(), attack) for rounds in (6, 12)
    )
    assert tried.doubted == longer.doubted == {"hostile-0"}
    assert 1 <= longer.counted["hostile"][0] <= 6  # of twelve: in six, how soon hangs on the text of the Python at hand
    assert 1 <= tried.counted["hostile"][0] <= 5
    assert tried.counted["honest"] == [48, 48]


@pytest.mark.long
def test_in_members_of_any_pace_no_harm_is_found_and_in_noise_it_is(read: Path) -> None:
    (pairs,) = (group for group in GROUPS if group.name == "pairs of four domains")
    witness = Witness(torch.Generator().manual_seed(0))
    bench = Bench(read, seed=0, rounds=6, longer=6)
    play(bench, replace(pairs, steps=PACES["unlike"]), Defence(), "noise", look=witness)
    assert not [look for look in witness.seen if look.honest and look.found]
    at_the_first = [look.found for look in witness.seen if not look.honest and look.level == 0]
    assert sum(at_the_first) > 0.5 * len(at_the_first)
    assert max(look.of_noise for look in witness.seen if look.honest and look.level == 1) > 1, "so heads are"


def test_few_steps_beside_many_are_no_repeat_and_the_same_ones_are(read: Path) -> None:
    bench, steps = Bench(read, seed=0, rounds=24), (1, 40, 40)  # a laptop beside others
    members = [Trainee("", 0, bench.rows(DOMAINS), bench.inner, seed) for seed in range(len(steps))]
    states = {ModuleId(level, 0): ModuleState.seed(start.clone()) for level, start in enumerate(bench.start)}
    head, seen = ModuleId(1, 0), Earlier(torch.Generator().manual_seed(0))
    tokens = {f"m{i}": of_one * BATCH for i, of_one in enumerate(steps)}
    repeats, as_if_all_claimed_as_much = set[str](), set[str]()
    for _ in range(5):
        ways = [trainee.train(states, [*states], of_one)[1] for trainee, of_one in zip(members, steps, strict=True)]
        given = {f"m{i}": [(slice(0, len(way)), way)] for i, way in enumerate(ways)}
        cosines = seen.repeats(head, len(ways[0]), given, given)
        repeats |= repeated(cosines, tokens, "m1")
        as_if_all_claimed_as_much |= repeated(cosines, dict.fromkeys(tokens, 40), "m1")
    assert not repeats
    assert as_if_all_claimed_as_much == {"m0"}
    again = seen.repeats(head, len(ways[0]), given, given)
    assert repeated({**cosines, "m0": again["m0"]}, tokens, "m1") == {"m0"}


def test_a_stranger_who_claims_tokens_changes_nothing() -> None:
    row = "claims-tokens", 2
    alone, seen = virtual.play(*virtual.baseline(*row), seed=1), virtual.play(*row, seed=1)
    found = virtual.columns_of(row[0], alone, seen)
    assert found.adopted == found.ended == found.counted == 0
    assert found.versions[0] > 0
    assert found.versions[1] > 0


@pytest.mark.parametrize("seed", cases(149, long=[160]))
def test_two_silent_members_of_six_part_nobody_from_the_others(seed: int) -> None:
    """Who had come too late to the rounds in which they were found followed one of them, and made another version."""
    seen = virtual.play("mute*2", 6, seed)
    assert not seen.forks
    assert seen.second.versions >= 3


def test_who_has_just_made_a_round_of_another_module_waits_for_the_others_of_this_one() -> None:
    """Two pairs know each other by a module of their own: one of them waited three seconds for the shared one's first
    round, as it had trained for a moment since, and each made a first version."""
    assert not virtual.play(NOBODY, 4, seed=38).forks


@pytest.mark.parametrize(
    "role", cases("wrong-flipped", "freezer", long=["mute", "mute-reducer", "equivocator", "staller"])
)
def test_who_does_harm_in_rounds_is_out_after_few_of_them(role: str) -> None:
    seen = virtual.play(role, 4, seed=1)
    assert not seen.not_out
    assert seen.out is not None
    assert 1 <= seen.out <= OUT_WITHIN[role]
    assert seen.ended == seen.forks == 0


def test_every_role_says_what_it_does() -> None:
    for name, role in ROLES.items():
        assert role.about, name
        assert role.make() is not role.make(), f"each peer has a {name} of its own"


def test_aims_that_are_missed_are_named() -> None:
    fine = Columns((4.0, 4.0, 4.0), (0.9, 0.9, 0.9), 0.0, 0, 0)
    bad = Columns((4.0, 1.0, 2.0), (0.9, 0.2, 0.9), 0.5, 1, 2)
    assert not fine.missed("takeover", 4)
    assert bad.missed("takeover", 4) == [
        "state adopted",
        "process ended",
        "slower meanwhile",
        "slower afterwards",
        "a stranger counts",
    ]
    assert not replace(fine, versions=(4.0, 3.7, 4.0)).missed("tarpit", 4)
    assert replace(fine, versions=(4.0, 3.7, 4.0)).missed("dead*50", 4) == ["slower meanwhile"]
    settled = replace(bad, adopted=0, ended=0, versions=(4.0, 1.0, 4.0), settled=4.0)
    assert not settled.missed("flip*2", 6), "who takes part has half of the time to be found in"
    assert replace(settled, settled=8.0).missed("mute", 4) == ["rounds come early"]
    assert replace(settled, out=(3,)).missed("mute", 4) == ["out late"]
    assert not replace(settled, out=(2,), not_out=1).missed("mute", 4), "it was not met often enough"
    assert not replace(settled, out=(9,)).missed("mute*2", 4), "no majority, no promise"
    assert replace(fine, held=(0.5, 1.6)).missed("tarpit*10", 4) == ["training held up"]
    assert not replace(fine, held=(0.5, 1.4)).missed("tarpit", 4)


def test_of_many_seeds_the_mean_pace_is_judged_and_what_must_not_be_in_all_of_them() -> None:
    fine = Columns((8.0, 8.0, 8.0), (0.9, 0.9, 0.9), 0.0, 0, 0, settled=8.0, held=(0.0, 0.0), grain=0.4, forks=0)
    slow = replace(fine, versions=(8.0, 4.0, 8.0), settled=3.0)
    assert not Columns.of([fine, slow, *[fine] * 8]).missed("mute", 4)
    assert Columns.of([fine, slow, fine]).worst == (0.5, 0.375, 1.0)
    assert Columns.of([fine, slow, fine]).versions == pytest.approx((8.0, 20 / 3, 8.0))
    assert Columns.of([slow, fine, slow]).missed("mute", 4) == ["slower meanwhile"]
    assert not Columns.of([slow, fine, slow]).missed("mute", 2), "one of two decides nothing, and nor does the other"
    assert Columns.of([fine, fine, replace(fine, forks=1)]).missed("mute", 4) == ["two states of a version"]
    assert Columns.of([replace(fine, forks=1), *[fine] * 49]).missed("mute", 4) == [], "as many as honest ones make"
    assert Columns.of([fine, fine, replace(fine, adopted=1)]).missed("far", 4) == ["state adopted"]
    assert Columns.of([replace(fine, ended=1), fine]).missed("far", 2) == ["process ended"]


def test_a_version_in_a_window_is_chance_in_one_seed_and_not_in_a_hundred() -> None:
    one = Columns((8.0, 7.0, 7.0), (0.9, 0.9, 0.9), 0.0, 0, 0, settled=7.0, grain=0.4)
    assert not one.missed("far", 4)
    assert Columns.of([one] * 100).missed("far", 4) == ["slower meanwhile", "slower afterwards"]


@pytest.mark.parametrize(
    ("begin", "end", "pace"),
    [(10.5, 25.5, 24.0), (11.9, 26.9, 24.0), (100.0, 115.0, 60 / 40), (0.5, 5.5, 60 / 7), (130.0, 145.0, 60 / 47.5)],
)
def test_versions_in_a_window_have_fractions(begin: float, end: float, pace: float) -> None:
    """One every 2.5 s until 97.5, then one after 40 s; what comes after the last one is not known."""
    made = [7.5 + 2.5 * number for number in range(37)] + [137.5]
    assert versions_a_minute(made, begin, end) == pytest.approx(pace)
    assert versions_a_minute([], begin, end) == 0


def test_a_pace_is_judged_by_the_processors_that_are_left() -> None:
    shared = Columns((28.0, 20.0, 28.0), (1.0, 0.75, 1.0), 0.0, 0, 0, grain=4.0)
    assert shared.missed("flip", 4) == ["slower meanwhile"]
    assert not replace(shared, processors=0.75).missed("flip", 4)


@pytest.mark.parametrize(
    ("speed", "is_stranger", "left"),
    [(0.9, False, 0.9), (0.4, False, 0.75), (1.1, False, 1.0), (0.8, True, 1.0)],
)
def test_who_takes_part_has_its_share_of_the_processors_and_a_stranger_none(
    speed: float, is_stranger: bool, left: float
) -> None:
    assert processors_left(speed, 3, is_stranger=is_stranger) == left


def test_what_was_played_is_kept_and_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[tuple[str, int, int]] = []
    window = Window(45.0, 6, 0.9, 0.0)

    def play(*one: Any) -> Seen:
        played.append(one)
        return Seen(window, window, window, adopted=0 if one[0] == NOBODY else one[2])

    monkeypatch.setattr(seeds, "play", play)
    rows, file = [("far", 4), ("mute", 2)], tmp_path / "kept" / "virtual.jsonl"
    far, mute = ([(NOBODY, alone), row] for alone, row in zip((4, 1), rows, strict=True))
    assert seeds.sweep(rows, 2, 1, Kept(file))["far", 4].adopted == 1
    again = seeds.sweep(rows, 3, 1, Kept(file))
    assert played == [(*row, seed) for seed in range(3) for row in far + mute], (
        "all roles have as many seeds, if it is stopped"
    )
    assert again["mute", 2].adopted == 3
    assert again["mute", 2].seeds == 3
    assert not seeds.sweep(rows, 9, 1, Kept(tmp_path / "other"), seconds=0.0)
    monkeypatch.setattr(seeds, "digest_of_code", lambda: "another")
    assert not Kept(file).found


def test_the_sizes_of_a_role_share_its_seeds_by_turns() -> None:
    rows = [("mute", 2), ("mute", 4), ("far", 4), ("flip*2", 6)]
    of = [one for one in seeds.turns(rows, 4) if one[0] != NOBODY]
    assert of[:6] == [("mute", 2, 0), ("far", 4, 0), ("flip*2", 6, 0), ("mute", 4, 0), ("far", 4, 1), ("flip*2", 6, 1)]
    assert of[6:8] == [("mute", 2, 1), ("far", 4, 2)]
    assert Counter(role for role, _, _ in of) == {"mute": 4, "far": 4, "flip*2": 4}
    every = [*seeds.turns(rows, 4)]
    assert len(every) == len({*every}), "what is compared with several is played once"
    assert all(every.index((*virtual.baseline(*one[:2]), one[2])) < every.index(one) for one in of)


def test_large_groups_have_fewer_seeds_and_another_form_of_a_role_as_well() -> None:
    rows = seeds.plan(["mute", "wrong-hidden"], ())
    of = Counter(one[:2] for one in seeds.turns(rows, 50) if one[0] != NOBODY)
    assert of == {
        ("mute", 2): 20,
        ("mute", 4): 20,
        ("mute", 8): 10,
        ("wrong-hidden", 2): 4,
        ("wrong-hidden", 4): 4,
        ("wrong-hidden", 8): 2,
    }
    assert len({*seeds.turns(rows, 50)}) == len([*seeds.turns(rows, 50)])
    assert {*seeds.turns(rows, 10)} < {*seeds.turns(rows, 50)}, "more of them are gone on with"
    assert {role for role, _ in seeds.plan((), ())} > seeds.VARIANTS


def test_rows_of_a_table() -> None:
    assert seeds.plan(["flip*2", "mute"], ()) == [
        ("flip*2", 4),
        ("flip*2", 5),
        ("flip*2", 6),
        *[("mute", n) for n in SIZES],
    ]
    assert seeds.plan(["mute", "flip*2"], (3,)) == [("mute", 3), ("flip*2", 3)]
    assert seeds.plan(["mute*3"], ()) == [("mute*3", size) for size in SIZES]
    whole = seeds.plan((), ())
    assert {("mute", 8), ("flip", 5), ("dead*50", 4)} <= {*whole}
    assert len(whole) == len({*whole})
    assert {*WORST} <= {*whole}
    assert len(WORST) == 10


@pytest.mark.parametrize(
    ("role", "exists"),
    [("flip", True), ("flip*2", True), ("flop", False), ("flip*", False), ("flip*0", False), ("flip*99", False)],
)
def test_a_row_is_a_role_or_several_names_that_play_it(role: str, exists: bool) -> None:
    assert is_role(role) == exists


def test_what_the_defences_cost_is_measured_of_the_real_functions() -> None:
    found = cost_of(4, parameters=16 << 16, times=3)  # with four pieces, one looked at in 16 rounds is much
    assert found.signing_ms > 0
    assert found.robust_ms > 0
    assert found.hashing_ms > 0
    assert found.checking_ms > 0
    assert found.sealed_bytes == 3 * (16 + 64) + 12 * 64
    assert found.checked_bytes < 0.03 * found.sent_bytes
    assert found.missed == ["bytes"] * (found.bytes_share > 0.03)
    assert replace(found, members=8, signing_ms=6.0, certificate=2001).missed == ["signatures", "certificate"]


def test_words_for_people_make_no_other_story() -> None:
    code = 'def f(x: int) -> int:\n    """Adds one."""\n    return x + 1\n'
    assert seeds.without_words(code) == seeds.without_words(
        "def f(x: int) -> int:\n    # one more\n\n    return (x + 1)"
    )
    assert seeds.without_words(code) != seeds.without_words(code.replace("+ 1", "+ 2"))
    assert seeds.without_words(code) != seeds.without_words(code.replace("x + 1", '"Adds one."'))


@pytest.mark.parametrize("role", cases("equivocator", long=["takeover", "flip", "tarpit", "mute"]))
def test_what_counts_as_silent_does_nothing_in_a_story(role: str) -> None:
    """A seed that was played counts although that has changed."""
    files = {code for module, code in _files_of_the_package().items() if seeds.is_silent(module)}
    ran = set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        ran.add(frame.f_code.co_filename if frame.f_code.co_name != "<module>" else "")

    virtual.play(role, 2, 0)  # what runs when a module is imported is no story
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        virtual.play(role, 2, 0)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    of_package = {*_files_of_the_package().values()} & ran
    assert len(of_package) > 100, "of a whole swarm"
    assert not files & ran


def _files_of_the_package() -> dict[str, str]:
    loaded = ((name, getattr(module, "__file__", None)) for name, module in [*sys.modules.items()])
    return {name: file for name, file in loaded if file is not None and name.startswith("dipaco_swarm.")}
