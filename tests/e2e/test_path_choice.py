"""Where a peer with --path auto goes, from what it hears of the others."""

from pathlib import Path

import pytest

from dipaco_swarm.algorithm.paths import PathIndex, grid
from dipaco_swarm.outer_round import holdings
from dipaco_swarm.peer import path_choice
from dipaco_swarm.peer.path_choice import PathChoice
from dipaco_swarm.swarm.interface import Announcement, Role
from dipaco_swarm.swarm.networked import NetworkedSwarm
from tests.doors.test_manifest import manifest
from tests.hub import Hub, until

TABLE = grid([2, 1])  # two paths, which share their second module
DIGEST = "a" * 64


class State:
    """As much of a module's state as an announcement says."""

    version = 3
    digest = DIGEST
    work = 3000


def trains(swarm: NetworkedSwarm, path: int) -> None:
    modules = TABLE.modules_of(PathIndex(path))
    swarm.announce([Announcement(swarm.peer, 0, m, PathIndex(path), 3, DIGEST, 3000, moves=True) for m in modules])


def heard(swarm: NetworkedSwarm) -> int:
    """From how many peers this one has a word."""
    swarm.look_up(0, TABLE.modules, timeout=10)
    return len({said.peer for module in TABLE.modules for said in swarm.members(0, module)})


@pytest.mark.parametrize("moves", [True, False], ids=["on its way to another path", "leaving"])
def test_who_is_on_its_way_takes_an_empty_path_and_who_leaves_takes_none(
    hub: Hub, tmp_path: Path, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_choice, "STAY_FACTOR", 1e9)  # nobody has stayed long enough for a round of the paths
    ours, other, third = hub.swarm("bootstrap"), hub.swarm("m-other"), hub.swarm("z-third")
    stage = manifest().stage.model_copy(update={"table": TABLE.rows, "path_weights": (0.5, 0.5)})
    choice = PathChoice(ours, None, tmp_path)
    trains(ours, 0)
    trains(third, 0)
    left = {module: State() for module in TABLE.modules_of(PathIndex(0))}
    other.announce(holdings(other.peer, 0, left, moves=moves))  # type: ignore[arg-type]

    for swarm in (ours, third):
        until(lambda swarm=swarm: heard(swarm) == 3)  # type: ignore[misc]
    # two peers crowd path 0: one of them goes to path 1, unless somebody is on the way there already
    assert choice.after_a_stay(stage, TABLE, PathIndex(0)) == 0
    assert PathChoice(third, None, tmp_path).after_a_stay(stage, TABLE, PathIndex(0)) == (0 if moves else 1)


def test_a_path_is_not_done_because_somebody_says_so(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_choice, "STAY_FACTOR", 1e9)
    ours, third, node, liar = (hub.swarm(name) for name in ("bootstrap", "z-third", "node", "liar"))
    stage = manifest().stage.model_copy(update={"table": TABLE.rows, "path_weights": (0.5, 0.5), "rounds": 20})
    trains(ours, 0)
    trains(third, 0)
    keeps = [Announcement(node.peer, 0, m, None, 3, DIGEST, 3000, role=Role.KEEPS) for m in TABLE.modules]
    node.announce(keeps)
    away = TABLE.modules_of(PathIndex(1))
    liar.announce([Announcement(liar.peer, 0, m, None, 20, DIGEST, 9999, role=Role.HOLDS) for m in away])
    until(lambda: heard(third) == 4)
    assert PathChoice(third, None, tmp_path).after_a_stay(stage, TABLE, PathIndex(0)) == 0, "path 1 seems to be done"
    assert PathChoice(third, None, tmp_path, {node.peer}).after_a_stay(stage, TABLE, PathIndex(0)) == 1
