"""Who is there: our announcements out, the others' in, through the directory of the transport."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm import records
from dipaco_swarm.swarm.interface import Announcement, PeerName
from dipaco_swarm.swarm.transport import Transport

log = logging.getLogger(__name__)

MAX_MEMBERS = 256
"""Announcements about one module that are listened to, unless the run file says otherwise."""
PAUSE_DECAY = 0.9
MISSED_WORDS = 3
"""A peer that is silent for this many of its usual intervals counts as asleep."""


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

    def is_awake(self, now: float, heartbeat: float) -> bool:
        return now - self.since < MISSED_WORDS * max(self.pause, heartbeat)


class Directory:
    """Live announcements about the modules we are interested in."""

    def __init__(self, transport: Transport, run: str) -> None:
        self._transport = transport
        self._clock = transport.clock
        self._timing = transport.timing
        self._run = run
        self.max_members = MAX_MEMBERS
        """Announcements about one module that are listened to."""
        self._ours: tuple[Announcement, ...] = ()
        self._said: set[tuple[int, ModuleId]] = set()
        self._statements: dict[str, bytes] = {}
        self._addresses: tuple[str, ...] = ()
        self._heard: dict[tuple[int, ModuleId], dict[PeerName, Heard]] = {}
        self._lately: dict[tuple[int, ModuleId], dict[PeerName, Heard]] = {}
        """Who trains a module or did so lately, whoever was heard first comes first."""
        self._changed = asyncio.Event()

    @property
    def ours(self) -> tuple[Announcement, ...]:
        reduces = self._transport.reachable
        return tuple(said if said.reduces is reduces else replace(said, reduces=reduces) for said in self._ours)

    def say(self, announcements: Sequence[Announcement]) -> None:
        self._ours = tuple(announcements)
        self._changed.set()

    def state(self, topic: str, statement: bytes) -> None:
        self._statements[topic] = statement
        self._changed.set()

    async def statements(self, topic: str) -> dict[PeerName, bytes]:
        """What live peers say about a topic now."""
        found = await self._transport.records.read(records.topic_key(self._run, topic))
        said = {peer: records.decode_statement(record.payload) for peer, record in found.items()}
        return {peer: statement for peer, statement in said.items() if statement is not None}

    def members(self, stage: int, module: ModuleId) -> tuple[Announcement, ...]:
        """What was heard last, ours included, sorted by peer; who was not heard of for a lifetime is gone."""
        now = self._clock.boottime()
        heard = {
            peer: record.said if record.is_awake(now, self._timing.heartbeat) else replace(record.said, awake=False)
            for peer, record in self._holding(stage, module).items()
        }
        heard.pop(self._transport.peer, None)
        heard.update({said.peer: said for said in self.ours if (said.stage, said.module) == (stage, module)})
        return tuple(heard[peer] for peer in sorted(heard))

    async def run(self) -> None:
        """Repeat what we say and listen to our groups, until cancelled."""
        while True:
            self._changed.clear()
            try:
                self._addresses = await self._transport.addresses()
                await asyncio.gather(self._tell(), *(self.listen(said.stage, said.module) for said in self._ours))
                self.forget()
            except (OSError, EOFError) as error:
                log.warning("the network of this machine cannot be used just now; trying again every few seconds")
                log.debug("the DHT cannot be used: %s", error)
            with contextlib.suppress(TimeoutError):
                # peers that started together should not speak together for ever
                async with asyncio.timeout(self._timing.heartbeat * self._transport.random.uniform(0.8, 1.0)):
                    await self._changed.wait()

    async def _tell(self) -> None:
        ours = self.ours
        about = {(said.stage, said.module) for said in ours}
        await asyncio.gather(
            *(self._store(said, self._timing.lifetime) for said in ours),
            *(self._store_statement(topic, statement) for topic, statement in self._statements.items()),
            *(self._goodbye(stage, module) for stage, module in sorted(self._said - about)),
        )
        self._said = about

    async def _store(self, said: Announcement, lifetime: float) -> None:
        key = records.group_key(self._run, said.stage, said.module)
        record = records.encode_announcement(said, self._addresses)
        if not await self._transport.records.store(key, records.encode(record), lifetime):
            log.debug("no node of the DHT took our announcement about %s; will try again", said.module)

    async def _store_statement(self, topic: str, statement: bytes) -> None:
        key, record = records.topic_key(self._run, topic), records.Statement(statement=statement)
        if not await self._transport.records.store(key, records.encode(record), self._timing.lifetime):
            log.debug("no node of the DHT took our statement about %s; will try again", topic)

    async def _goodbye(self, stage: int, module: ModuleId) -> None:
        """Displace our record by one that says we are gone: it expires later, so it wins."""
        key = records.group_key(self._run, stage, module)
        await self._transport.records.store(key, records.encode(records.Goodbye()), self._timing.lifetime)

    async def look(self, stage: int, module: ModuleId) -> None:
        """Read the announcements about one module now, where that can be done in a moment."""
        with contextlib.suppress(OSError, EOFError):  # what was read before still counts
            async with asyncio.timeout(self._timing.answer):
                await self.listen(stage, module)

    async def listen(self, stage: int, module: ModuleId) -> None:
        """Read the announcements about one module now. One that a read misses counts until it expires."""
        found = await self._transport.records.read(records.group_key(self._run, stage, module))
        heard = self._heard.setdefault((stage, module), {})
        now = self._clock.boottime()
        for peer in [peer for peer, record in heard.items() if record.until < now and peer not in found]:
            del heard[peer]
        # whom we know comes first, so that a crowd of new names displaces nobody
        for peer, record in sorted(found.items(), key=lambda entry: (entry[0] not in heard, entry[0])):
            if records.is_goodbye(record.payload):
                heard.pop(peer, None)
                self._lately.get((stage, module), {}).pop(peer, None)
                continue
            if peer not in heard and len(heard) >= self.max_members:
                continue
            decoded = records.decode_announcement(peer, record.payload, stage, module)
            if decoded is None:
                log.warning("ignored a malformed announcement of peer %s about %s", peer[-8:], module)
                continue
            said, addresses = decoded
            before = heard.get(peer)
            if before is not None and self._is_older_than_direct(said, before, now):
                said = replace(said, version=before.said.version, digest=before.said.digest, work=before.said.work)
            if before is None or before.expiration != record.expiration:
                left = self._timing.busy_lifetime if said.catching_up else self._timing.lifetime
                if before is None:  # read for the first time, it may be an old one
                    left += min(0.0, record.expiration - self._clock.wall() - self._timing.lifetime)
                pause = max(now - before.since, PAUSE_DECAY * before.pause) if before is not None else 0.0
                direct = before.direct if before is not None else None
                self._note((stage, module), Heard(said, record.expiration, now + left, now, pause, direct))
            self._transport.remember(peer, addresses, reachable=said.reduces)

    def lately(self, stage: int, module: ModuleId) -> tuple[PeerName, ...]:
        """Who trained a module not long ago, and was not heard of for a lifetime: gone, or parted from us."""
        live, now = self._holding(stage, module), self._clock.boottime()
        return tuple(
            peer
            for peer, record in sorted(self._lately.get((stage, module), {}).items())
            if peer not in live and now - record.since < self._timing.long_ago
        )

    def heard_directly(self, said: Announcement) -> None:
        """A peer has said over a stream where it stands; it is there, whatever the directory says."""
        key, now = (said.stage, said.module), self._clock.boottime()
        before = self._heard.setdefault(key, {}).get(said.peer)
        if said.peer == self._transport.peer or (before is None and len(self._heard[key]) >= self.max_members):
            return
        if before is not None:
            # who only held the module a moment ago may train it now
            said = replace(
                before.said,
                path=said.path,
                role=said.role,
                version=said.version,
                digest=said.digest,
                work=said.work,
            )
        expiration, pause = (before.expiration, before.pause) if before is not None else (0.0, 0.0)
        until = max(now + self._timing.lifetime, before.until if before is not None else 0.0)
        self._note(key, Heard(said, expiration, until, now, pause, direct=now))

    def _is_older_than_direct(self, said: Announcement, before: Heard, now: float) -> bool:
        """Whether a record says less than what its peer has said itself a moment ago: it was written before that."""
        recent = before.direct is not None and now - before.direct < self._timing.lifetime
        return recent and Claim.of(before.said).beats(Claim.of(said))

    def _note(self, key: tuple[int, ModuleId], heard: Heard) -> None:
        self._heard.setdefault(key, {})[heard.said.peer] = heard
        if heard.said.path is not None:
            lately = self._lately.setdefault(key, {})
            lately.pop(heard.said.peer, None)
            lately[heard.said.peer] = heard
            while len(lately) > self.max_members:
                del lately[next(iter(lately))]

    def forget(self) -> None:
        """Let go of groups that are not ours, and that nobody has been in for long."""
        ours = {(said.stage, said.module) for said in self._ours}
        long_ago = self._clock.boottime() - self._timing.long_ago
        for groups in (self._heard, self._lately):
            for group in [group for group in groups if group not in ours]:
                if all(max(record.since, record.until) < long_ago for record in groups[group].values()):
                    del groups[group]

    def peers(self) -> list[PeerName]:
        """Everybody else that was heard of, each once."""
        heard = dict.fromkeys(peer for group in list(self._heard) for peer in self._holding(*group))
        return [peer for peer in heard if peer != self._transport.peer]

    def _holding(self, stage: int, module: ModuleId) -> dict[PeerName, Heard]:
        """What was heard about a module and still counts; a copy, as the loop may be adding while other threads ask."""
        now = self._clock.boottime()
        heard = self._heard.get((stage, module), {}).copy()
        return {peer: record for peer, record in heard.items() if now < record.until}

    async def farewell(self) -> None:
        self._ours = ()
        await self._tell()
