"""From where a run can be used: the live swarm, as a guest; or a home folder, without any network.

A home folder is a bootstrap node's, which has every module, or a peer's, which has those of its path.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.stages import state_at_start
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.errors import CheckpointError, UnreachableError, UsageError
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest, signer_of
from dipaco_swarm.snapshots import Offers
from dipaco_swarm.swarm.interface import Swarm
from dipaco_swarm.swarm.newest import NewestStates
from dipaco_swarm.training import checkpoint as checkpoints
from dipaco_swarm.training.bank import load_state, module_file
from dipaco_swarm.training.early import Snapshot, load_snapshot, misfit, run_of, snapshot_file
from dipaco_swarm.training.modules import PathModel

if TYPE_CHECKING:
    from dipaco_swarm.swarm.networked import NetworkedSwarm

Source = RunAddress | Path

MANIFEST_SECONDS = 30.0
LOOK_UP_SECONDS = 30.0
BLOB_SECONDS = 600.0
ASKINGS = 3
"""So often a guest asks for a file."""
NOTHING = Claim(-1, "")
"""The word of a guest, who has no state."""


@contextmanager
def open_run(source: Source, *, best: bool = False) -> Iterator[TrainedRun]:
    """A run from the swarm or from a home folder. Raises SwarmError when it is not there.

    `best`: load the early-stopping snapshot of a path where there is one (docs/paper.md#early-stopping).
    """
    if isinstance(source, Path):
        yield _run_at_home(source, best)
        return
    with visit(source) as (swarm, manifest):
        yield run_in_swarm(swarm, manifest, source.fingerprint, best=best)


def run_in_swarm(swarm: Swarm, manifest: Manifest, fingerprint: str, *, best: bool = False) -> TrainedRun:
    """A run as its peers have it now. One state of each module, so that what is scored or written is one model, however
    long it takes."""
    name = run_of(manifest.config.name, fingerprint)
    run: TrainedRun

    def newest(module: ModuleId) -> ModuleState:
        return _state_in_swarm(swarm, manifest, module, run.parameters[module.level])

    run = TrainedRun(
        manifest,
        partial(insist, swarm),
        cache(newest),
        (lambda model, path: Offers(swarm, manifest, name, model).best(path)) if best else None,
    )
    return run


def insist(swarm: Swarm, digest: str) -> bytes:
    """A file of the run; a guest may know one holder only, and that one may be busy. Raises UnreachableError."""
    for _ in range(ASKINGS - 1):
        with suppress(UnreachableError):
            return swarm.fetch_blob(digest, timeout=BLOB_SECONDS)
    return swarm.fetch_blob(digest, timeout=BLOB_SECONDS)


@contextmanager
def visit(address: RunAddress) -> "Iterator[tuple[NetworkedSwarm, Manifest]]":
    """Join the swarm as a guest, with everybody looked up."""
    with at_the_door(address) as (swarm, manifest):
        table = PathTable(manifest.stage.table)
        swarm.look_up(manifest.stage.index, table.modules, timeout=LOOK_UP_SECONDS)
        yield swarm, manifest


@contextmanager
def at_the_door(address: RunAddress) -> "Iterator[tuple[NetworkedSwarm, Manifest]]":
    """Join the swarm as a guest that serves nobody and asks for the manifest alone."""
    from dipaco_swarm.swarm.libp2p.opening import open_swarm
    from dipaco_swarm.swarm.libp2p.settings import NodeSettings

    with tempfile.TemporaryDirectory(prefix="dipaco-") as home:
        guest = NodeSettings(reachable=False)
        with open_swarm(address, Path(home), guest) as swarm:
            signed = swarm.newest_manifest(timeout=MANIFEST_SECONDS)
            if signed is None:
                raise UnreachableError(address.nobody_knows_it)
            yield swarm, open_manifest(signed, address.fingerprint)


def _state_in_swarm(swarm: Swarm, manifest: Manifest, module: ModuleId, parameters: int) -> ModuleState:
    """The newest state of a module that anybody sends. Raises UnreachableError when nobody does."""
    stage = manifest.stage.index
    swarm.look_up(stage, [module], timeout=LOOK_UP_SECONDS)  # what was heard a minute ago has expired
    members = swarm.members(stage, module)
    newest = NewestStates(swarm, give_up_after=0.0)  # each state once, the newest first
    while (claim := newest.better(stage, module, NOTHING, members, timeout=LOOK_UP_SECONDS)) is not None:
        state = newest.fetch(stage, module, claim, parameters=parameters)
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
