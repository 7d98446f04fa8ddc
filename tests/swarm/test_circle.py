"""Whom a peer knows, and which states it says to have had."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm.circle import LONGEST, MOST, Circle, circle_file
from dipaco_swarm.swarm.directory import Directory
from dipaco_swarm.swarm.familiar import Familiar
from dipaco_swarm.swarm.had import REMEMBERED_STATES, HadStates
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.transport import Transport
from tests.clocks import HandClock

MODULE = ModuleId(0, 0)


def claim(version: int, digest: str = "", work: int = 0) -> Claim:
    return Claim(version, digest or f"{version:064x}", work)


def test_whom_we_know_is_known_in_the_next_life(tmp_path: Path) -> None:
    file = circle_file(tmp_path / "home", "fingerprint")
    Circle(file).meet(["a", "b"])
    circle = Circle(file)
    assert "a" in circle
    assert "b" in circle
    assert "c" not in circle
    circle.meet(["c"])
    assert "c" in Circle(file)
    assert "a" not in Circle(circle_file(tmp_path / "home", "another run"))


@pytest.mark.parametrize("ended", ["with a word, the last", "with a word, before others", "without a word"])
def test_only_who_was_the_last_to_leave_knows_that_nobody_is_there_when_it_is_back(tmp_path: Path, ended: str) -> None:
    """Else those whom it knows may be back in a moment, with more than it has, and strangers wait."""
    file, peer, hub = circle_file(tmp_path, "run"), PeerName("us"), SimpleNamespace(lately=set[str]())
    clock = HandClock()

    def life() -> Familiar:
        transport = SimpleNamespace(peer=peer, clock=clock, timing=SimpleNamespace(long_ago=600.0))
        directory = SimpleNamespace(trained_lately=lambda here=False: hub.lately)
        return Familiar(cast(Transport, transport), cast(Directory, directory), Circle(file))

    first = life()
    assert not first.somewhere(), "nobody is known in a first life"
    Circle(file).meet(["friend"])
    again = life()
    assert again.somewhere(), "it was killed"
    clock.now += 600.0
    assert not again.somewhere()
    hub.lately = {"friend"} if "before others" in ended else set()
    if "with a word" in ended:
        again.leave()
    hub.lately = set()
    assert life().somewhere() == (ended != "with a word, the last")
    assert life().somewhere(), "it was killed after that"


def test_who_was_met_longest_ago_is_forgotten_first(tmp_path: Path) -> None:
    circle = Circle()
    circle.meet(f"peer-{n}" for n in range(MOST))
    circle.meet(["peer-0", "newcomer"])
    assert "peer-0" in circle
    assert "newcomer" in circle
    assert "peer-1" not in circle


def test_a_file_that_is_no_list_of_names_is_not_used(tmp_path: Path) -> None:
    file = circle_file(tmp_path, "run")
    file.write_bytes(b"\xff\xfe")
    assert "a" not in Circle(file)
    file.write_text("a\n\x1b[2Jb\n" + "c" * (LONGEST + 1) + "\n")
    circle = Circle(file)
    assert "a" in circle
    assert "\x1b[2Jb" not in circle
    assert "c" * (LONGEST + 1) not in circle
    file.unlink()
    file.mkdir()
    Circle(file).meet(["d"])  # cannot be written; nothing is raised


def test_exactly_the_states_that_we_had_are_confirmed() -> None:
    had = HadStates()
    had.note(0, MODULE, claim(1, work=10))
    assert had.has(0, MODULE, claim(1, work=10))
    assert not had.has(0, MODULE, claim(1, work=11))
    assert not had.has(1, MODULE, claim(1, work=10))
    assert not had.has(0, ModuleId(0, 1), claim(1, work=10))
    for version in range(2, REMEMBERED_STATES + 2):
        had.note(0, MODULE, claim(version))
    assert not had.has(0, MODULE, claim(1, work=10))
    had.forget(0, MODULE)
    assert not had.has(0, MODULE, claim(2))


def test_who_has_contributed_is_known_once_the_next_state_is() -> None:
    had = HadStates()
    assert not had.made(0, MODULE)
    had.note_contributors(0, MODULE, "before", ["a", "b"])
    assert had.made(0, MODULE)
    assert had.makers("after") == ()
    had.note_step(0, MODULE, "before", "after")
    assert had.makers("after") == ("a", "b")
    had.note_step(0, MODULE, "unknown", "other")
    assert had.makers("other") == ()
