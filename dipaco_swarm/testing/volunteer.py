"""A volunteer of a simulated swarm: the real `Volunteer`, and what it said, trained and saved."""

from random import Random
from typing import TYPE_CHECKING

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.progress import Part
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.training import TokensDropped
from dipaco_swarm.machine.manners import RUN, Decision
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.peer.attendance import Attendance
from dipaco_swarm.peer.usage import UsageMeter
from dipaco_swarm.peer.volunteer import Volunteer
from dipaco_swarm.settings import PeerSettings
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.testing.ledger import Place, trainer_of
from dipaco_swarm.testing.lines import Lines
from dipaco_swarm.testing.process import Machine, SimulatedProcess
from dipaco_swarm.testing.program import Program
from dipaco_swarm.testing.training import SimulatedWorkbench
from dipaco_swarm.testing.watched import AWAY, KILLED, NOT_MADE, WatchedSwarm
from dipaco_swarm.training.checkpoint import Checkpoint, file_of, given, load, part_given, trained
from dipaco_swarm.training.early import run_of

if TYPE_CHECKING:
    from dipaco_swarm.testing.world import World

DROPPED = {
    "stale": "too old when it caught up",
    "not acknowledged": NOT_MADE,
    "taken back": "from a state that the operator has taken back",
}
"""Why a peer goes on without tokens that it has trained, and what the ledger calls it."""


class SimulatedPeer(SimulatedProcess):
    """One volunteer, over all its lives."""

    def __init__(self, world: "World", name: str, path: int | None, machine: Machine) -> None:
        """`path`: as it is told; None: where it is needed."""
        super().__init__(world, name, machine)
        self.path = path
        self.watched: WatchedSwarm | None = None
        self.attendance: Attendance | None = None
        """Of its present life, or its last one."""
        self.usage = UsageMeter(self.clock)
        """What the time and the line of all its lives were used for."""
        self.was_killed = False
        """In one of its lives."""
        self._ended_by: str | None = None
        """How its last life ended."""
        self.now: Decision = RUN
        """Whether its machine is for it: `Manners` of all its lives."""

    def _live(self, program: Program, stop: Stopping, random: Random) -> None:
        world = self._world
        workbench = SimulatedWorkbench(
            parameters=world.plan.parameters,
            seconds=lambda: self._step(random),
            preparing=self.machine.preparing_seconds,
            sleep=program.sleep,
            now=self.clock.monotonic,
            random=Random(f"{world.seed}/{self.owner}/training"),  # what is learned does not depend on the network
            trained=self._trained,
        )
        screen = Lines(world, self.name, self.said)
        self.attendance = attendance = Attendance(screen.event)
        with self._swarm(program, stop, random) as swarm:
            self.watched = WatchedSwarm(self._bent(swarm, stop), world.ledger, self._ended_by)
            watched = self.watched.as_swarm()
            settings = self._settings()
            life = Volunteer(
                settings,
                watched,
                screen,
                stop,
                workbench,
                attendance=attendance,
                usage=self.usage,
                beside=program,
                manners=self,
            )
            life.live()

    def _bent(self, swarm: NetworkedSwarm, stop: Stopping) -> NetworkedSwarm:
        """What the volunteer is given as its swarm."""
        return swarm

    def _step(self, random: Random) -> float:
        """How long the step that begins now takes."""
        seconds = self.machine.step_seconds * random.uniform(0.8, 1.25)
        self.step_ends = self._world.now + seconds
        return seconds

    def _settings(self) -> PeerSettings:
        return PeerSettings(
            address=self._world.address,
            path=self.path,
            home=self.home,
            cache=None,
            listen=None,
            device="cpu",
            micro_batch=None,
            threads=None,
            until_finished=self._world.plan.until_finished,
            rounds=None,
            screen="none",
        )

    def _trained(self, path: PathIndex, tokens: int) -> None:
        assert self.watched is not None
        for place in self.watched.at:
            self._world.ledger.train(trainer_of(self.name, path), place, tokens)

    def said(self, event: Event) -> None:
        """It has reported something."""
        match event:
            case TokensDropped() if self.watched is not None and event.reason in DROPPED:
                place = event.stage, ModuleId.parse(event.module)
                if place in self.watched.at:
                    self.watched.dropping[place] = DROPPED[event.reason], event.tokens
                elif DROPPED[event.reason] == NOT_MADE:
                    self._check_given(event, place)

    def _check_given(self, event: TokensDropped, place: Place) -> None:
        """It comes back, and what is in its checkpoint is left out as others may have it: they may have that much."""
        _, module = place
        for saved, noted in self.checkpoints():
            if (saved.stage, saved.path) == (event.stage, event.path) and noted.get(module) == saved.base[
                module
            ].version:
                trainer, base = trainer_of(self.name, saved.path), saved.base[module].digest
                self._world.ledger.check_given(self._world.now, trainer, place, base, event.tokens)

    def kill(self) -> None:
        super().kill()
        self.watched = None
        self.was_killed = True
        self._ended_by = KILLED

    def ask_to_stop(self) -> None:
        self._ended_by = AWAY
        super().ask_to_stop()

    def part_given(self, saved: Checkpoint, module: ModuleId) -> Part | None:
        """What others may have of a checkpoint's progress; None where it may be all."""
        return part_given(file_of(self.home, saved.stage, saved.path), saved, module)

    def is_behind_its_training(self, saved: Checkpoint) -> bool:
        """Whether a checkpoint lacks what was trained later on its path: it was killed, and has not been back."""
        return saved.trained < trained(file_of(self.home, saved.stage, saved.path))

    def checkpoints(self) -> list[tuple[Checkpoint, dict[ModuleId, int]]]:
        """What it has saved; and of which versions it has noted that others may have its progress."""
        address = self._world.address
        run = run_of(address.name, address.fingerprint)
        files = sorted(self.home.glob("checkpoints/*.safetensors"))
        return [(saved, given(file)) for file in files if (saved := load(file, run)) is not None]
