"""The benchmark of hostile peers, short: what it says of one who is left out, and of one who only talks."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.hostile import virtual
from benchmarks.hostile.columns import Columns
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
