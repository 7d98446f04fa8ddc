"""Random faults, by a seed: what breaks, when, for how long."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from dipaco_swarm.swarm.framing import PieceHeader
from dipaco_swarm.swarm.wire import Exchange, Join, Ready
from dipaco_swarm.testing.aims import ANYTHING, Aim
from dipaco_swarm.testing.ending import stop
from dipaco_swarm.testing.process import SimulatedProcess
from dipaco_swarm.testing.run import OPERATOR

if TYPE_CHECKING:
    from dipaco_swarm.testing.world import World

BUSY = "busy"
"""The one fault after which the network is as it was."""
MOMENTS: dict[str, type] = {"joins": Join, "gives": Exchange, "sends a piece": PieceHeader, "is ready": Ready}
"""Moments of a round that a fault may wait for, and by what the first victim sends they are known."""
MOMENT_SECONDS = 30.0
"""Longer than that no moment is waited for."""
SETTLED_SECONDS = 60.0
"""After something was broken, so long waits may still be longer than in calm."""


@dataclass(frozen=True)
class Fault:
    """Something that breaks, and comes back."""

    at: float
    """Seconds after the start of the story."""
    kind: str
    seconds: float
    victims: tuple[str, ...]
    when: str = ""
    """One of MOMENTS; empty: at once."""

    def __str__(self) -> str:
        when = f", when {self.victims[0]} {self.when}" if self.when else ""
        return f"{self.at:.0f} s: {self.kind} {', '.join(self.victims)} for {self.seconds:g} s{when}"


def _alive(world: "World", fault: Fault) -> list[SimulatedProcess]:
    """Who has ended already does not come back."""
    return [process for name in fault.victims if (process := world.process(name)).is_alive]


async def _kill(world: "World", fault: Fault) -> None:
    victims = _alive(world, fault)
    for process in victims:
        process.kill()
    await _start_again(world, fault, victims)


async def _leave(world: "World", fault: Fault) -> None:
    victims = _alive(world, fault)
    await stop(world, victims)
    await _start_again(world, fault, victims)


async def _start_again(world: "World", fault: Fault, victims: Sequence[SimulatedProcess]) -> None:
    await asyncio.sleep(fault.seconds)
    manifest = world.operator.manifest
    over = manifest is not None and manifest.finished and world.plan.until_finished
    for process in victims:
        if not over or process is world.operator:  # nobody is left to come back to
            process.start()


async def _freeze(world: "World", fault: Fault) -> None:
    owners = [world.process(name).owner for name in fault.victims]
    for owner in owners:
        world.loop.freeze(owner)
    await asyncio.sleep(fault.seconds)
    for owner in owners:
        world.loop.thaw(owner)


async def _part(world: "World", fault: Fault) -> None:
    world.network.part(fault.victims, _others(world, fault))
    await asyncio.sleep(fault.seconds)
    world.network.heal()


async def _leave_parted(world: "World", fault: Fault) -> None:
    """Ctrl+C for who hears nobody just now."""
    victims = _alive(world, fault)
    world.network.part(fault.victims, _others(world, fault))
    await asyncio.sleep(1.0)
    await stop(world, victims)
    world.network.heal()
    await _start_again(world, fault, victims)


async def _cut(world: "World", fault: Fault) -> None:
    """So much later some connections of the victims break, and can be opened again at once."""
    await asyncio.sleep(fault.seconds)
    for name in fault.victims:
        world.network.cut(name)


async def _silence(world: "World", fault: Fault) -> None:
    """One way: nobody hears the victims, who hear everybody."""
    world.network.block(fault.victims, _others(world, fault))
    await asyncio.sleep(fault.seconds)
    world.network.heal()


def _others(world: "World", fault: Fault) -> list[str]:
    return [name for name in (*world.peers, OPERATOR) if name not in fault.victims]


async def _busy(world: "World", fault: Fault) -> None:
    """Something else needs the machine: a step takes as long as that, and its loop answers as ever."""
    before = {name: world.process(name).machine for name in fault.victims}
    for name, machine in before.items():
        world.process(name).machine = replace(machine, step_seconds=fault.seconds)
    await asyncio.sleep(fault.seconds)
    for name, machine in before.items():
        world.process(name).machine = machine


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
    "leave parted": _leave_parted,
    "part": _part,
    "silence": _silence,
    "cut": _cut,
    "clock": _clock,
    BUSY: _busy,
}


def faults_of(random: Random, peers: Sequence[str], seconds: float, aim: Aim = ANYTHING) -> list[Fault]:
    """Faults one after the other over so many seconds; of a third of the peers at most."""
    faults: list[Fault] = []
    at = 0.0
    while True:
        at += random.uniform(0.5, 1.5) * aim.every
        if at >= seconds:
            return faults
        count = random.randint(1, max(1, len(peers) // 3))
        kind = random.choice(aim.kinds)
        lasts = random.choice(aim.lasts)
        victims = random.sample(list(peers), count)
        when = random.choice(aim.moments)
        if random.random() < aim.operator_share:
            victims = [*random.choice([[], victims]), OPERATOR]
        faults.append(Fault(at, kind, lasts, tuple(victims), "" if victims == [OPERATOR] else when))
        at += lasts


async def play_faults(world: "World", faults: Sequence[Fault]) -> None:
    """One after the other; what breaks comes back."""
    began = world.now
    for fault in faults:
        await asyncio.sleep(max(0.0, began + fault.at - world.now))
        if fault.when:
            await world.network.says(fault.victims[0], MOMENTS[fault.when], MOMENT_SECONDS)
        world.note("fault", str(fault))
        if fault.kind != BUSY:
            world.ledger.calm_from = math.inf
        await KINDS[fault.kind](world, fault)
        if fault.kind != BUSY:
            world.ledger.calm_from = world.now + SETTLED_SECONDS
