"""A run that grows: more rounds, further stages, other rules, while peers train. The real programs in one process."""

import hashlib
import random
from typing import Any

import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathTable
from dipaco_swarm.algorithm.state import vector_to_bytes
from dipaco_swarm.errors import DataError
from dipaco_swarm.events.operator import (
    CannotGoOn,
    NodeResumed,
    NotExtended,
    RunExtended,
    RunFinished,
    Serving,
    StageOpened,
)
from dipaco_swarm.events.training import Round
from dipaco_swarm.events.volunteer import Joined, RunChanged, StageBegan
from dipaco_swarm.operator.training_workshop import TrainingWorkshop
from dipaco_swarm.operator.workshop import FittedRouter
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.manifest import Manifest
from tests.hub import until

from .world import FOUR_PATHS, SINGLE, MakeWorld, World

TWO_STAGES = f"{SINGLE}rounds = 2\n{FOUR_PATHS}rounds = 3\n"


def changed(config: RunConfig, **sections: dict[str, Any]) -> RunConfig:
    """With other values of some sections."""
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    )


def with_rounds(config: RunConfig, rounds: int) -> RunConfig:
    """With so many rounds of the last stage."""
    *before, last = config.stages
    return config.model_copy(update={"stages": (*before, last.model_copy(update={"rounds": rounds}))})


def with_stage(config: RunConfig, text: str) -> RunConfig:
    """With a further stage."""
    added = parse_run_file(MINIMAL + FOUR_PATHS + text).stages[-1]
    return config.model_copy(update={"stages": (*config.stages, added)})


MINIMAL = """
name = "small"
[model]
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
[[levels]]
blocks = [0]
embedding = true
[[levels]]
blocks = [1]
head = true
[data]
source = "python"
"""


def versions(world: World) -> set[int]:
    """Of all modules of the newest stage that the node keeps."""
    stage = world.manifest().stage
    states = [world.kept.state(stage.index, module) for module in PathTable(stage.table).modules]
    return {0 if state is None else state.version for state in states}


def test_a_live_run_gets_ten_more_rounds_and_no_peer_is_restarted(make_world: MakeWorld) -> None:
    world = make_world(TWO_STAGES, min_peers=2, pacing="paced")
    operator = world.operator()
    operator.until(Serving)
    ada, _ = world.peer("ada", 0)
    ben, _ = world.peer("ben", 3)
    operator.until(StageOpened, stage=1)
    world.extend(with_rounds(world.config, 13))
    operator.until(RunExtended, changes=("stages[1].rounds 3 -> 13",))
    world.end()
    assert world.manifest().finished
    assert versions(world) >= {13}
    for peer in (ada, ben):
        assert len(peer.reported(RunChanged)) == 1
        assert peer.until(RunChanged).line == "the operator has changed the run: stages[1].rounds 3 -> 13"
        assert len(peer.reported(Joined)) == 1
        assert len(peer.reported(StageBegan)) == 2


def test_a_finished_run_gets_more_rounds_and_then_another_stage(make_world: MakeWorld) -> None:
    world = make_world(TWO_STAGES, min_peers=2)
    operator = world.operator()
    operator.until(Serving)
    ada, leave_ada = world.peer("ada", 0, stays=True)
    ben, leave_ben = world.peer("ben", 3, stays=True)
    operator.until(RunFinished)
    assert versions(world) == {3}
    world.extend(with_rounds(world.config, 5))
    operator.until(RunFinished, times=2)
    assert versions(world) == {5}

    world.extend(with_stage(world.config, '[[stages]]\nrouter = "k-means"\nmodules = [2, 2]\nrounds = 2\n'))
    operator.until(RunFinished, times=3)
    assert world.manifest().stage.index == 2
    assert world.manifest().stage.first_step == 7 * 5
    assert versions(world) == {2}
    for peer, leave in ((ada, leave_ada), (ben, leave_ben)):
        assert peer.said(StageBegan, stage=2)
        assert peer.until(RunChanged, times=2).changes[0].startswith("stages[2] is new: ")
        leave()
    world.end()


def test_what_cannot_change_is_refused_by_the_node_and_the_run_goes_on(make_world: MakeWorld) -> None:
    world = make_world(TWO_STAGES)
    operator = world.operator()
    operator.until(Serving)
    peer, _ = world.peer("ada", None)
    peer.until(Round, round=1)
    good = world.config
    world.extend(changed(good, inner={"learning_rate": 1e-4}))
    refusal = operator.until(NotExtended)
    assert refusal.key == "inner.learning_rate"
    assert "[stages.from_here.inner]" in refusal.why
    until(lambda: not world.kept.orders())
    assert world.manifest().config == good
    world.end()
    assert world.manifest().finished


def test_a_node_that_was_down_obeys_when_it_is_up(make_world: MakeWorld) -> None:
    world = make_world(TWO_STAGES)
    operator, stop = world.operator_that_ends()
    operator.until(Serving)
    stop()
    world.extend(with_rounds(world.config, 4))
    again = world.operator()  # with the new run file, as an operator would
    again.until(NodeResumed)
    again.until(RunExtended)
    world.peer("ada", None)
    world.end()
    assert versions(world) == {4}


def test_rounds_become_longer_from_a_version_on_that_all_hear_of(make_world: MakeWorld) -> None:
    world = make_world(f"{SINGLE}rounds = 6\n", min_peers=2, pacing="paced")
    operator = world.operator()
    operator.until(Serving)
    ada, _ = world.peer("ada", None)
    world.peer("ben", None)
    ada.until(Round, round=1)
    world.extend(changed(world.config, rounds={"inner_steps": 8}, limits={"max_members": 3}))
    ada.until(RunChanged)
    manifest = world.manifest()
    (zero, before), (since, after) = manifest.stage.inner_steps
    assert (zero, before, after) == (0, 5, 8)
    assert since >= 1  # nobody is past it when it is said
    world.break_off()


def test_a_stage_that_cannot_be_made_ends_no_node_and_another_run_file_mends_it(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(TWO_STAGES, min_peers=2)
    fit, stages = TrainingWorkshop.fit_router, list[int]()

    def refused(workshop: TrainingWorkshop, manifest: Manifest, index: int, *more: Any) -> FittedRouter:
        stages.append(index)
        if index == 2 and manifest.config.stages[2].rounds == 2:
            raise DataError("only 3 % of the new documents can be told from the old ones")
        return fit(workshop, manifest, index, *more)

    monkeypatch.setattr(TrainingWorkshop, "fit_router", refused)
    operator = world.operator()
    operator.until(Serving)
    _, leave_ada = world.peer("ada", 0, stays=True)
    _, leave_ben = world.peer("ben", 3, stays=True)
    operator.until(RunFinished)
    before, third = world.config, '[[stages]]\nrouter = "k-means"\nmodules = [2, 2]\nrounds = '
    world.extend(with_stage(before, f"{third}2\n"))
    assert "only 3 % of the new" in operator.until(CannotGoOn, stage=1).line
    world.extend(with_stage(before, f"{third}1\n"))
    operator.until(RunFinished, times=2)
    assert stages.count(2) == 2, "what cannot be made was tried again and again"
    for leave in (leave_ada, leave_ben):
        leave()
    world.end()


ADDED = """
[[stages]]
router = "added"
paths = [[2, 1], [2, 2]]
rounds = 2
[stages.parents]
L0M2 = "L0M1"
[stages.from_here.data]
path = "more/*.txt"
"""


@pytest.mark.timeout(300)
def test_paths_are_added_and_the_old_modules_keep_their_bytes(make_world: MakeWorld) -> None:
    world = make_world(TWO_STAGES, min_peers=2)
    chance = random.Random(1)
    (world.folder / "more").mkdir()
    for number in range(100):
        text = " ".join("".join(chance.choices("бвгджзклмн", k=4)) for _ in range(60))
        (world.folder / "more" / f"{number}.txt").write_text(text)
    operator = world.operator()
    operator.until(Serving)
    _, leave_ada = world.peer("ada", 0, stays=True)
    _, leave_ben = world.peer("ben", 3, stays=True)
    operator.until(RunFinished)
    before = {m: world.kept.state(1, m) for m in PathTable(world.manifest().stage.table).modules}

    added = parse_run_file(MINIMAL + FOUR_PATHS + ADDED).stages[-1]
    world.extend(world.config.model_copy(update={"stages": (*world.config.stages, added)}))
    operator.until(RunFinished, times=2, seconds=200)
    stage = world.manifest().stage
    assert stage.table == ((0, 0), (0, 1), (1, 0), (1, 1), (2, 1), (2, 2))
    assert stage.resting == (0, 1, 2, 3)
    for module, state in before.items():
        assert state is not None
        is_old = hashlib.sha256(vector_to_bytes(state.params)).hexdigest()
        assert stage.seeds[str(module)] == is_old
        now = world.kept.state(2, module)
        if module == ModuleId(1, 1):  # an added path has it
            assert now is not None
            assert now.version == 2
        else:
            assert now is None or now.version == 0
    parent = before[ModuleId(0, 1)]
    assert parent is not None
    assert stage.seeds["L0M2"] == hashlib.sha256(vector_to_bytes(parent.params)).hexdigest()
    for leave in (leave_ada, leave_ben):
        leave()
    world.end()
