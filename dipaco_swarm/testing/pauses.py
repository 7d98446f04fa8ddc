"""How a program in virtual time waits (`machine.stopping.Pauses`)."""

import asyncio
import contextlib

from dipaco_swarm.testing.program import Program
from dipaco_swarm.testing.virtual_time import VirtualClock


class VirtualEvent:
    """`machine.stopping.Event`: its program waits in virtual time."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._event = asyncio.Event()

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self._program.run(self._wait(timeout))
        return self.is_set()

    async def _wait(self, timeout: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()


class VirtualPauses:
    """The pauses of one program."""

    def __init__(self, program: Program, clock: VirtualClock) -> None:
        self._program = program
        self._clock = clock

    @property
    def clock(self) -> VirtualClock:
        return self._clock

    def event(self) -> VirtualEvent:
        return VirtualEvent(self._program)

    def sleep(self, seconds: float) -> None:
        self._program.sleep(seconds)
