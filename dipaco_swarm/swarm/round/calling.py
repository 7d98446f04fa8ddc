"""A leader asks the members that have not come where they are: all at once, and strangers not for long."""

import asyncio
from collections.abc import Sequence

from dipaco_swarm.swarm.round.failure_detector import FailureDetector
from dipaco_swarm.swarm.round.gathering import Gathering
from dipaco_swarm.swarm.round.standing import Standing
from dipaco_swarm.swarm.tasks import end_all
from dipaco_swarm.swarm.wire import Here

STRANGERS_SECONDS = 1.0
"""So long a stranger's answer is waited for; whoever has contributed before has all the time that answers take."""


async def where_they_are(
    peers: Sequence[str],
    gathering: Gathering,
    seconds: float,
    standing: Standing,
    detector: FailureDetector,
    *,
    for_strangers: bool,
) -> list[Here | None]:
    """The answers of all; None for those who have not answered in `seconds`. Who is silent is noted as that.

    `for_strangers`: nobody has joined whose word makes a round due.
    """
    where, clock = gathering.questions.where, gathering.transport.clock
    asking = [
        asyncio.create_task(where(peer, gathering.key, gathering.base, for_strangers=for_strangers)) for peer in peers
    ]
    known = [
        question
        for peer, question in zip(peers, asking, strict=True)
        if gathering.group.whole or not standing.is_strange(peer)
    ]
    asked = clock.monotonic()
    try:
        await asyncio.wait(asking, timeout=min(seconds, STRANGERS_SECONDS))
        if known:
            await asyncio.wait(known, timeout=max(0.0, seconds - STRANGERS_SECONDS))
        for peer, question in zip(peers, asking, strict=True):
            if question not in known and not question.done():
                detector.silent(peer, asked)
        return [question.result() if question.done() else None for question in asking]
    finally:
        await end_all(*asking)
