"""What a status counts: who trains, who holds what it has trained before, who keeps."""

import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, grid
from dipaco_swarm.dashboard.status import status_of
from dipaco_swarm.dashboard.views import SwarmStatus
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


def said(peer: str, version: int = 3, *, speed: float = 100.0, loss: float = 4.0, **more: object) -> Announcement:
    """What a peer that trains path 0 says of the shared module."""
    values = {"path": PathIndex(0), "tokens_per_second": speed, "loss": loss, "work": 1000 * version, **more}
    return Announcement(PeerName(peer), 0, SHARED, version=version, digest=DIGEST, **values)  # type: ignore[arg-type]


def keeper(version: int) -> Announcement:
    return Announcement(PeerName("node"), 0, SHARED, None, version, DIGEST, role=Role.KEEPS)


class Ears:
    """A swarm that has heard these."""

    peer = PeerName("node")

    def __init__(self, *heard: Announcement) -> None:
        self._heard = heard

    def members(self, stage: int, module: ModuleId) -> tuple[Announcement, ...]:
        return tuple(s for s in self._heard if s.module == module)


def seen(*heard: Announcement) -> SwarmStatus:
    stage = manifest().stage.model_copy(update={"table": TABLE.rows, "path_weights": (0.5, 0.5)})
    run = manifest().model_copy(update={"stages": (stage,)})
    return status_of(Ears(*heard), run)  # type: ignore[arg-type]


def test_a_version_that_one_peer_alone_is_far_ahead_with_does_not_count() -> None:
    def version(*heard: Announcement) -> int:
        return next(module.version for module in seen(*heard).modules if module.name == str(SHARED))

    assert version() == 0
    assert version(keeper(3)) == 3
    assert version(keeper(3), said("a", 4)) == 4
    assert version(keeper(3), said("a", 4), said("liar", 10**9)) == 4
    assert version(keeper(3), said("a", 9), said("b", 9), said("liar", 10**9)) == 9  # the node's line is slow
    assert version(keeper(3), said("a", 4), said("x", 10**9, known=False), said("y", 10**9, known=False)) == 4
    assert version(said("a", 7)) == 7  # no node of the operator's is heard of


def test_one_peer_that_lies_moves_neither_speed_nor_loss_far() -> None:
    honest = [said(f"peer {i}") for i in range(4)]
    status = seen(keeper(3), *honest, said("liar", speed=1e12, loss=-1e30))
    assert status.tokens_per_second <= 400.0 + 100 * 100.0
    assert status.loss == status.paths[0].loss == 4.0
    assert [member.loss for member in status.members] == [None, 4.0, 4.0, 4.0, 4.0]
    assert seen(keeper(3), *honest, said("liar", loss=24.0)).loss == 4.0
    work = next(module.work for module in seen(*honest, said("liar", work=1 << 60)).modules if module.peers)
    assert work == 3000


def test_the_pace_that_the_operators_node_goes_by_is_that_of_the_known() -> None:
    honest = [said(f"peer {i}") for i in range(4)]
    strangers = [said(f"stranger {i}", speed=1e9, known=False, path=1) for i in range(50)]
    assert seen(*honest, *strangers).round_seconds == seen(*honest).round_seconds
    assert seen(*strangers).round_seconds is not None, "where nobody is known, all count"


def test_what_came_into_a_module_is_as_the_operators_node_says_whatever_a_newer_version_claims() -> None:
    """Counters keep the largest number that they have seen: one lie stopped everybody's credit for the stage."""
    honest = [said("ada", 10, work=1000), said("ben", 10, work=1000), said("node", 10, work=900)]
    liar = said("liar", 12, work=2**54 - 1, known=False)
    assert next(module.work for module in seen(*honest, liar).modules if module.name == str(SHARED)) == 900


def test_who_trains_is_named_with_what_it_says() -> None:
    (member,) = seen(keeper(3), said("a", moves=True, awake=False)).members
    assert (member.name, member.path, member.version) == ("a", 0, 3)
    assert (member.moves, member.awake, member.reachable) == (True, False, True)
