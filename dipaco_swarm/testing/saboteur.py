"""Members of rounds who misbehave: the honest program, whose streams to and from others are bent by a `Role`.

hostile.py      the roles
bend            a role between a program and its transport, whichever that is
Saboteur        a volunteer of a simulated swarm that plays one
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import TYPE_CHECKING, Any, cast

from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.framing import PieceHeader
from dipaco_swarm.swarm.local import LocalTransport
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.traffic import Purpose
from dipaco_swarm.swarm.transport import Stream, StreamHandler, Transport
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.program import Program
from dipaco_swarm.testing.volunteer import SimulatedPeer

if TYPE_CHECKING:
    from dipaco_swarm.testing.world import World


class BentStream:
    """A stream of a saboteur: its role sees what it says and hears, and may change it."""

    def __init__(self, stream: Stream, role: "Role", protocol: str, *, dialled: bool) -> None:
        """`dialled`: by the saboteur; else by its peer."""
        self._stream = stream
        self._role = role
        self.kind = protocol.rpartition("/")[2]
        self.dialled = dialled
        self.round_id = b""
        """Of the round that it is about, once that was said."""
        self.module = ""
        """Of which it is, where whoever joins has said so."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def purpose(self) -> Purpose:
        return self._stream.purpose

    @purpose.setter
    def purpose(self, purpose: Purpose) -> None:
        self._stream.purpose = purpose

    async def send(self, message: Message) -> None:
        self._note(message)
        said = self._role.says(self, message) if self._role.active else message
        if said is not None:
            await self._stream.send(said)

    async def receive(self) -> Message:
        message = await self._stream.receive()
        self._note(message)
        if self._role.active:
            await self._role.hears(self, message)
        return message

    def _note(self, message: Message) -> None:
        self.round_id = getattr(message, "round_id", self.round_id)
        self.module = getattr(message, "module", self.module)

    def close(self) -> None:
        if not (self._role.active and self._role.keeps(self)):
            self._stream.close()

    async def receive_piece_header(self) -> PieceHeader | None:
        header = await self._stream.receive_piece_header()
        if self._role.active:
            self._role.takes(self)
        return header

    async def send_piece(self, header: PieceHeader, data: memoryview) -> None:
        sent = self._role.gives(self, header, data) if self._role.active else data
        if sent is not None:
            await self._stream.send_piece(header, sent)


class Role:
    """One way to misbehave in rounds. This one does not; nor does any while it is not `active`."""

    def __init__(self) -> None:
        self.active = True
        self.times = 0
        """It has done so."""
        self.rounds: dict[str, set[bytes]] = {}
        """Module -> rounds in which it has, or their versions; without those that did not wait for it."""
        self.tell: Callable[[str], None] = lambda module: None
        """Called each time with the module of such a round."""
        self.transport: Transport
        """The honest one below; set by `bend`."""
        self.swarm: NetworkedSwarm | None = None
        """Its own program's, once that has joined."""
        self.tasks = Tasks()

    def joins(self, swarm: NetworkedSwarm) -> None:
        """Its program has joined the swarm."""
        self.swarm = swarm

    def did(self, round_id: bytes, module: str = "") -> None:
        """It does so now. `module`: of the round; not said: of one that is under way."""
        self.times += 1
        if not module and self.swarm is not None and self.swarm._rounds is not None:
            running = self.swarm._rounds._verdicts._running.get(round_id)
            if running is None or not running.roster.members[running._me].awaited:
                return  # nobody waits for what it does not do
            module = str(running.average.about.module)
        self.rounds.setdefault(module, set()).add(round_id)
        self.tell(module)

    def says(self, stream: BentStream, message: Message) -> Message | None:
        """What it says instead; None: nothing."""
        return message

    async def hears(self, stream: BentStream, message: Message) -> None:
        """Something was said to it. EOFError: its program does not hear that."""

    def keeps(self, stream: BentStream) -> bool:
        """Whether it keeps a stream open that its program is done with."""
        return False

    async def done(self, stream: BentStream) -> None:
        """Its program is done with a stream to it, which is closed after this."""

    def takes(self, stream: BentStream) -> None:
        """A contribution comes to it, or an average."""

    def gives(self, stream: BentStream, header: PieceHeader, data: memoryview) -> memoryview | None:
        """What it sends instead of a contribution (on a stream that it dialled), an average or a seal, if anything."""
        return data


class _BentTransport:
    def __init__(self, transport: Transport, role: Role) -> None:
        self._transport = transport
        self._role = role

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        async def bent(stream: Stream) -> None:
            bent_stream = BentStream(stream, self._role, protocol, dialled=False)
            await handler(cast(Stream, bent_stream))
            if self._role.active:
                await self._role.done(bent_stream)

        await self._transport.serve(protocol, bent)

    @contextlib.asynccontextmanager
    async def dial(self, peer: str, protocol: str, *, timeout: float | None = None) -> AsyncIterator[Stream]:
        async with self._transport.dial(peer, protocol, timeout=timeout) as stream:
            yield cast(Stream, BentStream(stream, self._role, protocol, dialled=True))


def bend(transport: Transport, role: Role) -> Transport:
    """The transport as a program has it that plays a role."""
    role.transport = transport
    return cast(Transport, _BentTransport(transport, role))


class Saboteur(SimulatedPeer):
    """A volunteer that plays a role, from its start or from when that is made active."""

    def __init__(self, world: "World", name: str, path: int, role: Role, machine: Machine | None = None) -> None:
        machine = machine or Machine()
        super().__init__(world, name, path, machine)
        world.network.lines[name] = machine.line
        world.peers[name] = self
        self.role = role

    def _bent_transport(self, transport: LocalTransport) -> Transport:
        return bend(transport, self.role)

    async def _join(self, program: Program, random: Random) -> NetworkedSwarm:
        swarm = await super()._join(program, random)
        self.role.joins(swarm)
        return swarm
