"""Questions between two peers about a round: where do you stand, how did it end. One stream a question."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from dipaco_swarm.algorithm.forgetting import keep_last
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.proofs import AskSeals, Proof, Seal, SealsAre
from dipaco_swarm.swarm.round.failure_detector import FailureDetector
from dipaco_swarm.swarm.round.standing import Key, Member, Standing
from dipaco_swarm.swarm.transport import Transport
from dipaco_swarm.swarm.wire import AskOutcome, Here, OutcomeIs, Where

log = logging.getLogger(__name__)

REMEMBERED_GATHERINGS = 64


class Questions:
    """What we ask others, and what we say ourselves when we are asked where we stand."""

    def __init__(
        self,
        transport: Transport,
        protocol: str,
        detector: FailureDetector,
        standing: Standing,
        follows: Callable[[Key], str | None],
        sealed: Callable[[bytes], tuple[Seal, ...]],
    ) -> None:
        """`follows`: with whom we wait for a round; ourselves if we gather it and wait with nobody else.

        `sealed`: what the reducers of a round have signed to us.
        """
        self._transport = transport
        self._protocol = protocol
        self._detector = detector
        self._standing = standing
        self._follows = follows
        self._sealed = sealed
        self._gatherers: dict[Key, set[str]] = {}
        """Who has asked us lately as who gathers a round."""

    async def outcome(self, peer: str, round_id: bytes) -> OutcomeIs | None:
        """How a round ended for a member, if it has; None: it does not answer."""
        answer = await self._ask(peer, AskOutcome(round_id=round_id))
        return answer if isinstance(answer, OutcomeIs) else None

    async def seals(self, peer: str, round_id: bytes) -> tuple[Seal, ...]:
        """What the reducers of a round have signed to a member; nothing where it does not answer."""
        if peer == self._transport.peer:
            return self._sealed(round_id)
        answer = await self._ask(peer, AskSeals(round_id=round_id))
        return answer.seals if isinstance(answer, SealsAre) else ()

    async def tell(self, peer: str, proof: Proof) -> None:
        """Hand a proof on. There is no answer."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with self._transport.dial(peer, self._protocol) as stream, asyncio.timeout(self._detector.usual):
                await stream.send(proof)

    async def where(self, peer: str, key: Key, base: Claim, *, for_strangers: bool = False) -> Here | None:
        """Where a peer stands, asked by who gathers the round that goes on from `base`; None: it does not answer.

        `for_strangers`: nobody whom we know has joined it.
        """
        stage, module, version = key
        if peer == self._transport.peer:
            return self.here(key, base, by_strangers=for_strangers)
        ours = self._standing.ours(stage, module)
        path = None if ours is None or ours.claim != base else ours.path
        question = Where(
            stage=stage,
            module=str(module),
            version=version,
            digest=base.digest,
            work=base.work,
            path=path,
            for_strangers=for_strangers,
        )
        answer = await self._ask(peer, question, patient=self._standing.is_whole(stage, module))
        if not isinstance(answer, Here):
            return None
        if answer.version is not None and answer.digest is not None and answer.path is not None:
            claim = Claim(answer.version, answer.digest, answer.work)
            self._standing.heard(peer, stage, module, Member(answer.path, claim))
        return answer

    async def follows(self, peer: str, key: Key, base: Claim, *, for_strangers: bool) -> str | None:
        """Whom a peer has joined for this round, as it says; None: nobody, or it does not answer."""
        answer = await self.where(peer, key, base, for_strangers=for_strangers)
        return None if answer is None else answer.follows

    async def is_there(self, peer: str, key: Key, base: Claim) -> bool:
        """Ask a peer that is silent where it stands; False when it is gone, and not only slow."""
        return await self.where(peer, key, base) is not None or not self._detector.is_gone(peer)

    def somebody_else_gathers(self, key: Key, leader: str) -> bool:
        """Whether others than our leader of this round have asked for it."""
        return bool(self._gatherers.get(key, set()) - {leader})

    def answer(self, asking: str, question: Where) -> Here:
        """Somebody asks where we stand, and says so of itself."""
        key = stage, module, _ = question.stage, ModuleId.parse(question.module), question.version
        if question.path is not None:
            self._standing.heard(asking, stage, module, Member(question.path, Claim.of(question)))
        if self._follows(key) is not None:
            self._gatherers.setdefault(key, set()).add(asking)
            keep_last(self._gatherers, REMEMBERED_GATHERINGS)
        by_strangers = question.for_strangers or not self._standing.heeds(stage, module, asking)
        return self.here(key, Claim.of(question), by_strangers=by_strangers)

    def here(self, key: Key, base: Claim, *, by_strangers: bool) -> Here:
        """Where we stand, for somebody who gathers the round that goes on from `base`; which calls us to it."""
        stage, module, version = key
        follows = self._follows(key)
        ours = self._standing.ours(stage, module)
        claim = self._standing.holds(stage, module) if ours is None else ours.claim
        if claim is None:
            return Here(version=None, follows=follows)
        if ours is not None and ours.claim == base:
            self._standing.called(stage, module, version, by_strangers)
        path = None if ours is None else ours.path
        return Here(version=claim.version, digest=claim.digest, work=claim.work, path=path, follows=follows)

    async def _ask(self, peer: str, question: Message, *, patient: bool = False) -> Message | None:
        """A peer's answer; None when there is none in about the time that answers take, or far more if `patient`."""
        asked = self._transport.clock.monotonic()
        allowed = self._transport.timing.max_answer if patient else self._detector.allowed(peer)
        try:
            async with asyncio.timeout(allowed), self._transport.dial(peer, self._protocol) as stream:
                await stream.send(question)
                answer = await stream.receive()
        except (ConnectionError, EOFError, TimeoutError, RemoteDataError) as error:
            log.debug("peer %s does not answer %s: %s", peer[-8:], type(question).__name__, error)
            self._detector.silent(peer, asked, error)
            return None
        except asyncio.CancelledError:  # who asks has no more patience
            if self._transport.clock.monotonic() - asked >= self._detector.usual:
                self._detector.silent(peer, asked)
            raise
        self._detector.answered(peer, self._transport.clock.monotonic() - asked)
        return answer
