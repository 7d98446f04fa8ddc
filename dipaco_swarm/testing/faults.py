"""Random faults, by a seed: what breaks, when, for how long."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from dipaco_swarm.testing.run import OPERATOR

if TYPE_CHECKING:
    from dipaco_swarm.testing.world import World


@dataclass(frozen=True)
class Fault:
    """Something that breaks, and comes back."""

    at: float
    """Seconds after the start of the story."""
    kind: str
    seconds: float
    victims: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.at:.0f} s: {self.kind} {', '.join(self.victims)} for {self.seconds:.0f} s"


async def _kill(world: "World", fault: Fault) -> None:
    for name in fault.victims:
        if world.process(name).is_alive:
            world.process(name).kill()
    await asyncio.sleep(fault.seconds)
    for name in fault.victims:
        if not world.process(name).is_alive:
            world.process(name).start()


async def _leave(world: "World", fault: Fault) -> None:
    for name in fault.victims:
        if world.process(name).is_alive:
            world.process(name).ask_to_stop()
    for name in fault.victims:
        program = world.process(name).program
        if program is not None:
            await program.ended
    await asyncio.sleep(fault.seconds)
    for name in fault.victims:
        if not world.process(name).is_alive:
            world.process(name).start()


async def _freeze(world: "World", fault: Fault) -> None:
    owners = [world.process(name).owner for name in fault.victims]
    for owner in owners:
        world.loop.freeze(owner)
    await asyncio.sleep(fault.seconds)
    for owner in owners:
        world.loop.thaw(owner)


async def _part(world: "World", fault: Fault) -> None:
    others = [name for name in (*world.peers, OPERATOR) if name not in fault.victims]
    world.network.part(fault.victims, others)
    await asyncio.sleep(fault.seconds)
    world.network.heal()


async def _silence(world: "World", fault: Fault) -> None:
    """One way: nobody hears the victims, who hear everybody."""
    others = [name for name in (*world.peers, OPERATOR) if name not in fault.victims]
    world.network.block(fault.victims, others)
    await asyncio.sleep(fault.seconds)
    world.network.heal()


async def _clock(world: "World", fault: Fault) -> None:
    for name in fault.victims:
        world.process(name).clock.offset += 60.0
    await asyncio.sleep(fault.seconds)
    for name in fault.victims:
        world.process(name).clock.offset -= 60.0


KINDS: dict[str, Callable[["World", Fault], Awaitable[None]]] = {
    "kill": _kill,
    "leave": _leave,
    "freeze": _freeze,
    "part": _part,
    "silence": _silence,
    "clock": _clock,
}


def faults_of(random: Random, peers: Sequence[str], seconds: float, every: float) -> list[Fault]:
    """Faults one after the other, `every` seconds on average, over so many seconds; at most half of the peers each."""
    faults: list[Fault] = []
    at = 0.0
    while True:
        at += random.uniform(0.5, 1.5) * every
        if at >= seconds:
            return faults
        count = random.randint(1, max(1, len(peers) // 3))
        kind = random.choice(sorted(KINDS))
        lasts = random.choice([2.0, 10.0, 40.0, 90.0])
        faults.append(Fault(at, kind, lasts, tuple(sorted(random.sample(list(peers), count)))))
        at += lasts


async def play_faults(world: "World", faults: Sequence[Fault]) -> None:
    """One after the other; what breaks comes back."""
    began = world.now
    for fault in faults:
        await asyncio.sleep(max(0.0, began + fault.at - world.now))
        world.note("fault", str(fault))
        await KINDS[fault.kind](world, fault)
