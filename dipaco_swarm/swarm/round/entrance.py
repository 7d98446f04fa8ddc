"""A member and its leader until the round begins: how it comes to it, waits there, and when it leaves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.interface import Contribution
from dipaco_swarm.swarm.round.channels import Channel, HeartbeatReader, LocalChannel
from dipaco_swarm.swarm.round.failure_detector import FailureDetector
from dipaco_swarm.swarm.round.leader import Leader
from dipaco_swarm.swarm.round.questions import Questions
from dipaco_swarm.swarm.round.standing import Key, Standing
from dipaco_swarm.swarm.transport import Transport
from dipaco_swarm.swarm.wire import Alive, Join, Refuse


class NeverBeginsError(TimeoutError):
    """A leader says that it is alive, long after everybody's patience is over: that is not the weather."""


@dataclass(frozen=True, eq=False)
class Entrance:
    """To the rounds that others lead, and to our own."""

    transport: Transport
    protocol: str
    detector: FailureDetector
    questions: Questions
    leader: Leader
    standing: Standing

    @contextlib.asynccontextmanager
    async def channel_to(self, leader: str, join: Join, *, whole: bool) -> AsyncIterator[Channel]:
        us = self.transport.peer
        if leader != us:
            patience = self.transport.timing.max_answer if whole else self.detector.allowed(leader)
            async with self.transport.dial(leader, self.protocol, timeout=patience) as stream:
                await stream.send(join)
                yield stream
            return
        ours, theirs = LocalChannel.pair(us)
        answer = self.leader.admit(join, theirs)
        if isinstance(answer, Refuse):
            await theirs.send(answer)
        try:
            yield ours
        finally:
            ours.close()

    def ears(self, channel: Channel, join: Join, contribution: Contribution) -> HeartbeatReader:
        """How we hear our leader; in a round that waits for everybody, silence is asked about."""
        if not contribution.group.whole:
            return HeartbeatReader(channel, self.transport.clock, self.transport.timing)
        key = join.stage, contribution.group.module, join.version
        ask = partial(self.questions.is_there, channel.peer, key, Claim.of(join))
        return HeartbeatReader(channel, self.transport.clock, self.transport.timing, ask, join.patience)

    async def until_gathered(self, channel: Channel, ears: HeartbeatReader, join: Join) -> Message:
        """What the leader says when it has waited for the others: a roster, or why there is none.

        It may never say it: NeverBeginsError. Members run out of patience one after the other: where one gathers the
        round anew, all go there whose own patience is over. Whom the others do not count waits for
        them, however long they train.
        """
        key, joined = (join.stage, ModuleId.parse(join.module), join.version), self._now()
        message = await self._first_word(ears, channel.peer)
        longest = 2 * join.patience + self.transport.timing.silence
        if not ears.patience and not self.standing.counts_us(*key):
            longest = max(longest, self.transport.timing.long_ago)
        try:
            async with asyncio.timeout(longest) as limit:
                while isinstance(message, Alive):
                    await channel.send(Alive())
                    message = await ears.hear()
                    waited = self._now() - joined - self.transport.timing.silence
                    if waited > join.patience and not ears.patience and self._is_gathered_anew(key, channel.peer):
                        raise NeverBeginsError(f"alive for {waited:.0f} s more than its members wait, and others begin")
        except TimeoutError as error:
            if limit.expired():
                raise NeverBeginsError(f"alive for {longest:.0f} s, and did not begin") from error
            raise
        return message

    def _is_gathered_anew(self, key: Key, leader: str) -> bool:
        """Whether somebody has left our leader for another, or for us."""
        return leader != self.transport.peer and (
            self.leader.gathers(key) or self.questions.somebody_else_gathers(key, leader)
        )

    async def _first_word(self, ears: HeartbeatReader, leader: str) -> Message:
        """A leader that is awake says at once that it is; libp2p opens streams to those who sleep as well."""
        if leader == self.transport.peer or ears.patience:
            message = await ears.hear()
            self.detector.heard(leader)
            return message
        asked = self._now()
        try:
            async with asyncio.timeout(self.detector.allowed(leader)):
                message = await ears.hear()
        except TimeoutError:
            self.detector.silent(leader, asked)
            raise
        self.detector.answered(leader, self._now() - asked)
        return message

    def _now(self) -> float:
        return self.transport.clock.monotonic()
