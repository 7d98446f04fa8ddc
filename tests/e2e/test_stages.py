"""Stages, driven live: how they end, who comes back late, and what scores the operator believes. In one process."""

import logging
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable, grid
from dipaco_swarm.algorithm.stages import state_at_start
from dipaco_swarm.dashboard.metrics import metrics_file, read_metrics
from dipaco_swarm.dashboard.views import BootstrapView
from dipaco_swarm.events.operator import (
    FittingRouter,
    NotAdvancing,
    RouterKept,
    RunFinished,
    Serving,
    StageEnds,
    StageOpened,
)
from dipaco_swarm.events.training import Round
from dipaco_swarm.events.volunteer import Moving, Resumed, Scored, StageBegan
from dipaco_swarm.operator.keeping import Keeping
from dipaco_swarm.operator.scores import ScoreCollection
from dipaco_swarm.operator.training_workshop import SampleScorer, TrainingWorkshop
from dipaco_swarm.operator.workshop import FittedRouter
from dipaco_swarm.peer import path_choice as choosing
from dipaco_swarm.run.manifest import Stage
from dipaco_swarm.swarm.interface import Announcement
from dipaco_swarm.training.bank import load_path
from dipaco_swarm.training.documents import read_documents
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.pieces import routing_pieces
from dipaco_swarm.training.scoring import ScoreStatement, sample_to_bytes, score_sample, scores_to_bytes, topic_of
from dipaco_swarm.training.tokenizer import load_tokenizer, vocabulary_size
from tests.hub import hear, until

from .world import FOUR_PATHS, SINGLE, MakeWorld, World

DISCRIMINATIVE = '[[stages]]\nrouter = "discriminative"\n'


def test_the_operator_ends_a_stage_that_has_no_end_of_its_own(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the rounds that are under way, also where its node has not heard of the peers for a while."""
    world = make_world(SINGLE + FOUR_PATHS + "rounds = 1\n", min_peers=2)
    operator = world.operator()
    operator.until(Serving)
    world.kept.tell_to_advance()
    operator.until(NotAdvancing)
    _, leave = world.peer("one", 0)
    peer, _ = world.peer("other", 3)
    peer.until(Round, round=2)
    until(lambda: version_kept(world) >= 2)
    _forget_who_trains(monkeypatch)
    before = version_kept(world)
    world.kept.tell_to_advance()
    operator.until(StageEnds, stage=0)
    operator.until(StageOpened, stage=1, paths=4)
    world.end()
    manifest = world.manifest()
    assert manifest.finished
    ended = manifest.stages[0].rounds
    assert ended is not None
    assert manifest.stage.first_step == ended * world.config.rounds.inner_steps
    assert version_kept(world) >= ended > before
    leave()


def version_kept(world: World) -> int:
    """Of the one module of the first stage, on the disk of the operator's node."""
    state = world.kept.state(0, ModuleId(0, 0))
    return 0 if state is None else state.version


def _forget_who_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's node knows of nobody until it looks."""
    trained, look, looked = Keeping.trained, Keeping.look_for_trainers, threading.Event()

    def look_up(keeping: Keeping, stage: Stage) -> None:
        look(keeping, stage)
        looked.set()

    monkeypatch.setattr(Keeping, "look_for_trainers", look_up)
    monkeypatch.setattr(Keeping, "trained", lambda *of: trained(*of) if looked.is_set() else {})


def test_a_path_that_nobody_trains_does_not_hold_up_the_end(make_world: MakeWorld) -> None:
    """Volunteers stay where they are (`--path`), one leaves, and the operator wants to go on."""
    world = make_world(SINGLE + "rounds = 1\n" + FOUR_PATHS, min_peers=2)
    operator = world.operator()
    one, _ = world.peer("one", 0)
    other, leave = world.peer("other", 3)
    other.until(Round, stage=1, times=2)
    one.until(Round, stage=1)  # both have begun
    leave()

    def sees_one() -> bool:
        return isinstance(operator.shown, BootstrapView) and operator.shown.status.staffed == 1

    until(sees_one)
    one.until(Round, stage=1, times=4)
    world.kept.tell_to_advance()
    operator.until(StageEnds, stage=1)
    operator.until(RunFinished)
    world.end()


def test_a_paced_stage_ends_however_fast_its_versions_come(make_world: MakeWorld) -> None:
    """A version is gone before the operator's node, which hears of it twice a second, can ask for it."""
    world = make_world(f"{SINGLE}rounds = 1\n{FOUR_PATHS}", pacing="paced", inner_steps=1)
    operator = world.operator()
    world.peer("one", 0)
    operator.until(StageOpened, stage=1)
    world.break_off()


def test_a_stage_ends_by_tokens(make_world: MakeWorld) -> None:
    # a round of a path is 5 steps of 4 x 64 tokens: 1281 tokens are one round and a bit
    world = make_world(SINGLE + "tokens = 1281\n")
    world.operator()
    world.peer("one", None)
    world.end()
    state = world.kept.state(0, ModuleId(1, 0))
    assert state is not None
    assert state.version == 2
    assert world.manifest().finished


def test_the_node_goes_on_while_a_router_is_fitted(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws its screen, obeys Ctrl+C in the middle, and a restart goes on."""
    fit, may_fit = TrainingWorkshop.fit_router, threading.Event()

    def slowly(workshop: TrainingWorkshop, *args: Any) -> FittedRouter:
        assert may_fit.wait(60)
        return fit(workshop, *args)

    monkeypatch.setattr(TrainingWorkshop, "fit_router", slowly)
    world = make_world(SINGLE + "rounds = 1\n" + FOUR_PATHS)
    operator, end = world.operator_that_ends()
    world.peer("one", 0)

    def shows(what: str) -> bool:
        return isinstance(operator.shown, BootstrapView) and what in operator.shown.activity

    operator.until(FittingRouter)
    until(lambda: shows("fitting the router of stage 1, for 1 s"))
    until(lambda: shows("fitting the router of stage 1, for 2 s"))
    end()
    operator = world.operator()
    operator.until(FittingRouter)
    may_fit.set()
    operator.until(StageOpened, stage=1)


def test_a_peer_that_missed_two_stages_comes_back(make_world: MakeWorld) -> None:
    world = make_world(SINGLE + "rounds = 2\n" + FOUR_PATHS + "rounds = 1\n" + DISCRIMINATIVE, min_peers=1)
    operator = world.operator()
    away, leave = world.peer("away", 0)
    away.until(Round, round=1)
    leave()
    world.peer("there", 3)
    operator.until(StageOpened, stage=1)  # of two strangers in one group, with nobody known left, none is soon believed
    there, _ = world.peer("there-too", 0)
    there.until(StageBegan, stage=2, path=0, paths=4)
    there.until(Round, times=2)
    away, _ = world.peer("away", 1)
    away.until(StageBegan, stage=2, path=1, paths=4)
    away.until(Round)
    assert not away.said(StageBegan, stage=1)
    assert not away.said(Resumed)  # what it had is two stages old
    world.kept.tell_to_advance()
    operator.until(RunFinished)
    world.end()
    checkpoints = (world.folder / "there-too" / "checkpoints").iterdir()
    assert {file.name.partition("-path")[0] for file in checkpoints} == {"stage-1", "stage-2"}


def test_two_peers_train_four_paths_in_turns(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each moves with its modules, and no path is left out; how evenly: tests/algorithm/test_assignment.py."""
    # rounds of milliseconds: moving takes longer than a few of them, and a peer would stay for most of the stage
    monkeypatch.setattr(choosing, "STAY_FACTOR", 0.0)
    world = make_world(SINGLE + "rounds = 1\n" + FOUR_PATHS + "rounds = 12\n", min_peers=2)
    world.operator()
    one, other = world.peer("one", None)[0], world.peer("other", None)[0]
    world.end()
    assert world.manifest().finished
    for module in grid([2, 2]).modules:
        state = world.kept.state(1, module)
        assert state is not None
        assert state.version >= 12
    steps: Counter[int] = Counter()
    for name in ("one", "other"):
        events = [entry.event for entry in read_metrics(metrics_file(world.folder / name))]
        steps.update(event.path for event in events if isinstance(event, Round) and event.stage == 1)
    assert set(steps) == {0, 1, 2, 3}, steps
    assert one.said(Moving)
    assert other.said(Moving)


def test_a_stage_whose_scores_teach_nothing_keeps_its_router(make_world: MakeWorld) -> None:
    """Two of four paths are never trained: documents like only the others. The node scores what nobody serves."""
    world = make_world(SINGLE + "rounds = 1\n" + FOUR_PATHS + "rounds = 1\n" + DISCRIMINATIVE + "rounds = 1\n")
    operator = world.operator()
    one, other = world.peer("one", 0)[0], world.peer("other", 3)[0]
    world.end()
    manifest = world.manifest()
    assert manifest.finished
    assert one.said(Scored)
    assert other.said(Scored)
    assert operator.said(RouterKept, stage=1) == (manifest.stages[1].router == manifest.stages[2].router)


def test_scores_that_cannot_be_are_refused_and_their_sender_named(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = make_world(FOUR_PATHS)
    world.operator().until(Serving)
    manifest, hub = world.manifest(), world.hub
    operator = hub.swarm("operator")

    def fetch(digest: str) -> bytes:
        return operator.fetch_blob(digest, timeout=1)

    tokenizer = load_tokenizer(fetch(manifest.tokenizer))
    sample = routing_pieces(read_documents(world.config.data), tokenizer, world.config.data, world.config.router)
    manifest = manifest.model_copy(update={"scoring": operator.put_blob(sample_to_bytes(sample))})
    table = PathTable(manifest.stage.table)
    states = {m: state_at_start(manifest.stage, m, fetch) for m in table.modules}
    network = build_network(world.config.model, vocabulary_size(tokenizer), 0)
    model = PathModel(network, world.config.levels)
    honest_model = PathModel(build_network(world.config.model, vocabulary_size(tokenizer), 0), world.config.levels)
    load_path(honest_model, table, PathIndex(2), states)
    honest = score_sample(honest_model.network, sample, world.config.router.prefix_tokens)

    def say(name: str, scores: np.ndarray, path: int = 2, trains: int = 2) -> None:
        swarm = hub.swarm(name)
        modules = table.modules_of(PathIndex(trains))
        said = [Announcement(swarm.peer, 0, m, PathIndex(trains), 0, states[m].digest) for m in modules]
        swarm.announce(said)
        statement = ScoreStatement(path=path, scores=swarm.put_blob(scores_to_bytes(scores)), shares="f" * 16)
        swarm.publish(topic_of(manifest), statement.to_bytes())
        hear([operator, swarm], 0, modules)
        until(lambda: swarm.peer in operator.statements(topic_of(manifest), timeout=10))

    # in the order in which they are heard, all before the honest one
    say("a: not numbers", np.full(len(honest), np.nan))
    say("b: too few", honest[:-1])
    say("c: another path's peer", honest, trains=1)
    say("d: invented", honest - 100)
    say("e: no such path", honest, path=99)
    nobody = hub.swarm("f:no-statement")
    nobody.publish(topic_of(manifest), b"{")
    until(lambda: nobody.peer in operator.statements(topic_of(manifest), timeout=10))
    collection = ScoreCollection(manifest, operator, SampleScorer(manifest, model, sample), states)
    collection.collect({PathIndex(path): 100.0 for path in range(4)})
    assert collection.missing == [0, 1, 2, 3]
    named = [
        record.getMessage().split(": it sent")[0] for record in caplog.records if record.levelno == logging.WARNING
    ]
    assert len(set(named)) == 5  # the peer of a path that does not exist has nothing that anybody would look at
    say("g: honest", honest)
    collection.collect(
        {PathIndex(0): 100.0, PathIndex(2): 100.0}
    )  # and of 1 and 3, which nobody serves, the node scores one
    assert collection.missing == [0, 3]
    collection.collect({PathIndex(0): 100.0, PathIndex(2): 100.0})
    assert collection.missing == [0]
    say("h: the last", honest, path=0, trains=0)  # all paths start alike here, so path 2's scores are path 0's
    collection.collect({PathIndex(0): 100.0, PathIndex(2): 100.0})
    assert np.array_equal(collection.matrix(), np.column_stack([honest] * 4))
