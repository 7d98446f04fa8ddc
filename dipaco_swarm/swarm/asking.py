"""Asking a peer to write with its path, and being asked. The words: `questions.py`. Who writes: a desk of the program.

A stream is one question. What comes is the peer's word and nobody else's; whether to believe it is for the asker to
find out, who was told from which states it was written.
"""

import asyncio
import logging
import queue
import time
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
FIRST_SECONDS = 50.0
"""Until an answer is under way, with a queue before it..."""
SLOWEST_TOKEN_SECONDS = 1.0
"""... and for each token then: a peer that is slower all along is given up, though it is never silent."""
LONGEST_ANSWER = 600.0
"""Seconds for one answer, however long: peers compute for a minute, for some questions at a time."""
SLOW_AGAIN = 300.0
"""Seconds after which one that was too slow is asked again."""
LAST_SECONDS = 30.0
"""For who asked, to read the rest of an answer that is written..."""
LAST_TOKEN_SECONDS = 0.01
"""... and for each token of it: with what the path thinks of it that may be 600 bytes, and a line may be slow."""

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


def longest(tokens: int) -> float:
    """Seconds that an answer of so many tokens may be waited for."""
    return min(LONGEST_ANSWER, FIRST_SECONDS + SLOWEST_TOKEN_SECONDS * tokens)


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
        Raises UnansweredError when it does not answer, refuses, falls silent, is far too slow, or says what does not
        fit.
        """
        heard = _Heard()
        under_way = self._calls.begin(self._ask(peer, asked, heard.put))
        begun, count, queue_seconds = False, 0, 0.0
        try:
            while True:
                match said := heard.next(patience + queue_seconds, longest(count)):
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
                        if count > _most(asked):
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
        room = _most(asked) + 2  # that others are before, and that it begins
        try:
            async with self._transport.dial(peer, self._protocol) as stream:
                await stream.send(asked)
                while room >= 0:  # whoever reads may take its time, and what waits for it is in memory
                    match said := await stream.receive():
                        case Waits() | Begins() | Tokens():
                            heard(said)
                            room -= _size(said)
                        case NotNow() | TextEnds():
                            heard(said)
                            return
                        case _:
                            raise RemoteDataError(peer, f"answers a question with {type(said).__name__}")
                raise RemoteDataError(peer, "says more than it was asked for")
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
        speech = _Speech(stream)
        end = desk.take(asked, asker, lambda word: self._portal.soon(speech.say, word))
        ways = [
            asyncio.ensure_future(speech.tell()),
            asyncio.ensure_future(speech.outlasts()),
            asyncio.ensure_future(stream.receive_piece_header()),  # who asks says nothing more, but may go
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            end()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


class _Heard:
    """What a peer says, from the loop to who reads it."""

    def __init__(self) -> None:
        self._words: queue.SimpleQueue[Said | UnansweredError] = queue.SimpleQueue()
        self._waited = 0.0
        """For the peer: who reads may take as long as it wants."""

    def put(self, said: Said | UnansweredError) -> None:
        self._words.put(said)

    def next(self, patience: float, in_all: float) -> Said:
        """`patience`: seconds without a word. `in_all`: seconds that may be waited for what has come by now.

        Raises UnansweredError.
        """
        if self._waited > in_all:
            raise UnansweredError(f"too slow: waited for it for {self._waited:.0f} s", SLOW_AGAIN)
        began = time.monotonic()
        try:
            said = self._words.get(timeout=patience)
        except queue.Empty:
            raise UnansweredError(f"silent for {patience:.0f} s") from None
        self._waited += time.monotonic() - began
        if isinstance(said, UnansweredError):
            raise said
        return said


class _Speech:
    """What a desk says, on its way to who asked. In the loop."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._words: asyncio.Queue[Said] = asyncio.Queue()
        self._left = 0
        """Tokens that are said and not sent."""
        self._said = asyncio.Event()
        """All of it."""

    def say(self, word: Said) -> None:
        self._left += _size(word)
        self._words.put_nowait(word)
        if isinstance(word, TextEnds | NotNow):
            self._said.set()

    async def tell(self) -> None:
        """Send what is said, to its end."""
        word = None
        while not isinstance(word, TextEnds | NotNow):
            word = await self._words.get()
            await self._stream.send(word)
            self._left -= _size(word)

    async def outlasts(self) -> None:
        """Return when all is said, and who asked could have read the rest of it: it gives its place to others then."""
        await self._said.wait()
        await asyncio.sleep(LAST_SECONDS + LAST_TOKEN_SECONDS * self._left)
        log.debug("peer %s reads an answer too slowly; it is not told the rest", self._stream.peer[-8:])


def _most(asked: AskText) -> int:
    """Tokens that an answer has at most."""
    return asked.most_tokens or len(asked.text)


def _size(word: Said) -> int:
    """How much room it takes: so many tokens."""
    return len(word.tokens) if isinstance(word, Tokens) else 1
