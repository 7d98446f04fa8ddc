"""Averages are checked after their round: a member asks a reducer from what it has made a piece, and makes it anew.

showing.py     what we have made as a reducer is shown for a while, to members of the round
here           each member draws for itself which pieces it looks at: whoever makes one cannot know
suspecting.py  and looks besides at what has another share of its own contribution in it than the rest
remaking.py    whether an average is what its inputs make
accusing.py    a reducer whose average is not is banned, and shown to the others, who see for themselves

One that does not show its inputs reduces nothing for a while, by everybody whom it does not show them. Nothing waits
for any of this: the round is over. It runs beside training, in a few per cent of the bytes of a round.
"""

import asyncio
import logging
from collections import Counter
from enum import Enum, auto

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.checks import Accusation, AskInputs, InputsAre, NotShown
from dipaco_swarm.swarm.round import showing
from dipaco_swarm.swarm.round.accusing import Accusing, Evidence, keep_name, receive
from dipaco_swarm.swarm.round.candidates import DEMOTED_AT, Demotions
from dipaco_swarm.swarm.round.codecs.codec import Codec
from dipaco_swarm.swarm.round.exchange import PieceExchange
from dipaco_swarm.swarm.round.showing import MOST_WORDS, TRIES, Round, Showing, most_checked
from dipaco_swarm.swarm.round.standing import Standing
from dipaco_swarm.swarm.round.suspecting import Restraint
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.traffic import Purpose
from dipaco_swarm.swarm.transport import Executor, Transport

log = logging.getLogger(__name__)

Own = tuple[memoryview, memoryview]
"""What a member has of a piece itself: the average, and its own contribution."""


class Look(Enum):
    """How it ended when we asked a reducer for a piece."""

    MADE_ANEW = auto()
    """It was shown; what it is worth, others have been told."""
    HIDDEN = auto()
    """Its reducer is there, and does not show it."""
    GONE = auto()
    """Its reducer is there no more, or is banned: nobody to ask."""


class Auditing:
    """Of one peer, for all its rounds."""

    def __init__(
        self, transport: Transport, protocol: str, run: str, codec: Codec, compute: Executor, standing: Standing
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        self._compute = compute
        self._standing = standing
        self.showing = Showing(transport, codec.name, compute)
        self.accusing = Accusing(transport, protocol, run, codec, compute, standing)
        self.hidden = Demotions()
        """Reducers that did not show what we have asked for: they reduce nothing meanwhile."""
        self.unheard: set[str] = set()
        """Who has said that it is not shown what is shown to us."""
        self._restraint: dict[tuple[int, ModuleId], Restraint] = {}
        self._tasks = Tasks()

    async def stop(self) -> None:
        await self._tasks.end()
        await self.showing.stop()
        await self.accusing.stop()

    async def check(self, exchange: PieceExchange) -> None:
        """A round is agreed on: look at some of its pieces, later. What we need of our own is taken now."""
        kept = self.showing.round(exchange.roster.round_id)
        if kept is None:
            return
        drawn = self._drawn(kept)
        odd = await self._odd(exchange, kept)
        if odd is not None and odd not in drawn:
            drawn.append(odd)
        for piece in drawn:
            ours = await self._compute.in_order(exchange.contribution_to, piece)
            own = memoryview(bytearray(exchange.average.encoded(piece))), memoryview(bytearray(ours))  # may be views
            self._tasks.start(self._look_at(kept, piece, own))

    async def _odd(self, exchange: PieceExchange, kept: Round) -> int | None:
        """A piece that is looked at for what it is."""
        restraint = self._restraint.setdefault((kept.about.stage, kept.about.module), Restraint())
        if not restraint.next_round() or not kept.sealed:
            return None
        odd = await exchange.odd_piece()
        if odd is not None:
            restraint.followed()
        return odd

    def _drawn(self, kept: Round) -> list[int]:
        """The pieces of others that we look at: each with the same probability, and of nobody too many."""
        members = kept.roster.members
        of, taken = Counter(sealed.seal.reducer for sealed in kept.sealed.values()), Counter[int]()
        drawn: list[int] = []
        for piece, sealed in kept.sealed.items():
            reducer = sealed.seal.reducer
            if members[reducer].peer == self._transport.peer:
                continue
            is_drawn = self._transport.random.random() < showing.CHECKED / (len(members) - 1)
            if is_drawn and taken[reducer] < most_checked(of[reducer], len(members)):
                taken[reducer] += 1
                drawn.append(piece)
        return drawn

    async def _look_at(self, kept: Round, piece: int, own: Own) -> None:
        """Make a piece anew; where it is not shown to us, the others see whether it is to them."""
        if await self._ask_for(kept, piece, own) is Look.HIDDEN:
            for member in kept.roster.members:
                if member.peer not in (kept.reducer(piece), self._transport.peer):
                    self.accusing.say(member.peer, NotShown(round_id=kept.roster.round_id, piece=piece))

    async def doubt(self, peer: str, said: NotShown) -> None:
        """A member is not shown a piece: see whether we are. Each is heard once a round, until we are; and of each
        reducer a few, one after the other, as it shows us no more than that."""
        kept = self.showing.round(said.round_id)
        if kept is None or peer in kept.doubted | self.unheard or said.piece not in kept.sealed:
            return
        kept.doubted.add(peer)
        reducer = kept.reducer(said.piece)
        if kept.has(peer) and reducer not in (peer, self._transport.peer) and kept.words[reducer] < MOST_WORDS:
            kept.words[reducer] += 1
            self._tasks.start(self._see(kept, said.piece, peer))

    async def _see(self, kept: Round, piece: int, doubter: str) -> None:
        async with kept.turn:
            if await self._ask_for(kept, piece, None) is Look.MADE_ANEW:
                keep_name(self.unheard, doubter)  # it costs each of us the bytes of some pieces, once

    async def _ask_for(self, kept: Round, piece: int, own: Own | None) -> Look:
        """Ask for a piece, several times if need be, and make it anew.

        `own`: what we have of it ourselves; None: ask for that as well.
        """
        reducer, timing = kept.reducer(piece), self._transport.timing
        for pause in [timing.ask_again] + [timing.answer] * (TRIES - 1):
            await asyncio.sleep(pause)
            if not self._standing.allows(reducer):
                return Look.GONE
            evidence = await self._ask(kept, piece, own)
            try:
                wrong = evidence is not None and await self.accusing.judge(evidence, kept.group)
            except ValueError as error:
                self._transport.border.note(RemoteDataError(reducer, f"shows {error}"), "was not shown an average")
                continue
            if evidence is not None:
                if not wrong:
                    self.hidden.forgive(reducer)
                return Look.MADE_ANEW
        if reducer not in self._standing.others():
            return Look.GONE
        log.info("peer %s does not show from what it has made averages: it makes none for a while", reducer[-8:])
        self.hidden.note(reducer, self._transport.clock.monotonic(), DEMOTED_AT)
        return Look.HIDDEN

    async def _ask(self, kept: Round, piece: int, own: Own | None) -> Evidence | None:
        """What a reducer shows; None when it shows nothing."""
        reducer, us = kept.reducer(piece), self._transport.peer
        try:
            async with self._transport.dial(reducer, self._protocol) as stream:
                stream.purpose = Purpose.ROUND
                await stream.send(AskInputs(round_id=kept.roster.round_id, piece=piece, whole=own is None))
                async with asyncio.timeout(self._transport.timing.max_answer):
                    answer = await stream.receive()
                if not isinstance(answer, InputsAre):
                    return None
                said = _accusation(kept, piece, answer)
                self.accusing.check_word(said, kept.group)
                most = self.accusing.most_bytes(said)
                average = await receive(stream, piece, most) if own is None else own[0]
                inputs: dict[int, memoryview] = {}
                for given in answer.inputs:
                    is_ours = own is not None and kept.roster.members[given.member].peer == us
                    inputs[given.member] = (
                        own[1] if is_ours and own is not None else await receive(stream, given.member, most)
                    )
        except RemoteDataError as error:
            self._transport.border.note(error, "was not shown an average")
            return None
        except (ConnectionError, EOFError, TimeoutError, ValueError) as error:
            log.debug("peer %s does not show an average: %s", reducer[-8:], error)
            return None
        return Evidence(said, average, inputs)


def _accusation(kept: Round, piece: int, answer: InputsAre) -> Accusation:
    about, sealed = kept.about, kept.sealed[piece]
    return Accusation(
        stage=about.stage,
        module=str(about.module),
        version=about.version,
        parameters=kept.parameters,
        roster=kept.roster,
        reducer=sealed.seal.reducer,
        generation=sealed.seal.generation,
        pieces=sealed.pieces,
        seal=sealed.seal.signature,
        piece=piece,
        mask=sealed.mask,
        inputs=answer.inputs,
        shown=answer.signature,
    )
