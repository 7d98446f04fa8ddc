"""Which path a peer trains: the one that it was told, or with --path auto the one where it is needed, stay after stay.

The rule is `algorithm/assignment.py`; this file gathers what the rule looks at.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from dipaco_swarm.algorithm.assignment import Staffing, neediest_path, path_to_be_on
from dipaco_swarm.algorithm.paths import PathIndex, PathTable
from dipaco_swarm.algorithm.plausible import plausible
from dipaco_swarm.algorithm.stages import covering_modules
from dipaco_swarm.run.manifest import Stage
from dipaco_swarm.swarm.interface import Announcement, Role, Swarm

STAY_FACTOR = 5.0
"""A stay on a path lasts at least so many times as long as getting there did."""


class PathChoice:
    """The path of one peer, and where it should go next. Looks at the swarm only when asked."""

    def __init__(self, swarm: Swarm, told: int | None, home: Path, operators: Collection[str] = ()) -> None:
        """`operators`: names of the operator's nodes, beside whose versions those of others are held."""
        self._swarm = swarm
        self._told = told
        self._home = home
        self._operators = operators
        self._path: PathIndex | None = None
        """The current path, or the one to move to; None before a stage with several paths."""
        self._stays: Counter[PathIndex] = Counter()
        """How often it has stayed on each path, in this stage."""
        self._stage = -1
        self._displaced = False
        """Whether the path that it was told rests in this stage."""
        self._left = self._arrived = self._swarm.clock.monotonic()

    @property
    def moves(self) -> bool:
        """Whether this peer goes where it is needed."""
        return self._told is None or self._displaced

    def on_entering(self, stage: Stage, table: PathTable, prepared: PathIndex | None = None) -> PathIndex:
        """The path of a stage that has begun: `prepared`, or as `for_stage` says."""
        self._left = self._swarm.clock.monotonic()
        if stage.index != self._stage:
            self._stage, self._stays = stage.index, Counter()
        self._displaced = self._told in stage.resting
        path = self.for_stage(stage, table) if prepared is None else prepared
        if table.num_paths > 1:
            self._path = path
        return path

    def for_stage(self, stage: Stage, table: PathTable, chosen: Mapping[PathIndex, int] | None = None) -> PathIndex:
        """The path asked for, unless it rests; else the one that we have been on; else the one that needs help most.

        `chosen`: how many others have chosen each path of a stage that nobody trains yet.
        """
        if table.num_paths == 1:
            return PathIndex(0)
        wanted = self._path if self._told is None or self._told in stage.resting else self._told
        if wanted is None:
            wanted = self._path_at_home(stage.index)
        if wanted is None or wanted >= table.num_paths or wanted in stage.resting:
            wanted = self._neediest(stage, table, chosen or {})
        return PathIndex(wanted)

    def arrived(self) -> None:
        """Ready to train: the shard is read, the modules are here."""
        self._arrived = self._swarm.clock.monotonic()

    def after_a_stay(self, stage: Stage, table: PathTable, path: PathIndex) -> PathIndex:
        """Where to be for the next rounds, with --path auto: mostly where we are."""
        if not self.moves or table.num_paths == 1:
            return path
        self._swarm.look_up(stage.index, table.modules, timeout=self._swarm.timing.look_up)
        said = [s for module in table.modules for s in self._swarm.members(stage.index, module)]
        staying: dict[str, PathIndex] = {s.peer: s.path for s in said if s.path is not None and not s.moves}
        moving: dict[str, PathIndex | None] = {s.peer: None for s in said if s.role is Role.HOLDS and s.moves}
        moving |= {s.peer: s.path for s in said if s.path is not None and s.moves}
        staffing = Staffing(
            staying=staying,
            moving=moving | {self._swarm.peer: path},
            versions={m: self._version([s for s in said if s.module == m]) for m in table.modules},
            last_version=stage.rounds,  # also where a stage trains on: paths that lack some of them come first
            resting=stage.resting,
        )
        # whoever needed ten minutes to get here does not go on after three
        stayed = self._swarm.clock.monotonic() - self._arrived > STAY_FACTOR * (self._arrived - self._left)
        if stayed:
            self._stays[path] += 1
        self._path = path_to_be_on(table, staffing, self._swarm.peer, self._stays if stayed else None)
        return self._path

    def stay(self, path: PathIndex) -> None:
        """Not to go where we chose to."""
        self._path = path

    def _version(self, said: Sequence[Announcement]) -> int:
        """The newest of a module; a path is not done because somebody says so."""
        return max((each.version for each in plausible(said, self._operators)), default=0)

    def _path_at_home(self, stage: int) -> PathIndex | None:
        """The path of the newest checkpoint of this stage."""
        files = self._home.glob(f"checkpoints/stage-{stage}-path-*.safetensors")
        newest = max(files, key=lambda file: file.stat().st_mtime, default=None)
        return None if newest is None else PathIndex(int(newest.stem.rpartition("-")[2]))

    def _neediest(self, stage: Stage, table: PathTable, chosen: Mapping[PathIndex, int]) -> PathIndex:
        staffing = dict(chosen)
        progress: dict[PathIndex, float] = {}
        for said in trainers_of(self._swarm, stage.index, table):
            if said.path is not None and said.peer != self._swarm.peer:
                staffing[said.path] = staffing.get(said.path, 0) + 1
                progress[said.path] = max(progress.get(said.path, 0.0), float(said.version))
        return neediest_path(table, staffing, progress, number_of(self._swarm.peer), stage.resting)


def trainers_of(swarm: Swarm, stage: int, table: PathTable) -> Sequence[Announcement]:
    """One announcement of every live peer that trains in the stage."""
    modules = covering_modules(table)
    swarm.look_up(stage, modules, timeout=swarm.timing.look_up)
    return [said for module in modules for said in swarm.members(stage, module) if said.trains]


def number_of(peer: str) -> int:
    """A peer's own number, from its name."""
    return int.from_bytes(peer.encode()[-6:], "big")
