"""Asking a peer to write with its path, and being asked. The words: `questions.py`. Who writes: a desk of the program.

A stream is one question. What comes is the peer's word and nobody else's; whether to believe it is for the asker to
find out, who was told from which states it was written.
"""

import asyncio
import logging
import queue
from collections.abc import Callable, Iterator
from typing import Protocol

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.askers import Askers, counted_under
from dipaco_swarm.swarm.calls import Calls
from dipaco_swarm.swarm.door import Door
from dipaco_swarm.swarm.questions import AskText, Begins, NotNow, Said, TextEnds, Tokens, Waits
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import NotAnswering, Portal, Stream, Transport

log = logging.getLogger(__name__)

LONGEST_WAIT = 20.0
"""Seconds in a queue; who has to wait for longer asks somebody else."""

Say = Callable[[Said], None]
"""From any thread; after `TextEnds` or `NotNow` there is nothing more to say."""


class Desk(Protocol):
    """Where questions are answered."""

    def take(self, asked: AskText, asker: str, say: Say) -> Callable[[], None]:
        """Begin to answer, and return at once: called in the loop. The result ends it early; from any thread.

        `asker`: whom the question is counted under, an address or a name.
        """
        ...


class UnansweredError(Exception):
    """A question was not answered to its end."""

    def __init__(self, why: str, again_seconds: float = 0.0) -> None:
        """`again_seconds`: as the peer said; 0: it did not."""
        super().__init__(why)
        self.again_seconds = again_seconds


class Asking:
    """Of one peer. Its methods may be called from any thread but the loop's."""

    def __init__(self, portal: Portal, transport: Transport, door: Door, run: str) -> None:
        """`run`: its fingerprint."""
        self._portal = portal
        self._calls = Calls(portal)
        self._transport = transport
        self._door = door
        self._protocol = f"dipaco/1/{run}/answer"
        self._desk: Desk | None = None
        self._tasks = Tasks()
        self._served = False
        self._askers = Askers()

    def open(self, desk: Desk) -> None:
        """Let this desk answer who asks. Returns at once."""
        self._desk = desk
        self._portal.soon(lambda: self._tasks.start(self._serve()))

    def ask(self, peer: str, asked: AskText, *, patience: float) -> Iterator[Begins | Tokens]:
        """What a peer says, as it comes: where it writes from, then tokens.

        `patience`: seconds without a word after which it counts as silent, more where it said that others are before.
        Raises UnansweredError when it does not
        answer, refuses, falls silent, or says what does not fit.
        """
        heard: queue.SimpleQueue[Said | UnansweredError] = queue.SimpleQueue()
        under_way = self._calls.begin(self._ask(peer, asked, heard.put))
        begun, count, queue_seconds = False, 0, 0.0
        try:
            while True:
                try:
                    said = heard.get(timeout=patience + queue_seconds)
                except queue.Empty:
                    raise UnansweredError(f"silent for {patience + queue_seconds:.0f} s") from None
                match said:
                    case UnansweredError():
                        raise said
                    case NotNow():
                        raise UnansweredError(said.reason, said.seconds)
                    case Waits() if not begun and not queue_seconds:
                        queue_seconds = said.seconds
                        if queue_seconds > LONGEST_WAIT:
                            raise UnansweredError(f"others are before, for {queue_seconds:.0f} s", queue_seconds)
                    case Begins() if not begun:
                        begun, queue_seconds = True, 0.0
                        yield said
                    case Tokens() if begun:
                        count += len(said.tokens)
                        if count > (asked.most_tokens or len(asked.text)):
                            raise UnansweredError(f"{count} tokens where fewer were asked for")
                        yield said
                    case TextEnds() if begun:
                        return
                    case _:
                        raise UnansweredError(f"an answer that is none: {said.kind}")
        finally:
            under_way.cancel()

    def interrupt(self) -> None:
        """Let every question end now."""
        self._calls.interrupt()

    # in the loop -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        await self._tasks.end()

    async def _ask(self, peer: str, asked: AskText, heard: Callable[[Said | UnansweredError], None]) -> None:
        try:
            async with self._transport.dial(peer, self._protocol) as stream:
                await stream.send(asked)
                while True:
                    match said := await stream.receive():
                        case NotNow() | Waits() | Begins() | Tokens():
                            heard(said)
                        case TextEnds():
                            heard(said)
                            return
                        case _:
                            raise RemoteDataError(peer, f"answers a question with {type(said).__name__}")
        except RemoteDataError as error:
            self._transport.border.note(error, "does not take its answer")
            heard(UnansweredError("an answer that breaks the protocol"))
        except NotAnswering:
            heard(UnansweredError("not there"))
        except (ConnectionError, EOFError, TimeoutError) as error:
            log.debug("peer %s does not answer: %s", peer[-8:], error)
            heard(UnansweredError("gone"))

    async def _serve(self) -> None:
        if not self._served:
            self._served = True
            await self._transport.serve(self._protocol, self._on_stream)

    async def _on_stream(self, stream: Stream) -> None:
        async with asyncio.timeout(self._transport.timing.dial):
            asked = await stream.receive()
        if not isinstance(asked, AskText):
            raise RemoteDataError(stream.peer, f"opens a question with {type(asked).__name__}")
        name, address = stream.peer, stream.address
        if self._desk is None or name in self._door.bans or name in self._door.admission.banned:
            await stream.send(NotNow(reason="answers nobody" if self._desk is None else "you are banned here"))
            return
        again = self._askers.refuses(name, address)
        if again is not None:
            await stream.send(NotNow(reason="too many questions", seconds=again))
            return
        self._askers.begin(name, address)
        try:
            await self._answer(self._desk, stream, asked, counted_under(name, address))
        finally:
            self._askers.end(name, address)

    async def _answer(self, desk: Desk, stream: Stream, asked: AskText, asker: str) -> None:
        said: asyncio.Queue[Said] = asyncio.Queue()
        end = desk.take(asked, asker, lambda word: self._portal.soon(said.put_nowait, word))
        leaves = asyncio.ensure_future(stream.receive_piece_header())  # who asks says nothing more, but may go
        tells = asyncio.ensure_future(_tell(stream, said))
        try:
            await asyncio.wait((tells, leaves), return_when=asyncio.FIRST_COMPLETED)
        finally:
            end()
            leaves.cancel()
            tells.cancel()
            await asyncio.gather(leaves, tells, return_exceptions=True)


async def _tell(stream: Stream, said: "asyncio.Queue[Said]") -> None:
    """Send what is said, to its end."""
    word = None
    while not isinstance(word, TextEnds | NotNow):
        word = await said.get()
        await stream.send(word)
