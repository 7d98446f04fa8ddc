"""The operator takes a live run back to an anchor: real training and the real programs, in one process."""

from dipaco_swarm.algorithm.generations import generation_of
from dipaco_swarm.algorithm.paths import ModuleId, PathTable
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.events.going_back import AnchorKept, NotRolledBack, RolledBack
from dipaco_swarm.events.operator import RunFinished, Serving, StageOpened
from dipaco_swarm.events.training import Round, WentBack
from dipaco_swarm.events.volunteer import Joined, Resumed
from dipaco_swarm.operator.anchors import Anchor, Anchors
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.run.orders import Rollback
from tests.hub import until

from .world import FOUR_PATHS, SINGLE, MakeWorld, World

STAGES = f"{SINGLE}rounds = 2\n{FOUR_PATHS}"
OFTEN = "[anchors]\nevery = 2\nkeep = 16\n"


def kept(world: World, home: OperatorHome | None = None) -> dict[ModuleId, ModuleState]:
    """The states of the newest stage that the operator's node has on its disk, or another node."""
    stage, home = world.manifest().stage, home or world.kept
    states = {module: home.state(stage.index, module) for module in PathTable(stage.table).modules}
    return {module: state for module, state in states.items() if state is not None}


def oldest(world: World) -> int:
    """The version of the module that is furthest behind, of those that the node has on its disk."""
    return min(state.version for state in kept(world).values())


def first_anchor(world: World) -> Anchor | None:
    """Of the second stage."""
    return next((anchor for anchor in Anchors(world.kept.folder).all() if anchor.stage == 1), None)


def test_a_live_run_goes_back_and_who_comes_later_with_an_old_checkpoint_follows(make_world: MakeWorld) -> None:
    world = make_world(STAGES, min_peers=2, pacing="paced", more=OFTEN)
    operator = world.operator()
    operator.until(Serving)
    ada, _ = world.peer("ada", 0)
    ben, _ = world.peer("ben", 3)
    cleo, leave_cleo = world.peer("cleo", 0)
    operator.until(StageOpened, stage=1)
    until(lambda: first_anchor(world) is not None, 60)
    anchor = first_anchor(world)
    assert anchor is not None
    assert anchor.versions[1] > 1
    until(lambda: len(kept(world)) == 4 and oldest(world) > anchor.versions[1], 90)
    leave_cleo()
    assert any(event.stage == 1 for event in cleo.reported(Round))
    world.kept.order(Rollback(anchor=anchor.number))
    back = operator.until(RolledBack)
    assert (back.version_min, back.version_max) == anchor.versions
    for peer in (ada, ben):
        gone = peer.until(WentBack)
        assert gone.version < gone.before
        assert len(peer.reported(Joined)) == 1
    cleo, _ = world.peer("cleo", 0)  # with a checkpoint of what was taken back
    cleo.until(Resumed)
    until(lambda: oldest(world) > back.version_max, 60)
    world.kept.tell_to_advance()
    operator.until(RunFinished)
    world.end()
    assert len(cleo.reported(Joined)) == 1
    manifest = world.manifest()
    assert {state.generation for state in manifest.stage.restored.values()} == {1}
    assert {name for name in manifest.stage.restored} == {"L0M0", "L0M1", "L1M0", "L1M1"}
    assert {generation_of(state.work) for state in kept(world).values()} == {1}
    assert oldest(world) > back.version_max


def test_a_keeper_and_a_node_that_starts_again_are_on_the_restored_line(make_world: MakeWorld) -> None:
    world = make_world(SINGLE, pacing="paced", more=OFTEN)
    operator, stop = world.operator_that_ends()
    operator.until(Serving)
    standby, leave = world.standby("standby")
    peer, leave_peer = world.peer("ada", 0)
    operator.until(AnchorKept, times=2)
    until(lambda: len(kept(world, standby)) == 2, 60)  # what the standby has is about to be taken back
    world.kept.order(Rollback(anchor=1))
    restored = operator.until(RolledBack)
    peer.until(WentBack)
    until(lambda: {generation_of(state.work) for state in kept(world, standby).values()} == {1}, 60)
    leave_peer()
    stop()
    leave()
    assert {generation_of(state.work) for state in kept(world).values()} == {1}
    again, stop = world.operator_that_ends()
    again.until(Serving)
    ada, leave_peer = world.peer("ada", 0)
    ada.until(Round)
    assert not ada.said(WentBack)
    until(lambda: oldest(world) > restored.version_max, 60)
    leave_peer()
    stop()
    world.end()
    assert {generation_of(state.work) for state in kept(world).values()} == {1}


def test_an_order_that_cannot_be_obeyed_is_answered_and_the_run_goes_on(make_world: MakeWorld) -> None:
    world = make_world(SINGLE, more=OFTEN)  # without an end, as a run that is over obeys no order
    operator = world.operator()
    operator.until(Serving)
    peer, _ = world.peer("ada", 0)
    operator.until(AnchorKept)
    world.kept.order(Rollback(anchor=77))
    assert "it is not there" in operator.until(NotRolledBack, anchor=77).why
    world.kept.order(Rollback(anchor=1, modules=("L7M7",)))
    assert "no module L7M7" in operator.until(NotRolledBack, anchor=1).why
    file = next((world.kept.folder / "anchors" / "000001").glob("modules/*L0M0*"))
    whole = file.read_bytes()
    file.unlink()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    world.kept.order(Rollback(anchor=1))
    operator.until(NotRolledBack, times=3)
    world.kept.tell_to_advance()
    operator.until(RunFinished)
    world.end()
    assert not world.manifest().stage.restored
    assert not peer.said(WentBack)
    assert not world.kept.orders()
