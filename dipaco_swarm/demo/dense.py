"""The dense baseline: one model of a path's size, on the whole mixture, as many steps as a path takes in all.

Everything else is the run's own: the parameters it starts from, tokenizer, documents, batch, optimizer and schedule,
and the machinery that trains it. A process of its own:  main() HOME-OF-BOOTSTRAP CACHE OUT
"""

import sys
import time
from pathlib import Path

import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState, vector_from_bytes
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.dashboard.metrics import StepMeter
from dipaco_swarm.dashboard.screens import Screen, open_screen, recorded
from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.events.operator import DenseBaseline, ReadingMixture
from dipaco_swarm.machine.stopping import Stopping, stopping_on_signals
from dipaco_swarm.training.bank import load_state, module_file, save_state
from dipaco_swarm.training.documents import read_documents
from dipaco_swarm.training.inner import InnerTrainer, StepReport, TrainingSettings
from dipaco_swarm.training.modules import PathModel
from dipaco_swarm.training.routed import shard_recipe
from dipaco_swarm.training.shards import build_shard

MANIFEST_SECONDS = 300.0
"""The bootstrap node has published its run by then, however slow the machine."""


def train_dense(bootstrap: Path, cache: Path, out: Path, screen: Screen, stop: Stopping) -> None:
    """Train the baseline of the run whose bootstrap node lives in `bootstrap`, and keep it in `out`."""
    deadline = time.monotonic() + MANIFEST_SECONDS
    while not (bootstrap / "manifest.json").exists():
        if time.monotonic() > deadline:
            raise UnreachableError(f"the bootstrap node has published nothing in {MANIFEST_SECONDS:.0f} s; see its log")
        if stop.wait(0.2):
            return
    with open_run(bootstrap) as run:
        manifest, config = run.manifest, run.manifest.config
        tokenizer = run.routing().tokenizer
        screen.event(ReadingMixture())
        recipe = shard_recipe(manifest, manifest.stages[0], PathIndex(0))
        shard = build_shard(
            lambda: read_documents(config.data),
            tokenizer,
            config.data,
            config.router,
            None,
            PathIndex(0),
            cache=cache / "shards",
            key=recipe.key(),
            hold_out=recipe.hold_out,
            remember=cache / "tokens" / manifest.tokenizer[:32],
        )
        model = run.model()
        for level in range(model.num_levels):
            model.load(level, vector_from_bytes(run.fetch(manifest.stages[0].seeds[str(ModuleId(level, 0))])))
    trainer = InnerTrainer(model, config.inner, TrainingSettings(threads=1))
    meter = StepMeter()

    def note(report: StepReport) -> None:
        steps = meter.step(0, 0, report.step, report.loss, report.tokens, report.seconds)
        if steps is not None:
            screen.event(steps)

    steps = config.steps_of(config.stages)
    screen.event(DenseBaseline(steps, done=False))
    batches = shard.batches(config.inner.batch_sequences, config.seed)
    trainer.train(batches, steps, stop=stop, on_step=note)
    if trainer.steps_done == steps:
        for level in range(model.num_levels):
            save_state(module_file(out, 0, ModuleId(level, 0)), ModuleState.seed(model.vector(level)))
        screen.event(DenseBaseline(steps, done=True))


def fill_dense(model: PathModel, out: Path) -> None:
    """Put the trained baseline into a model of the run's shape."""
    for level in range(model.num_levels):
        state = load_state(module_file(out, 0, ModuleId(level, 0)))
        if state is None:
            raise UnreachableError(f"the dense baseline in {out} is not complete; see its log")
        model.load(level, state.params)


def main() -> None:
    """Bootstrap node's home, shared cache, own folder."""
    bootstrap, cache, out = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    with stopping_on_signals() as stop, open_screen("plain") as screen:
        train_dense(bootstrap, cache, out, recorded(screen, out), stop)
