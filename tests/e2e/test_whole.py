"""Synchronous means synchronous: who is missing in a run is named, and a node that comes back waits for its peers."""

import time

import pytest
import typer

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.cli.words import EXIT_NOT_WHOLE, worded_failures
from dipaco_swarm.errors import NotWholeError
from dipaco_swarm.events.attendance import LeftEarly, MadeWithout
from dipaco_swarm.events.operator import Serving
from dipaco_swarm.events.training import Round
from dipaco_swarm.swarm.interface import Announcement
from dipaco_swarm.swarm.timing import Timing

from .world import SINGLE, MakeWorld


def test_a_synchronous_run_names_who_is_missing_and_says_in_the_end_that_it_was_not_whole(
    make_world: MakeWorld,
) -> None:
    world = make_world(SINGLE, min_peers=2)
    world.operator().until(Serving)
    staying, _ = world.peer("staying", 0)
    leaving, leave = world.peer("leaving", 0)
    for peer in (staying, leaving):
        assert {made.peers for made in peer.until(Round).modules.values()} == {2}
    assert not staying.said(MadeWithout)
    leave()
    assert leaving.said(LeftEarly, stage=0)
    staying.until(MadeWithout, stage=0, module="L0M0")
    (flaw,) = staying.reported(MadeWithout, module="L0M0")
    assert flaw.missing == ("leaving",)


def test_a_run_that_was_not_whole_has_an_exit_code_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, worded_failures():
        raise NotWholeError("not whole: stage 0: L0M0 v3 was made without leaving")
    assert ended.value.exit_code == EXIT_NOT_WHOLE == 3
    assert "error: not whole" in capsys.readouterr().err


def test_a_node_that_comes_back_after_the_last_stage_waits_for_its_peers(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timing, "greeting", 3.0)
    world = make_world(SINGLE + "rounds = 1\n")
    world.operator().until(Serving)
    world.peer("one", 0)
    world.end()

    screen = world.operator()
    screen.until(Serving)
    time.sleep(1)  # a peer knocks now and then; longer than a look of the node
    with world.hub.open("late") as late:
        late.announce([Announcement(late.peer, 0, ModuleId(0, 0), PathIndex(0), 1, "0" * 64)])
        assert late.newest_manifest(timeout=10) is not None
    world.end()
