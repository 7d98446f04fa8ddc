"""Roles of members who make rounds fail, or last (`saboteur.py`): the honest program but for what each class says."""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dipaco_swarm.algorithm.averaging.rule import Counted
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.swarm.checks import InputsAre
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.framing import SEAL, PieceHeader
from dipaco_swarm.swarm.interface import Announcement
from dipaco_swarm.swarm.interface import Role as Part
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.round.reducer import Reducer
from dipaco_swarm.swarm.round.seals import digest_of_pieces
from dipaco_swarm.swarm.wire import Abort, Alive, Commit, Join, NotHere, Ready, Reassign, Refuse, Roster
from dipaco_swarm.testing.saboteur import BentStream, Role

A_LOT = 1 << 40
"""Tokens."""
ASKED_TIMES = 5
PULSE = 0.5


class OtherDigest(Role):
    """Says that it holds another average than all the others."""

    def says(self, stream: BentStream, message: Message) -> Message | None:
        if not isinstance(message, Ready):
            return message
        self.did(stream.round_id, stream.module)
        return message.model_copy(update={"digest": bytes(32)})


class Unsent(Role):
    """Announces states that there are not, of its own modules, and says that it holds such of others."""

    def joins(self, swarm: NetworkedSwarm) -> None:
        super().joins(swarm)
        directory = swarm._directory
        say = directory.say

        def lie(announcements: Sequence[Announcement]) -> None:
            also = [unsent(each) for one in announcements for each in (one, held(one))]
            say(also if self.active else announcements)

        directory.say = lie  # type: ignore[method-assign]


def unsent(said: Announcement) -> Announcement:
    """The same of a state that there is not; of each version another one."""
    digest = hashlib.sha256(f"{said.module} v{said.version}".encode()).hexdigest()
    return replace(said, version=said.version + 1, digest=digest, work=said.work + A_LOT)


def held(said: Announcement) -> Announcement:
    """That it is there without training it, of the first module of that level."""
    return replace(said, module=ModuleId(said.module.level, 0), path=None, role=Part.HOLDS)


class Equivocator(Role):
    """As a reducer it makes another average for one of the members than for the others, and signs both."""

    def __init__(self) -> None:
        super().__init__()
        self._given: dict[tuple[bytes, str, int], dict[int, bytes]] = {}
        """Round, victim and generation -> digests of what was sent to it, by piece."""

    def gives(self, stream: BentStream, header: PieceHeader, data: memoryview) -> memoryview | None:
        assert self.swarm is not None
        assert self.swarm._rounds is not None
        exchange = self.swarm._rounds._verdicts._running.get(stream.round_id)
        if stream.dialled or exchange is None:
            return data
        us = self.transport.peer
        if stream.peer != min(member.peer for member in exchange.roster.members if member.peer != us):
            return data
        given = self._given.setdefault((stream.round_id, stream.peer, header.generation), {})
        if header.index == SEAL:
            self.did(stream.round_id)
            statement = exchange.average.about.statement(header.generation, digest_of_pieces(given))
            return memoryview(self.transport.sign(statement))
        other = bytearray(data)
        other[len(other) // 8 * 4] ^= 1  # of an fp32, the bits that weigh least
        given[header.index] = hashlib.sha256(len(header.mask).to_bytes(4, "little") + header.mask + other).digest()
        return memoryview(other)

    def says(self, stream: BentStream, message: Message) -> Message | None:
        # what it finds out as a leader, it keeps to itself
        return message.model_copy(update={"proofs": ()}) if isinstance(message, Abort) else message


Bend = Callable[[Tensor], Tensor]
"""What a wrong reducer makes of an average, fp32 (n,)."""


def scaled(average: Tensor) -> Tensor:
    return average * 3


def flipped(average: Tensor) -> Tensor:
    return -average


def partly_wrong(average: Tensor) -> Tensor:
    """The last quarter of it points elsewhere."""
    return torch.cat([average[: -(len(average) // 4)], -average[-(len(average) // 4) :]])


class WrongReducer(Role):
    """As a reducer it makes something else than the average of what it was sent, the same for all, and signs that.

    `shows`: whether it shows afterwards from what it has made it; else it says that it does not have that any more.
    """

    def __init__(self, bent: Bend, *, shows: bool = True) -> None:
        super().__init__()
        self._bent = bent
        self._shows = shows
        self._bends: set[bytes] = set()
        """Rounds in which it does."""

    def takes(self, stream: BentStream) -> None:
        assert self.swarm is not None
        assert self.swarm._rounds is not None
        for round_id, exchange in self.swarm._rounds._verdicts._running.items():
            if round_id not in self._bends:
                self._bends.add(round_id)
                self._bend(exchange._reducer, round_id)

    def _bend(self, reducer: Reducer, round_id: bytes) -> None:
        honest = reducer._mean_of

        def wrong(contributions: Mapping[int, Tensor]) -> Counted:
            self.did(round_id)
            counted = honest(contributions)
            return replace(counted, average=self._bent(counted.average))

        reducer._mean_of = wrong

    def says(self, stream: BentStream, message: Message) -> Message | None:
        return NotHere() if isinstance(message, InputsAre) and not self._shows else message


class Mute(Role):
    """Is in every round, says that it is alive, and contributes nothing; or nothing to some of the reducers."""

    def __init__(self, towards: Callable[[str], bool] = lambda reducer: True) -> None:
        super().__init__()
        self._towards = towards

    def gives(self, stream: BentStream, header: PieceHeader, data: memoryview) -> memoryview | None:
        if not stream.dialled or not self._towards(stream.peer):
            return data
        self.did(stream.round_id)
        return None


class MuteReducer(Role):
    """Takes the others' contributions, and sends nobody an average."""

    def gives(self, stream: BentStream, header: PieceHeader, data: memoryview) -> memoryview | None:
        if stream.dialled:
            return data
        self.did(stream.round_id)
        return None


class Asker(Role):
    """Asks everybody how a round ended as soon as it has begun, as if the leader were lost."""

    def says(self, stream: BentStream, message: Message) -> Message | None:
        if isinstance(message, Roster):
            self._ask_all(message)
        return message

    async def hears(self, stream: BentStream, message: Message) -> None:
        if isinstance(message, Roster):
            self._ask_all(message)

    def _ask_all(self, roster: Roster) -> None:
        for member in roster.members:
            if member.peer != self.transport.peer:
                self.tasks.start(self._ask(member.peer, roster.round_id))

    async def _ask(self, peer: str, round_id: bytes) -> None:
        assert self.swarm is not None
        with contextlib.suppress(ConnectionError, EOFError, TimeoutError):
            for _ in range(ASKED_TIMES):
                await self.swarm._rounds._questions.outcome(peer, round_id)  # type: ignore[union-attr]
                self.times += 1
                await asyncio.sleep(0.2)


class StallingLeader(Role):
    """Gathers those who come, says that it is alive, and never begins."""

    def says(self, stream: BentStream, message: Message) -> Message | None:
        if stream.dialled or stream.kind != "round" or not isinstance(message, Roster | Reassign | Commit | Abort):
            return message
        if isinstance(message, Roster):
            self.did(message.round_id, stream.module)
        return None


class FreezingLeader(Role):
    """Begins rounds, sends nobody an average of its own, and says that it is alive, and nothing else, for ever."""

    def __init__(self) -> None:
        super().__init__()
        self._frozen: set[bytes] = set()

    def says(self, stream: BentStream, message: Message) -> Message | None:
        if stream.dialled or stream.kind != "round":
            return message
        if isinstance(message, Roster):
            self._frozen.add(message.round_id)
            self.did(message.round_id, stream.module)
        return None if isinstance(message, Reassign | Commit | Abort) else message

    def gives(self, stream: BentStream, header: PieceHeader, data: memoryview) -> memoryview | None:
        return None if not stream.dialled and stream.round_id in self._frozen else data

    def keeps(self, stream: BentStream) -> bool:
        return stream.kind == "round" and stream.round_id in self._frozen

    async def done(self, stream: BentStream) -> None:
        with contextlib.suppress(ConnectionError):
            while self.keeps(stream):
                await stream.send(Alive())
                await asyncio.sleep(PULSE)


class RefusingLeader(Role):
    """Tells whoever joins that the group has gone on, to a state that there is not."""

    async def hears(self, stream: BentStream, message: Message) -> None:
        if isinstance(message, Join) and not stream.dialled:
            self.did(str(message.version).encode(), message.module)
            digest, work = f"{message.version:064x}", message.work + A_LOT
            reason = "the group has gone on"
            await stream.send(Refuse(reason=reason, version=message.version + 1, digest=digest, work=work))
            raise EOFError("nobody heard that")


class Nobody(Role):
    """Does what all do; what it is measured against."""

    def says(self, stream: BentStream, message: Message) -> Message | None:
        self.times += 1
        return message
