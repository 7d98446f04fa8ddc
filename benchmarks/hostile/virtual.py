"""Whole swarms in virtual time with somebody hostile among them, by role, size of the group, and seed."""

import asyncio
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from benchmarks.hostile.columns import AWAY, OUT_WITHIN, Columns, kind_of
from benchmarks.simulated import prepare, workplace
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.peer import keeping, presenter
from dipaco_swarm.swarm.interface import Announcement, PeerName
from dipaco_swarm.swarm.records import encode_announcement, group_key
from dipaco_swarm.swarm.round import reduction
from dipaco_swarm.swarm.round.codecs.codec import BLOCK
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

PIECE = 2 * BLOCK
"""Numbers: as few as contributions can be compared in. In pieces of a usual length a seed takes ten times as long."""
PLAN = Plan((StagePlan(((0, 0), (0, 1))),), inner_steps=3, overlap=True)
"""Two paths that share their first module."""
STEP_SECONDS = (2.0, 3.0)
SHARED = (0, ModuleId(0, 0))
INSTEAD = (
    (reduction, "MIN_PIECE", PIECE),
    (keeping, "CHECKPOINT_SECONDS", 30.0),
    (presenter.PeerPresenter, "now", lambda *of_what: None),
)
"""What the product has otherwise: nobody honest is killed and nobody looks, and both took a fifth of a seed's time."""
WARM_UP_SECONDS = 45.0
"""Who takes part does so honestly for so long, at least, before it does anything else: it has standing then."""
WINDOW_SECONDS = 30.0
"""Each half of the attack."""
ROUND_SECONDS = 9.0
"""As long as one takes at most, usually."""
OUT_SECONDS = 180.0
"""Between the two, at most, until somebody who should be out is: who leads one round of eight is seldom met."""
AWAY_SECONDS = 60.0
"""So long nobody honest is there, where all go away: longer than it takes until nobody is waited for any more."""
HEALING_SECONDS = 30.0
"""From the end of the attack, or the return of all members, until it is looked at again."""
AFTER_SECONDS = 20.0
"""How long it is."""
SIZES = (2, 4, 8)
CROWDS = {
    "flip": (5,),
    "flip*2": (4, 5, 6),
    "mixed*2": (5,),
    "mute*2": (6,),
    "mute-reducer*2": (6,),
    "equivocator*2": (6,),
    "staller*2": (6,),
    "freezer*2": (6,),
    "refuser*2": (6,),
    "takeover*10": (4,),
    "takeover@away": (2, 4),
    "is-there*10": (4,),
    "tarpit*10": (4,),
    "dead*50": (4, 8),
}
"""One of five and two of six (20 and 33 %), two colluders of four and of five, ten names of one machine, names with
nobody behind them; one while no member is there."""
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


NOBODY = "nobody"
"""Instead of a role: the same members and machines, and nobody else. All figures are compared with these."""


@dataclass(frozen=True)
class Window:
    """What was made between two moments."""

    seconds: float
    versions: int
    """Of the shared module."""
    trained: float
    """Share of the time that the honest trained."""
    stood_still: float
    """The longest that one of the honest did, in seconds."""

    @property
    def pace(self) -> float:
        """Versions a minute."""
        return 60 * self.versions / self.seconds


@dataclass(frozen=True)
class Seen:
    """What a seed of a row came to."""

    first: Window
    second: Window
    """The first seconds of the attack and the last ones, when who takes part should be out."""
    after: Window
    made: int = 0
    """Versions from the beginning of the attack to its end."""
    made_with: int = 0
    """Of these, those that have something of the hostile in them."""
    adopted: int = 0
    """States of an outsider that somebody has, or went on from."""
    ended: int = 0
    """Honest programs that ended by themselves."""
    forks: int = 0
    """Versions with a twin, where honest peers made both of the same state."""
    out: int | None = None
    """In how many rounds the hostile did so until most of the honest went on without them, or in all; None: it is not
    looked for."""
    not_out: bool = False
    """They did not."""


def baseline(role: str, size: int) -> tuple[str, int]:
    """The row that a row is compared with: of its honest members alone."""
    return NOBODY, honest_of(role, size)


def honest_of(role: str, size: int) -> int:
    """How many honest members a row has: strangers come besides."""
    kind, names = kind_of(role)
    return size if kind in STRANGERS or kind == NOBODY else max(1, size - names)


def is_put_out(role: str) -> bool:
    """Whether it is looked for when the others go on without it: where what they do about it is a list of names."""
    kind, _ = kind_of(role)
    return kind in OUT_WITHIN


def play(role: str, size: int, seed: int) -> Seen:
    """`size` members of one group, some of them hostile if the role is that of members; strangers come besides."""
    prepare()
    for module, name, value in INSTEAD:
        setattr(module, name, value)  # of this process, for good
    with tempfile.TemporaryDirectory(prefix="dipaco-hostile-", dir=workplace()) as folder:
        plan = replace(PLAN, parameters=max(4, size) * PIECE)  # something to reduce for everybody
        return _play(World(seed, plan, Path(folder) / "world"), role, size)


def _play(world: World, role: str, size: int) -> Seen:
    row = Row(world, role, honest_of(role, size))
    world.play(row.story)
    return row.seen()


class Row:
    """One seed of a row, while it is played."""

    def __init__(self, world: World, role: str, count: int) -> None:
        chance = Random(f"{world.seed}/{count}")  # the same machines with whoever comes besides
        kind, names = kind_of(role)
        self._world = world
        self._role = role
        self._chance = chance
        self._machines = [Machine(home_line(chance), step_seconds=chance.choice(STEP_SECONDS)) for _ in range(count)]
        self._begins = WARM_UP_SECONDS + chance.uniform(0.0, ROUND_SECONDS)  # rounds that began together end together
        self._honest = [f"peer-{number}" for number in range(count)]
        self._dead = names if kind == "dead" else 0
        self._hostile = [
            enter(world, f"hostile-{n}", kind, (count + n) % 2, Machine(home_line(chance)))
            for n in range(0 if self._dead or kind == NOBODY else names)
        ]
        self._saboteurs = [process for process in self._hostile if isinstance(process, Saboteur)]
        self._windows: list[Window] = []
        self._made: list[bool] = []
        """Of each version of the attack, whether it has something of the hostile in it."""
        self._adopted: list[str] = []
        self._out: int | None = None
        self._not_out = False

    async def story(self, world: World) -> None:
        """The honest, and members who become hostile; the attack; what is after it."""
        for number, (name, machine) in enumerate(zip(self._honest, self._machines, strict=True)):
            world.start(name, number % 2, machine)
        for culprit in self._saboteurs:
            culprit.role.active = False
        for process in self._hostile:
            if not isinstance(process, Stranger):
                process.start()
        await asyncio.sleep(self._begins)
        known = set(world.ledger.versions[SHARED])
        await self._attack()
        self._made = [
            any(name.startswith("hostile") for name in version.tokens)
            for digest, version in world.ledger.versions[SHARED].items()
            if digest not in known
        ]
        self._adopted = forged_states_taken(world, self._hostile)
        for process in self._hostile:
            if process.is_alive:
                process.kill()
        await asyncio.sleep(HEALING_SECONDS + self._chance.uniform(0.0, ROUND_SECONDS))
        await self._window(AFTER_SECONDS)

    async def _attack(self) -> None:
        for culprit in self._saboteurs:
            culprit.role.active = True
        for process in self._hostile:
            if isinstance(process, Stranger):
                process.start()
        ghosts = asyncio.create_task(haunt(self._world, self._dead)) if self._dead else None
        if self._role.endswith(AWAY):
            await self._go_and_return()
        if is_put_out(self._role):
            await self._until_put_out()
        else:
            await self._window(WINDOW_SECONDS)
            await self._window(WINDOW_SECONDS)
        if ghosts is not None:
            ghosts.cancel()

    async def _go_and_return(self) -> None:
        members = [self._world.peers[name] for name in self._honest]
        for member in members:
            member.kill()
        await asyncio.sleep(AWAY_SECONDS)
        for member in members:
            member.start()
        await asyncio.sleep(HEALING_SECONDS)

    async def _until_put_out(self) -> None:
        """A window, the time until somebody is out who should be, and another window."""
        finding = asyncio.create_task(until_out(self._world, self._honest, self._saboteurs))
        await self._window(WINDOW_SECONDS)
        await asyncio.wait([finding], timeout=OUT_SECONDS)
        then, _ = self._so_far()  # a round may be under way that was begun with it
        await self._world.until(lambda: self._so_far()[0] > then, WINDOW_SECONDS)
        await asyncio.sleep(self._chance.uniform(0.0, ROUND_SECONDS))  # from version to version there is one less
        await self._window(WINDOW_SECONDS)
        self._not_out = not finding.done()
        self._out = rounds_of(self._saboteurs) if self._not_out else finding.result()
        finding.cancel()

    async def _window(self, seconds: float) -> None:
        (versions, tokens), still = self._so_far(), StandingStill(self._world, self._honest)
        await still.watch(seconds)
        now_versions, now_tokens = self._so_far()
        most = sum(1 / machine.step_seconds for machine in self._machines) * self._world.config.tokens_per_step
        trained = (now_tokens - tokens) / (most * seconds)
        self._windows.append(Window(seconds, now_versions - versions, trained, still.longest))

    def _so_far(self) -> tuple[int, int]:
        """Versions of the shared module, and tokens, that the honest have made."""
        ledger = self._world.ledger
        trained = (tokens for (who, place), tokens in ledger.trained.items() if is_honest(who) and place == SHARED)
        return sum(any(map(is_honest, version.tokens)) for version in ledger.versions[SHARED].values()), sum(trained)

    def seen(self) -> Seen:
        """What it came to, once it is over."""
        first, second, after = self._windows
        return Seen(
            first,
            second,
            after,
            made=len(self._made),
            made_with=sum(self._made),
            adopted=len(self._adopted),
            ended=sum(not failure.startswith("hostile") for failure in self._world.failures()),
            forks=twins(self._world),
            out=self._out,
            not_out=self._not_out,
        )


def columns_of(role: str, alone: Seen, seen: Seen) -> Columns:
    """A row's seed, beside the same members with nobody else."""
    before = statistics.fmean((alone.first.pace, alone.second.pace))
    return Columns(
        versions=(before, statistics.fmean((seen.first.pace, seen.second.pace)), seen.after.pace),
        trained=(
            statistics.fmean((alone.first.trained, alone.second.trained)),
            statistics.fmean((seen.first.trained, seen.second.trained)),
            seen.after.trained,
        ),
        counted=seen.made_with / max(1, seen.made),
        adopted=seen.adopted,
        ended=seen.ended + alone.ended,
        settled=seen.second.pace,
        held=(
            max(alone.first.stood_still, alone.second.stood_still),
            max(seen.first.stood_still, seen.second.stood_still),
        ),
        out=() if seen.out is None else (seen.out,),
        not_out=int(seen.not_out),
        grain=60 / AFTER_SECONDS,
        # who is killed makes anew what nobody has saved yet
        forks=None if role.endswith(AWAY) else seen.forks + alone.forks,
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


async def until_out(world: World, honest: Sequence[str], hostile: Sequence[Saboteur]) -> int:
    """Wait until most of the honest go on without the hostile; in how many rounds these do what they do before that.

    Who is banned, or gathers and reduces nothing and is not waited for, is out. Most: while they lead, nobody waits for
    somebody who is silent, and so the others do not see that it is.
    """

    def is_out(peer: SimulatedPeer, culprit: str) -> bool:
        if peer.watched is None:
            return False
        swarm = peer.watched.as_networked()
        assert swarm._rounds is not None
        return culprit in swarm.door.bans or culprit in swarm._rounds._demoted(peer.clock.monotonic())

    def go_on_without(culprit: str) -> bool:
        return 2 * sum(is_out(world.peers[name], culprit) for name in honest) > len(honest)

    while not all(go_on_without(culprit.name) for culprit in hostile):
        await asyncio.sleep(LOOK_SECONDS)
    return rounds_of(hostile)


def rounds_of(hostile: Sequence[Saboteur]) -> int:
    """In how many rounds of the shared module one of them has done what it does, at most."""
    return max(len(culprit.role.rounds.get(str(SHARED[1]), ())) for culprit in hostile)


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


def is_honest(who: str) -> bool:
    """`who`: a name, and what may follow it of lives."""
    return who.startswith("peer-")


def twins(world: World) -> int:
    """Versions of the shared module that honest peers made of a state of which others of them made another one.

    What the hostile make by themselves is nobody's.
    """
    by_parent: Counter[str] = Counter()
    for version in world.ledger.versions[SHARED].values():
        by_parent[version.parent] += any(map(is_honest, version.tokens))
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
