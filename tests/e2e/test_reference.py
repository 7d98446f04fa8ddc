"""The rounds against independent references (docs/paper.md#checks): no network, real models."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from dipaco_swarm.algorithm.pacing.paced import CATCH_UP_ROUNDS
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable, grid
from dipaco_swarm.algorithm.progress import ModuleProgress
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.outer_round import (
    adopt,
    announce,
    begin_catch_up,
    catch_ups,
    end_catch_up,
    rebase,
    run_outer_round,
)
from dipaco_swarm.pacing import modules_due
from dipaco_swarm.path_in_training import PathInTraining, RoundRules
from dipaco_swarm.run.config import InnerConfig, LevelConfig, ModelConfig, OuterConfig, RoundsConfig
from dipaco_swarm.swarm.fetching import FetchUnderWay
from dipaco_swarm.swarm.interface import Agreed, Announcement, ModuleGroup, NotAgreed, Outcome
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.newest import NewestStates
from dipaco_swarm.training.inner import InnerTrainer, StepReport, TrainingSettings, TrainReport
from dipaco_swarm.training.modules import PathModel, build_network
from tests.hub import Hub, hear, until

MODEL = ModelConfig(
    hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=16
)
TWO_LEVELS = (LevelConfig(blocks=(0,), embedding=True), LevelConfig(blocks=(1,), head=True))
ONE_LEVEL = (LevelConfig(blocks=(0, 1), embedding=True, head=True),)
INNER = InnerConfig(learning_rate=3e-3, warmup_steps=2, schedule_steps=20, batch_sequences=2)
VOCABULARY, LENGTH = 50, 16
LATE_STEPS = 2

MakeHub = Callable[[], Hub]


def batches(seed: int) -> Iterator[Tensor]:
    """Endless batches that only this seed gives."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(0, VOCABULARY, (INNER.batch_sequences, LENGTH), generator=generator)


def new_model(levels: Sequence[LevelConfig]) -> PathModel:
    return PathModel(build_network(MODEL, VOCABULARY, seed=1), tuple(levels))


def make_peers(
    hub: Hub,
    table: PathTable,
    paths: Sequence[int],
    levels: Sequence[LevelConfig],
    outer: OuterConfig,
    inner_steps: int,
    trainer: Callable[[PathModel], InnerTrainer] = lambda model: InnerTrainer(model, INNER, TrainingSettings()),
) -> list[PathInTraining]:
    """One peer per entry of `paths`, all of them announced and heard; peer i trains on `batches(i)`."""
    peers = []
    for i, path in enumerate(paths):
        swarm = hub.swarm(f"peer-{i}")
        swarm.configure_rounds("fp32", 1000.0)
        model = new_model(levels)
        modules = table.modules_of(PathIndex(path))
        peers.append(
            PathInTraining(
                swarm=swarm,
                stage=0,
                table=table,
                path=PathIndex(path),
                groups={
                    m: ModuleGroup(0, m, {p: 1 / table.num_paths for p in table.paths_through(m)}) for m in modules
                },
                rules=RoundRules(
                    outer,
                    RoundsConfig(pacing="synchronous", inner_steps=inner_steps),
                    INNER.batch_sequences * LENGTH,
                    last_versions={},
                ),
                model=model,
                trainer=trainer(model),
                batches=batches(i),
                newest=NewestStates(swarm),
                progress={m: ModuleProgress(ModuleState.seed(model.vector(m.level))) for m in modules},
            )
        )
        announce(peers[-1])
    hear_all(peers)
    return peers


def hear_all(peers: Sequence[PathInTraining]) -> None:
    """Wait until all know what all have announced."""
    hear([cast(NetworkedSwarm, peer.swarm) for peer in peers], 0, peers[0].table.modules)


def run_rounds(peers: Sequence[PathInTraining], rounds: int) -> None:
    """All peers at once, one thread each, as many machines would."""
    stop = threading.Event()

    def life(peer: PathInTraining) -> None:
        torch.set_num_threads(1)
        try:
            for _ in range(rounds):
                report = run_outer_round(peer, stop=stop.is_set)
                assert all(isinstance(outcome, Agreed) for outcome in report.outcomes.values())
        except BaseException:
            stop.set()
            for other in peers:
                other.swarm.interrupt()
            raise

    with ThreadPoolExecutor(len(peers)) as pool:
        for done in [pool.submit(life, peer) for peer in peers]:
            done.result(timeout=60)


def test_one_path_and_two_peers_is_diloco_bit_for_bit(hub: Hub) -> None:
    """Check 1: with one module per level the swarm is DiLoCo, written here as the paper writes it."""
    outer = OuterConfig(learning_rate=0.7, momentum=0.9, rescale=True)
    peers = make_peers(hub, grid([1, 1]), [0, 0], TWO_LEVELS, outer, inner_steps=3)
    run_rounds(peers, 3)

    torch.set_num_threads(1)
    workers = [InnerTrainer(new_model(TWO_LEVELS), INNER, TrainingSettings()) for _ in range(2)]
    streams = [batches(i) for i in range(2)]
    theta = [workers[0].model.vector(level) for level in range(2)]
    velocity = [torch.zeros_like(vector) for vector in theta]
    for _ in range(3):
        for worker, stream in zip(workers, streams, strict=True):
            for level in range(2):
                worker.model.load(level, theta[level])
            worker.train(stream, 3)
        for level in range(2):
            deltas = [theta[level] - worker.model.vector(level) for worker in workers]
            delta = deltas[0] * 0.5 + deltas[1] * 0.5
            velocity[level] = 0.9 * velocity[level] + delta
            theta[level] = theta[level] - 0.7 * (delta + 0.9 * velocity[level])
    for peer in peers:
        for level in range(2):
            state = peer.base[ModuleId(level, 0)]
            assert torch.equal(state.params, theta[level])
            assert torch.equal(state.momentum, velocity[level])


def test_late_rounds_are_eager_diloco(hub: Hub) -> None:
    """Check 1 with rounds that overlap: whoever has given goes on from its own outer step, as written here."""
    outer = OuterConfig(learning_rate=0.7, momentum=0.3)
    peers = make_peers(hub, grid([1, 1]), [0, 0], TWO_LEVELS, outer, inner_steps=3)
    for peer in peers:
        peer.rules = replace(
            peer.rules, rounds=RoundsConfig(pacing="synchronous", inner_steps=3, overlap_steps=LATE_STEPS)
        )
    run_rounds(peers, 2 * 3)  # one to begin, and one until it is over

    torch.set_num_threads(1)
    workers = [InnerTrainer(new_model(TWO_LEVELS), INNER, TrainingSettings()) for _ in range(2)]
    streams = [batches(i) for i in range(2)]
    theta = [workers[0].model.vector(level) for level in range(2)]
    velocity = [torch.zeros_like(vector) for vector in theta]

    def step(level: int, delta: Tensor) -> Tensor:
        return theta[level] - 0.7 * (delta + 0.3 * (0.3 * velocity[level] + delta))

    for steps in (3, 3 - LATE_STEPS, 3 - LATE_STEPS):
        deltas, trained = [], []
        for worker, stream in zip(workers, streams, strict=True):
            worker.train(stream, steps)
            deltas.append([theta[level] - worker.model.vector(level) for level in range(2)])
            expected = [step(level, deltas[-1][level]) for level in range(2)]
            for level in range(2):
                worker.model.load(level, expected[level])
            worker.train(stream, LATE_STEPS)
            trained.append([worker.model.vector(level) - expected[level] for level in range(2)])
        for level in range(2):
            mean = (deltas[0][level] + deltas[1][level]) / 2
            theta[level], velocity[level] = step(level, mean), 0.3 * velocity[level] + mean
            for worker, since in zip(workers, trained, strict=True):
                worker.model.load(level, theta[level] + since[level])
    for peer, worker in zip(peers, workers, strict=True):
        for level in range(2):
            torch.testing.assert_close(peer.base[ModuleId(level, 0)].params, theta[level], rtol=0, atol=1e-6)
            torch.testing.assert_close(peer.model.vector(level), worker.model.vector(level), rtol=0, atol=1e-6)


class NeverAgreed:
    """A round under way that comes to nothing, once it may."""

    progress = 0.0

    def __init__(self) -> None:
        self.over = False

    def outcome(self, *, timeout: float | None = 0.0) -> Outcome | None:
        return NotAgreed("the others are gone") if self.over else None

    def cancel(self) -> None:
        self.over = True


def test_a_late_round_that_fails_takes_back_what_was_expected_of_it(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    (peer,) = make_peers(hub, grid([1, 1]), [0], TWO_LEVELS, OuterConfig(), inner_steps=2)
    peer.rules = replace(peer.rules, rounds=RoundsConfig(inner_steps=2))
    module = peer.modules[0]
    under_way = NeverAgreed()
    monkeypatch.setattr(peer.swarm, "begin_round", lambda *_, **__: under_way)
    run_outer_round(peer)
    given = peer.in_flight[module].part.params
    ahead = peer.model.vector(0)
    assert not torch.allclose(ahead, given, atol=1e-5)
    torch.testing.assert_close(peer.local(module), given, rtol=0, atol=1e-6)  # what a checkpoint has
    run_outer_round(peer)
    assert peer.in_flight
    since = peer.model.vector(0) - ahead
    assert not torch.allclose(peer.model.vector(0), ahead)
    under_way.over = True
    monkeypatch.setattr(peer.trainer, "train", lambda *_, **__: TrainReport(0, 0, math.nan, 0.0))
    run_outer_round(peer)
    assert not peer.in_flight
    torch.testing.assert_close(peer.model.vector(0), given + since, rtol=0, atol=1e-6)
    assert peer.progress[module].tokens == 4 * peer.rules.tokens_per_step


def test_a_round_after_the_last_one_is_left_while_it_is_waited_for(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has heard of the end before us makes it no more."""
    (peer,) = make_peers(hub, grid([1, 1]), [0], TWO_LEVELS, OuterConfig(), inner_steps=2)
    monkeypatch.setattr(peer.swarm, "begin_round", lambda *_, **__: NeverAgreed())
    last = dict.fromkeys(peer.modules, 0)
    report = run_outer_round(peer, on_wait=lambda: peer.ends_at(last))
    assert {type(outcome) for outcome in report.outcomes.values()} == {NotAgreed}
    assert peer.is_done
    assert not peer.in_flight


def test_a_late_round_is_merged_after_its_steps_and_no_sooner(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """However early it is over: on another machine it might not be, and the bytes would differ."""
    (peer,) = make_peers(hub, grid([1, 1]), [0], TWO_LEVELS, OuterConfig(), inner_steps=2)
    peer.rules = replace(peer.rules, rounds=RoundsConfig(pacing="synchronous", inner_steps=2, overlap_steps=1))
    under_way = NeverAgreed()
    under_way.over = True
    monkeypatch.setattr(peer.swarm, "begin_round", lambda *_, **__: under_way)
    assert not run_outer_round(peer).outcomes
    report = run_outer_round(peer)
    assert report.steps == 1
    assert report.outcomes.keys() == {*peer.modules}


def test_a_flat_mixture_is_independent_runs_with_an_outer_step_and_no_traffic(make_hub: MakeHub) -> None:
    """Check 2: one level, a module per path; nobody exchanges anything."""
    outer = OuterConfig(learning_rate=0.7, momentum=0.9, rescale=True)
    peers = make_peers(make_hub(), PathTable(((0,), (1,), (2,))), [0, 1, 2], ONE_LEVEL, outer, inner_steps=2)
    run_rounds(peers, 2)
    alone = [make_peers(make_hub(), grid([1]), [0], ONE_LEVEL, outer, inner_steps=2)[0] for _ in range(3)]
    for i, peer in enumerate(alone):
        peer.batches = batches(i)
        run_rounds([peer], 2)
        state, reference = peers[i].base[ModuleId(0, i)], peer.base[ModuleId(0, 0)]
        assert torch.equal(state.params, reference.params)
        assert torch.equal(state.momentum, reference.momentum)
        assert peers[i].swarm.traffic().sent == 0


def test_a_module_of_a_grid_moves_by_the_mean_over_its_two_paths_times_the_root_of_two(hub: Hub) -> None:
    """Check 3 (paper figure 4): 2x2; module L1M0 belongs to paths 0 and 2."""
    outer = OuterConfig(learning_rate=1.0, momentum=0.0, rescale=True)
    table = grid([2, 2])
    peers = make_peers(hub, table, [0, 1, 2, 3], TWO_LEVELS, outer, inner_steps=2)
    module = ModuleId(1, 0)
    assert table.paths_through(module) == (0, 2)
    before = peers[0].base[module].params
    references = []
    for path in (0, 2):
        worker = InnerTrainer(new_model(TWO_LEVELS), INNER, TrainingSettings())
        worker.train(batches(path), 2)
        references.append(before - worker.model.vector(1))
    run_rounds(peers, 1)
    mean = references[0] * 0.5 + references[1] * 0.5
    expected = before - mean * math.sqrt(2.0)
    for path in (0, 2):
        torch.testing.assert_close(peers[path].base[module].params, expected, rtol=0, atol=1e-7)
    assert torch.equal(peers[0].base[module].params, peers[2].base[module].params)
    assert not torch.equal(peers[0].base[module].params, peers[1].base[ModuleId(1, 1)].params)
    moved = float((peers[0].base[module].params - before).norm())
    assert moved == pytest.approx(math.sqrt(2) * float(mean.norm()), rel=1e-5)


@dataclass
class PlainSgd:
    """An inner optimizer of one line, in the place of AdamW."""

    model: PathModel
    learning_rate: float = 0.1
    decay_of_step: float = 0.0

    def skip_to(self, steps: int) -> None:
        """Its learning rate has no schedule."""

    def gradient_step(self, batch: Tensor) -> float:
        network = self.model.network
        network.zero_grad()
        loss = network(input_ids=batch, labels=batch).loss
        loss.backward()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= self.learning_rate * cast(Tensor, parameter.grad)
        return float(loss.detach())

    def train(
        self, stream: Iterator[Tensor], steps: int, *, stop: Callable[[], bool], on_step: Callable[[StepReport], None]
    ) -> TrainReport:
        loss = math.nan
        for step in range(steps):
            batch = next(stream)
            loss = self.gradient_step(batch)
            on_step(StepReport(step + 1, loss, self.learning_rate, batch.numel(), 1.0))
        return TrainReport(steps, steps * INNER.batch_sequences * LENGTH, loss, 1.0)


def test_one_inner_step_of_sgd_is_synchronous_sgd_per_module(hub: Hub) -> None:
    """Check 4: tau = 1, outer learning rate 1, no momentum, no rescaling."""
    outer = OuterConfig(learning_rate=1.0, momentum=0.0, rescale=False)
    table = grid([2, 2])
    make = lambda model: cast(InnerTrainer, PlainSgd(model))  # noqa: E731
    peers = make_peers(hub, table, [0, 1, 2, 3], TWO_LEVELS, outer, inner_steps=1, trainer=make)
    run_rounds(peers, 4)

    bank = {module: new_model(TWO_LEVELS).vector(module.level) for module in table.modules}
    streams = [batches(i) for i in range(4)]
    for _ in range(4):
        gradients: dict[ModuleId, list[Tensor]] = {module: [] for module in table.modules}
        for path in range(4):
            model = new_model(TWO_LEVELS)
            modules = table.modules_of(PathIndex(path))
            for module in modules:
                model.load(module.level, bank[module])
            batch = next(streams[path])
            model.network(input_ids=batch, labels=batch).loss.backward()
            for parameter in model.network.parameters():
                parameter.data = cast(Tensor, parameter.grad)
            for module in modules:
                gradients[module].append(model.vector(module.level))
        for module, found in gradients.items():
            bank[module] = bank[module] - 0.1 * torch.stack(found).mean(dim=0)
    for path, peer in enumerate(peers):
        for module in table.modules_of(PathIndex(path)):
            torch.testing.assert_close(peer.base[module].params, bank[module], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("given", "kept"), [(None, True), (0, False), (7, False)])
def test_progress_stays_on_top_of_a_newer_state_unless_it_is_part_of_it(
    hub: Hub, given: int | None, kept: bool
) -> None:
    """`given`: the version from which others have it; after a crash it may be newer than the checkpoint's."""
    (peer,) = make_peers(hub, grid([1, 1]), [0], TWO_LEVELS, OuterConfig(), inner_steps=1)
    module = peer.modules[0]
    before = peer.base[module].params
    peer.model.load(0, before + 0.5)
    peer.progress[module] = replace(peer.progress[module], tokens=640, given_at=given)
    newer = ModuleState(1, before - 1.0, torch.zeros_like(before), work=640)
    rebase(peer, module, newer, peer.local(module))
    torch.testing.assert_close(peer.model.vector(0), newer.params + (0.5 if kept else 0.0))
    assert peer.progress[module].tokens == (640 if kept else 0)
    assert peer.base[module] is newer
    assert peer.progress[module].given_at == (0 if given == 0 else None)  # a checkpoint may be as old as version 0


@pytest.mark.parametrize(
    ("other_at", "full_rounds"),
    [
        (20, 2),
        (19, CATCH_UP_ROUNDS * 2),
        (20 - CATCH_UP_ROUNDS, CATCH_UP_ROUNDS * 2),
        (19 - CATCH_UP_ROUNDS, 2),
        (21, 2),
    ],
)
def test_a_paced_round_waits_a_while_for_a_path_that_is_behind(hub: Hub, other_at: int, full_rounds: int) -> None:
    """Ours is at version 20, of two paths; `full_rounds`: how much we train before the round is due."""
    assert _is_due_after(hub, full_rounds, other_at)


@pytest.mark.parametrize(("catches_up", "full_rounds"), [(True, CATCH_UP_ROUNDS * 2), (False, 2)])
def test_a_paced_round_does_not_wait_for_who_sleeps(
    hub: Hub, catches_up: bool, full_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who fetches a newer state is waited for even where its line has no room for a word."""
    members = NetworkedSwarm.members

    def silent(self: NetworkedSwarm, stage: int, module: ModuleId) -> tuple[Announcement, ...]:
        return tuple(replace(said, awake=said.peer == self.peer) for said in members(self, stage, module))

    monkeypatch.setattr(NetworkedSwarm, "members", silent)
    assert _is_due_after(hub, full_rounds, 19, catches_up=catches_up)


def test_who_fetches_a_newer_state_says_so_until_it_is_there(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = make_peers(hub, grid([1, 2]), [0, 1], TWO_LEVELS, OuterConfig(), inner_steps=3)
    shared, own = ours.modules
    adopt(other, shared, replace(other.base[shared], version=3))
    announce(other)
    hear_all([ours, other])
    said: list[set[ModuleId]] = []
    fetch = NetworkedSwarm.begin_fetch

    def look(self: NetworkedSwarm, stage: int, module: ModuleId, *rest: Any, **more: Any) -> FetchUnderWay:
        until(lambda: any(s.catching_up for s in self.members(stage, module)))  # saying it takes a moment
        said.append({m for m in (shared, own) if any(s.catching_up for s in self.members(stage, m))})
        return fetch(self, stage, module, *rest, **more)

    monkeypatch.setattr(NetworkedSwarm, "begin_fetch", look)
    until(lambda: bool(catch_ups(ours)))  # the other one is asked first whether it has had that state
    (task,) = catch_ups(ours)
    begin_catch_up(ours, [task])
    assert end_catch_up(ours, task.module)
    assert said == [{shared}]
    until(lambda: not any(s.catching_up for m in (shared, own) for s in ours.swarm.members(0, m)))


def test_whose_round_failed_trains_a_little_before_it_tries_again(hub: Hub) -> None:
    (peer,) = make_peers(hub, grid([1, 1]), [0], TWO_LEVELS, OuterConfig(), inner_steps=40)
    module, other = peer.modules
    peer.rules = replace(peer.rules, rounds=RoundsConfig(pacing="paced", inner_steps=40))
    step = peer.rules.tokens_per_step
    peer.progress = {m: progress.trained(40 * step) for m, progress in peer.progress.items()}
    peer.progress[module] = replace(peer.progress[module], failed_at=40 * step)
    assert modules_due(peer) == [other]
    peer.progress[module] = peer.progress[module].trained(step)
    assert modules_due(peer) == [other]
    peer.progress[module] = peer.progress[module].trained(step)
    assert modules_due(peer) == [module, other]


def _is_due_after(hub: Hub, full_rounds: int, other_at: int, *, catches_up: bool = False) -> bool:
    """Whether ours, at version 20, asks for a round after so much training and not a token sooner."""
    ours, other = make_peers(hub, grid([1, 2]), [0, 1], TWO_LEVELS, OuterConfig(), inner_steps=3)
    shared, own = ours.modules
    for peer, version in ((ours, 20), (other, other_at)):
        state = replace(peer.base[shared], version=version)
        peer.progress[shared] = ModuleProgress(state, catching_up=catches_up and peer is other)
        announce(peer)
    hear_all([ours, other])
    cast(NetworkedSwarm, ours.swarm)._groups._counted.add((0, shared))  # it has made versions with the other
    paced = RoundsConfig(pacing="paced", inner_steps=3)
    ours.rules = replace(ours.rules, rounds=paced)
    round_tokens = paced.inner_steps * ours.rules.tokens_per_step
    for module, tokens in ((shared, full_rounds * round_tokens - 1), (own, round_tokens)):
        ours.progress[module] = ours.progress[module].trained(tokens)
    too_soon = modules_due(ours)
    ours.progress[shared] = ours.progress[shared].trained(1)
    return (too_soon, modules_due(ours)) == ([own], [shared, own])
