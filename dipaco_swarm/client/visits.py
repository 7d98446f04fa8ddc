"""Using a run: status, evaluation, text, export; from the live swarm, or from a home folder without any network.

A home folder is a bootstrap node's, which has every module, or a peer's, which has those of its path.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.stages import state_at_start
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.dashboard.status import status_of
from dipaco_swarm.dashboard.views import Evaluation, PathScore, SwarmStatus
from dipaco_swarm.errors import CheckpointError, UnreachableError, UsageError
from dipaco_swarm.events.volunteer import BestSnapshot
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest, signer_of
from dipaco_swarm.snapshots import Offers
from dipaco_swarm.swarm.newest import NewestStates
from dipaco_swarm.training import checkpoint as checkpoints
from dipaco_swarm.training.bank import load_path, load_state, module_file
from dipaco_swarm.training.documents import Split, read_documents
from dipaco_swarm.training.early import Snapshot, load_into, load_snapshot, misfit, run_of, snapshot_file
from dipaco_swarm.training.evaluation import RoutedScore, evaluate_rerouted, evaluate_routed, window_paths
from dipaco_swarm.training.export import export_path
from dipaco_swarm.training.inference import Sampling, generate_rerouted, generate_tokens
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.pieces import EvaluationSet, evaluation_pieces
from dipaco_swarm.training.routed import Routing, load_routing
from dipaco_swarm.training.tokenizer import end_of_text_id, vocabulary_size
from dipaco_swarm.training.window_router import WindowRouter, window_router_from_bytes

if TYPE_CHECKING:
    from dipaco_swarm.swarm.networked import NetworkedSwarm

Source = RunAddress | Path
Tell = Callable[[str], None]
"""Says one line to a person."""

MANIFEST_SECONDS = 30.0
LOOK_UP_SECONDS = 30.0
NOTHING = Claim(-1, "")
"""The word of a guest, who has no state."""
BLOB_SECONDS = 600.0
PIECES_PER_DOMAIN = 200
"""Held-out pieces scored of each domain."""


@dataclass(frozen=True)
class TrainedRun:
    """A run as it can be used: the manifest, its blobs, and the newest state of each module that can be had."""

    manifest: Manifest
    fetch: Callable[[str], bytes]
    state_of: Callable[[ModuleId], ModuleState]
    """Raises CheckpointError or UnreachableError when a module cannot be had."""
    snapshot_of: Callable[[PathModel, PathIndex], Snapshot | None] | None = None
    """The best snapshot of a path that fits the model; None: not asked for, the agreed modules are used."""
    served: dict[PathIndex, Snapshot | None] = field(default_factory=dict)
    """What was loaded of each path: a snapshot, or its agreed modules."""

    @property
    def table(self) -> PathTable:
        return PathTable(self.manifest.stage.table)

    def routing(self) -> Routing:
        return load_routing(self.manifest, self.manifest.stage, self.fetch)

    def model(self) -> PathModel:
        """A network of the run's shape; `load_path` fills it."""
        config = self.manifest.config
        vocabulary = vocabulary_size(self.routing().tokenizer)
        return PathModel(build_network(config.model, vocabulary, config.seed), config.levels)

    def window_router(self) -> WindowRouter:
        """What chooses a path anew every W tokens. Raises UsageError when the run has none."""
        manifest = self.manifest
        if manifest.window_router is None:
            reason = (
                "its run file has no [rerouting]"
                if manifest.config.rerouting is None
                else "it is trained when the last stage is done"
                if not manifest.finished
                else "its training failed, as the bootstrap node's log says"
            )
            raise UsageError(f"the run {manifest.config.name} has no window router: {reason}; leave out --reroute")
        vocabulary = vocabulary_size(self.routing().tokenizer)
        data = self.fetch(manifest.window_router)
        return window_router_from_bytes(data, manifest.config, vocabulary, self.table.num_paths)

    def load(self, model: PathModel, path: PathIndex) -> PreTrainedModel:
        """Put a path into the model. Raises UsageError when there is no such path."""
        if not 0 <= path < self.table.num_paths:
            raise UsageError(
                f"path {path} does not exist: this stage of the run {self.manifest.config.name} has paths 0 to "
                f"{self.table.num_paths - 1}"
            )
        snapshot = self.snapshot_of(model, path) if self.snapshot_of is not None else None
        self.served[path] = snapshot
        if snapshot is not None:
            load_into(model, snapshot)
            return model.network
        return load_path(model, self.table, path, {m: self.state_of(m) for m in self.table.modules_of(path)})

    def fallen_back(self) -> str | None:
        """Which of the loaded paths had no snapshot although snapshots were asked for, in one line; None: all had."""
        without = sorted(path for path, snapshot in self.served.items() if snapshot is None)
        if self.snapshot_of is None or not without:
            return None
        which = ", ".join(map(str, without)) if len(without) <= 8 else f"{without[0]} and {len(without) - 1} others"
        return f"no early-stopping snapshot of path {which} can be had; using the agreed modules there"


@contextmanager
def open_run(source: Source, *, best: bool = False) -> Iterator[TrainedRun]:
    """A run from the swarm or from a home folder. Raises SwarmError when it is not there.

    `best`: load the early-stopping snapshot of a path where there is one (docs/paper.md#early-stopping).
    """
    if isinstance(source, Path):
        yield _run_at_home(source, best)
        return
    with _visit(source) as (swarm, manifest):
        # one state of each module, so that what is scored or written is one model, however long it takes
        state_of = cache(lambda module: _state_in_swarm(swarm, manifest, module))
        run = run_of(manifest.config.name, source.fingerprint)
        yield TrainedRun(
            manifest,
            lambda digest: swarm.fetch_blob(digest, timeout=BLOB_SECONDS),
            state_of,
            (lambda model, path: Offers(swarm, manifest, run, model).best(path)) if best else None,
        )


@contextmanager
def _visit(address: RunAddress) -> "Iterator[tuple[NetworkedSwarm, Manifest]]":
    """Join the swarm as a guest that serves nobody, with everybody looked up."""
    from dipaco_swarm.swarm.libp2p.opening import open_swarm
    from dipaco_swarm.swarm.libp2p.settings import NodeSettings

    with tempfile.TemporaryDirectory(prefix="dipaco-") as home:
        guest = NodeSettings(reachable=False)
        with open_swarm(address, Path(home), guest) as swarm:
            signed = swarm.newest_manifest(timeout=MANIFEST_SECONDS)
            if signed is None:
                raise UnreachableError(address.nobody_knows_it)
            manifest = open_manifest(signed, address.fingerprint)
            table = PathTable(manifest.stage.table)
            swarm.look_up(manifest.stage.index, table.modules, timeout=LOOK_UP_SECONDS)
            yield swarm, manifest


def _state_in_swarm(swarm: "NetworkedSwarm", manifest: Manifest, module: ModuleId) -> ModuleState:
    """The newest state of a module that anybody sends. Raises UnreachableError when nobody does."""
    stage = manifest.stage.index
    swarm.look_up(stage, [module], timeout=LOOK_UP_SECONDS)  # what was heard a minute ago has expired
    members = swarm.members(stage, module)
    claims = [Claim.of(said) for said in members]
    newest = NewestStates(swarm, give_up_after=0.0)  # each state once, the newest first
    while (claim := newest.better(module, NOTHING, claims)) is not None:
        state = newest.fetch(stage, module, claim)
        if state is not None:
            return state
    raise UnreachableError(
        f"{len(members)} peers announce {module} and none of them sends it; try again in a minute"
        if members
        else f"nobody in the swarm has {module} now; try again when its peers or the bootstrap node are back"
    )


def _run_at_home(home: Path, best: bool) -> TrainedRun:
    try:
        signed = (home / "manifest.json").read_bytes()
    except OSError:
        raise UsageError(
            f"{home} is not the home folder of a bootstrap node or a peer: it has no manifest.json"
        ) from None
    manifest = open_manifest(signed, signer_of(signed))
    stage = manifest.stage
    run = run_of(manifest.config.name, signer_of(signed))

    def fetch(digest: str) -> bytes:
        try:
            return (home / "blobs" / digest).read_bytes()
        except OSError:
            raise CheckpointError(f"{home} lacks the run's file {digest[:12]}; use --run to get it") from None

    own: dict[ModuleId, ModuleState] = {}
    for file in sorted((home / "checkpoints").glob(f"stage-{stage.index}-path-*.safetensors")):
        saved = checkpoints.load(file, run)
        own.update(saved.base if saved is not None else {})

    def state_of(module: ModuleId) -> ModuleState:
        state = own.get(module) or load_state(module_file(home, stage.index, module))
        if state is None and not own:
            return state_at_start(stage, module, fetch)
        if state is None:
            raise CheckpointError(f"{home} has no {module}: a peer keeps its own path only; use --run for the others")
        return state

    def snapshot_of(model: PathModel, path: PathIndex) -> Snapshot | None:
        file = snapshot_file(home, stage.index, path)
        snapshot = load_snapshot(file, run)
        if snapshot is not None and (problem := misfit(snapshot, model, PathTable(stage.table))):
            raise CheckpointError(f"the snapshot {file} cannot be used: {problem}; move it away, or leave out --best")
        return snapshot

    return TrainedRun(manifest, fetch, state_of, snapshot_of if best else None)


# ----------------------------------------------------------------------------------------------------------- commands


def status(address: RunAddress) -> SwarmStatus:
    """Who trains what, now."""
    with _visit(address) as (swarm, manifest):
        return status_of(swarm, manifest)


def evaluate(
    source: Source,
    data: str | None,
    *,
    window: int | None = None,
    best: bool = False,
    tell: Tell = lambda line: None,
) -> Evaluation:
    """Routed perplexity per path and in all; on text files matching `data`, or on the run's held-out documents.

    `window`: route anew every so many tokens; None: each document once, by its prefix. `best`: score the best snapshots
    of the paths; `tell` then says which paths have none.
    """
    _check_window(window)
    with open_run(source, best=best) as run:
        router = run.window_router() if window is not None else None  # what can fail fails before the slow part
        pieces = held_out(run, data)
        if router is not None and window is not None:
            scores, documents = score_rerouted(run, pieces, router, window)
        else:
            scores, documents = score(run, pieces)
        _tell_what_fell_back(run, tell)
        return Evaluation(
            run=run.manifest.config.name,
            stage=run.manifest.stage.index,
            data=(data or f"held-out documents of {run.manifest.config.data.source}")
            + (", best snapshot of each path" if best else ""),
            prefix_tokens=run.manifest.config.router.prefix_tokens,
            paths=tuple(
                PathScore(path, documents[path], found.tokens, found.loss)
                for path, found in sorted(scores.by_path.items())
            ),
            window=window,
        )


def _check_window(window: int | None) -> None:
    if window is not None and window < 1:
        raise UsageError(f"--reroute {window} is no number of tokens; give 1 or more, for example 64")


def _tell_what_fell_back(run: TrainedRun, tell: Tell) -> None:
    line = run.fallen_back()
    if line is not None:
        tell(line)


def held_out(run: TrainedRun, data: str | None = None) -> EvaluationSet:
    """Pieces that nobody trained on: the run's held-out documents, or all of the given text files."""
    config = run.manifest.config
    source = config.data
    if data is not None:
        source = DataConfig(source="text", path=data, sequence_length=source.sequence_length)
    split: Split | None = "holdout" if data is None else None
    tokenizer = run.routing().tokenizer
    return evaluation_pieces(read_documents(source), tokenizer, source, config.router, PIECES_PER_DOMAIN, split=split)


def score(run: TrainedRun, pieces: EvaluationSet) -> tuple[RoutedScore, dict[PathIndex, int]]:
    """Score every piece under the path it is routed to; also the number of pieces of each path."""
    prefix = run.manifest.config.router.prefix_tokens
    paths = run.routing().paths(pieces.tokens[:, :prefix])
    model = run.model()
    result = evaluate_routed(pieces, paths, lambda path: run.load(model, path), prefix)
    return result, {PathIndex(int(path)): int((paths == path).sum()) for path in set(paths.tolist())}


def score_rerouted(
    run: TrainedRun, pieces: EvaluationSet, router: WindowRouter, window: int
) -> tuple[RoutedScore, dict[PathIndex, int]]:
    """As `score`, but routed anew every `window` tokens; also the number of windows of each path."""
    prefix = run.manifest.config.router.prefix_tokens
    choices = router.choices(torch.from_numpy(pieces.tokens)).numpy()
    paths = window_paths(run.routing().paths(pieces.tokens[:, :prefix]), choices, prefix, window)
    model = run.model()
    result = evaluate_rerouted(pieces, paths, lambda path: run.load(model, path), prefix)
    starts = np.arange(prefix, paths.shape[1], window)
    begun = paths[:, starts][starts < pieces.lengths[:, None]]  # the path of each window that there is
    return result, {path: int((begun == path).sum()) for path in result.by_path}


def generate(
    source: Source,
    prompt: str,
    *,
    tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
    window: int | None = None,
    best: bool = False,
    tell: Tell = lambda line: None,
) -> Iterator[str]:
    """Text that follows the prompt, in pieces: routed on the prompt's first tokens, written by that one path.

    `window`: route anew every so many new tokens, on all the text that there is by then; a prompt longer than what the
    prefix router reads is routed by the window router from the start. `best`, `tell`: see `evaluate`.
    """
    _check_window(window)
    with open_run(source, best=best) as run:
        routing = run.routing()
        ids = routing.tokenizer.encode(prompt).ids
        if not ids:
            raise UsageError("the prompt is empty; give some text to go on from")
        prefix = torch.tensor([ids[: run.manifest.config.router.prefix_tokens]]).numpy()
        path = PathIndex(int(routing.paths(prefix)[0]))
        model, stop = run.model(), end_of_text_id(routing.tokenizer)
        sampling = Sampling(temperature, top_k or None)
        generator = torch.Generator().manual_seed(seed)
        stream = DecodeStream(ids=[], skip_special_tokens=True)
        if window is None:
            new = generate_tokens(run.load(model, path), ids, sampling, generator, stop)
        else:
            router = run.window_router()
            path = router.choose(ids) if len(ids) > prefix.shape[1] else path
            load = lambda path: run.load(model, path)  # noqa: E731
            new = generate_rerouted(path, router.choose, load, window, ids, sampling, generator, stop)
        for token in islice(new, tokens):
            text = stream.step(routing.tokenizer, token)
            if text:
                yield text
        _tell_what_fell_back(run, tell)


def export(source: Source, path: int, out: Path, *, best: bool = False, tell: Tell = lambda line: None) -> None:
    """Write one path as an ordinary transformers folder. `best`, `tell`: see `evaluate`."""
    with open_run(source, best=best) as run:
        model = run.model()
        run.load(model, PathIndex(path))
        _tell_what_fell_back(run, tell)
        versions = _versions_of(run, PathIndex(path))
        config, stage = run.manifest.config, run.manifest.stage.index
        description = (
            f"Path {path} of {run.table.num_paths} of the DiPaCo run `{config.name}`, stage {stage}: "
            f"{versions}. It was trained on the documents that the run's router sends to it, and is at home there."
        )
        export_path(model, run.routing().tokenizer_json, out, description)


def _versions_of(run: TrainedRun, path: PathIndex) -> str:
    """Which parameters of a path were loaded, for a model card."""
    snapshot = run.served[path]
    if snapshot is not None:
        return str(BestSnapshot(snapshot.path, snapshot.loss, snapshot.named_versions))
    states = {module: run.state_of(module) for module in run.table.modules_of(path)}
    return ", ".join(f"{module} at version {state.version}" for module, state in states.items())
