"""Who is there: what others say in the directory of the transport, and over streams. What we say: `announcing.py`."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm import records
from dipaco_swarm.swarm.announcing import Announcing, standing
from dipaco_swarm.swarm.interface import Announcement, PeerName, Role
from dipaco_swarm.swarm.lately import Key, Lately
from dipaco_swarm.swarm.transport import Record, Transport

log = logging.getLogger(__name__)

MAX_MEMBERS = 256
"""Announcements about one module that are listened to, unless the run file says otherwise."""
PAUSE_DECAY = 0.9
MISSED_WORDS = 3
"""A peer that is silent for this many of its usual intervals counts as asleep."""
READ_BYTES_A_SECOND = 500.0
"""Of one group: a large one is read less often."""
STRANGERS_SHARE = 0.125
"""Of a stranger's record, in that: fifty names that anybody can make up would keep members from hearing each other."""


@dataclass(frozen=True)
class Reading:
    """When a group is read again."""

    since: float
    """When something was new in it."""
    due: float
    pause: float
    """Seconds from the last reading to that."""

    @property
    def at(self) -> float:
        """When it was read."""
        return self.due - self.pause


@dataclass(frozen=True)
class Heard:
    """An announcement that was read, and until when it counts, whatever happens to the clock on the wall."""

    said: Announcement
    expiration: float
    """As its peer wrote it, by its own clock: another one is another record, and the peer was there to write it."""
    until: float
    """By the boottime clock."""
    since: float
    """When it was read first."""
    pause: float
    """Seconds between two of its announcements: a maximum that decays, as its line and ours let them through."""
    direct: float | None = None
    """When it last said itself, over a stream, where it stands."""

    @property
    def is_first_hand(self) -> bool:
        """Whether we have it of the peer itself, and not by the word of another."""
        return self.expiration > 0 or self.direct is not None

    def is_awake(self, now: float, usual: float) -> bool:
        """`usual`: seconds after which we would have heard another word."""
        return now - self.since < MISSED_WORDS * max(self.pause, usual)


class Directory:
    """Live announcements about the modules we are interested in."""

    def __init__(self, transport: Transport, run: str, allows: Callable[[str], bool] = lambda peer: True) -> None:
        """`allows`: whether we listen to a peer."""
        self._transport = transport
        self._clock = transport.clock
        self._timing = transport.timing
        self._run = run
        self._allows = allows
        self.max_members = MAX_MEMBERS
        """Announcements about one module that are listened to."""
        self.knows: Callable[[str], bool] = lambda peer: True
        """Whether a peer is no stranger."""
        self.always: Collection[str] = ()
        """Who is listened to at any rate: the operator's nodes."""
        self.on_read: Callable[[int, ModuleId, Collection[PeerName]], asyncio.Task[None] | None]
        self.on_read = lambda stage, module, found: None
        """Called after each reading, with who is in the directory; may ask others, who tell us more (`heard_of`)."""
        self._announcing = Announcing(transport, run)
        self._readings: dict[Key, Reading] = {}
        self._heard: dict[Key, dict[PeerName, Heard]] = {}
        self._lately = Lately(transport.timing.long_ago)

    @property
    def ours(self) -> tuple[Announcement, ...]:
        return self._announcing.ours

    def say(self, announcements: Sequence[Announcement]) -> None:
        self._announcing.say(announcements)

    def state(self, topic: str, statement: bytes | None) -> None:
        self._announcing.state(topic, statement)

    async def statements(self, topic: str) -> dict[PeerName, bytes]:
        """What live peers say about a topic now."""
        found = await self._transport.records.read(records.topic_key(self._run, topic))
        heard = {peer: record for peer, record in found.items() if self._allows(peer)}
        said = {peer: records.decode(records.Statement, record.payload) for peer, record in heard.items()}
        return {peer: each.statement for peer, each in said.items() if each is not None}

    def members(self, stage: int, module: ModuleId) -> tuple[Announcement, ...]:
        """What was heard last, ours included, sorted by peer; who was not heard of for a lifetime is gone."""
        now, reading = self._clock.boottime(), self._readings.get((stage, module))
        usual = max(self._timing.heartbeat, reading.pause if reading is not None else 0.0)
        rare = max(self._timing.calm, usual)
        heard = {
            peer: record.said
            if record.is_awake(now, usual if record.said.trains else rare)
            else replace(record.said, awake=False)
            for peer, record in self._holding(stage, module).items()
        }
        heard.pop(self._transport.peer, None)
        heard.update({said.peer: said for said in self.ours if (said.stage, said.module) == (stage, module)})
        return tuple(heard[peer] for peer in sorted(heard))

    async def run(self) -> None:
        """Repeat what we say and listen to our groups, until cancelled; the less often, the longer all is the same."""
        while True:
            news = self._announcing.news
            news.clear()
            with self._transport.border.guard(self._transport.peer, "says it again"):
                await self._tell_and_listen()
            with contextlib.suppress(TimeoutError):
                # peers that started together should not speak together for ever
                async with asyncio.timeout(self._timing.heartbeat * self._transport.random.uniform(0.8, 1.0)):
                    await news.wait()

    async def _tell_and_listen(self) -> None:
        try:
            telling = self._announcing.tell(await self._transport.addresses())
            await asyncio.gather(telling, *(self._listen(said.stage, said.module) for said in self.ours))
            self.forget()
        except (OSError, EOFError) as error:
            log.warning("the network of this machine cannot be used just now; trying again every few seconds")
            log.debug("the DHT cannot be used: %s", error)

    def refresh(self, about: Sequence[Announcement]) -> None:
        """Read about these modules of ours at once, and not when it is time."""
        for key in {(said.stage, said.module) for said in about} & self._readings.keys():
            self._readings[key] = replace(self._readings[key], due=-math.inf)
        self._announcing.news.set()

    async def look(self, stage: int, module: ModuleId) -> None:
        """Read the announcements about one module now, where that can be done in a moment."""
        with contextlib.suppress(OSError, EOFError):  # what was read before still counts
            async with asyncio.timeout(self._timing.answer):
                await self.listen(stage, module)

    async def glance(self, stage: int, module: ModuleId) -> None:
        """Read the announcements about one module, unless that was done less than a heartbeat ago."""
        reading = self._readings.get((stage, module))
        if reading is None or self._clock.boottime() >= reading.at + self._timing.heartbeat:
            await self.listen(stage, module, thorough=False)

    async def _listen(self, stage: int, module: ModuleId) -> None:
        """Read the announcements about one module when it is time."""
        reading = self._readings.get((stage, module))
        if reading is None or self._clock.boottime() >= reading.due - self._timing.heartbeat / 2:
            await self.listen(stage, module, thorough=reading is None)

    async def listen(self, stage: int, module: ModuleId, *, thorough: bool = True) -> None:
        """Read the announcements about one module now. One that a read misses counts until it expires.

        `thorough`: so that hardly one is missed.
        """
        found = await self._transport.records.read(records.group_key(self._run, stage, module), thorough=thorough)
        key, now = (stage, module), self._clock.boottime()
        least = sum(self._weight(peer, record) for peer, record in found.items()) / READ_BYTES_A_SECOND
        if any(said.role is Role.HOLDS and (said.stage, said.module) == key for said in self.ours):
            least = max(least, self._timing.rest)
        before, last = self._known(key), self._readings.get(key)
        self._take(key, found, now, late=max(0.0, least - self._timing.calm))
        since = last.since if last is not None and self._known(key) == before else now
        pause = max(self._timing.pause(now - since), least)
        self._readings[key] = Reading(since, now + pause, pause)
        asking = self.on_read(stage, module, found.keys())
        if last is None and asking is not None:  # who comes back should not go on alone meanwhile
            await asyncio.wait([asking], timeout=self._timing.answer)

    def _weight(self, peer: PeerName, record: Record) -> float:
        """Bytes that reading a record counts for."""
        return (len(record.payload) + records.OVERHEAD_BYTES) * (1.0 if self.knows(peer) else STRANGERS_SHARE)

    def _known(self, key: Key) -> dict[PeerName, object]:
        """Where everybody in a group stands, without what changes with every step."""
        return {peer: standing(heard.said) for peer, heard in self._heard.get(key, {}).items()}

    def _take(self, key: Key, found: Mapping[PeerName, Record], now: float, late: float) -> None:
        """What a reading has found. `late`: seconds by which the next one comes later than one of a small group."""
        heard = self._heard.setdefault(key, {})
        for peer in [peer for peer, record in heard.items() if record.until < now and peer not in found]:
            del heard[peer]
        for peer, record in sorted(found.items(), key=lambda of: (of[0] not in heard, not self.knows(of[0]), of[0])):
            if records.is_goodbye(record.payload):
                heard.pop(peer, None)
                self._lately.left(key, peer)
            elif self._allows(peer) and (peer in heard or self._has_room(peer, heard)):
                with self._transport.border.guard(peer, "ignored what a peer says"):
                    self._take_one(key, peer, record, now, late)

    def _take_one(self, key: Key, peer: PeerName, record: Record, now: float, late: float) -> None:
        """Raises RemoteDataError when it is malformed."""
        said, addresses = records.decode_announcement(peer, record.payload, *key)
        before = self._heard[key].get(peer)
        if before is not None and self._is_older_than_direct(said, before, now):
            said = replace(said, version=before.said.version, digest=before.said.digest, work=before.said.work)
        if before is None or before.expiration != record.expiration:
            left = (self._timing.busy_lifetime if said.catching_up else self._timing.lifetime) + late
            if before is None:  # read for the first time, it may be an old one
                left += min(0.0, record.expiration - self._clock.wall() - self._timing.lifetime)
            pause = max(now - before.since, PAUSE_DECAY * before.pause) if before is not None else 0.0
            direct = before.direct if before is not None else None
            self._note(key, Heard(said, record.expiration, now + left, now, pause, direct))
        self._transport.remember(peer, addresses, reachable=said.reduces)

    def lately(self, stage: int, module: ModuleId) -> tuple[PeerName, ...]:
        """Who trained a module not long ago, and was not heard of for a lifetime: gone, or parted from us."""
        live, now = self._holding(stage, module), self._clock.boottime()
        lately = sorted(self._lately.of((stage, module), now))
        return tuple(peer for peer in lately if peer not in live and self._allows(peer))

    def trained_lately(self, *, here: bool = False) -> set[PeerName]:
        """Who trained any module not long ago, and has not said goodbye. `here`: any that we read about now; who never
        came to this stage has nothing of it."""
        return self._lately.of_all(self._clock.boottime(), list(self._heard) if here else None)

    def heard_directly(self, said: Announcement) -> None:
        """A peer has said over a stream where it stands; it is there, whatever the directory says."""
        key, now = (said.stage, said.module), self._clock.boottime()
        before = self._heard.setdefault(key, {}).get(said.peer)
        is_refused = said.peer == self._transport.peer or not self._allows(said.peer)
        if is_refused or (before is None and not self._has_room(said.peer, self._heard[key])):
            return
        if before is not None:
            # who only held the module a moment ago may train it now
            said = replace(
                before.said, path=said.path, role=said.role, version=said.version, digest=said.digest, work=said.work
            )
        reading = self._readings.get(key)
        if reading is not None and (before is None or standing(before.said) != standing(said)):
            self._readings[key] = replace(reading, since=now)  # where something happens, more will
        expiration, pause = (before.expiration, before.pause) if before is not None else (0.0, 0.0)
        until = max(now + self._timing.lifetime, before.until if before is not None else 0.0)
        self._note(key, Heard(said, expiration, until, now, pause, direct=now))

    def heard_of(self, said: Announcement) -> bool:
        """Somebody whom we have asked says what a peer has said. Whether it is listened to."""
        heard, now = self._heard.setdefault((said.stage, said.module), {}), self._clock.boottime()
        before = heard.get(said.peer)
        has_room = (
            self._has_room(said.peer, heard) if before is None else not before.is_first_hand or before.until < now
        )
        if has_room := has_room and said.peer != self._transport.peer and self._allows(said.peer):
            self._note((said.stage, said.module), Heard(said, 0.0, now + self._timing.lifetime, now, 0.0))
        return has_room

    def heard_ourselves(self, stage: int, module: ModuleId) -> tuple[Announcement, ...]:
        """What others have said to us about a module, or written, and not what we have by the word of somebody else."""
        return tuple(record.said for record in self._holding(stage, module).values() if record.is_first_hand)

    def _has_room(self, peer: str, heard: dict[PeerName, Heard]) -> bool:
        """Whether one more is listened to. Whom we know takes the place of a stranger."""
        if len(heard) >= self.max_members and self.knows(peer):
            strangers = (one for one in heard if not self.knows(one) and one not in self.always)
            heard.pop(next(strangers, PeerName("")), None)
        return len(heard) < self.max_members or peer in self.always

    def _is_older_than_direct(self, said: Announcement, before: Heard, now: float) -> bool:
        """Whether a record says less than what its peer has said itself a moment ago: it was written before that."""
        recent = before.direct is not None and now - before.direct < self._timing.lifetime
        return recent and Claim.of(before.said).beats(Claim.of(said))

    def _note(self, key: tuple[int, ModuleId], heard: Heard) -> None:
        self._heard.setdefault(key, {})[heard.said.peer] = heard
        if heard.said.path is not None:
            self._lately.heard(key, heard.said.peer, heard.since, self.max_members)

    def forget(self) -> None:
        """Let go of groups that are not ours, and that nobody has been in for long."""
        ours = {(said.stage, said.module) for said in self.ours}
        now = self._clock.boottime()
        self._lately.forget(now)
        for group in [group for group in self._heard if group not in ours]:
            if all(now - max(at.since, at.until) > self._timing.long_ago for at in self._heard[group].values()):
                del self._heard[group]
        for group in [group for group in self._readings if group not in self._heard]:
            del self._readings[group]

    def peers(self) -> list[PeerName]:
        """Everybody else that was heard of, each once."""
        heard = dict.fromkeys(peer for group in list(self._heard) for peer in self._holding(*group))
        return [peer for peer in heard if peer != self._transport.peer]

    def training(self) -> set[PeerName]:
        """Who says that it trains any module that we listen to."""
        heard = [record.said for group in list(self._heard) for record in self._holding(*group).values()]
        return {said.peer for said in heard if said.trains}

    def _holding(self, stage: int, module: ModuleId) -> dict[PeerName, Heard]:
        """What was heard about a module and still counts; a copy, as the loop may be adding while other threads ask."""
        now = self._clock.boottime()
        heard = self._heard.get((stage, module), {}).copy()
        return {peer: record for peer, record in heard.items() if now < record.until and self._allows(peer)}

    async def farewell(self) -> None:
        await self._announcing.farewell()
