"""What is asked of one node in the same moment goes to it in one request: each costs a stream, and a dozen packets."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hivemind.p2p import PeerID

Q = TypeVar("Q")
A = TypeVar("A")

MAX_QUESTIONS = 64
MAX_BYTES = 1 << 18
"""Of a request, or of its answer, whichever is the longer one."""


@dataclass
class _Request(Generic[Q, A]):
    questions: list[Q] = field(default_factory=list)
    size: int = 0
    answers: "asyncio.Task[Sequence[A] | None] | None" = None


class Together(Generic[Q, A]):
    """Questions of one kind."""

    def __init__(self, send: Callable[[PeerID, Sequence[Q]], Awaitable[Sequence[A] | None]]) -> None:
        """`send`: asks a node for an answer to each of these; None: it does not answer."""
        self._send = send
        self._next: dict[PeerID, _Request[Q, A]] = {}
        """What is sent as soon as everybody who asks now has done so."""
        self._under_way = set[asyncio.Task[Sequence[A] | None]]()

    async def ask(self, peer: PeerID, question: Q, size: int) -> A | None:
        """`size`: bytes of the question or of its answer; MAX_BYTES, where nobody knows, has it asked alone."""
        request = self._next.get(peer)
        if request is None or request.size + size > MAX_BYTES or len(request.questions) == MAX_QUESTIONS:
            request = self._next[peer] = _Request()
            request.answers = asyncio.create_task(self._sent(peer, request))
            self._under_way.add(request.answers)
            request.answers.add_done_callback(self._under_way.discard)
        assert request.answers is not None
        position = len(request.questions)
        request.questions.append(question)
        request.size += size
        answers = await asyncio.shield(request.answers)  # whoever gives up gives up for itself
        return None if answers is None else answers[position]

    async def _sent(self, peer: PeerID, request: _Request[Q, A]) -> Sequence[A] | None:
        if self._next.get(peer) is request:
            del self._next[peer]
        return await self._send(peer, request.questions)
