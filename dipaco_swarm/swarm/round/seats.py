"""A leader's table: a seat for every member, with what the member said last; and talking to all of them at once."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.framing import encode
from dipaco_swarm.swarm.round.channels import Channel
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.wire import Alive, Join, Ready

SLOWEST_LINE = 125_000
"""Bytes a second that a leader's line takes: a roster of 256 goes to 256, and is 11 MB."""


@dataclass(eq=False)
class Seat:
    """A member at the leader's table: what it joined with, and what it said last."""

    join: Join
    channel: Channel
    report: Alive | None = None
    ready: Ready | None = None
    gone: bool = False


async def tell(seats: Sequence[Seat], message: Message, timing: Timing) -> None:
    """Send to all at once; who does not take it in time is gone: in more time where all of it is long for our line."""
    allowed = timing.silence / 2 + len(seats) * len(encode(message)) / SLOWEST_LINE

    async def send(seat: Seat) -> None:
        try:
            async with asyncio.timeout(allowed):
                await seat.channel.send(message)
        except (ConnectionError, TimeoutError):
            seat.gone = True

    await asyncio.gather(*(send(seat) for seat in seats))


async def or_a_pulse(changed: asyncio.Event, timing: Timing) -> None:
    """Wait until something changed, but not longer than a pulse."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timing.pulse):
            await changed.wait()
