"""A directory as Kademlia is: writes take a while, reads may be old or miss somebody, a partition has two of them."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.transport import Record
from dipaco_swarm.testing.network import SimulatedNetwork

STORE_SECONDS = (0.1, 0.6)
READ_SECONDS = (0.05, 0.3)
STALE_SHARE = 0.1
"""Of the reads that reach a node which has not heard the last word yet..."""
STALE_SECONDS = 4.0
"""... but everything that is as old as this."""
MISS_SHARE = 0.01
"""Of the entries that a read does not find though they are there."""
MAX_LIFETIME_SECONDS = 150.0
"""Nodes refuse records that are to live longer, by their own clocks."""
KEPT = 4
"""Versions of an entry: who reads an old one finds one of them."""


@dataclass(frozen=True)
class _Entry:
    record: Record
    written: float


class SimulatedDirectory:
    """What all peers' records share. `clock`: the right one, by which nodes refuse what lives too long."""

    def __init__(self, network: SimulatedNetwork, random: Random, clock: Clock) -> None:
        self.network = network
        self.random = random
        self.clock = clock
        self.entries: dict[str, dict[PeerName, list[_Entry]]] = defaultdict(dict)
        self.eclipsed = set[str]()
        """Peers that find nothing but what they have written themselves: somebody's nodes are nearest to the keys."""


class SimulatedRecords:
    """`transport.Records` of one peer."""

    def __init__(self, directory: SimulatedDirectory, peer: str, clock: Clock) -> None:
        self._directory = directory
        self._peer = PeerName(peer)
        self._clock = clock

    async def store(self, key: str, payload: bytes, lifetime: float) -> bool:
        directory = self._directory
        self._count(len(key) + len(payload))
        record = Record(payload, self._clock.wall() + lifetime)
        await asyncio.sleep(directory.random.uniform(*STORE_SECONDS))
        now = asyncio.get_running_loop().time()
        right = directory.clock.wall()
        if not right < record.expiration <= right + MAX_LIFETIME_SECONDS:
            return False
        entries = directory.entries[key].setdefault(self._peer, [])
        if entries and entries[-1].record.expiration >= record.expiration:
            return False
        entries.append(_Entry(record, now))
        del entries[:-KEPT]
        return True

    async def read(self, key: str, *, thorough: bool = True) -> Mapping[PeerName, Record]:
        directory = self._directory
        await asyncio.sleep(directory.random.uniform(*READ_SECONDS))
        now = asyncio.get_running_loop().time()
        stale = directory.random.random() < STALE_SHARE
        age = directory.random.uniform(0, STALE_SECONDS) if stale else 0.0
        found: dict[PeerName, Record] = {}
        size = len(key)
        for peer in sorted(directory.entries.get(key, {})):
            entry = self._seen(directory.entries[key][peer], peer, now - age)
            if entry is None or entry.record.expiration <= self._clock.wall():
                continue
            if peer != self._peer and (self._peer in directory.eclipsed or directory.random.random() < MISS_SHARE):
                continue
            found[peer] = entry.record
            size += len(entry.record.payload)
        self._count(size)
        return found

    def _seen(self, entries: list[_Entry], peer: str, by: float) -> _Entry | None:
        """The newest entry of a peer that had reached this side of a partition by then."""
        parted = self._directory.network.blocked_since(peer, self._peer)
        if parted is not None:
            by = min(by, parted)
        return next((entry for entry in reversed(entries) if entry.written <= by), None)

    def _count(self, size: int) -> None:
        traffic = self._directory.network.traffic[self._peer]
        traffic.requests += 1
        traffic.request_bytes += size
