"""When a stage that trains on gives way to the next one: its peers are ready, or a bounded time is over.

    known                   the peers prepare beside training, and say when they are ready (peer/next_stage.py)
    ready                   every module gets a last version: the one after what it has, where somebody trains it
    the last rounds made    the next stage opens with them

Nobody is waited for without end: neither for a peer that never gets ready, nor for a round that nobody makes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dipaco_swarm.algorithm.paths import ModuleId, PathTable
from dipaco_swarm.algorithm.stages import trained_modules
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.dashboard.status import status_of
from dipaco_swarm.events.operator import StageReady
from dipaco_swarm.operator.desk import Desk
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.interface import PeerName, Swarm
from dipaco_swarm.training.scoring import ReadyStatement, ready_topic

ENOUGH = 0.9
"""Of the peers that train: the others enter the next stage as newcomers do."""
STAGE_SHARE = 0.1
"""Of the time that a stage takes, peers may get ready in..."""
FLOOR_SECONDS = 600.0
CEILING_SECONDS = 3600.0
"""... and no less, and no more, than this: the others lose nothing by training on."""
LOOK_SECONDS = 3.0
HEARD_FACTOR = 1.5
"""Until the node has heard of the newest versions, and all of the last ones: so many times as long as it mostly takes.
What is in versions beyond the last one is lost."""
LAST_ROUND_FACTOR = 3.0
"""A round may take so many times as long as the module's rounds do, and beyond that..."""
LAST_ROUND_SECONDS = 60.0
"""... this long, until its module is taken as it is."""


@dataclass(frozen=True)
class _Pace:
    """How versions of a module have come since the stage's rounds were done."""

    first: int
    since: float
    """When it was seen first."""
    newest: int
    at: float
    """When that came."""

    def rounds_in(self, seconds: float, now: float) -> float:
        return seconds * (self.newest - self.first) / max(1.0, now - self.since)

    def usual(self, now: float) -> float:
        """Seconds of a round; at least so many, where none was seen."""
        return (now - self.since) / max(1, self.newest - self.first)


class Readiness:
    """Of one stage at a time. Asked with every tick; waits for nothing itself."""

    def __init__(self, around: Surroundings, desk: Desk) -> None:
        self._around = around
        self._desk = desk
        self._stage = -1
        """The one that comes."""
        self._since = self._looked = -math.inf
        self._ready: frozenset[PeerName] = frozenset()
        self._paces: dict[ModuleId, _Pace] = {}

    def is_reached(self, manifest: Manifest) -> bool:
        """Whether the current stage may end now; said once."""
        swarm, now = self._around.swarm, self._around.swarm.clock.monotonic()
        assert manifest.coming is not None, "nobody can get ready for a stage that is not known"
        index = manifest.coming.index
        trainers = {peer for peers in self._trainers(manifest).values() for peer in peers}
        if self._desk.is_at(("ready", index)) or now - self._looked > LOOK_SECONDS:
            topic = ready_topic(manifest)
            done = self._desk.done(("ready", index), lambda: _ready(swarm, topic))
            if done is not None:
                self._ready, self._looked = done.result, now
        ready = len(trainers & self._ready)
        over = now - self._since > self._bound(manifest) or self._around.home.was_told_to_advance()
        if ready < ENOUGH * len(trainers) and not over:
            return False
        self._desk.clear()
        self._around.screen.event(StageReady(index, ready, len(trainers)))
        return True

    def look(self, manifest: Manifest, states: Mapping[ModuleId, ModuleState]) -> None:
        """Note how fast versions come, once the stage's rounds are done. `states`: as kept."""
        now = self._around.swarm.clock.monotonic()
        if self._stage != manifest.stage.index + 1:
            self._stage, self._ready, self._paces = manifest.stage.index + 1, frozenset(), {}
            self._since = math.inf
        if manifest.coming is not None:
            self._since = min(self._since, now)
        for module, state in states.items():
            pace = self._paces.get(module)
            if pace is None:
                self._paces[module] = _Pace(state.version, now, state.version, now)
            elif pace.newest != state.version:
                self._paces[module] = replace(pace, newest=state.version, at=now)

    def ends(self, manifest: Manifest) -> dict[ModuleId, int]:
        """The last version of each module, where somebody trains it: the one that is under way, or one by which all
        have heard of it, or that is made while the slowest module makes one."""
        timing, now = self._around.swarm.timing, self._around.swarm.clock.monotonic()
        heard = HEARD_FACTOR * (timing.calm + timing.manifest_pause(math.inf))
        trained = {m for m, peers in self._trainers(manifest).items() if peers} & trained_modules(manifest.stage)
        slowest = max((self._paces[m].usual(now) for m in trained), default=0.0)

        def more(pace: _Pace) -> int:
            return max(1 + int(pace.rounds_in(heard, now)), round(pace.rounds_in(slowest, now)))

        return {m: pace.newest + (more(pace) if m in trained else 0) for m, pace in self._paces.items()}

    def lowered(self, manifest: Manifest, ends: Mapping[ModuleId, int]) -> dict[ModuleId, int]:
        """The same with what is kept of each module whose next version nobody makes any more."""
        staffed, now = self._trainers(manifest), self._around.swarm.clock.monotonic()
        seconds = min(CEILING_SECONDS, status_of(self._around.swarm, manifest).round_seconds or 0.0)

        def is_late(pace: _Pace) -> bool:
            return now - pace.at > LAST_ROUND_FACTOR * max(seconds, pace.usual(pace.at)) + LAST_ROUND_SECONDS

        stuck = {m for m, pace in self._paces.items() if not staffed[m] or is_late(pace)}
        return {m: min(end, self._paces[m].newest) if m in stuck else end for m, end in ends.items()}

    def _trainers(self, manifest: Manifest) -> dict[ModuleId, set[PeerName]]:
        """Who trains each module of the current stage, of those that we know, if we know any."""
        swarm, index = self._around.swarm, manifest.stage.index
        modules = PathTable(manifest.stage.table).modules
        return {m: {said.peer for said in swarm.members(index, m) if said.trains and said.known} for m in modules}

    def _bound(self, manifest: Manifest) -> float:
        """Seconds for getting ready."""
        seconds = (status_of(self._around.swarm, manifest).round_seconds or 0.0) * (manifest.stage.rounds or 0)
        return min(CEILING_SECONDS, max(FLOOR_SECONDS, STAGE_SHARE * seconds))


def _ready(swarm: Swarm, topic: str) -> frozenset[PeerName]:
    """Who says that it is ready."""
    found = set()
    for peer, statement in swarm.statements(topic, timeout=swarm.timing.look_up).items():
        try:
            said = ReadyStatement.model_validate_json(statement)
        except ValueError:
            continue  # whoever says such things is not waited for, and not counted
        if said.ready:
            found.add(peer)
    return frozenset(found)
