"""The bootstrap node of a simulated swarm: the real `Operator`, and what it has on its disk."""

from random import Random
from typing import TYPE_CHECKING

from dipaco_swarm.algorithm.paths import ModuleId, PathTable
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.events.event import Event
from dipaco_swarm.machine.stopping import Stopped, Stopping
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.operator.operator import Operator
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest
from dipaco_swarm.testing.lines import Lines
from dipaco_swarm.testing.process import Machine, SimulatedProcess
from dipaco_swarm.testing.program import Program
from dipaco_swarm.testing.run import KEY, OPERATOR
from dipaco_swarm.testing.workshop import SimulatedWorkshop

if TYPE_CHECKING:
    from dipaco_swarm.testing.world import World


class SimulatedOperator(SimulatedProcess):
    """The operator's node, over all its lives."""

    def __init__(self, world: "World", machine: Machine) -> None:
        super().__init__(world, OPERATOR, machine)
        self._home = OperatorHome(self.home)
        self.said: list[Event] = []
        self._newest: tuple[bytes, Manifest] | None = None
        """The manifest that was read last, and as what."""

    def _live(self, program: Program, stop: Stopping, random: Random) -> None:
        world = self._world
        workshop = SimulatedWorkshop(world.config, world.plan.parameters, program.sleep)
        screen = Lines(world, OPERATOR, self.said.append)
        with self._swarm(program, stop, random) as swarm:
            address = str(world.address)
            operator = Operator(world.config, KEY, swarm, self._home, screen, stop, address, workshop, beside=program)
            try:
                operator.run(until_finished=world.plan.until_finished)
            except Stopped:
                return

    @property
    def manifest(self) -> Manifest | None:
        """The newest one that is on its disk; None before the first."""
        try:
            signed = (self.home / "manifest.json").read_bytes()
        except FileNotFoundError:
            return None
        if self._newest is None or self._newest[0] != signed:
            self._newest = signed, open_manifest(signed, self._world.address.fingerprint)
        return self._newest[1]

    def kept(self, stage: int) -> dict[ModuleId, ModuleState]:
        """The states of a stage's modules on its disk; without those that nobody has trained."""
        manifest = self.manifest
        if manifest is None:
            return {}
        modules = PathTable(manifest.stages[stage].table).modules
        return {module: state for module in modules if (state := self._home.state(stage, module)) is not None}
