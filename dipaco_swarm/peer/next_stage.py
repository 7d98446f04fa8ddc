"""A volunteer gets ready for the stage that comes, beside training in the one that goes on.

It chooses its path, fetches router and tokenizer, and reads its first sequences; then it says that it is ready. When
the node opens the stage, only the modules are new (`moving.py`).
"""

from collections import Counter
from dataclasses import dataclass, field

from dipaco_swarm.algorithm.paths import PathIndex, PathTable
from dipaco_swarm.errors import HomeError
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.training import ReadyForStage
from dipaco_swarm.events.volunteer import CannotWrite
from dipaco_swarm.machine.beside import Beside, Work
from dipaco_swarm.machine.stopping import Stopped
from dipaco_swarm.peer.path_choice import PathChoice
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.peer.workbench import Bench, Preparation
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.training.scoring import ReadyStatement, ready_topic

LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Prepared:
    """A path of a stage, ready to be trained but for its modules."""

    path: PathIndex
    bench: Bench


@dataclass
class _Telling:
    """Events of another thread are kept until ours asks for them, and told at once from when the stage has begun."""

    around: Surroundings
    kept: list[Event] = field(default_factory=list)
    begun: bool = False

    def __call__(self, event: Event) -> None:
        if self.begun:
            self.around.screen.event(event)
        else:
            self.kept.append(event)

    def tell(self) -> None:
        while self.kept:
            self.around.screen.event(self.kept.pop(0))


@dataclass
class _Task:
    """Getting ready for one stage."""

    manifest: Manifest
    """As it will be when the stage is open, but for what modules start from."""
    topic: str
    telling: _Telling
    is_wanted: bool = True
    work: Work[Prepared] | None = field(default=None, repr=False)
    prepared: Prepared | None = None

    def is_for(self, stage: Stage) -> bool:
        ours = self.manifest.stage
        return (ours.index, ours.router, ours.table) == (stage.index, stage.router, stage.table)


class NextStage:
    """What a volunteer has of the stage that comes. `look` never waits."""

    def __init__(self, around: Surroundings, choice: PathChoice, beside: Beside) -> None:
        self._around = around
        self._choice = choice
        self._beside = beside
        self._task: _Task | None = None

    def look(self, newest: Manifest) -> None:
        """Begin to get ready for the stage that comes, if there is one. Raises what makes it impossible."""
        task, coming = self._task, newest.coming
        if task is not None:
            task.telling.tell()
            then = newest.stage if newest.stage.index >= task.manifest.stage.index else coming  # open already, or not
            task.is_wanted = then is not None and task.is_for(then)
            if task.work is not None and task.work.is_over:
                self._end(task)
            if task.work is not None or task.is_wanted:
                return
            self._task = None
        if coming is None:
            return
        preview = newest.model_copy(update={"stages": (*newest.stages, coming), "closing": None, "coming": None})
        task = self._task = _Task(preview, ready_topic(newest), _Telling(self._around))
        task.work = self._beside.begin(lambda: self._prepare(task), "next stage")

    def take(self, manifest: Manifest) -> Prepared | None:
        """What was prepared for the manifest's stage, which has begun; waits for it where it is not ready yet.

        None: nothing was. Raises Stopped when asked to stop meanwhile, and what makes it impossible.
        """
        task = self._task
        if task is None or task.manifest.stage.index > manifest.stage.index:
            return None
        self._task, task.is_wanted = None, task.is_for(manifest.stage)
        while task.work is not None:
            task.telling.tell()
            if task.work.is_over:
                self._end(task)
            elif self._around.stop.wait(LOOK_SECONDS):
                raise Stopped
        task.telling.tell()
        task.telling.begun = True
        return task.prepared if task.is_wanted else None

    def _prepare(self, task: _Task) -> Prepared:
        """In another thread."""
        around, manifest = self._around, task.manifest
        stage = manifest.stage
        path = self._choice.for_stage(stage, PathTable(stage.table), self._chosen(task))
        around.swarm.publish(task.topic, ReadyStatement(path=path, ready=False).to_bytes())
        wanted = Preparation(
            manifest,
            path,
            around.swarm.peer,
            around.fetch,
            task.telling,
            around.swarm.sharing,
            lambda: around.stop() or not task.is_wanted,
        )
        bench = around.workbench.prepare_next(wanted)
        around.swarm.publish(task.topic, ReadyStatement(path=path, ready=True).to_bytes())
        return Prepared(path, bench)

    def _chosen(self, task: _Task) -> Counter[PathIndex]:
        """How many others have chosen each path."""
        swarm = self._around.swarm
        found: Counter[PathIndex] = Counter()
        for peer, statement in swarm.statements(task.topic, timeout=swarm.timing.look_up).items():
            try:
                said = ReadyStatement.model_validate_json(statement)
            except ValueError:
                continue  # whoever says such things has chosen nothing
            if peer != swarm.peer:
                found[PathIndex(said.path)] += 1
        return found

    def _end(self, task: _Task) -> None:
        assert task.work is not None
        work, task.work = task.work, None
        try:
            task.prepared = work.result()
        except Stopped:
            if self._around.stop():
                raise
            return  # it is not wanted any more
        except HomeError as error:  # what cannot be prepared now is tried again when the stage has begun
            self._around.screen.event(CannotWrite(error=str(error)))
            return
        self._around.screen.event(ReadyForStage(task.manifest.stage.index, task.prepared.path))
