"""The benchmark of hostile peers, short: what it says of one who is left out, and of one who only talks."""

import gc
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.hostile import virtual
from benchmarks.hostile.columns import Columns, is_role
from benchmarks.hostile.cost import cost_of
from benchmarks.hostile.pure import SETTINGS, Bench, Defence, play
from dipaco_swarm.testing.cast import ROLES


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """The benchmark sets its process up for itself: other tests want their log, their threads and their collector."""
    threads, thresholds = torch.get_num_threads(), gc.get_threshold()
    yield
    logging.disable(logging.NOTSET)
    torch.set_num_threads(threads)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_who_flips_is_as_if_it_were_not_there_and_ruins_a_plain_mean(tmp_path: Path) -> None:
    bench = Bench(tmp_path, seed=0, rounds=3)
    setting = SETTINGS["1 of 5 replicas"]
    alone = play(bench, setting, Defence(), None)
    flipped = play(bench, setting, Defence(), "flip")
    assert flipped.losses == alone.losses
    assert flipped.counted == {"honest": [24, 24], "hostile": [0, 6]}
    assert play(bench, setting, Defence("mean", 4.0), "flip").losses[-1] > alone.losses[-1] + 0.05


def test_a_stranger_who_claims_tokens_changes_nothing() -> None:
    found = virtual.play("claims-tokens", 2, seed=1)
    assert found.adopted == found.ended == found.counted == 0
    assert found.versions[0] > 0


def test_every_role_says_what_it_does() -> None:
    for name, role in ROLES.items():
        assert role.about, name
        assert role.make() is not role.make(), f"each peer has a {name} of its own"


def test_aims_that_are_missed_are_named() -> None:
    fine = Columns((4.0, 4.0, 4.0), (0.9, 0.9, 0.9), 0.0, 0, 0)
    bad = Columns((4.0, 1.0, 2.0), (0.9, 0.2, 0.9), 0.5, 1, 2)
    assert not fine.missed("takeover")
    assert bad.missed("takeover") == [
        "state adopted",
        "process ended",
        "slower meanwhile",
        "slower afterwards",
        "a stranger counts",
    ]
    assert Columns.mean([fine, bad]).adopted == 1
    settled = replace(bad, adopted=0, ended=0, versions=(4.0, 1.0, 4.0), settled=4.0)
    assert not settled.missed("flip*2"), "who takes part has half of the time to be found in"
    assert replace(settled, settled=8.0).missed("mute") == ["rounds come early"]
    assert replace(fine, held=(0.5, 1.6)).missed("tarpit*10") == ["training held up"]
    assert not replace(fine, held=(0.5, 1.4)).missed("tarpit")


@pytest.mark.parametrize(
    ("role", "exists"),
    [("flip", True), ("flip*2", True), ("flop", False), ("flip*", False), ("flip*0", False), ("flip*99", False)],
)
def test_a_row_is_a_role_or_several_names_that_play_it(role: str, exists: bool) -> None:
    assert is_role(role) == exists


def test_what_the_defences_cost_is_measured_of_the_real_functions() -> None:
    found = cost_of(4, parameters=4 << 16, times=3)
    assert found.signing_ms > 0
    assert found.robust_ms > 0
    assert found.sealed_bytes == 3 * (16 + 64)
    assert found.missed == ["bytes"] * (found.sealed_bytes > 0.03 * found.sent_bytes)
    assert replace(found, members=8, signing_ms=6.0, certificate=2001).missed == ["signatures", "certificate"]
