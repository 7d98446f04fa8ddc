"""What a status counts: who trains, who holds what it has trained before, who keeps."""

import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, grid
from dipaco_swarm.dashboard.status import status_of
from dipaco_swarm.outer_round import holdings
from dipaco_swarm.peer.handover import is_keeper
from dipaco_swarm.swarm.interface import Announcement, PeerName, Role
from tests.doors.test_manifest import manifest
from tests.hub import Hub, until

TABLE = grid([2, 1])
LEFT, SHARED, CURRENT = ModuleId(0, 0), ModuleId(1, 0), ModuleId(0, 1)
DIGEST = "a" * 64


class State:
    """As much of a module's state as an announcement says."""

    version = 3
    digest = DIGEST
    work = 3000


def test_a_module_that_a_mover_left_behind_is_held_and_not_kept(hub: Hub) -> None:
    mover, node = hub.swarm("mover"), hub.swarm("bootstrap")
    trained = [Announcement(mover.peer, 0, m, PathIndex(1), 3, DIGEST, moves=True) for m in (SHARED, CURRENT)]
    mover.announce([*holdings(mover.peer, 0, {LEFT: State()}, moves=True), *trained])  # type: ignore[dict-item]

    def heard(name: str, module: ModuleId) -> bool:
        node.look_up(0, TABLE.modules, timeout=10)
        return any(said.peer == name for said in node.members(0, module))

    until(lambda: all(heard("mover", module) for module in TABLE.modules))
    stage = manifest().stage.model_copy(update={"table": TABLE.rows, "path_weights": (0.5, 0.5)})
    run = manifest().model_copy(update={"stages": (stage,)})

    status = status_of(node, run)
    assert (status.peers, status.keepers) == (1, 0)
    left = next(module for module in status.modules if module.name == str(LEFT))
    assert (left.holders, left.keepers, left.peers) == (1, 0, 0)
    assert not any(is_keeper(said) for said in node.members(0, LEFT))

    node.announce([Announcement(node.peer, 0, m, None, 3, DIGEST, role=Role.KEEPS) for m in TABLE.modules])
    until(lambda: all(heard(node.peer, module) for module in TABLE.modules))
    status = status_of(node, run)
    assert (status.peers, status.keepers) == (1, 1)
    left = next(module for module in status.modules if module.name == str(LEFT))
    assert (left.holders, left.keepers) == (2, 1)


@pytest.mark.parametrize(("path", "role"), [(None, Role.TRAINS), (0, Role.HOLDS), (0, Role.KEEPS)])
def test_who_trains_has_a_path_and_nobody_else(path: int | None, role: Role) -> None:
    with pytest.raises(ValueError, match="L0M0, on path"):
        Announcement(PeerName("peer"), 0, LEFT, None if path is None else PathIndex(path), 3, DIGEST, role=role)
