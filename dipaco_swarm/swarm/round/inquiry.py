"""Who made a round fail: asked of its members, proven by what they show, and told to others."""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from dipaco_swarm.swarm.proofs import Proof, Seal
from dipaco_swarm.swarm.round.exchange import PieceExchange
from dipaco_swarm.swarm.round.questions import Questions
from dipaco_swarm.swarm.round.seals import compare
from dipaco_swarm.swarm.round.standing import Standing
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import Transport

log = logging.getLogger(__name__)

TOLD = 8
"""Others who are told of a proof by everybody to whom it is news: so it comes to all."""


class Inquiry:
    """Of one peer, for all its rounds."""

    def __init__(self, transport: Transport, run: str, questions: Questions, standing: Standing) -> None:
        self.run = run
        self._transport = transport
        self._questions = questions
        self._standing = standing
        self._telling = Tasks()

    async def stop(self) -> None:
        await self._telling.end()

    async def shown(self, members: Mapping[int, str], round_id: bytes) -> dict[int, tuple[Seal, ...]]:
        """The seals that members hold of a round; nothing of those who do not answer. `members`: index -> name."""
        asking = {i: asyncio.create_task(self._questions.seals(peer, round_id)) for i, peer in members.items()}
        await asyncio.wait(asking.values(), timeout=self._transport.timing.answer)
        for question in asking.values():
            question.cancel()
        await asyncio.gather(*asking.values(), return_exceptions=True)
        return {i: () if question.cancelled() else question.result() for i, question in asking.items()}

    async def look_into(self, exchange: PieceExchange) -> bool:
        """The round has failed, and our leader may not have looked: whether somebody is convicted of two averages.

        Nobody is where we have none ourselves.
        """
        if not exchange.average.complete.is_set():
            return False
        others = {i: m.peer for i, m in enumerate(exchange.roster.members)}
        shown, average = await self.shown(others, exchange.roster.round_id), exchange.average
        found = compare(average.about, exchange.roster, average.made, shown, {}, self._transport.is_signed_by)
        return self.convict(found.proofs)

    def convict(self, proofs: Iterable[Proof]) -> bool:
        """Ban whom these convict, and tell others of it; whether they convict anybody."""
        convicted = False
        for proof in proofs:
            known = self._standing.proof_of(proof.reducer) is not None
            if not self._standing.ban(proof):
                continue
            convicted = True
            if not known and self._standing.matters(proof.reducer):
                log.warning(
                    "peer %s signed two averages of the same pieces of %s, version %d: it is banned",
                    proof.reducer[-8:],
                    proof.module,
                    proof.version,
                )
                self._hand_on(proof)
        return convicted

    def _hand_on(self, proof: Proof) -> None:
        roots = self._standing.roots
        others = sorted(peer for peer in self._standing.others() if peer != proof.reducer and peer not in roots)
        for peer in (*roots, *self._transport.random.sample(others, min(TOLD, len(others)))):
            self._telling.start(self._questions.tell(peer, proof))
