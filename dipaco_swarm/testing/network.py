"""A simulated network: delays, lines, losses, partitions, home routers, processes that freeze and die. All by one seed.

It is a `Link` between `LocalTransport`s: what is above it is the product's own code. It works in any event loop; in a
`VirtualLoop` a run repeats itself, and peers can be frozen and killed.

How it models what really happens:

- A line takes one byte after the other. What two streams send shares it; a sender is held up when 256 KiB wait.
- A lost packet is sent again: it comes late, by 0.2 to 1 s, and in order.
- In a partition nothing comes through. What was sent waits; a connection that got nothing through for half a minute
  breaks. It may be one-way.
- Who was killed is gone at once: its machine closes its connections. Who is frozen still accepts them.
- Who is behind a router cannot be dialled, but through the relay, as long as that is there.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from random import Random

from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.framing import LENGTH, PIECE, PieceHeader, encode
from dipaco_swarm.swarm.local_stream import END, LocalStream
from dipaco_swarm.testing.virtual_time import context_of

BUFFER_BYTES = 1 << 18
RESEND_SECONDS = (0.2, 1.0)
BREAK_SECONDS = 30.0
"""A connection breaks when nothing came through for so long."""
CUT_SHARE = 0.5
RELAY_FACTOR = 2.0
"""Through a relay a message travels twice."""


@dataclass
class Line:
    """A peer's connection to the internet. Bytes a second; seconds."""

    up: float = 2.5e6
    down: float = 12.5e6
    delay: float = 0.025
    """From here to the middle of the network."""
    jitter: float = 0.01
    loss: float = 0.0
    """Share of the messages that have to be sent again."""
    free_up: float = field(default=0.0, repr=False)
    """When everything that was handed to it will have been sent."""
    free_down: float = field(default=0.0, repr=False)


@dataclass
class Traffic:
    """What a peer has sent."""

    messages: int = 0
    bytes: int = 0
    requests: int = 0
    """Questions to the directory."""
    request_bytes: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


class SimulatedNetwork:
    """The lines of all peers, and what is broken between them. A `Link`."""

    def __init__(self, random: Random, *, relay: str | None = None) -> None:
        self.random = random
        self.relay = relay
        """The peer that relays for those who cannot be dialled."""
        self.lines: dict[str, Line] = defaultdict(Line)
        self.traffic: dict[str, Traffic] = defaultdict(Traffic)
        self.behind_routers: set[str] = set()
        self.dead: set[str] = set()
        self._blocked: dict[tuple[str, str], float] = {}
        """(from, to) through which nothing comes, since when."""
        self._held: dict[tuple[str, str], list[tuple[LocalStream, object, int]]] = defaultdict(list)
        self._streams: dict[LocalStream, None] = {}
        self._expected: dict[tuple[str, type], asyncio.Event] = {}
        """What somebody waits for a peer to say."""
        self._clear_at: dict[LocalStream, float] = {}
        """When the last thing sent on a stream arrives: things arrive in order."""

    # faults ----------------------------------------------------------------------------------------------------------

    def block(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Nothing comes from these to those any more; the other way is another call."""
        now = _now()
        to = list(receivers)
        for sender in senders:
            for receiver in to:
                if sender != receiver:
                    self._blocked.setdefault((sender, receiver), now)

    def part(self, *sides: Iterable[str]) -> None:
        """A partition: these sides hear nothing of each other."""
        groups = [list(side) for side in sides]
        for one in groups:
            for other in groups:
                if one is not other:
                    self.block(one, other)

    def heal(self) -> None:
        """Everything comes through again, and what waited comes now."""
        ways, self._blocked = list(self._blocked), {}
        for way in ways:
            for stream, item, size in self._held.pop(way, []):
                self._deliver(stream, item, size)

    def blocked_since(self, sender: str, receiver: str) -> float | None:
        return self._blocked.get((sender, receiver))

    def kill(self, peer: str) -> None:
        """The process has died: its connections are closed, and nobody can dial it."""
        self.dead.add(peer)
        for stream in [stream for stream in self._streams if stream.me == peer]:
            self._send_end(stream)

    def cut(self, peer: str) -> None:
        """Of the connections of a peer each breaks with a chance of one half: what is on its way there is lost."""
        for stream in list(self._streams):
            if stream.me == peer and self.random.random() < CUT_SHARE:
                for end in (stream, stream.other):
                    end.arrive(END, 0)

    def revive(self, peer: str) -> None:
        """A new process of that name."""
        self.dead.discard(peer)

    async def says(self, peer: str, kind: type[Message], limit: float) -> None:
        """Return when a peer next sends such a message, or after so many seconds."""
        said = self._expected.setdefault((peer, kind), asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await said.wait()

    def snapshot(self) -> dict[str, Traffic]:
        """What everybody has sent so far."""
        return {peer: replace(traffic) for peer, traffic in self.traffic.items()}

    # `Link` ----------------------------------------------------------------------------------------------------------

    async def dial(self, caller: str, peer: str) -> None:
        there, back = self._latency(caller, peer), self._latency(peer, caller)
        self._count(caller, 200)
        if self._are_parted(caller, peer):
            await asyncio.Event().wait()  # nothing answers; whoever dials gives up
        await asyncio.sleep(there + back)
        if peer in self.dead:
            raise ConnectionError(f"peer {peer[-8:]} refuses the connection")
        if peer in self.behind_routers:
            relay = self.relay
            if relay is None or relay in self.dead or self._are_parted(caller, relay) or self._are_parted(relay, peer):
                raise ConnectionError(f"peer {peer[-8:]} cannot be dialled, and nobody relays")
            await asyncio.sleep(there + back)

    async def carry(self, stream: LocalStream, item: object, size: int) -> None:
        self._streams.setdefault(stream, None)
        self._streams.setdefault(stream.other, None)
        length = size or _length(item)
        if self._expected and (said := self._expected.pop((stream.me, type(item)), None)) is not None:
            said.set()
        line = self.lines[stream.me]
        now = _now()
        line.free_up = max(now, line.free_up) + length / line.up
        self._count(stream.me, length)
        self._arrive_later(stream, item, size, line.free_up, length)
        waits = line.free_up - now - BUFFER_BYTES / line.up
        if waits > 0:
            await asyncio.sleep(waits)

    def end(self, stream: LocalStream) -> None:
        self._send_end(stream)
        self._streams.pop(stream, None)

    # details ---------------------------------------------------------------------------------------------------------

    def _are_parted(self, one: str, other: str) -> bool:
        return (one, other) in self._blocked or (other, one) in self._blocked

    def _send_end(self, stream: LocalStream) -> None:
        self._arrive_later(stream, END, 0, max(_now(), self.lines[stream.me].free_up), 0)

    def _arrive_later(self, stream: LocalStream, item: object, size: int, sent: float, length: int) -> None:
        receiver = self.lines[stream.peer]
        reached = sent + self._latency(stream.me, stream.peer)
        receiver.free_down = max(reached, receiver.free_down) + length / receiver.down
        when = max(receiver.free_down, self._clear_at.get(stream, 0.0) + 1e-6)
        self._clear_at[stream] = when
        if item is END:
            self._clear_at.pop(stream, None)
        loop = asyncio.get_running_loop()
        loop.call_at(when, self._deliver, stream, item, size, context=context_of(""))

    def _deliver(self, stream: LocalStream, item: object, size: int) -> None:
        way = (stream.me, stream.peer)
        if way in self._blocked:
            if not self._held[way]:
                wait = max(0.0, self._blocked[way] + BREAK_SECONDS - _now())
                asyncio.get_running_loop().call_later(wait, self._break, way, context=context_of(""))
            self._held[way].append((stream, item, size))
            return
        if stream.peer in self.dead:
            return
        stream.other.arrive(item, size)  # the receiver's daemon has it; the receiver itself reads it when it runs

    def _break(self, way: tuple[str, str]) -> None:
        """What waited for half a minute is lost, with its connections; both sides see that."""
        if way not in self._blocked:
            return
        streams = dict.fromkeys(stream for stream, _, _ in self._held.pop(way, []))
        for stream in streams:
            for end in (stream, stream.other):
                if end.me not in self.dead:
                    end.arrive(END, 0)

    def _latency(self, sender: str, receiver: str) -> float:
        one, two = self.lines[sender], self.lines[receiver]
        seconds = one.delay + two.delay + self.random.uniform(0, one.jitter + two.jitter)
        if self.random.random() < one.loss + two.loss:
            seconds += self.random.uniform(*RESEND_SECONDS)
        relayed = sender in self.behind_routers and receiver in self.behind_routers
        return seconds * RELAY_FACTOR if relayed else seconds

    def _count(self, peer: str, length: int) -> None:
        self.traffic[peer].messages += 1
        self.traffic[peer].bytes += length


def _length(item: object) -> int:
    if isinstance(item, PieceHeader):
        return PIECE.size + len(item.mask)
    assert isinstance(item, Message)
    return LENGTH.size + len(encode(item))


def _now() -> float:
    return asyncio.get_running_loop().time()


def home_line(random: Random) -> Line:
    """Somebody's line at home: 10 to 100 Mbit/s up, 5 to 60 ms."""
    up = random.choice([1.25e6, 2.5e6, 5e6, 12.5e6])
    return Line(up=up, down=5 * up, delay=random.uniform(0.005, 0.06), jitter=random.uniform(0.001, 0.02))
