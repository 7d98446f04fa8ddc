"""A module's state from several holders at once: pieces from one queue, each checked alone.

Each holder first says the digests of the pieces; they must make up the digest that we ask for, and from then on length
and pieces are known for certain, whoever sends them. Up to STREAMS holders are at work at a time, each with a piece or
two, so that who is slow gets few. A piece goes straight to its place in the final tensors, and counts when its bytes
have been checked.

A holder is dropped, and its pieces go back to the queue, when it goes away, sends a wrong piece, is silent, or takes
much longer for a piece than was usual, while another holder waits for its place, or others have nothing left to do. The
next holder takes its place: slow ones hold up nobody, however many names they have. Each one given up for being slow
doubles our patience: when everybody is slow, the line is ours.
"""

import asyncio
import logging
import statistics
from collections import deque
from collections.abc import Sequence

import torch

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import HASH_BYTES, ModuleState, Room, StateOutline, all_finite
from dipaco_swarm.errors import RemoteDataError
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
"""Bytes a second: who sends less loses its place to a holder that waits for one, where no pace is usual yet."""
PACES = 32


class HolderStream:
    """One holder at work."""

    def __init__(self, stream: Stream, now: float) -> None:
        self.stream = stream
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
    ) -> None:
        """`parameters`: how many the module has, where we know; a state of another length counts as not there.

        `room`: where the state is put together.
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
        self._state: ModuleState | None = None
        """Its tensors fill up; memory is taken as bytes arrive; room on the disk, when they are announced."""
        self._queue: deque[int] = deque()
        """Pieces that nobody has been asked for."""
        self._missing = 0
        self._untried: deque[str] = deque()
        """Holders that wait for a place, the next one first."""
        self._lanes: dict[HolderStream, None] = {}  # in order, so that a simulated run repeats itself
        self._paces: deque[float] = deque(maxlen=PACES)
        """Seconds that the last pieces took."""
        self._given_up = 0
        """Holders that were too slow."""
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
        self._untried = deque(holders)
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
        while self._untried:
            peer = self._untried.popleft()
            try:
                await self._take_from(peer)
            except RemoteDataError as error:
                self._transport.border.note(error, f"takes {self._module} from somebody else")
            except (ConnectionError, EOFError, TimeoutError) as error:
                log.info("fetching %s without peer %s: %s", self._module, peer[-8:], str(error) or "no answer")
            if self.is_complete:
                return

    async def _take_from(self, peer: str) -> None:
        async with self._transport.dial(peer, self._protocol) as stream:
            await stream.send(AskState(stage=self._stage, module=str(self._module), digest=self.digest))
            async with asyncio.timeout(self._timing.dial):
                answer = await stream.receive()
            if not isinstance(answer, StateIs):
                return
            state = self._learn(peer, answer)
            lane = HolderStream(stream, self._clock.monotonic())
            self._lanes[lane] = None
            try:
                while await self._ask(lane):
                    await self._receive(lane, state)
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
                await self._wait_for_the_others()
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
            await self._until_read(lane, lane.reading, len(data))
        finally:
            await end_all(lane.reading)  # before somebody else's bytes come to the same place
        self._paces.append(self._clock.monotonic() - lane.since)
        await self._settle(lane)
        piece = lane.asked.popleft()
        lane.checking = piece, asyncio.create_task(self._compute.aside(_is_right, state, piece, data))

    async def _settle(self, lane: HolderStream) -> None:
        """Wait for the check that is going on."""
        if lane.checking is None:
            return
        if not await lane.checking[1]:
            raise RemoteDataError(lane.stream.peer, f"sends a wrong piece of {self._module}, or one that is not finite")
        lane.checking = None
        self._missing -= 1
        self._changed.set()

    async def _until_read(self, lane: HolderStream, reading: asyncio.Task[None], size: int) -> None:
        while not reading.done():
            before, waits = lane.stream.arrived, min(self._patience(), self._timing.max_silence)
            await asyncio.wait({reading}, timeout=waits)
            if not reading.done() and lane.stream.arrived - before < waits * SLOWEST:
                raise EOFError("it stopped in the middle, or sends next to nothing")
            if not reading.done() and self._untried and self._clock.monotonic() - lane.since > self._most(size):
                self._given_up += 1
                raise EOFError("it is much slower than others are, and another holder waits for its place")
        if reading.cancelled():
            raise EOFError("it is much slower than the others")
        reading.result()

    async def _wait_for_the_others(self) -> None:
        """Until there is news of a piece; a holder that all others wait for has only so long."""
        self._changed.clear()
        slowest = min((lane for lane in self._lanes if lane.asked), key=lambda lane: lane.since, default=None)
        if slowest is None:
            await self._changed.wait()
            return
        reading = slowest.reading
        try:
            async with asyncio.timeout(max(0.0, slowest.since + self._patience() - self._clock.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            if reading is not None and not reading.done() and not reading.cancelling():
                reading.cancel()
                self._given_up += 1

    def _most(self, size: int) -> float:
        """Seconds that a piece of so many bytes may take while other holders wait."""
        unusual = 0.0 if self._paces else size / SLOW_LINE * 2.0**self._given_up
        return max(self._patience(), unusual)

    def _patience(self) -> float:
        return max(self._timing.silence * 2.0**self._given_up, SLOW * statistics.median(self._paces or (0.0,)))


def _is_right(state: ModuleState, piece: int, data: memoryview) -> bool:
    """Whether these are the bytes of that piece, and numbers: who has taken one that is none has lost the module."""
    return state.outline.fits(piece, data) and all_finite(torch.frombuffer(data, dtype=torch.float32))
