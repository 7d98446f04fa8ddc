"""The modules that the bootstrap node keeps: fetched from the peers, served to anybody, written to the disk."""

import logging
from collections.abc import Mapping
from functools import partial

from dipaco_swarm.algorithm.paths import ModuleId, PathTable
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.stages import outer_rules, state_at_start, trained_modules
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import DamagedError
from dipaco_swarm.events.operator import KeptStateDamaged
from dipaco_swarm.machine.memory import give_back_freed
from dipaco_swarm.operator.surroundings import Disk, Surroundings
from dipaco_swarm.outer_step import follow_of
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.swarm.fetching import FetchUnderWay
from dipaco_swarm.swarm.groups import group_of
from dipaco_swarm.swarm.interface import Announcement, Role
from dipaco_swarm.swarm.newest import NewestStates
from dipaco_swarm.swarm.states.shelf import Shelf

log = logging.getLogger(__name__)

CATCH_UP_SECONDS = 5.0
"""The node waits so long for what it fetches, and then looks after its other work; who holds it may be slow."""
MOST_COMING = 4
"""Modules on their way at a time."""


class Keeping:
    """The newest state of every module of one stage."""

    def __init__(self, around: Surroundings, disk: Disk) -> None:
        self._around = around
        self._disk = disk
        self._newest = NewestStates(around.swarm)
        self._shelf = Shelf(around.home.folder / "shelf")
        self._states: dict[ModuleId, ModuleState] = {}
        """On the disk: there may be many."""
        self._coming: dict[ModuleId, tuple[Claim, FetchUnderWay]] = {}
        self._unwritten: set[ModuleId] = set()
        """Modules that are newer in memory than on the disk."""
        self._turn = 0
        """Of the modules that are looked at one after the other."""
        self._missed: ModuleId | None = None
        """A module whose newest state nobody had any more when we asked for it."""

    @property
    def states(self) -> Mapping[ModuleId, ModuleState]:
        return self._states

    def take_up(self, manifest: Manifest) -> None:
        """Hold the newest state that we have of each module of the manifest's stage, and say so.

        Raises UnreachableError when nobody sends a file that a module starts from.
        """
        swarm, stage = self._around.swarm, manifest.stage
        for module in self._states:
            for earlier in range(stage.index):
                swarm.release(earlier, module)
        self.let_go()
        self._states = {}
        follow = partial(follow_of, outer_rules(self._around.config, stage), manifest.decays)
        self._newest = NewestStates(swarm, follow=follow)
        for module in PathTable(stage.table).modules:
            state = self._at_home(stage, module) or self._at_start(stage, module)
            self._states[module] = state
            swarm.hold(stage.index, module, state)
        self._announce(stage)

    def catch_up(self, stage: Stage) -> None:
        """Fetch every module whose group has come further than what we hold; those that few have come first.

        What does not come soon goes on coming, and is taken later: who sends it may be slow, on purpose too.
        """
        around, taken = self._around, False
        missed = self._look_up_next(stage)
        until = around.swarm.clock.monotonic() + CATCH_UP_SECONDS
        newer = {module: (claim, 0) for module, (claim, _) in self._coming.items()}
        for module in self._states:
            found = self._newer(stage, module, timeout=CATCH_UP_SECONDS if module == missed else 0.0)
            if found is not None:
                newer[module] = found
        for module in sorted(newer, key=lambda module: newer[module][1]):
            if around.stop():
                return
            claim, staying = newer[module]
            state = self._fetched(stage, module, claim, until)
            if state is None:
                continue
            taken = True
            self._states[module] = state
            around.swarm.hold(stage.index, module, state)
            if not staying:
                self._announce(stage)  # at once: somebody may be waiting for it
            self._unwritten.add(module)
            self._disk.write(partial(self.write, stage))
        if taken:
            self._announce(stage)
        if any(self._states[module].mapped for module in newer):
            give_back_freed()

    def let_go(self) -> None:
        """Fetch no more of what is on its way."""
        for _, under_way in self._coming.values():
            under_way.cancel()
        self._coming, self._missed = {}, None

    def _fetched(self, stage: Stage, module: ModuleId, claim: Claim, until: float) -> ModuleState | None:
        """A state that comes by then, and is better than what we hold; else it goes on coming, or somebody must be
        asked again. One that is on its way already comes first: where a group is faster than our line, it would never
        arrive."""
        ours = self._states[module]
        if module in self._coming:
            claim, under_way = self._coming[module]
        elif len(self._coming) >= MOST_COMING:
            return None
        else:
            under_way = self._newest.begin(stage.index, module, claim, parameters=len(ours.params), ours=ours)
            self._coming[module] = claim, under_way
            under_way.state(timeout=max(0.0, until - self._around.swarm.clock.monotonic()))
        if not under_way.is_over:
            return None
        del self._coming[module]
        state = self._newest.take(module, claim, under_way)
        if state is None:
            self._missed = module
        return state if state is not None and claim.beats(Claim.of(ours)) else None

    def restore(self, stage: Stage, states: Mapping[ModuleId, ModuleState]) -> None:
        """Hold these states from now on, whatever others have. Raises HomeError when the disk is full."""
        self.let_go()  # it is of before
        for module, state in states.items():
            self._around.home.keep_state(stage.index, module, state)
        for module, state in states.items():
            self._states[module] = state
            self._unwritten.discard(module)
            self._around.swarm.hold(stage.index, module, state)
        self._announce(stage)

    def _look_up_next(self, stage: Stage) -> ModuleId | None:
        """Look at one module after the other, so that the directory hears as much of us with a thousand of them.

        All of them are announced by us, and so heard of now and then anyway. One that we missed comes first and is
        returned: its group may make versions faster than we hear of them, and what we hear now can still be had.
        """
        swarm, missed = self._around.swarm, self._missed
        if missed is not None:
            self._missed = None
            swarm.look_up(stage.index, [missed], timeout=swarm.timing.look_up)
            return missed
        self._turn = (self._turn + 1) % len(self._states)
        module = sorted(self._states)[self._turn]
        swarm.look_up(stage.index, [module], timeout=swarm.timing.look_up, thorough=False)
        return None

    def write(self, stage: Stage) -> None:
        """Put on the disk what was fetched. Raises HomeError; what is not there yet stays for the next time."""
        for module in sorted(self._unwritten):
            self._around.home.keep_state(stage.index, module, self._states[module])
            self._unwritten.discard(module)

    def trained(self, stage: Stage) -> dict[ModuleId, int]:
        """Modules of the stage that live peers train, and the newest version that is believed of those.

        Peers that we know, if we know any: who only says that it trains a module will bring it no further.
        """
        swarm, found = self._around.swarm, {}
        for module, ours in self._states.items():
            claims = [Claim.of(said) for said in swarm.members(stage.index, module) if said.trains and said.known]
            if claims:
                newer = swarm.believed(stage.index, module, Claim.of(ours), claims)
                found[module] = max([ours.version, *(claim.version for claim in newer)])
        return found

    def look_for_trainers(self, stage: Stage) -> None:
        """Look at all modules now; `trained` knows then who is there."""
        swarm = self._around.swarm
        swarm.look_up(stage.index, sorted(self._states), timeout=swarm.timing.look_up)

    def is_done(self, stage: Stage) -> bool:
        """Whether we hold every module of the stage at its last version."""
        return stage.rounds is not None and all(held >= stage.rounds for held in self.versions(stage).values())

    def versions(self, stage: Stage) -> dict[ModuleId, int]:
        """Of the modules that are trained in the stage: what we hold."""
        return {module: self._states[module].version for module in sorted(trained_modules(stage))}

    def _newer(self, stage: Stage, module: ModuleId, timeout: float) -> tuple[Claim, int] | None:
        """A newer state that the group has, and how many train on from it; None when ours is the newest.

        `timeout`: seconds to wait for others to confirm what we hear.
        """
        held, swarm = self._states[module], self._around.swarm
        members = [s for s in swarm.members(stage.index, module) if s.peer != swarm.peer]
        better = self._newest.better(stage.index, module, Claim.of(held), members, timeout=timeout)
        if better is None:
            return None
        # who trains it will have it a moment from now as well; who has stopped training may be about to leave
        return better, sum(1 for s in members if s.trains and Claim.of(s) == better)

    def _at_home(self, stage: Stage, module: ModuleId) -> ModuleState | None:
        """What we have kept of a module; a damaged file is set aside, as others have the module too."""
        home = self._around.home
        try:
            return home.state(stage.index, module)
        except DamagedError as error:
            log.debug("%s", error)
        aside = home.set_aside(stage.index, module)
        self._around.screen.event(KeptStateDamaged(str(module), aside.name))
        return None

    def _at_start(self, stage: Stage, module: ModuleId) -> ModuleState:
        return self._shelf.copy(state_at_start(stage, module, self._around.fetch))

    def _announce(self, stage: Stage) -> None:
        swarm, config, table = self._around.swarm, self._around.config.at(stage.index), PathTable(stage.table)
        swarm.announce(
            [
                Announcement(
                    swarm.peer, stage.index, module, None, state.version, state.digest, state.work, role=Role.KEEPS
                )
                for module, state in self._states.items()
            ],
            [group_of(config, stage, table, module) for module in self._states],  # or no accusation could be judged
        )
