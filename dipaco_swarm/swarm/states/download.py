"""A module's state from several holders at once: pieces from one queue, each checked alone.

Each holder first says the digests of the pieces; they must make up the digest that we ask for, and from then on length
and pieces are known for certain, whoever sends them. Up to STREAMS holders are at work at a time, each with a piece or
two, so that who is slow gets few. A piece goes straight to its place in the final tensors, and counts when its bytes
have been checked.

A holder is dropped, and its pieces go back to the queue, when it goes away, sends a wrong piece, or is silent. It makes
room when it is slow, or takes much longer for a piece than was usual, for one that had no turn yet, or was more than
twice as fast in its turn: one that waits for a place, or has one and nothing left to do. So slow ones hold up nobody
for more than a short turn each, however many names they have, and are asked last the next time; and where everybody is
slow, as when the line is ours, each has made room but once.
"""

import asyncio
import contextlib
import logging
import math
import statistics
from collections import deque
from collections.abc import Sequence

import torch

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import HASH_BYTES, ModuleState, Room, StateOutline, all_finite
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.states.slow import SlowPeers
from dipaco_swarm.swarm.tasks import Tasks, end_all
from dipaco_swarm.swarm.transport import Stream, Transport
from dipaco_swarm.swarm.wire import AskPiece, AskState, StateIs

log = logging.getLogger(__name__)

STREAMS = 4
AHEAD = 2
"""Pieces asked of a holder at a time, so that its line never runs dry; one near the end, so that the slow keep few."""
SLOW = 3.0
"""Much longer than usual: this many times the median of the last pieces."""
SLOWEST = 2000.0
"""Bytes a second: who sends less, a byte now and then, would hold up a state for ever. An old modem sends more."""
SLOW_LINE = 50_000.0
"""Bytes a second: who sends less makes room after a piece, and in the middle of one that another has the time for."""
CRAWL = 25_000.0
"""Bytes a second: who sends less makes room in the middle of a piece: a fourth of a line that is slow today."""
FASTER = 2.0
"""Who takes over was so many times as fast; else all of a piece would be asked for again for little."""
PACES = 32


class _SlowError(Exception):
    """A holder makes room for another."""


class HolderStream:
    """One holder at work."""

    def __init__(self, stream: Stream, pace: float, now: float) -> None:
        self.stream = stream
        self.pace = pace
        """Seconds that a byte took when this was looked at last; 0 where it had no turn yet."""
        self.asked: deque[int] = deque()
        """Pieces that it was asked for and that have not arrived, in order."""
        self.since = now
        """When the current piece was asked for."""
        self.reading: asyncio.Task[None] | None = None
        self.checking: tuple[int, asyncio.Task[bool]] | None = None
        """The piece that arrived last; it is checked while the next one comes."""

    @property
    def pieces(self) -> list[int]:
        """What is in its hands."""
        return [*([] if self.checking is None else [self.checking[0]]), *self.asked]


class Download:
    """One state on its way. What was checked stays here when `run` ends too early, and another `run` goes on."""

    def __init__(
        self,
        transport: Transport,
        protocol: str,
        stage: int,
        module: ModuleId,
        digest: str,
        parameters: int | None,
        room: Room,
        slow: SlowPeers,
    ) -> None:
        """`parameters`: how many the module has, where we know; a state of another length counts as not there.

        `room`: where the state is put together. `slow`: who is asked last, and noted when it was slow.
        """
        self.digest = digest
        self._transport = transport
        self._clock = transport.clock
        self._timing = transport.timing
        self._compute = transport.executor()
        self._protocol = protocol
        self._stage = stage
        self._module = module
        self._parameters = parameters
        self._room = room
        self._slow = slow
        self._state: ModuleState | None = None
        """Its tensors fill up; memory is taken as bytes arrive; room on the disk, when they are announced."""
        self._queue: deque[int] = deque()
        """Pieces that nobody has been asked for."""
        self._missing = 0
        self._waiting: dict[str, float] = {}
        """Holders that wait for a place -> seconds that a byte took in their turn; 0 of those that had none yet."""
        self._turns: dict[str, float] = {}
        """The same of those that made room in this run, or the last one: who has just had its turn needs no other."""
        self._lanes: dict[HolderStream, None] = {}  # in order, so that a simulated run repeats itself
        self._paces: deque[float] = deque(maxlen=PACES)
        """Seconds that the last pieces took."""
        self._changed = asyncio.Event()
        """A piece has arrived, or must be asked for again."""

    @property
    def is_begun(self) -> bool:
        return self._state is not None

    @property
    def is_complete(self) -> bool:
        return self._state is not None and not self._missing

    async def run(self, holders: Sequence[str]) -> ModuleState | None:
        """The state from these holders, the first ones first; None when they did not send all of it."""
        had, self._turns = self._turns, {}
        self._waiting = {peer: had.get(peer, 0.0) for peer in self._slow.last(holders)}
        tasks = Tasks()
        for _ in range(STREAMS):
            tasks.start(self._take_turns())
        try:
            while tasks and not self.is_complete:
                await tasks.any_ended()
        finally:
            await tasks.end()
        return self._state if self.is_complete else None

    async def _take_turns(self) -> None:
        while self._waiting:
            peer = min(self._waiting, key=self._waiting.__getitem__)  # the first of those that had no turn
            try:
                await self._take_from(peer, self._waiting.pop(peer))
            except _SlowError:
                log.info("fetching %s from another than peer %s, which is slow", self._module, peer[-8:])
            except RemoteDataError as error:
                self._transport.border.note(error, f"takes {self._module} from somebody else")
            except (ConnectionError, EOFError, TimeoutError) as error:
                log.info("fetching %s without peer %s: %s", self._module, peer[-8:], str(error) or "no answer")
                self._slow.note(peer, math.inf)
            if self.is_complete:
                return

    async def _take_from(self, peer: str, pace: float) -> None:
        async with self._transport.dial(peer, self._protocol) as stream:
            await stream.send(AskState(stage=self._stage, module=str(self._module), digest=self.digest))
            async with asyncio.timeout(self._timing.dial):
                answer = await stream.receive()
            if not isinstance(answer, StateIs):
                return
            state = self._learn(peer, answer)
            lane = HolderStream(stream, pace, self._clock.monotonic())
            self._lanes[lane] = None
            try:
                while await self._ask(lane):
                    await self._receive(lane, state)
            except _SlowError:
                await self._settle(lane)  # what it has sent counts
                self._slow.note(peer, lane.pace)
                self._waiting[peer] = self._turns[peer] = lane.pace
                raise
            finally:
                self._lanes.pop(lane, None)
                self._queue.extendleft(reversed(lane.pieces))
                self._changed.set()

    def _learn(self, peer: str, answer: StateIs) -> ModuleState:
        """Check what a holder says that the state consists of; the first one that is right makes the tensors."""
        outline = StateOutline(answer.version, answer.parameters, answer.hashes, answer.work)
        if outline.digest != self.digest or len(outline.hashes) != HASH_BYTES * outline.num_pieces:
            raise RemoteDataError(peer, f"offers a state of {self._module} that is not the one it was asked for")
        if self._parameters not in (None, outline.parameters):
            raise RemoteDataError(
                peer, f"offers {self._module} with {outline.parameters} parameters; it has {self._parameters}"
            )
        if self._state is None:
            try:
                state = self._room.state(outline.version, outline.parameters, outline.work)
            except RuntimeError:  # torch's word for too little memory
                raise RemoteDataError(
                    peer, f"offers {self._module} with {outline.parameters} parameters; there is no memory for that"
                ) from None
            state.expects(outline)
            self._state = state
            self._queue.extend(range(outline.num_pieces))
            self._missing = outline.num_pieces
        return self._state

    async def _ask(self, lane: HolderStream) -> bool:
        """Have this holder send something, as soon as there is something to ask for; False when all has arrived."""
        while not lane.asked and not self._queue:
            await self._settle(lane)
            if self.is_complete:
                return False
            if not self._queue:
                await self._wait_for_the_others(lane)
        ahead = AHEAD if len(self._queue) >= len(self._lanes) else 1
        while self._queue and len(lane.asked) < ahead:
            lane.asked.append(self._queue.popleft())
            await lane.stream.send(AskPiece(piece=lane.asked[-1]))
        return True

    async def _receive(self, lane: HolderStream, state: ModuleState) -> None:
        """The next piece that this holder was asked for; the one before it is checked by then."""
        data = state.piece(lane.asked[0])
        lane.since = self._clock.monotonic()
        lane.reading = asyncio.create_task(lane.stream.receive_into(data))
        try:
            await self._until_read(lane, lane.reading)
        finally:
            await end_all(lane.reading)  # before somebody else's bytes come to the same place
        took = self._clock.monotonic() - lane.since
        self._paces.append(took)
        lane.pace = took / len(data)
        await self._settle(lane)
        piece = lane.asked.popleft()
        lane.checking = piece, asyncio.create_task(self._compute.aside(_is_right, state, piece, data))
        if lane.pace * SLOW_LINE < 1.0:
            self._slow.forget(lane.stream.peer)
        elif self._queue and self._is_outdone(lane):
            raise _SlowError

    async def _settle(self, lane: HolderStream) -> None:
        """Wait for the check that is going on."""
        if lane.checking is None:
            return
        if not await lane.checking[1]:
            raise RemoteDataError(lane.stream.peer, f"sends a wrong piece of {self._module}, or one that is not finite")
        lane.checking = None
        self._missing -= 1
        self._changed.set()

    async def _until_read(self, lane: HolderStream, reading: asyncio.Task[None]) -> None:
        while not reading.done():
            before, waits = lane.stream.arrived, min(self._patience(), self._timing.max_silence)
            await asyncio.wait({reading}, timeout=waits)
            if reading.done():
                break
            came = lane.stream.arrived - before
            if came < waits * SLOWEST:
                raise EOFError("it stopped in the middle, or sends next to nothing")
            lane.pace = waits / came
            if self._is_slow(lane, CRAWL) and self._is_outdone(lane):
                raise _SlowError
        if reading.cancelled():
            raise _SlowError
        reading.result()

    async def _wait_for_the_others(self, lane: HolderStream) -> None:
        """Until there is news of a piece, or for a moment; who is slow makes room for this one, which has the time."""
        self._changed.clear()
        slow = [other for other in self._lanes if self._is_slow(other, SLOW_LINE) and FASTER * lane.pace < other.pace]
        if slow:
            reading = max(slow, key=lambda other: other.pace).reading
            if reading is not None and not reading.done() and not reading.cancelling():
                reading.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.pulse):
                await self._changed.wait()

    def _is_slow(self, lane: HolderStream, line: float) -> bool:
        """Whether it sends less than this, or takes much longer for a piece than was usual."""
        unusual = bool(self._paces) and self._clock.monotonic() - lane.since > self._patience()
        return bool(lane.asked) and (unusual or lane.pace * line > 1.0)

    def _is_outdone(self, lane: HolderStream) -> bool:
        """Whether one waits that had no turn yet, or was much faster in its turn."""
        return FASTER * min(self._waiting.values(), default=lane.pace) < lane.pace

    def _patience(self) -> float:
        return max(self._timing.silence, SLOW * statistics.median(self._paces or (0.0,)))


def _is_right(state: ModuleState, piece: int, data: memoryview) -> bool:
    """Whether these are the bytes of that piece, and numbers: who has taken one that is none has lost the module."""
    return state.outline.fits(piece, data) and all_finite(torch.frombuffer(data, dtype=torch.float32))
