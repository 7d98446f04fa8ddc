"""Anchors: copies of all modules of the run, now and then, that the operator can go back to.

A copy is a second name of the file that the node keeps of a module anyway, so making one writes next to nothing; it
takes disk of its own from the next version on.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from dipaco_swarm.algorithm.anchors import kept
from dipaco_swarm.algorithm.generations import generation_of, tokens_of
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import DamagedError, HomeError, cannot_write
from dipaco_swarm.files import make_folder, write_whole
from dipaco_swarm.run.config import AnchorsConfig
from dipaco_swarm.run.manifest import Restored, Stage
from dipaco_swarm.run.stage import ModuleName
from dipaco_swarm.run.values import Digest, Frozen
from dipaco_swarm.training.bank import load_state, module_file, save_state

FOLDER = "anchors"
ABOUT = "anchor.json"


class AnchoredModule(Frozen):
    """What is known of a module in an anchor."""

    version: int = Field(ge=0)
    digest: Digest
    tokens: int = Field(ge=0)
    """Behind it, in this stage."""
    generation: int = Field(ge=0)


class Anchor(Frozen):
    """What is known of an anchor."""

    number: int = Field(ge=1)
    stage: int = Field(ge=0)
    made: float
    """Seconds since the epoch."""
    modules: dict[ModuleName, AnchoredModule] = Field(min_length=1)
    loss: float | None = None
    """Of training, as peers said then; the mean over paths, in nats."""
    held_out: float | None = None
    """The best on held-out documents by then; the mean over paths that have a snapshot, in nats."""

    @property
    def versions(self) -> tuple[int, int]:
        """The lowest and the highest."""
        versions = [module.version for module in self.modules.values()]
        return min(versions), max(versions)

    def is_on(self, generations: Mapping[str, int]) -> bool:
        """Whether none of it comes from what was taken back since. `generations`: of the modules, now."""
        return all(module.generation == generations.get(name, 0) for name, module in self.modules.items())


Losses = tuple[float | None, float | None]
"""Of training and on held-out documents, where they are known: the mean over paths, in nats."""


class Anchors:
    """Those in a bootstrap node's home."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._folder = home / FOLDER
        self._known: list[Anchor] | None = None

    def all(self) -> list[Anchor]:
        """The oldest first; what cannot be read is none. They are read once: nobody else makes any."""
        if self._known is None:
            self._known = self._read()
        return self._known

    def _read(self) -> list[Anchor]:
        found = []
        for file in self._folder.glob(f"*/{ABOUT}"):
            try:
                anchor = Anchor.model_validate_json(file.read_bytes())
            except (OSError, ValidationError):
                continue
            if file.parent == self._of(anchor.number):
                found.append(anchor)
        return sorted(found, key=lambda anchor: anchor.number)

    def look(
        self,
        stage: Stage,
        states: Mapping[ModuleId, ModuleState],
        rules: AnchorsConfig,
        now: float,
        losses: Callable[[], Losses],
    ) -> Anchor | None:
        """Make an anchor, if it is time; which one. Those that are too many are removed.

        `states`: the newest of all modules, as they are on the disk. `now`: seconds since the epoch. `losses`: of now,
        asked for when an anchor is made. Raises HomeError when the disk is full.
        """
        there = self.all()
        if not rules.keep or not _is_due(there, stage, states, rules.every):
            return None
        training, held_out = losses()
        made = Anchor(
            number=there[-1].number + 1 if there else 1,
            stage=stage.index,
            made=now,
            modules={str(module): _about(state) for module, state in sorted(states.items())},
            loss=training,
            held_out=held_out,
        )
        self._write(made, states)
        left = _kept([anchor for anchor in (*there, made) if anchor.stage == stage.index], stage, rules.keep)
        self._known = [anchor for anchor in (*there, made) if anchor.number in left]
        for anchor in there:
            if anchor.number not in left:
                shutil.rmtree(self._of(anchor.number), ignore_errors=True)
        return made

    def state(self, anchor: Anchor, module: ModuleId) -> ModuleState:
        """A module as it was then, verified. Raises DamagedError."""
        file = module_file(self._of(anchor.number), anchor.stage, module)
        state = load_state(file)
        if state is None or state.digest != anchor.modules[str(module)].digest:
            raise DamagedError(f"{file} is not what anchor {anchor.number} had; go back to another one")
        return state

    def _write(self, anchor: Anchor, states: Mapping[ModuleId, ModuleState]) -> None:
        folder = self._of(anchor.number)
        try:
            shutil.rmtree(folder, ignore_errors=True)  # of a program that was killed in the middle of it
            for module, state in states.items():
                there = module_file(folder, anchor.stage, module)
                make_folder(there.parent, durable=True)
                _copy(module_file(self._home, anchor.stage, module), there, state)
            write_whole(folder / ABOUT, anchor.model_dump_json().encode(), durable=True)
        except (OSError, HomeError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise error if isinstance(error, HomeError) else cannot_write("an anchor", folder, error) from error

    def _of(self, number: int) -> Path:
        return self._folder / f"{number:06d}"


def _kept(anchors: Iterable[Anchor], stage: Stage, most: int) -> set[int]:
    """The numbers of those that stay: so many of what the run comes from; the one that was gone back to last, for what
    did harm may come again; and the newest that was taken back, for that may have been a mistake."""
    on, gone_back_to, taken_back = list[int](), list[int](), list[int]()
    for anchor in anchors:
        if anchor.is_on(stage.generations):
            on.append(anchor.number)
        elif any(_is_where(anchor.modules.get(name), back) for name, back in stage.restored.items()):
            gone_back_to.append(anchor.number)
        else:
            taken_back.append(anchor.number)
    return {*kept(on, most), *gone_back_to[-1:], *taken_back[-1:]}


def _is_where(module: AnchoredModule | None, back: Restored) -> bool:
    """Whether the operator has gone back to this state of a module."""
    return module is not None and (module.version, module.generation) == (back.version, back.generation - 1)


def _about(state: ModuleState) -> AnchoredModule:
    return AnchoredModule(
        version=state.version,
        digest=state.digest,
        tokens=tokens_of(state.work),
        generation=generation_of(state.work),
    )


def _copy(kept_file: Path, there: Path, state: ModuleState) -> None:
    """A second name of the file, which is never written to; or another file, where the disk has no second names."""
    try:
        os.link(kept_file, there)
    except OSError:  # or the module is as it was when the stage began, and has no file
        save_state(there, state)


def _is_due(there: list[Anchor], stage: Stage, states: Mapping[ModuleId, ModuleState], every: int) -> bool:
    """Whether a module has made so many versions since the last anchor, or since the stage began or was gone back."""
    begun = {name: back.version for name, back in stage.restored.items()}
    of_stage = [anchor for anchor in there if anchor.stage == stage.index and anchor.is_on(stage.generations)]
    if of_stage:
        begun = {name: module.version for name, module in of_stage[-1].modules.items()}
    return any(state.version - begun.get(str(module), 0) >= every for module, state in states.items())
