"""What follows from a wrong average: whoever has made it anew bans its reducer, and shows the others why.

Nobody is believed: who is shown it makes it anew as well. Who shows what convicts nobody is heard no more.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from weakref import WeakValueDictionary

from dipaco_swarm.algorithm.forgetting import keep_last
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.checks import Accusation, Convicted
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.framing import PieceHeader
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.round.average import buffer
from dipaco_swarm.swarm.round.codecs.codec import Codec
from dipaco_swarm.swarm.round.reduction import piece_bounds
from dipaco_swarm.swarm.round.remaking import is_wrong, word_of_reducer
from dipaco_swarm.swarm.round.standing import Standing
from dipaco_swarm.swarm.tasks import Tasks, end_all
from dipaco_swarm.swarm.traffic import Purpose
from dipaco_swarm.swarm.transport import Executor, Stream, Transport

log = logging.getLogger(__name__)

MOST_EVIDENCE = 4
"""Convictions whose evidence is kept, to be shown to others: some megabytes each."""
MOST_UNHEARD = 64
MOST_BYTES = 1 << 27
"""Of what one accusation shows."""
MOST_SHOWING = 4
"""Peers that we know and that show something at the same time."""
FLOOR = 10_000.0
"""Bytes a second: who sends less keeps others from being heard."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is shown about a reducer: its word, the average and its inputs as bytes."""

    said: Accusation
    average: memoryview
    inputs: Mapping[int, memoryview]

    @property
    def reducer(self) -> str:
        return self.said.roster.members[self.said.reducer].peer


class Accusing:
    """Of one peer."""

    def __init__(
        self, transport: Transport, protocol: str, run: str, codec: Codec, compute: Executor, standing: Standing
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        self._run = run
        self._codec = codec
        self._compute = compute
        self._standing = standing
        self._evidence: dict[str, Evidence] = {}
        """Name -> why we have banned it."""
        self.unheard: set[str] = set()
        """Who has accused somebody of what it did not prove."""
        self.slow: set[str] = set()
        """Whom we know, and who did not show in time what it said: it is heard as strangers are."""
        self._hearing = {is_strange: asyncio.Lock() for is_strange in (True, False)}
        """One stranger at a time, and one judgement; strangers keep nobody waiting whom we know."""
        self._showing = asyncio.Semaphore(MOST_SHOWING)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One accusation at a time of each whom we know: who shows nothing keeps only itself waiting."""
        self._tasks = Tasks()
        self.judged = 0
        """Pieces that we have made anew."""

    async def stop(self) -> None:
        await self._tasks.end()

    def check_word(self, said: Accusation, group: ModuleGroup) -> None:
        """Raises ValueError when something is not what the reducer has signed."""
        word_of_reducer(said, group, self._codec, self._run, self._transport.is_signed_by)

    def most_bytes(self, said: Accusation) -> int:
        """Of a piece, or of a contribution to it."""
        start, stop = piece_bounds(said.piece, said.roster.piece_parameters, said.parameters)
        return self._codec.most_bytes(stop - start)

    async def judge(self, evidence: Evidence, group: ModuleGroup) -> bool:
        """Whether the reducer is convicted. Raises ValueError when it is not its word that is shown."""
        signed = self._transport.is_signed_by
        said, average, inputs = evidence.said, evidence.average, evidence.inputs
        wrong = await self._compute.aside(is_wrong, said, average, inputs, group, self._codec, self._run, signed)
        self.judged += 1
        if wrong:
            self._convict(evidence)
        return wrong

    def _convict(self, evidence: Evidence) -> None:
        """It is banned, by us; the others are shown why. What it has made stays, until the operator goes back."""
        said, reducer = evidence.said, evidence.reducer
        if not self._standing.allows(reducer):
            return
        self._evidence[reducer] = evidence
        keep_last(self._evidence, MOST_EVIDENCE)
        log.warning(
            "peer %s made a wrong average of a part of %s, in version %d: it is banned; the version stays, and the "
            "run's operator can go back to one before it",
            reducer[-8:],
            said.module,
            said.version + 1,
        )
        self._standing.convict(Convicted(reducer=reducer, stage=said.stage, module=said.module, version=said.version))
        for peer in dict.fromkeys([*self._standing.roots, *(member.peer for member in said.roster.members)]):
            self.show(peer, [reducer])

    def show(self, peer: str, about: Collection[str]) -> None:
        """Show a peer why we have banned these, of whom we can."""
        for name in about:
            if name in self._evidence and peer not in (name, self._transport.peer):
                evidence = self._evidence[name]
                pieces = [evidence.average, *(data for _, data in sorted(evidence.inputs.items()))]
                self.say(peer, evidence.said, pieces)

    def say(self, peer: str, message: Message, pieces: Collection[memoryview] = ()) -> None:
        """Say something to which there is no answer. Returns at once."""
        self._tasks.start(self._say(peer, message, pieces))

    async def _say(self, peer: str, message: Message, pieces: Collection[memoryview]) -> None:
        try:
            async with self._transport.dial(peer, self._protocol) as stream:
                stream.purpose = Purpose.ROUND
                await stream.send(message)
                for index, data in enumerate(pieces):
                    await stream.send_piece(PieceHeader(index, 0, b"", len(data)), data)
                if pieces:
                    async with asyncio.timeout(self._transport.timing.stall):
                        await stream.receive_piece_header()  # until the other side has all of it, and hangs up
        except (ConnectionError, EOFError, TimeoutError, RemoteDataError) as error:
            log.debug("peer %s does not hear of a check: %s", peer[-8:], error)

    async def hear(self, stream: Stream, said: Accusation) -> None:
        """Somebody shows us that a reducer was wrong: make it anew ourselves.

        Where strangers accuse, one is heard at a time, and others come in vain; whom we know waits for its turn. What
        it shows has come before it keeps others waiting.
        """
        group = self._standing.group_of(said.stage, ModuleId.parse(said.module))
        is_strange = self._standing.is_strange(stream.peer) or stream.peer in self.slow
        strangers = self._hearing[True]
        if group is None or stream.peer in self.unheard or (is_strange and strangers.locked()):
            return
        try:
            self.check_word(said, group)
        except ValueError as error:
            raise RemoteDataError(stream.peer, f"accuses somebody and shows {error}") from None
        most, accused = self.most_bytes(said), said.roster.members[said.reducer].peer
        if most * (1 + len(said.inputs)) > MOST_BYTES or not self._standing.matters(accused):
            return
        turn = strangers if is_strange else self._turns.setdefault(stream.peer, asyncio.Lock())
        async with turn, contextlib.nullcontext() if is_strange else self._showing:
            if not self._standing.allows(accused) or (not is_strange and stream.peer in self.slow):
                return  # somebody has proven it meanwhile, or before; or it was too slow meanwhile
            try:
                shown = await self._shown(stream, said, most)
                async with contextlib.nullcontext() if is_strange else self._hearing[False]:
                    convicts = await self.judge(shown, group)
            except ValueError:
                convicts = False
            except (ConnectionError, EOFError, TimeoutError, RemoteDataError) as error:
                if is_strange:  # of whom we know the line may have broken
                    keep_name(self.unheard, stream.peer)
                elif isinstance(error, TimeoutError):
                    keep_name(self.slow, stream.peer)
                raise
        if not convicts:
            keep_name(self.unheard, stream.peer)
            raise RemoteDataError(stream.peer, "accuses somebody of what it does not prove")

    async def _shown(self, stream: Stream, said: Accusation, most: int) -> Evidence:
        """What somebody shows. Raises TimeoutError when next to nothing comes, or it takes too long."""

        async def all_of_it() -> Evidence:
            average = await receive(stream, 0, most)
            inputs = {given.member: await receive(stream, 1 + n, most) for n, given in enumerate(said.inputs)}
            stream.close()
            return Evidence(said, average, inputs)

        silence, coming = self._transport.timing.silence, asyncio.create_task(all_of_it())
        try:
            async with asyncio.timeout(2 * self._transport.timing.stall):
                while not coming.done():
                    before = stream.arrived
                    await asyncio.wait({coming}, timeout=silence)
                    if not coming.done() and stream.arrived - before < silence * FLOOR:
                        raise TimeoutError
            return coming.result()
        finally:
            await end_all(coming)


def keep_name(names: set[str], name: str) -> None:
    """Add it to some, of which there are not too many."""
    names.add(name)
    while len(names) > MOST_UNHEARD:
        names.remove(min(names))


async def receive(stream: Stream, index: int, most: int) -> memoryview:
    """What is shown next, which has this index and so many bytes at most."""
    header = await stream.receive_piece_header()
    if header is None or header.index != index or header.size > most:
        raise RemoteDataError(stream.peer, "shows something else than it says")
    data = buffer(header.size)
    await stream.receive_into(data)
    return data
