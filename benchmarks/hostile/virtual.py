"""Whole swarms in virtual time with somebody hostile among them, by role, size of the group, and seed."""

import asyncio
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from benchmarks.hostile.columns import Columns, kind_of
from benchmarks.simulated import prepare, workplace
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.swarm.interface import Announcement, PeerName
from dipaco_swarm.swarm.records import encode_announcement, group_key
from dipaco_swarm.testing.cast import STRANGERS, Process, enter
from dipaco_swarm.testing.directory import SimulatedRecords
from dipaco_swarm.testing.hostile import A_LOT, Claimer, Stranger
from dipaco_swarm.testing.network import home_line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import OPERATOR, Plan, StagePlan
from dipaco_swarm.testing.saboteur import Saboteur
from dipaco_swarm.testing.virtual_time import VirtualClock
from dipaco_swarm.testing.volunteer import SimulatedPeer
from dipaco_swarm.testing.world import World

PLAN = Plan((StagePlan(((0, 0), (0, 1))),), inner_steps=5, parameters=6000)
"""Two paths that share their first module, of enough numbers that contributions can be compared."""
STEP_SECONDS = (1.0, 2.0)
REDUCED = 8 << 16
"""Parameters where reducers are hostile, so that everybody has pieces to reduce."""
SHARED = (0, ModuleId(0, 0))
WARM_UP_SECONDS = 60.0
WINDOW_SECONDS = 45.0
"""Before and after the attack, and each half of it."""
HEALING_SECONDS = 45.0
"""From the end of the attack until it is looked at again."""
JOINING_SECONDS = 30.0
"""Who takes part does so honestly for so long before it does anything else: it has standing then."""
SIZES = (2, 4, 8)
CROWDS = {
    "flip": (5,),
    "flip*2": (4, 5, 6),
    "mixed*2": (5,),
    "mute*2": (6,),
    "mute-reducer*2": (6,),
    "equivocator*2": (6,),
    "staller*2": (6,),
    "refuser*2": (6,),
    "takeover*10": (4,),
    "is-there*10": (4,),
    "tarpit*10": (4,),
    "dead*50": (4, 8),
}
"""One of five and two of six (20 and 33 %), two colluders of four and of five, ten names of one machine, names with
nobody behind them."""
WORST = (
    ("takeover", 4),
    ("claims-tokens", 4),
    ("calls", 4),
    ("tarpit*10", 4),
    ("dead*50", 4),
    ("flip*2", 6),
    ("mute", 4),
    ("mute-reducer", 4),
    ("equivocator", 4),
    ("staller", 4),
)
"""What --quick plays."""
DEAD_SECONDS = 10.0
"""So often what stands for dead names in the directory is written anew."""
LOOK_SECONDS = 0.1


WRONG = "wrong-"
"""So the names of roles begin that make averages wrong, the same for all."""


@dataclass(frozen=True)
class Window:
    """What was made between two moments."""

    versions: int
    """Of the shared module."""
    tokens: int
    """Trained on by the honest."""
    stood_still: float
    """The longest that one of the honest did, in seconds."""


def play(role: str, size: int, seed: int) -> Columns:
    """`size` members of one group, some of them hostile if the role is that of members; strangers come besides."""
    prepare()
    with tempfile.TemporaryDirectory(prefix="dipaco-hostile-", dir=workplace()) as folder:
        plan = replace(PLAN, overlap=True)  # as runs have it unless they say otherwise
        if role.startswith(WRONG):
            plan = replace(plan, parameters=REDUCED, codec="int8")
        return _play(World(seed, plan, Path(folder) / "world"), role, size)


def _play(world: World, role: str, size: int) -> Columns:
    chance = Random(f"{world.seed}/{role}/{size}")
    kind, names = kind_of(role)
    is_dead, is_stranger = kind == "dead", kind in STRANGERS
    count = size if is_stranger else max(1, size - names)
    honest = [f"peer-{number}" for number in range(count)]
    hostile = [
        enter(world, f"hostile-{n}", kind, (count + n) % 2, Machine(home_line(chance)))
        for n in range(0 if is_dead else names)
    ]
    windows: list[Window] = []
    made_with = 0
    adopted: list[str] = []
    out: list[int] = []

    def so_far() -> Window:
        trained = (
            tokens for (who, place), tokens in world.ledger.trained.items() if who[:5] == "peer-" and place == SHARED
        )
        return Window(len(world.ledger.versions[SHARED]), sum(trained), 0.0)

    async def window() -> None:
        before, still = so_far(), StandingStill(world, honest)
        await still.watch(WINDOW_SECONDS)
        after = so_far()
        windows.append(Window(after.versions - before.versions, after.tokens - before.tokens, still.longest))

    async def story(world: World) -> None:
        nonlocal made_with
        for number, name in enumerate(honest):
            world.start(name, number % 2, Machine(home_line(chance), step_seconds=chance.choice(STEP_SECONDS)))
        await asyncio.sleep(WARM_UP_SECONDS)
        await window()
        for process in hostile:
            if isinstance(process, Saboteur):
                process.role.active = False
            process.start()
        if not is_stranger:
            await asyncio.sleep(JOINING_SECONDS)
        for process in hostile:
            if isinstance(process, Saboteur):
                process.role.active = True
        ghosts = asyncio.create_task(haunt(world, names)) if is_dead else None
        known = set(world.ledger.versions[SHARED])
        finding = asyncio.create_task(until_out(world, honest, hostile[0].name)) if kind.startswith(WRONG) else None
        await window()
        await window()
        if finding is not None and finding.done():
            out.append(finding.result())
        elif finding is not None:
            finding.cancel()
        made_with = sum(
            any(name.startswith("hostile") for name in version.tokens)
            for digest, version in world.ledger.versions[SHARED].items()
            if digest not in known
        )
        adopted.extend(forged_states_taken(world, hostile))
        if ghosts is not None:
            ghosts.cancel()
        for process in hostile:
            if process.is_alive:
                process.kill()
        await asyncio.sleep(HEALING_SECONDS)
        await window()

    world.play(story)
    seconds = {name: world.peers[name].machine.step_seconds for name in honest}
    most = sum(WINDOW_SECONDS / each for each in seconds.values()) * world.config.tokens_per_step
    before, first, second, _ = windows
    versions = [60 * window.versions / WINDOW_SECONDS for window in windows]
    trained = [window.tokens / most for window in windows]
    failures = [failure for failure in world.failures() if not failure.startswith("hostile")]
    return Columns(
        versions=(versions[0], statistics.fmean(versions[1:3]), versions[3]),
        trained=(trained[0], statistics.fmean(trained[1:3]), trained[3]),
        counted=made_with / max(1, first.versions + second.versions),
        adopted=len(adopted),
        ended=len(failures),
        settled=versions[2],
        out=tuple(out),
        not_out=int(kind.startswith(WRONG) and not out),
        held=(before.stood_still, max(first.stood_still, second.stood_still)),
        grain=60 / WINDOW_SECONDS,
        forks=twins(world),
    )


async def haunt(world: World, names: int) -> None:
    """Names in the directory that say that they train a path, with nobody behind them; until cancelled."""
    ghosts = [f"dead-{number}" for number in range(names)]
    records = [SimulatedRecords(world.directory, ghost, VirtualClock(world.loop)) for ghost in ghosts]
    stage, module = SHARED
    key = group_key(world.address.fingerprint, stage, module)
    while True:
        world.network.block([*world.peers, OPERATOR], ghosts)  # who dials them waits in vain
        newest = max(world.ledger.versions[SHARED].values(), key=lambda version: version.number)
        said = Announcement(
            PeerName("dead"), stage, module, PathIndex(0), newest.number, newest.digest, newest.work, tokens=A_LOT
        )
        payload = encode_announcement(said, ())
        await asyncio.gather(*(each.store(key, payload, world.plan.timing.lifetime) for each in records))
        await asyncio.sleep(DEAD_SECONDS)


async def until_out(world: World, honest: Sequence[str], culprit: str) -> int:
    """How many versions are made until a reducer is banned by all of the honest, or makes averages for none of them."""
    before = len(world.ledger.versions[SHARED])

    def is_out(peer: SimulatedPeer) -> bool:
        if peer.watched is None:
            return False
        swarm = peer.watched.as_networked()
        assert swarm._rounds is not None
        is_hidden = swarm._rounds._auditing.hidden.is_demoted(culprit, peer.clock.monotonic())
        return culprit in swarm.door.bans or is_hidden

    while not all(is_out(world.peers[name]) for name in honest):
        await asyncio.sleep(LOOK_SECONDS)
    return len(world.ledger.versions[SHARED]) - before


class StandingStill:
    """The longest that one of several peers took no inner step."""

    def __init__(self, world: World, names: Sequence[str]) -> None:
        self._world = world
        self._peers = [world.peers[name] for name in names]
        self.longest = 0.0

    async def watch(self, seconds: float) -> None:
        """Look for so long."""
        until = self._world.now + seconds
        while self._world.now < until:
            await asyncio.sleep(LOOK_SECONDS)
            now = self._world.now
            self.longest = max(self.longest, *(now - max(peer.step_ends, until - seconds) for peer in self._peers))


def twins(world: World) -> int:
    """Versions of the shared module that honest peers made of a state of which others of them made another one.

    What the hostile make by themselves is nobody's.
    """
    by_parent: Counter[str] = Counter()
    for version in world.ledger.versions[SHARED].values():
        by_parent[version.parent] += any(who.startswith("peer-") for who in version.tokens)
    return sum(made - 1 for made in by_parent.values() if made > 1)


def forged_states_taken(world: World, hostile: Sequence[Process]) -> list[str]:
    """By whom a state of a stranger was taken, or gone on from."""
    outsiders = [process.outsider for process in hostile if isinstance(process, Stranger)]
    forged = {digest for outsider in outsiders if isinstance(outsider, Claimer) for digest in outsider.forged}
    at = [peer for states in world.states().values() for peer, (_, digest) in states.items() if digest in forged]
    kept = [str(module) for module, state in world.operator.kept(0).items() if state.digest in forged]
    versions = (version for of in world.ledger.versions.values() for version in of.values())
    made = [version.digest for version in versions if version.parent in forged]
    return [*at, *kept, *made]
