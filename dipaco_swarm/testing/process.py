"""A program of a simulated swarm, over all its lives: started, stopped, killed, started again."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.swarm.bans import Bans, bans_file
from dipaco_swarm.swarm.circle import Circle, circle_file
from dipaco_swarm.swarm.local import LocalTransport
from dipaco_swarm.swarm.networked import NetworkedSwarm, networked_swarm
from dipaco_swarm.swarm.states.blobs import BlobStore
from dipaco_swarm.swarm.transport import Transport
from dipaco_swarm.testing.directory import SimulatedRecords
from dipaco_swarm.testing.network import Line
from dipaco_swarm.testing.pauses import VirtualPauses
from dipaco_swarm.testing.program import Program
from dipaco_swarm.testing.virtual_time import Inline, VirtualClock, context_of

if TYPE_CHECKING:
    from dipaco_swarm.testing.world import World


@dataclass(frozen=True)
class Machine:
    """What a program runs on."""

    line: Line = field(default_factory=Line)
    step_seconds: float = 1.0
    """Of one inner step, on average."""
    clock_offset: float = 0.0
    preparing_seconds: float = 1.0
    """Until a shard is read."""


class SimulatedProcess(ABC):
    """A program and its machine. The home folder stays when it is killed."""

    def __init__(self, world: "World", name: str, machine: Machine) -> None:
        self.name = name
        self.machine = machine
        self.home: Path = world.folder / name
        self.lives = 0
        self.clock = VirtualClock(world.loop, machine.clock_offset)
        self.program: Program | None = None
        self.stop: Stopping | None = None
        self.step_ends = 0.0
        """When the inner step that it is in will be over."""
        self._world = world
        self._open = contextlib.AsyncExitStack()

    @property
    def owner(self) -> str:
        """To whom its callbacks belong in this life."""
        return f"{self.name}#{self.lives}"

    @property
    def is_alive(self) -> bool:
        return self.program is not None and not self.program.ended.done()

    @abstractmethod
    def _live(self, program: Program, stop: Stopping, random: Random) -> None:
        """The whole of one life, in the program's thread."""

    def start(self) -> None:
        """A new process."""
        assert not self.is_alive, f"{self.name} is running"
        self.lives += 1
        world = self._world
        world.network.revive(self.name)
        self.program = program = Program(world.loop, self.owner)
        self.stop = stop = Stopping(VirtualPauses(program, self.clock))
        self._open = contextlib.AsyncExitStack()
        random = Random(f"{world.seed}/{self.owner}")
        program.start(lambda: self._live(program, stop, random))

    def kill(self) -> None:
        """SIGKILL."""
        assert self.program is not None
        world = self._world
        world.loop.kill(self.owner)
        if (transport := world.local.transports.pop(self.name, None)) is not None:
            for stream in transport.streams:
                stream.abandon()
        world.network.kill(self.name)
        self.program.kill()

    def ask_to_stop(self) -> None:
        """Ctrl+C."""
        assert self.stop is not None
        context_of(self.owner).run(self.stop.request)

    @contextlib.contextmanager
    def _swarm(self, program: Program, stop: Stopping, random: Random) -> Iterator[NetworkedSwarm]:
        """In the swarm, until the block ends."""
        swarm = program.run(self._join(program, random))
        stop.tell(swarm.interrupt)
        try:
            yield swarm
        finally:
            program.run(self._leave())

    async def _join(self, program: Program, random: Random) -> NetworkedSwarm:
        world = self._world
        transport = LocalTransport(
            world.local,
            self.name,
            clock=self.clock,
            records=SimulatedRecords(world.directory, self.name, self.clock),
            executor=Inline,
            reachable=self.name not in world.network.behind_routers,
            random=random,
        )
        transport.open()
        self._open.push_async_callback(transport.close)
        circle = Circle(circle_file(self.home, world.address.fingerprint))
        bans = Bans(bans_file(self.home, world.address.fingerprint))
        blobs = BlobStore(self.home / "blobs")
        swarm = networked_swarm(
            program, self._bent_transport(transport), world.address, blobs, circle=circle, bans=bans
        )
        return await self._open.enter_async_context(swarm)

    def _bent_transport(self, transport: LocalTransport) -> Transport:
        """The door to the network as the program has it; who is hostile has it bent."""
        return transport

    async def _leave(self) -> None:
        await self._open.aclose()
        self._world.network.kill(self.name)
