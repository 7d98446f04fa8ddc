"""What a reducer shows of a round that is over: from what it has made a piece, to members who ask (`auditing.py`)."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.checks import AskInputs, InputsAre, SignedInput
from dipaco_swarm.swarm.framing import PieceHeader
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.round.average import SealedPiece
from dipaco_swarm.swarm.round.exchange import PieceExchange
from dipaco_swarm.swarm.round.reducer import Shown
from dipaco_swarm.swarm.round.seals import Subject, digest_of_inputs, digest_of_rules
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.traffic import Purpose
from dipaco_swarm.swarm.transport import Executor, Stream, Transport
from dipaco_swarm.swarm.wire import NotHere, Roster

CHECKED = 0.04
"""Part of the pieces of a round that are checked, by all members together: half as much of its bytes."""
MOST_WORDS = 3
"""So many members are followed in a round that say of a reducer that it does not show them something."""
TRIES = 3
"""So often a reducer is asked for a piece, with `Timing.answer` between them."""


@dataclass(frozen=True, eq=False)
class Round:
    """One that is over, as it is checked."""

    roster: Roster
    about: Subject
    sealed: Mapping[int, SealedPiece]
    """Every piece; none where the round has come to no average here."""
    group: ModuleGroup
    parameters: int
    ours: Mapping[int, Shown]
    """What we have reduced."""
    asked: Counter[str] = field(default_factory=Counter)
    """How often each member has asked for some of that."""
    doubted: set[str] = field(default_factory=set)
    """Members that have said that they are not shown something..."""
    words: Counter[str] = field(default_factory=Counter)
    """... and of which reducers, how often we have followed that."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of who looks at what others say."""

    def reducer(self, piece: int) -> str:
        return self.roster.members[self.sealed[piece].seal.reducer].peer

    def has(self, peer: str) -> bool:
        """Whether it was on the roster."""
        return any(member.peer == peer for member in self.roster.members)


class Showing:
    """The rounds that have ended lately, of one peer."""

    def __init__(self, transport: Transport, codec: str, compute: Executor) -> None:
        """`codec`: its name."""
        self._transport = transport
        self._codec = codec
        self._compute = compute
        self._rounds: dict[bytes, Round] = {}
        self._over = asyncio.Condition()
        self._tasks = Tasks()

    async def stop(self) -> None:
        await self._tasks.end()

    async def keep(self, exchange: PieceExchange, group: ModuleGroup, parameters: int) -> None:
        """A round is over, in whatever way: what we have made in it is shown to its members for some time."""
        round_id, average = exchange.roster.round_id, exchange.average
        kept = Round(exchange.roster, average.about, average.sealed(), group, parameters, exchange.shown)
        async with self._over:
            self._rounds[round_id] = kept
            self._over.notify_all()
        self._tasks.start(self._forget(round_id))

    async def _forget(self, round_id: bytes) -> None:
        await asyncio.sleep(self._transport.timing.max_answer)
        self._rounds.pop(round_id, None)

    def round(self, round_id: bytes) -> Round | None:
        return self._rounds.get(round_id)

    def made(self, round_id: bytes) -> Mapping[int, Shown]:
        """The pieces that we have made in a round."""
        kept = self.round(round_id)
        return {} if kept is None else kept.ours

    async def show(self, stream: Stream, asked: AskInputs) -> None:
        """A member asks from what we have made a piece."""
        stream.purpose = Purpose.ROUND
        kept = await self._soon(asked.round_id)
        made = None if kept is None else kept.ours.get(asked.piece)
        if kept is None or made is None or not kept.has(stream.peer):
            await stream.send(NotHere())
            return
        kept.asked[stream.peer] += 1
        # what it has drawn, what it finds odd, and what three others say that is not shown to them, if it is shown
        if kept.asked[stream.peer] > TRIES * (2 + most_checked(len(kept.ours), len(kept.roster.members))):
            raise RemoteDataError(stream.peer, "asks for more inputs than anybody checks")
        listed = await self._compute.aside(_listed, made)
        digest = digest_of_inputs(listed, digest_of_rules(kept.group, self._codec, kept.parameters))
        signature = self._transport.sign(kept.about.inputs(made.generation, asked.piece, digest))
        await stream.send(InputsAre(inputs=listed, signature=signature))
        if asked.whole:
            await stream.send_piece(PieceHeader(asked.piece, made.generation, b"", len(made.data)), made.data)
        for member, given in sorted(made.inputs.items()):
            if asked.whole or kept.roster.members[member].peer != stream.peer:
                await stream.send_piece(PieceHeader(member, made.generation, b"", len(given.data)), given.data)

    async def _soon(self, round_id: bytes) -> Round | None:
        """A round that is over, or will be at once: others may hear of its end before us."""
        try:
            async with asyncio.timeout(self._transport.timing.answer), self._over:
                await self._over.wait_for(lambda: round_id in self._rounds)
        except TimeoutError:
            return None
        return self._rounds.get(round_id)


def most_checked(pieces: int, members: int) -> int:
    """So many pieces of one reducer one member looks at, at most. `pieces`: that it has made."""
    return 1 + int(4 * CHECKED * pieces / max(1, members - 1))


def _listed(made: Shown) -> tuple[SignedInput, ...]:
    return tuple(
        SignedInput(member=member, digest=hashlib.sha256(given.data).digest(), signature=given.signature)
        for member, given in sorted(made.inputs.items())
    )
