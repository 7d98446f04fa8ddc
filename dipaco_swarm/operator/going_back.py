"""Anchors as the run goes on, and `dipaco-bootstrap rollback`: the run goes back to one, and everybody follows."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dipaco_swarm.algorithm.generations import MAX_GENERATION, restored
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.stages import generations
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.dashboard.status import status_of
from dipaco_swarm.errors import DamagedError
from dipaco_swarm.events.going_back import AnchorKept, NotRolledBack, RolledBack
from dipaco_swarm.files import remove
from dipaco_swarm.machine.beside import Beside
from dipaco_swarm.operator.anchors import Anchor, Anchors, Losses
from dipaco_swarm.operator.desk import Desk
from dipaco_swarm.operator.keeping import Keeping
from dipaco_swarm.operator.snapshots import SnapshotKeeper
from dipaco_swarm.operator.stages import Stages
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.run.orders import Rollback


class GoingBack:
    """Of the node that leads."""

    def __init__(self, around: Surroundings, stages: Stages, keeping: Keeping, beside: Beside) -> None:
        self._around = around
        self._stages = stages
        self._keeping = keeping
        self._anchors = Anchors(around.home.folder)
        self._desk = Desk(beside, around.swarm.clock)
        self._obeying: list[Path] = []
        """Files of the orders that are done, and not published yet."""

    def look(self, manifest: Manifest, snapshots: SnapshotKeeper | None) -> None:
        """Keep an anchor, if it is time. Raises HomeError when the disk is full."""
        around, stage = self._around, manifest.stage

        def losses() -> Losses:
            best = {} if snapshots is None else snapshots.losses
            shares = sum(stage.path_weights[path] for path in best)
            held_out = sum(stage.path_weights[path] * loss for path, loss in best.items()) / shares if best else None
            return status_of(around.swarm, manifest).loss, held_out

        now = around.swarm.clock.wall()
        made = self._anchors.look(stage, self._keeping.states, around.config.anchors, now, losses)
        if made is not None:
            around.screen.event(AnchorKept(made.number, *made.versions))

    def renewed(self, manifest: Manifest) -> Manifest:
        """The manifest once an order to go back is obeyed; the same one when there is none, or while it is worked at.

        Raises HomeError when the disk is full.
        """
        orders = [(file, order) for file, order in self._around.home.orders() if isinstance(order, Rollback)]
        if not orders:
            return manifest
        file, order = orders[0]
        anchor, problem = anchor_of(order, self._anchors.all(), manifest.stage)
        if anchor is None:
            self._refuse(file, order, problem)
            return manifest
        modules = [ModuleId.parse(name) for name in order.modules or sorted(anchor.modules)]
        signed = generations(manifest.stage)
        try:
            done = self._desk.done((file, manifest.stage.index), lambda: self._restored(anchor, modules, signed))
        except DamagedError as error:
            self._refuse(file, order, str(error))
            return manifest
        if done is None:
            return manifest
        self._keeping.restore(manifest.stage, done.result)
        self._obeying.append(file)
        versions = [state.version for state in done.result.values()]
        self._around.screen.event(RolledBack(anchor.number, tuple(map(str, modules)), min(versions), max(versions)))
        return self._stages.gone_back(manifest, done.result)

    def published(self) -> None:
        """What `renewed` returned last is on the disk: nothing that was ordered has to be done again."""
        for file in self._obeying:
            remove(file)
        self._obeying.clear()

    def _restored(
        self, anchor: Anchor, modules: Sequence[ModuleId], signed: Mapping[ModuleId, int]
    ) -> dict[ModuleId, ModuleState]:
        """The modules as they were, so that they count for more than all that came of them. Raises DamagedError."""
        return {module: restored(self._anchors.state(anchor, module), signed.get(module, 0) + 1) for module in modules}

    def _refuse(self, file: Path, order: Rollback, why: str) -> None:
        self._around.screen.event(NotRolledBack(order.anchor, why[:90]))
        self._obeying.append(file)


def anchor_of(order: Rollback, anchors: Sequence[Anchor], stage: Stage) -> tuple[Anchor | None, str]:
    """The anchor that a run in this stage is to go back to; else None, and why not, for a person."""
    anchor = next((anchor for anchor in anchors if anchor.number == order.anchor), None)
    if anchor is None:
        there = ", ".join(str(anchor.number) for anchor in anchors) or "none"
        return None, f"it is not there; `anchors` lists what is: {there}"
    if anchor.stage != stage.index:
        return None, f"it is of stage {anchor.stage}, whose modules are not those of stage {stage.index}"
    for name in order.modules:
        if name not in anchor.modules:
            return None, f"there is no module {name}; there are {', '.join(sorted(anchor.modules)[:8])}"
    names = order.modules or anchor.modules
    if any(name in stage.restored and stage.restored[name].generation >= MAX_GENERATION for name in names):
        return None, f"the run has gone back {MAX_GENERATION} times in this stage already"
    return anchor, ""
