"""Leaving, failing and coming back, on one machine's side: the operator's node and peers as threads."""

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dipaco_swarm import files
from dipaco_swarm.algorithm import progress as algorithm_progress
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.progress import Part
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import HomeError
from dipaco_swarm.events.event import Event, Logged
from dipaco_swarm.events.operator import (
    KeptStateDamaged,
    NodeResumed,
    NotAdvancing,
    OlderCopy,
    Serving,
    StageEnds,
    StageOpened,
)
from dipaco_swarm.events.training import Fetched, MemoryDamaged, Round, StateNotSent, TokensDropped
from dipaco_swarm.events.volunteer import (
    BootstrapSilent,
    CannotWrite,
    CheckpointDamaged,
    ClockSet,
    HandedOver,
    HandingOver,
    OnlyHere,
    Recovered,
    Resumed,
    Slept,
    StageBegan,
)
from dipaco_swarm.machine.sleep import SleepDetector
from dipaco_swarm.operator import home as operator_home
from dipaco_swarm.operator import surroundings
from dipaco_swarm.outer_round import RoundReport
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer import company, keeping
from dipaco_swarm.peer.entering import Entering
from dipaco_swarm.peer.handover import HAND_OVER_SECONDS
from dipaco_swarm.peer.keeping import Keeping
from dipaco_swarm.peer.presenter import PeerPresenter
from dipaco_swarm.peer.training_workbench import TrainingWorkbench
from dipaco_swarm.peer.volunteer import Volunteer
from dipaco_swarm.peer.workbench import Bench, Preparation
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, NotAgreed, Outcome, Role, RoundUnderWay
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.states.blobs import BlobStore
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.vouching import Vouching
from dipaco_swarm.training import bank, checkpoint
from dipaco_swarm.training.checkpoint import Checkpoint
from tests.fetches import Over
from tests.hub import until

from .world import FOUR_PATHS, SINGLE, Events, MakeWorld, World

OWN, OTHERS = ModuleId(0, 0), ModuleId(1, 0)  # the modules of path 0, which only it uses beside paths 1 and 2
LONGEST_LINE = 120


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every line of every test is one that a volunteer can read."""
    said: list[str] = []
    remember = Events.event

    def event(self: Events, event: Event) -> None:
        if event.for_people:
            said.append(str(event))
        remember(self, event)

    monkeypatch.setattr(Events, "event", event)
    yield
    for line in said:
        assert "\n" not in line
        assert "Error" not in line, line
        assert "generation" not in line, line
        assert len(line.replace(str(Path.cwd()), "HOME")) <= LONGEST_LINE, line


def checkpoint_file(world: World, name: str, path: int = 0, stage: int = 0) -> Path:
    return world.folder / name / "checkpoints" / f"stage-{stage}-path-{path}.safetensors"


def saved(world: World, name: str, path: int = 0, stage: int = 0) -> Checkpoint:
    found = checkpoint.load(
        checkpoint_file(world, name, path, stage), f"{world.address.name}:{world.address.fingerprint}"
    )
    assert found is not None
    return found


def left_after_two_rounds(world: World) -> Checkpoint:
    """What a peer has saved that left after the run's first two rounds."""
    world.operator().until(Serving)
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=2)
    leave()
    return saved(world, "one")


def kept_versions(world: World, stage: int = 0) -> dict[ModuleId, int]:
    states = {module: world.kept.state(stage, module) for module in (OWN, OTHERS)}
    return {module: state.version for module, state in states.items() if state is not None}


# ------------------------------------------------------------------------------------------------------------- leaving


def test_states_come_while_documents_are_read(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a newcomer, whose documents take longer here than its modules do; what all began with it does not fetch."""
    world = make_world(SINGLE, min_peers=1)
    world.operator()
    one, _ = world.peer("one", 0)
    one.until(Round, round=2)
    read, newcomers = TrainingWorkbench.prepare, list[Events]()

    def read_slowly(workbench: TrainingWorkbench, wanted: Preparation) -> Bench:
        until(lambda: bool(newcomers) and len(newcomers[0].reported(Fetched)) >= 2)
        return read(workbench, wanted)

    monkeypatch.setattr(TrainingWorkbench, "prepare", read_slowly)
    late, _ = world.peer("late", 0)
    newcomers.append(late)
    late.until(Round)
    seeds = world.manifest().stage.seeds.values()
    assert all(BlobStore(world.folder / "one" / "blobs").has(seed) for seed in seeds)
    assert not any(BlobStore(world.folder / "late" / "blobs").has(seed) for seed in seeds)
    world.break_off()


def test_who_leaves_hands_over_what_nobody_else_has(make_world: MakeWorld) -> None:
    world = make_world(FOUR_PATHS)
    world.operator().until(Serving)
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=5)
    leave()
    assert peer.said(HandingOver, modules=("L0M0", "L1M0"))
    assert peer.last == HandedOver()
    left_at = {module: state.version for module, state in saved(world, "one").base.items()}
    assert set(left_at.values()) != {0}
    deadline = time.monotonic() + 10
    while kept_versions(world) != left_at and time.monotonic() < deadline:
        time.sleep(0.05)  # in memory it was at once, on the disk a moment later
    assert kept_versions(world) == left_at


def test_nobody_waits_for_a_keeper_that_is_not_there(make_world: MakeWorld) -> None:
    world = make_world(FOUR_PATHS)
    operator, operator_leaves = world.operator_that_ends()
    operator.until(Serving)
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=2)
    operator_leaves()
    peer.until(Round, times=len(peer.reported(Round)) + 2)
    began = time.monotonic()
    leave()
    assert time.monotonic() - began < HAND_OVER_SECONDS
    assert not peer.said(HandingOver)
    assert peer.last == OnlyHere(("L0M0", "L1M0"))


def test_a_keeper_that_does_not_take_it_is_waited_for_as_long_as_was_said(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(FOUR_PATHS)
    operator = world.operator()
    operator.until(Serving)
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=2)
    # it is alive, and nothing gets through
    monkeypatch.setattr(NetworkedSwarm, "begin_fetch", lambda *_, **__: Over(None))
    began = time.monotonic()
    leave()
    assert 0.8 < (time.monotonic() - began) / HAND_OVER_SECONDS < 1.6
    assert peer.said(HandingOver, modules=("L0M0", "L1M0"))
    assert isinstance(peer.last, OnlyHere)


# --------------------------------------------------------------------------------------------------------- coming back


def test_the_last_holder_brings_back_what_all_keepers_have_lost(make_world: MakeWorld) -> None:
    """Everybody is gone, and the bootstrap node's disk with the modules as well; one peer comes back."""
    world = make_world(FOUR_PATHS)
    operator, operator_leaves = world.operator_that_ends()
    operator.until(Serving)
    peer, leave = world.peer("holder", 0)
    peer.until(Round, round=8)
    leave()
    operator_leaves()
    left_at = {module: state.version for module, state in saved(world, "holder").base.items()}
    for module in (OWN, OTHERS):
        bank.module_file(world.folder / "bootstrap", 0, module).unlink()

    # nothing but files is left
    operator, operator_leaves = world.operator_that_ends()
    operator.until(NodeResumed, stage=0)
    operator.until(Serving)
    peer, leave = world.peer("holder", 0)
    peer.until(Resumed)
    peer.until(Round, round=1)
    newcomer, newcomer_leaves = world.peer("newcomer", 0)
    newcomer.until(Fetched, module="L0M0")
    newcomer.until(Round, round=1)
    newcomer_leaves()
    leave()
    operator_leaves()
    for states in (saved(world, "newcomer").base, saved(world, "holder").base):
        assert all(states[module].version > version for module, version in left_at.items())
    assert all(kept_versions(world)[module] >= version for module, version in left_at.items())


def test_a_bootstrap_node_restored_from_an_older_copy_goes_where_the_peers_are(make_world: MakeWorld) -> None:
    """Its folder knows the first stage only, complete; opening the second one again would make another one."""
    world = make_world(SINGLE + "rounds = 2\n" + FOUR_PATHS)
    operator, operator_leaves = world.operator_that_ends()
    operator.until(Serving)
    manifest_file = world.folder / "bootstrap" / "manifest.json"
    old = manifest_file.read_bytes()
    peer, leave = world.peer("one", 0)
    operator.until(StageOpened, stage=1, paths=4)
    peer.until(StageBegan, stage=1, path=0, paths=4)
    peer.until(Round, round=4)
    operator_leaves()
    second = world.manifest().stages[1]
    manifest_file.write_bytes(old)

    operator, operator_leaves = world.operator_that_ends()
    operator.until(OlderCopy, stage=1)
    assert not operator.said(StageOpened)
    peer.until(Round, times=len(peer.reported(Round)) + 3)
    leave()
    operator_leaves()
    assert world.manifest().stages[1] == second
    left_at = {module: state.version for module, state in saved(world, "one", stage=1).base.items()}
    assert kept_versions(world, stage=1) == left_at


def test_a_node_that_is_told_to_advance_before_it_has_heard_of_its_peers_waits_for_them(make_world: MakeWorld) -> None:
    world = make_world(SINGLE + FOUR_PATHS)
    operator, operator_leaves = world.operator_that_ends()
    operator.until(Serving)
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=2)
    operator_leaves()
    leave()
    for module in (OWN, OTHERS):
        bank.module_file(world.folder / "bootstrap", 0, module).unlink(missing_ok=True)
    world.kept.tell_to_advance()
    operator = world.operator()
    operator.until(Serving)
    peer, leave = world.peer("one", 0)
    operator.until(StageEnds, stage=0)
    assert not operator.said(NotAdvancing)
    peer.until(StageBegan, stage=1, path=0, paths=4)
    leave()


def test_progress_that_is_too_old_is_dropped_and_said(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithm_progress, "OLDEST", 0)
    world = make_world(FOUR_PATHS)
    before = left_after_two_rounds(world)
    file = checkpoint_file(world, "one")
    base = {module: replace(state, version=state.version - 1) for module, state in before.base.items()}
    checkpoint.save(file, replace(before, base=base, tokens=dict.fromkeys(base, 1280)))
    checkpoint.note_given(file, {}, {})
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=1)
    assert peer.said(TokensDropped, tokens=1280, reason="stale")
    leave()


@pytest.mark.parametrize("given", [None, 0, 1], ids=["never", "from this version", "last from a later one"])
def test_progress_that_the_others_have_counted_does_not_count_again(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, given: int | None
) -> None:
    world = make_world(FOUR_PATHS)
    left = left_after_two_rounds(world)
    file = checkpoint_file(world, "one")
    # as if the group had made one more version since this was saved, with what it says or without it
    base = {module: replace(state, version=state.version - 1) for module, state in left.base.items()}
    local = {module: state.params + 1.0 for module, state in left.base.items()}
    checkpoint.save(file, replace(left, base=base, local=local, tokens=dict.fromkeys(base, 1280)))
    checkpoint.note_given(file, {} if given is None else {m: state.version + given for m, state in base.items()}, {})
    seen: list[float] = []
    load = Entering._load

    def look(self: Entering, peer: PathInTraining, *rest: Any) -> None:
        load(self, peer, *rest)
        for module in peer.modules:
            seen.append(float((peer.model.vector(module.level) - peer.base[module].params).mean()))
            assert peer.progress[module].tokens == (1280 if given is None else 0)

    monkeypatch.setattr(Entering, "_load", look)
    again, leave = world.peer("one", 0)
    again.until(Round)
    leave()
    assert seen == pytest.approx([1.0 if given is None else 0.0] * 2, abs=1e-3)


def test_what_was_trained_since_a_round_began_is_kept_when_the_others_have_made_it(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(FOUR_PATHS)
    left = left_after_two_rounds(world)
    file = checkpoint_file(world, "one")
    base = {module: replace(state, version=state.version - 1) for module, state in left.base.items()}
    parts = {module: Part(1280, state.params + 1.0) for module, state in base.items()}
    local = {module: state.params + 1.25 for module, state in base.items()}
    checkpoint.save(file, replace(left, base=base, local=local, tokens=dict.fromkeys(base, 1920), given=parts))
    checkpoint.note_given(file, {m: state.version for m, state in base.items()}, dict.fromkeys(base, 1280))
    seen: list[float] = []
    load = Entering._load

    def look(self: Entering, peer: PathInTraining, *rest: Any) -> None:
        load(self, peer, *rest)
        for module in peer.modules:
            seen.append(float((peer.model.vector(module.level) - peer.base[module].params).mean()))
            assert peer.progress[module].tokens == 640

    monkeypatch.setattr(Entering, "_load", look)
    again, leave = world.peer("one", 0)
    again.until(Round)
    leave()
    assert seen == pytest.approx([0.25] * 2, abs=1e-3)


def test_who_was_killed_while_others_went_on_with_its_progress_does_not_bring_it_again(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started again so soon that the others are not done with that round."""
    world = make_world(FOUR_PATHS)
    left, file = left_after_two_rounds(world), checkpoint_file(world, "one")
    checkpoint.note_given(file, {OWN: left.base[OWN].version, OTHERS: left.base[OTHERS].version - 1}, {})
    seen: list[dict[ModuleId, int | None]] = []
    load = Entering._load

    def look(self: Entering, peer: PathInTraining, *rest: Any) -> None:
        load(self, peer, *rest)
        seen.append({m: p.given_at for m, p in peer.progress.items()})

    monkeypatch.setattr(Entering, "_load", look)
    again, leave = world.peer("one", 0)
    again.until(Round)
    leave()
    assert seen == [{OWN: left.base[OWN].version, OTHERS: left.base[OTHERS].version - 1}]


def test_what_a_damaged_checkpoint_had_is_not_taken_into_the_next_stage(make_world: MakeWorld) -> None:
    world = make_world(SINGLE + FOUR_PATHS)
    operator = world.operator()
    operator.until(Serving)
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=4)
    leave()
    file = checkpoint_file(world, "one")
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    peer, leave = world.peer("one", 0)
    peer.until(CheckpointDamaged)
    peer.until(Round, round=1)
    world.kept.tell_to_advance()
    peer.until(StageBegan, stage=1, path=0, paths=4)
    peer.until(Round, stage=1)
    leave()


def test_what_was_given_is_remembered_when_another_module_s_round_fails(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(FOUR_PATHS, pacing="paced")  # a synchronous round is made again, and nothing else
    world.operator().until(Serving)
    file = checkpoint_file(world, "one")
    remembered: list[tuple[int, dict[ModuleId, int]]] = []
    begin, tell = NetworkedSwarm.begin_round, PeerPresenter.round_over

    class Failed:
        def outcome(self, *, timeout: float | None = 0.0) -> Outcome:
            return NotAgreed("nobody else was there")

        @property
        def progress(self) -> float:
            return 0.0

        def cancel(self) -> None:
            pytest.fail("it was over")

    def half(self: NetworkedSwarm, contribution: Contribution, **more: Any) -> RoundUnderWay:
        return begin(self, contribution, **more) if contribution.group.module == OWN else Failed()

    def look(self: PeerPresenter, peer: PathInTraining, report: RoundReport, *rest: Any, **more: Any) -> None:
        if isinstance(report.outcomes.get(OWN), Agreed):
            remembered.append((report.versions[OWN] - 1, checkpoint.given(file)))
        tell(self, peer, report, *rest, **more)

    monkeypatch.setattr(NetworkedSwarm, "begin_round", half)
    monkeypatch.setattr(PeerPresenter, "round_over", look)
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=3)
    leave()
    assert remembered
    assert all(given == {OWN: version} for version, given in remembered), remembered


def test_a_damaged_checkpoint_is_set_aside_and_its_whole_modules_are_used(make_world: MakeWorld) -> None:
    world = make_world(FOUR_PATHS)
    operator, operator_leaves = world.operator_that_ends()
    operator.until(Serving)
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=4)
    operator_leaves()
    leave()
    before = saved(world, "one")
    file = checkpoint_file(world, "one")
    data = bytearray(file.read_bytes())
    other = before.base[OTHERS].params.numpy().tobytes()
    data[data.find(other) + 2] ^= 1
    file.write_bytes(data)

    for module in (OWN, OTHERS):  # nobody has anything newer than the checkpoint, and of L0M0 nobody has anything
        bank.module_file(world.folder / "bootstrap", 0, module).unlink(missing_ok=True)
    world.operator().until(Serving)
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=1)
    assert peer.said(CheckpointDamaged, path=0, salvaged=("L0M0",))
    assert (file.parent / f"{file.name}.damaged").exists()
    leave()
    assert saved(world, "one").base[OWN].version > before.base[OWN].version


def test_a_module_that_is_damaged_where_it_is_kept_is_fetched_again(make_world: MakeWorld) -> None:
    world = make_world(FOUR_PATHS)
    operator, operator_leaves = world.operator_that_ends()
    operator.until(Serving)
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=4)
    leave()
    operator_leaves()
    file = bank.module_file(world.folder / "bootstrap", 0, OWN)
    file.write_bytes(file.read_bytes()[:-3])
    operator = world.operator()
    operator.until(KeptStateDamaged, module="L0M0", set_aside="stage-0-L0M0.safetensors.damaged")
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=1)
    leave()
    assert peer.last == HandedOver()


def test_a_module_that_is_damaged_in_memory_is_taken_from_somebody_else(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(FOUR_PATHS)
    world.operator().until(Serving)
    whole: dict[str, str] = {}

    class Bits(Keeping):
        def mend(self, peer: PathInTraining) -> None:
            state = peer.base[OWN]
            if not whole and state.version > 0:
                holder = world.hub.swarm("another-holder")
                holder.hold(peer.stage, OWN, state)
                holder.announce(
                    [
                        Announcement(
                            holder.peer, peer.stage, OWN, None, state.version, state.digest, state.work, role=Role.KEEPS
                        )
                    ]
                )
                until(lambda: any(said.peer == holder.peer for said in peer.swarm.members(peer.stage, OWN)))
                whole["digest"] = state.digest
                flipped = ModuleState(state.version, state.params.clone(), state.momentum, state.work)
                assert flipped.digest == state.digest  # computed while it is whole
                flipped.params[7] += 1.0
                peer.progress[OWN] = replace(peer.progress[OWN], base=flipped)
                super().mend(peer)
                assert peer.base[OWN].digest == whole["digest"]
                assert torch.equal(peer.base[OWN].params, state.params)
                return
            super().mend(peer)

    monkeypatch.setattr("dipaco_swarm.peer.volunteer.Keeping", Bits)
    peer, leave = world.peer("one", 0)
    peer.until(MemoryDamaged, module="L0M0", fetched=True)
    peer.until(Round, times=3)
    leave()
    assert whole


def test_a_large_checkpoint_is_of_one_moment_though_training_goes_on(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(FOUR_PATHS)
    world.operator().until(Serving)
    begun: list[Checkpoint] = []
    written: list[Checkpoint | None] = []
    trained_on = threading.Event()

    class Beside(Keeping):
        def _save_beside(self, peer: PathInTraining) -> None:
            begun.append(self._checkpoint(peer, torch.clone))
            super()._save_beside(peer)

        def _write(self, file: Path, checkpoint_then: Checkpoint) -> bool:
            assert trained_on.wait(60)
            whole = super()._write(file, checkpoint_then)
            written.append(checkpoint.load(file, checkpoint_then.run))
            return whole

    monkeypatch.setattr(keeping, "LARGE_BYTES", 0)
    monkeypatch.setattr("dipaco_swarm.peer.volunteer.Keeping", Beside)
    peer, leave = world.peer("one", 0)
    until(lambda: bool(begun), 60)
    peer.until(Round, times=len(peer.reported(Round)) + 2)
    trained_on.set()
    until(lambda: bool(written))
    leave()
    then, kept = begun[0], written[0]
    assert kept is not None
    assert (kept.trained, kept.tokens, kept.inner.steps_done) == (then.trained, then.tokens, then.inner.steps_done)
    assert {m: state.digest for m, state in kept.base.items()} == {m: state.digest for m, state in then.base.items()}
    assert all(torch.equal(kept.local[module], vector) for module, vector in then.local.items())
    assert all(torch.equal(kept.inner.tensors[name], moment) for name, moment in then.inner.tensors.items())
    assert saved(world, "one").trained > then.trained


# ------------------------------------------------------------------------------------------------ sleep, silence, disks


class Skew:
    """Clocks that jump when they are told to."""

    def __init__(self) -> None:
        self.steady_ahead = 0.0
        self.wall_ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.monotonic() + self.steady_ahead

    def wall(self) -> float:
        return time.time() + self.steady_ahead + self.wall_ahead


def test_who_was_asleep_says_so_once_and_looks_for_the_group_before_it_goes_on(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    skew = Skew()
    looked: list[str] = []
    look_up = NetworkedSwarm.look_up
    sleeper = partial(Volunteer, missed=SleepDetector(skew).missed)
    monkeypatch.setattr("tests.e2e.world.Volunteer", sleeper)

    def noted(self: NetworkedSwarm, *arguments: object, **more: object) -> None:
        looked.append(self.peer)
        look_up(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(NetworkedSwarm, "look_up", noted)
    world = make_world(FOUR_PATHS)
    world.operator().until(Serving)
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=2)
    looked.clear()
    skew.steady_ahead += 3 * 3600
    peer.until(Slept)
    peer.until(Round, times=len(peer.reported(Round)) + 2)
    assert "one" in looked
    skew.wall_ahead -= 3600
    peer.until(ClockSet)
    peer.until(Round, times=len(peer.reported(Round)) + 2)
    (slept,) = peer.reported(Slept)
    assert slept.seconds == pytest.approx(3 * 3600, rel=0.01)
    (clock,) = peer.reported(ClockSet)
    assert clock.seconds == pytest.approx(-3600, rel=0.01)
    leave()


def test_a_bootstrap_node_that_is_gone_is_said_once_and_its_return_too(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(company, "LOOK_AROUND_SECONDS", 0.05)
    monkeypatch.setattr(Timing, "unheard", 0.2)
    world = make_world(FOUR_PATHS)
    operator, operator_leaves = world.operator_that_ends()
    operator.until(Serving)
    one, _ = world.peer("one", 0)
    lone, _ = world.peer("lone", 3)
    for peer in (one, lone):
        peer.until(Round, round=3)
    operator_leaves()
    for peer in (one, lone):
        peer.until(BootstrapSilent, alone=True)
    beside, leave_beside = world.peer("beside", 0, met_before=["one"])
    beside.until(Round, round=3)
    assert not beside.said(BootstrapSilent)  # it has not met one in this life
    world.operator().until(Serving)
    for peer in (one, lone):
        peer.until(Recovered, what="bootstrap", seconds=20)
        assert len(peer.reported(BootstrapSilent, alone=True)) == 1
    leave_beside()
    world.break_off()


def test_a_disk_that_is_full_is_a_line_and_what_could_not_be_written_is_written_later(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "CHECKPOINT_SECONDS", 0.1)
    monkeypatch.setattr(keeping, "SAVING_SHARE", 1.0)
    monkeypatch.setattr(surroundings, "WRITE_AGAIN_SECONDS", 0.3)
    full = False

    def or_full(write: object) -> object:
        def written(*arguments: object, **keywords: object) -> None:
            if full:
                raise HomeError("the disk of HOME is full: make room there for the checkpoint")
            write(*arguments, **keywords)  # type: ignore[operator]

        return written

    monkeypatch.setattr(checkpoint, "save", or_full(checkpoint.save))
    monkeypatch.setattr(operator_home, "save_state", or_full(bank.save_state))
    monkeypatch.setattr(operator_home, "write_whole", or_full(files.write_whole))
    monkeypatch.setattr(keeping, "write_whole", or_full(files.write_whole))
    world = make_world(SINGLE + FOUR_PATHS, min_peers=1)
    operator = world.operator()
    operator.until(Serving)
    peer, leave = world.peer("one", 0)
    peer.until(Round, round=3)
    full = True
    peer.until(CannotWrite, error="the disk of HOME is full: make room there for the checkpoint", goes_on="training")
    operator.until(CannotWrite, goes_on="the run")
    peer.until(Round, times=len(peer.reported(Round)) + 5)
    world.kept.tell_to_advance = lambda: None  # type: ignore[method-assign]
    (world.folder / "bootstrap" / "advance").write_bytes(b"")  # a stage cannot be opened while it is full
    time.sleep(1.5)
    assert len(peer.reported(CannotWrite)) == 1
    assert len(operator.reported(CannotWrite)) == 1
    full = False
    peer.until(Recovered, what="checkpoint")
    operator.until(Recovered, what="disk")
    operator.until(StageOpened, stage=1, paths=4)
    peer.until(StageBegan, stage=1, path=0, paths=4)
    leave()
    world.break_off()


def with_a_liar(make_world: MakeWorld) -> World:
    """A run in which a stranger says that it has a version of every module of a path, and has not."""
    world = make_world(FOUR_PATHS, pacing="paced")
    world.operator().until(Serving)
    liar = world.hub.swarm("a-liar")
    table = PathTable(world.manifest().stage.table)
    for_all = [
        Announcement(liar.peer, 0, module, PathIndex(0), version=9_000_000, digest="f" * 64)
        for module in table.modules_of(PathIndex(0))
    ]
    liar.announce(for_all)
    return world


def test_a_state_that_nobody_confirms_is_asked_for_by_nobody(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timing, "look_up", 2.0)
    peer, leave = with_a_liar(make_world).peer("one", 0)
    peer.until(Round, round=20)
    assert not peer.reported(StateNotSent)
    leave()


def test_a_state_that_others_confirm_and_nobody_sends_stops_nobody(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timing, "unsent", 0.5)
    monkeypatch.setattr(Vouching, "believes", lambda *_: True)
    peer, leave = with_a_liar(make_world).peer("one", 0)
    peer.until(StateNotSent, module="L0M0", version=9_000_000, again_seconds=2.0)
    peer.until(Round, round=20)
    assert len(peer.reported(StateNotSent)) <= 2  # once while it joins, once later
    leave()


def test_who_comes_late_catches_up_however_fast_versions_come(make_world: MakeWorld) -> None:
    """With a module in whose group it is alone, and one whose version is gone as soon as it has heard of it."""
    world = make_world(FOUR_PATHS, pacing="paced", inner_steps=1)
    world.operator().until(Serving)
    there, _ = world.peer("there", 0)
    there.until(Round, times=40)
    late, _ = world.peer("late", 1)
    late.until(Round, times=10)
    assert {"L0M0"} == {fetched.module for fetched in late.reported(Fetched)}
    world.break_off()


def test_a_log_line_that_comes_every_second_is_said_once_a_minute() -> None:
    from dipaco_swarm.dashboard.screens import _EventHandler

    screen, now = Events(), 0.0
    handler = _EventHandler(screen, lambda: now)
    record = logging.LogRecord("dipaco_swarm", logging.WARNING, "", 0, "the %s is slow", ("link",), None)
    for second in range(125):
        now = float(second)
        handler.emit(record)
    assert screen.reported(Logged) == [Logged("the link is slow")] * 3
