"""What a volunteer keeps on its disk, so that a restart costs little: checkpoints, the manifest, what was given."""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.progress import Part
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import DamagedError, HomeError, ManifestError
from dipaco_swarm.events.training import MemoryDamaged
from dipaco_swarm.events.volunteer import CannotWrite, CheckpointDamaged, Recovered
from dipaco_swarm.files import set_aside, write_whole
from dipaco_swarm.outer_round import adopt
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest
from dipaco_swarm.swarm.states.shelf import Shelf
from dipaco_swarm.training import checkpoint as checkpoints
from dipaco_swarm.training.checkpoint import Checkpoint
from dipaco_swarm.training.inner import InnerState

log = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
MANIFEST_SECONDS = 20.0
CHECKPOINT_SECONDS = 2.0
"""A crash loses at most this much local progress of a small path; a clean end loses none."""
CHECKPOINT_BYTES_PER_SECOND = 5e6
"""More is not written on average: 3 GB of a path of 150 million parameters every ten minutes. Disks wear out."""
SAVING_SHARE = 0.005
"""The next checkpoint waits until saving has stopped training for no more of the time than this."""
NUMBERS = 7
"""So many numbers a parameter are in a checkpoint, about: state, training, moments, error feedback, what was given."""
LARGE_BYTES = 64 << 20
"""A larger checkpoint is written beside training, which waits only until what it changes has been copied."""
MENDING_SECONDS = 60.0


def has_been_in_run(home: Path) -> bool:
    """Whether the volunteer of this home was in its run before: whatever nobody answers now, the address was right."""
    return (home / MANIFEST_FILE).exists()


def kept_manifest(home: Path, found: Manifest, fingerprint: str) -> Manifest | None:
    """What the volunteer of this home went by last, where it is of the same run as what was found, and can be read."""
    try:
        kept = open_manifest((home / MANIFEST_FILE).read_bytes(), fingerprint)
    except (OSError, ManifestError):
        return None
    is_same = kept.config.name == found.config.name and kept.stages[0].seeds == found.stages[0].seeds
    return kept if is_same else None  # a run that was begun anew, with the same key, begins with revision 0


class Keeping:
    """The files of one volunteer."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._saved_at = around.clock.monotonic()
        self._pause = CHECKPOINT_SECONDS
        self._salvaged: dict[ModuleId, ModuleState] = {}
        self._damaged = False
        self.shelf = Shelf(around.settings.home / "shelf")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[bool] | None = None
        """A checkpoint that is being written beside training; whether it could be."""
        self._noted: tuple[Path, Mapping[ModuleId, int], Mapping[ModuleId, int]] | None = None
        """Where and what was noted last of what was given."""

    @property
    def salvaged(self) -> Mapping[ModuleId, ModuleState]:
        """Modules out of a damaged checkpoint of the current stage."""
        return self._salvaged

    @property
    def damaged(self) -> bool:
        """Whether the checkpoint that was to be loaded last is damaged."""
        return self._damaged

    def keep_manifest(self) -> None:
        """Keep the manifest beside the checkpoints, so that they can be used without the swarm; never an older one."""
        swarm, home = self._around.swarm, self._around.settings.home
        fingerprint = self._around.settings.address.fingerprint
        signed = swarm.known_manifest() or swarm.newest_manifest(timeout=MANIFEST_SECONDS)
        if signed is None:
            return
        manifest = open_manifest(signed, fingerprint)
        kept = kept_manifest(home, manifest, fingerprint)
        if kept is not None and kept.revision > manifest.revision:
            return
        try:
            write_whole(home / MANIFEST_FILE, signed, durable=True)
        except HomeError as error:
            self._around.screen.event(CannotWrite(error=str(error)))

    def has(self, stage: int, path: PathIndex) -> bool:
        """Whether there is a checkpoint of a path: we have been there in this stage, and can go on without others."""
        return self._file(stage, path).exists()

    def load(self, stage: int, path: PathIndex) -> Checkpoint | None:
        """What we saved of this path; a damaged one is set aside, as the swarm has all of it but the latest steps."""
        self._salvaged, self._damaged = {}, False
        file, run = self._file(stage, path), self._around.run
        try:
            return checkpoints.load(file, run)
        except DamagedError as error:
            log.debug("%s", error)
        self._salvaged = checkpoints.salvage(file, run)
        self._damaged = True
        set_aside(file)
        self._around.screen.event(CheckpointDamaged(path, tuple(map(str, self._salvaged))))
        return None

    def between_steps(self, peer: PathInTraining) -> None:
        """Save when it is time to."""
        if self._writing is not None and self._writing.done():
            self._end_writing(peer)
        if self._writing is None and self._around.clock.monotonic() - self._saved_at > self._pause:
            if NUMBERS * sum(state.params.nbytes for state in peer.base.values()) > LARGE_BYTES:
                self._save_beside(peer)
            else:
                self.save(peer)

    def save(self, peer: PathInTraining) -> bool:
        """Write the checkpoint; False when that is not possible now: training goes on, and the old one is intact."""
        if self._writing is not None:
            self._end_writing(peer)  # it is older
        started, file = self._around.clock.monotonic(), self._file(peer.stage, peer.path)
        self.mend(peer)
        try:
            checkpoints.save(file, self._checkpoint(peer, lambda tensor: tensor))
            return self._is_written(None)
        except HomeError as error:
            return self._is_written(error)
        finally:
            self._note_pause(started, file)

    def _save_beside(self, peer: PathInTraining) -> None:
        """Begin to write the checkpoint as it is now, in a thread."""
        started, file = self._around.clock.monotonic(), self._file(peer.stage, peer.path)
        checkpoint = self._checkpoint(peer, self.shelf.copy_of)
        self._writing = self._writer.submit(self._write, file, checkpoint)
        self._note_pause(started, file)

    def _write(self, file: Path, checkpoint: Checkpoint) -> bool:
        """In the thread; False when an agreed state has changed in this machine's memory: nothing was written then."""
        whole = all(_as_it_is(state).digest == state.digest for state in checkpoint.base.values())
        if whole:
            checkpoints.save(file, checkpoint)
        self.shelf.rest(*checkpoint.base.values())
        return whole

    def _end_writing(self, peer: PathInTraining) -> None:
        """Wait for the thread, and say what came of it."""
        assert self._writing is not None
        try:
            if not self._writing.result():
                self.mend(peer)
            self._is_written(None)
        except HomeError as error:
            self._is_written(error)
        finally:
            self._writing = None

    def _is_written(self, error: HomeError | None) -> bool:
        if error is not None:
            self._around.notices.failing("checkpoint", CannotWrite(error=str(error)))
            return False
        self._around.notices.recovered("checkpoint", Recovered("checkpoint"))
        return True

    def _note_pause(self, started: float, file: Path) -> None:
        """`started`: when training was stopped."""
        self._saved_at = self._around.clock.monotonic()
        seconds, size = self._saved_at - started, file.stat().st_size if file.exists() else 0
        self._pause = max(CHECKPOINT_SECONDS, seconds / SAVING_SHARE, size / CHECKPOINT_BYTES_PER_SECOND)

    def _checkpoint(self, peer: PathInTraining, copied: Callable[[Tensor], Tensor]) -> Checkpoint:
        """Where the peer is. `copied`: what becomes of tensors that the next inner step changes."""
        inner = peer.trainer.state(copy=False)
        return Checkpoint(
            run=self._around.run,
            stage=peer.stage,
            path=peer.path,
            base=peer.base,
            local={module: copied(peer.local(module)) for module in peer.modules},
            tokens={module: progress.tokens for module, progress in peer.progress.items()},
            inner=InnerState(inner.steps_done, {name: copied(tensor) for name, tensor in inner.tensors.items()}),
            shard_cursor=peer.batches_consumed,
            trained=peer.trained,
            residuals=_unsent(peer),
            given=_given(peer),
        )

    def given(self, stage: int, path: PathIndex) -> Mapping[ModuleId, int]:
        """The last version of each module whose progress others may have: newer than the checkpoint, mostly."""
        return checkpoints.given(self._file(stage, path))

    def part_given(self, saved: Checkpoint, module: ModuleId) -> Part | None:
        """What others may have of a checkpoint's progress; None where it may be all, or nothing of it."""
        return checkpoints.part_given(self._file(saved.stage, saved.path), saved, module)

    def trained(self, stage: int, path: PathIndex) -> int:
        """Tokens that we have trained on a path in all our lives, as noted after the last step."""
        return checkpoints.trained(self._file(stage, path))

    def note_given(self, peer: PathInTraining) -> None:
        """Write down whose progress the others are about to have; after a crash it must not count once more."""
        versions = {m: progress.given_at for m, progress in peer.progress.items() if progress.given_at is not None}
        file = self._file(peer.stage, peer.path)
        tokens = self._known_of(file, versions) | {module: part.tokens for module, part in _given(peer).items()}
        if self._noted == (file, versions, tokens):
            return
        try:
            checkpoints.note_given(file, versions, tokens)
            self._noted = file, versions, tokens
        except HomeError as error:
            log.debug("%s", error)  # the checkpoint says so to the person

    def _known_of(self, file: Path, versions: Mapping[ModuleId, int]) -> dict[ModuleId, int]:
        """How much was given from these versions, as noted before: a checkpoint of then may be the last one yet."""
        if self._noted is None or self._noted[0] != file:
            return {}
        _, before, tokens = self._noted
        return {module: count for module, count in tokens.items() if versions.get(module) == before[module]}

    def forget_before(self, stage: int) -> None:
        """Remove the checkpoints of stages before this one: the next stage looks at the last one alone."""
        folder = self._around.settings.home / "checkpoints"
        for earlier in range(stage):
            for ending in ("safetensors", "given.json", "trained"):
                for file in folder.glob(f"stage-{earlier}-path-*.{ending}"):
                    with suppress(OSError):  # a file that cannot be removed is no reason to stop
                        file.unlink()

    def mend(self, peer: PathInTraining) -> None:
        """Replace agreed states that have changed in this machine's memory, before they are saved or built upon."""
        for module, state in peer.base.items():
            now = _as_it_is(state)
            if now.digest == state.digest:
                continue
            whole = self._around.swarm.fetch_state(peer.stage, module, state.digest, timeout=MENDING_SECONDS)
            if whole is None and (saved := self.load(peer.stage, peer.path)) is not None:
                whole = saved.base[module] if saved.base[module].digest == state.digest else None
            tokens = peer.progress[module].tokens
            adopt(peer, module, whole or now)
            self._around.book.dropped(peer, module, state.version, tokens, "damaged memory")
            self._around.screen.event(MemoryDamaged(str(module), fetched=whole is not None))

    def _file(self, stage: int, path: PathIndex) -> Path:
        return checkpoints.file_of(self._around.settings.home, stage, path)


def _as_it_is(state: ModuleState) -> ModuleState:
    """The same numbers, of which nobody knows the digest yet."""
    return ModuleState(state.version, state.params, state.momentum, state.work)


def _given(peer: PathInTraining) -> dict[ModuleId, Part]:
    """What others may have of our progress since the states that we have."""
    of_now = {module: progress for module, progress in peer.progress.items() if progress.given_at == progress.version}
    return {module: progress.part for module, progress in of_now.items() if progress.part is not None}


def _unsent(peer: PathInTraining) -> dict[ModuleId, Tensor]:
    """Error feedback of the states that we have; what belongs to another version counts no more."""
    residuals = peer.swarm.residuals(peer.stage, peer.path)
    return {m: left.vector for m, left in residuals.items() if left.version == peer.progress[m].version}
