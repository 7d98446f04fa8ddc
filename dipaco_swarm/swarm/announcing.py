"""What we say in the directory: at once where it is news, and again before it expires."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter

from dipaco_swarm.swarm import records
from dipaco_swarm.swarm.interface import Announcement
from dipaco_swarm.swarm.transport import Transport

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Said:
    """What the directory has from us under a key."""

    words: object
    since: float
    """When we said so first, by the boottime clock."""
    at: float
    """When we said so last."""


_STANDING = attrgetter(
    *(
        f.name
        for f in fields(Announcement)
        if f.compare and f.name not in ("tokens", "tokens_per_second", "loss", "card")
    )
)
"""Of an announcement, what does not change with every inner step, nor with how much its peer trains."""


class Announcing:
    """Our announcements and statements."""

    def __init__(self, transport: Transport, run: str) -> None:
        self._transport = transport
        self._run = run
        self._ours: tuple[Announcement, ...] = ()
        self._statements: dict[str, bytes] = {}
        self._said: dict[str, Said] = {}
        """By key."""
        self.news = asyncio.Event()
        """There is something to say that should not wait."""

    @property
    def ours(self) -> tuple[Announcement, ...]:
        reduces = self._transport.reachable
        return tuple(said if said.reduces is reduces else replace(said, reduces=reduces) for said in self._ours)

    def say(self, announcements: Sequence[Announcement]) -> None:
        before, self._ours = self._ours, tuple(announcements)
        if [standing(said) for said in before] != [standing(said) for said in self._ours]:
            self.news.set()

    def state(self, topic: str, statement: bytes | None) -> None:
        """None: we have nothing to say about it any more."""
        if self._statements.get(topic) != statement:
            self._statements.pop(topic, None)
            if statement is not None:
                self._statements[topic] = statement
            self.news.set()

    async def tell(self, addresses: Sequence[str]) -> None:
        """Write what is news, and what was written long enough ago; take back what we do not say any more."""
        groups = {records.group_key(self._run, said.stage, said.module): said for said in self.ours}
        topics = {records.topic_key(self._run, topic): statement for topic, statement in self._statements.items()}
        words = {**{key: (standing(said), tuple(addresses)) for key, said in groups.items()}, **topics}
        calm = {key for key, said in groups.items() if not said.trains}
        due = [key for key, new in words.items() if self._is_due(key, new, calm=key in calm)]
        payloads = {
            key: records.encode(records.Statement(statement=topics[key]))
            if key in topics
            else records.encode_announcement(groups[key], addresses)
            for key in due
        }
        await asyncio.gather(
            *(self._write(key, words[key], payloads[key]) for key in due),
            *(self._say_goodbye(key) for key in sorted(self._said.keys() - words.keys())),
        )

    def _is_due(self, key: str, words: object, *, calm: bool) -> bool:
        """Who looks once a heartbeat should not be late by all of one. `calm`: no rounds wait for what it says."""
        said, now, timing = self._said.get(key), self._transport.clock.boottime(), self._transport.timing
        if said is None or said.words != words:
            return True
        pause = timing.calm if calm else timing.pause(now - said.since)
        return now - said.at >= pause - timing.heartbeat / 2

    async def _write(self, key: str, words: object, payload: bytes) -> None:
        said, now = self._said.get(key), self._transport.clock.boottime()
        if await self._transport.records.store(key, payload, self._transport.timing.lifetime):
            since = said.since if said is not None and said.words == words else now
            self._said[key] = Said(words, since, now)
        else:
            log.debug("no node of the DHT took what we say under %s; will try again", key)

    async def _say_goodbye(self, key: str) -> None:
        """Displace our record by one that says we are gone: it expires later, so it wins."""
        payload = records.encode(records.Goodbye())
        await self._transport.records.store(key, payload, self._transport.timing.lifetime)
        self._said.pop(key, None)

    async def farewell(self) -> None:
        self._ours = ()
        await self.tell(())


def standing(said: Announcement) -> tuple[object, ...]:
    """What an announcement says, to be compared: without what changes with every inner step."""
    return *_STANDING(said), said.card.nickname
