"""Strangers: they know the run address, are in nobody's round, and want to move the model, or to hold up the others.

What one does is an `Outsider` (`roles.py`), and real processes do it too; `Stranger` is one in a simulated swarm.
"""

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, cast

import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest
from dipaco_swarm.swarm.interface import Announcement, Role
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.round.exchange_tasks import both_ways
from dipaco_swarm.swarm.round.questions import Questions
from dipaco_swarm.swarm.round.standing import Key
from dipaco_swarm.swarm.transport import Stream
from dipaco_swarm.swarm.wire import Alive, Here, Join, Reassign, Roster, Where
from dipaco_swarm.testing.process import Machine, SimulatedProcess
from dipaco_swarm.testing.program import Program
from dipaco_swarm.testing.roles import Member, Outsider, Surroundings
from dipaco_swarm.testing.volunteer import SimulatedPeer

if TYPE_CHECKING:
    from dipaco_swarm.testing.world import World

log = logging.getLogger(__name__)

LOOK_SECONDS = 20.0
BETWEEN_CLAIMS_SECONDS = 5.0
ALIVE_SECONDS = 0.5
A_LOT = 1 << 40
"""Tokens."""

Forge = Callable[[Announcement, int, Random], ModuleState]
"""The state that a stranger claims to have, from what a member announces and how many parameters the module has."""


def takeover(said: Announcement, parameters: int, random: Random) -> ModuleState:
    """The next version, of its own making."""
    params = torch.full((parameters,), random.uniform(1.0, 2.0))
    return ModuleState(said.version + 1, params, torch.zeros(parameters), said.work + A_LOT)


def far(said: Announcement, parameters: int, random: Random) -> ModuleState:
    """A version that a run never comes to."""
    state = takeover(said, parameters, random)
    return ModuleState(said.version + 10**6, state.params, state.momentum, state.work)


def not_a_number(said: Announcement, parameters: int, random: Random) -> ModuleState:
    """The next version, which ends whoever trains on from it."""
    return ModuleState(
        said.version + 1, torch.full((parameters,), math.nan), torch.zeros(parameters), said.work + A_LOT
    )


def twin(said: Announcement, parameters: int, random: Random) -> ModuleState:
    """Another state for the version that the group has just made."""
    state = takeover(said, parameters, random)
    return ModuleState(said.version, state.params, state.momentum, state.work)


class Claimer(Outsider):
    """Announces states that it has made up, for every module of a path, until it is asked to stop."""

    def __init__(self, forge: Forge, pause: float = BETWEEN_CLAIMS_SECONDS) -> None:
        self.forge = forge
        self.pause = pause
        self.forged: dict[str, int] = {}
        """Digest of a state that it has claimed to have -> its version."""
        self._sizes: dict[ModuleId, int] = {}
        """Parameters of each module."""

    def live(self, swarm: NetworkedSwarm, around: Surroundings) -> None:
        signed = swarm.newest_manifest(timeout=LOOK_SECONDS)
        assert signed is not None, "the operator's node answers nobody"
        while not around.stop():
            signed = swarm.newest_manifest(timeout=LOOK_SECONDS) or signed
            said = list(self._claims(swarm, open_manifest(signed, around.fingerprint), around))
            swarm.announce(said)
            self.pester(swarm, said)
            around.stop.wait(self.pause)

    def pester(self, swarm: NetworkedSwarm, said: Sequence[Announcement]) -> None:
        """What it does besides, each time."""

    def _claims(self, swarm: NetworkedSwarm, manifest: Manifest, around: Surroundings) -> Iterator[Announcement]:
        stage = manifest.stage.index
        path = PathIndex(around.path % len(manifest.stage.table))
        for module in PathTable(manifest.stage.table).modules_of(path):
            swarm.look_up(stage, [module], timeout=LOOK_SECONDS)
            others = [said for said in swarm.members(stage, module) if said.peer != swarm.peer]
            if others:
                best = max(others, key=lambda said: said.version)
                if (claim := self.claim(swarm, best, path, around)) is not None:
                    yield claim

    def claim(
        self, swarm: NetworkedSwarm, best: Announcement, path: PathIndex, around: Surroundings
    ) -> Announcement | None:
        """What it says of a module, where `best` is what the foremost member says; None: nothing."""
        parameters = self._parameters(swarm, best)
        if parameters is None:
            return None
        state = self.forge(best, parameters, around.random)
        swarm.hold(best.stage, best.module, state)
        self.forged[state.digest] = state.version
        return Announcement(
            swarm.peer, best.stage, best.module, path, state.version, state.digest, state.work, tokens=A_LOT
        )

    def _parameters(self, swarm: NetworkedSwarm, best: Announcement) -> int | None:
        """How many a module has: as many as its state, which anybody may fetch."""
        if best.module not in self._sizes:
            state = swarm.fetch_state(best.stage, best.module, best.digest, timeout=LOOK_SECONDS)
            if state is None:
                return None
            self._sizes[best.module] = len(state.params)
        return self._sizes[best.module]


Pretend = Callable[[Announcement], Announcement]
"""What a stranger says, from what the foremost member of a group says."""


def has_trained_much(said: Announcement) -> Announcement:
    return replace(said, tokens=A_LOT, tokens_per_second=1e9)


def is_on_its_way(said: Announcement) -> Announcement:
    return replace(said, version=max(0, said.version - 1), digest="0" * 64, tokens=0, catching_up=True)


def is_there(said: Announcement) -> Announcement:
    return replace(said, tokens=0)


class PretendsToBeThere(Claimer):
    """Says that it is a member like any other, but for something; trains nothing, and takes part in nothing."""

    def __init__(self, pretend: Pretend = is_there, pause: float = BETWEEN_CLAIMS_SECONDS) -> None:
        super().__init__(takeover, pause)
        self.pretend = pretend
        self.said = 0
        """So many times it has said that it is a member."""

    def claim(
        self, swarm: NetworkedSwarm, best: Announcement, path: PathIndex, around: Surroundings
    ) -> Announcement | None:
        self.said += 1
        return replace(self.pretend(best), peer=swarm.peer, path=path, role=Role.TRAINS, reduces=True)


class CallsRounds(PretendsToBeThere):
    """Asks everybody, again and again, where it stands: as if it gathered the round."""

    def __init__(self) -> None:
        super().__init__(pause=0.5)

    def pester(self, swarm: NetworkedSwarm, said: Sequence[Announcement]) -> None:
        if swarm._rounds is None:
            swarm.configure_rounds("fp32", 4.0)
        for ours in said:
            key, base = (ours.stage, ours.module, ours.version), Claim.of(ours)
            for member in swarm.members(ours.stage, ours.module):
                if member.peer != swarm.peer:
                    swarm._portal.soon(self._ask, swarm, member.peer, key, base)

    def _ask(self, swarm: NetworkedSwarm, peer: str, key: Key, base: Claim) -> None:
        assert swarm._rounds is not None
        swarm._telling.start(self._where(swarm._rounds._questions, peer, key, base))

    async def _where(self, questions: Questions, peer: str, key: Key, base: Claim) -> None:
        await questions.where(peer, key, base)


class Tarpit(PretendsToBeThere):
    """The same, and whoever comes to it for a round is let in and told nothing, for as long as it waits."""

    def live(self, swarm: NetworkedSwarm, around: Surroundings) -> None:
        for protocol in ("round", "exchange"):
            name = f"dipaco/1/{around.fingerprint}/{protocol}"
            serve = partial(swarm._transport.serve, name, partial(self.keep, around=around, us=swarm.peer))
            swarm._portal.soon(lambda serve=serve: swarm._telling.start(serve()))
        super().live(swarm, around)

    async def keep(self, stream: Stream, around: Surroundings, us: str) -> None:
        """Somebody has come to us."""
        await asyncio.Event().wait()


class Answers(Tarpit):
    """The same, but who asks where it stands is told that it is a member like any other; and yet it never comes."""

    def __init__(self, *, leads: bool = False) -> None:
        """`leads`: it says that it gathers the round itself, and to whoever joins it that it is alive."""
        super().__init__()
        self.leads = leads

    async def keep(self, stream: Stream, around: Surroundings, us: str) -> None:
        match await stream.receive():
            case Where(version=version, digest=digest, work=work):
                follows = us if self.leads else None
                await stream.send(Here(version=version, digest=digest, work=work, path=around.path, follows=follows))
            case Join() if self.leads:
                while True:
                    await stream.send(Alive())
                    await asyncio.sleep(ALIVE_SECONDS)
            case _:
                await asyncio.Event().wait()


class Holds(PretendsToBeThere):
    """Comes to whoever may lead, in no mood to wait; once a round has begun it says for ever that something moves."""

    def __init__(self) -> None:
        super().__init__(pause=ALIVE_SECONDS)
        self._held: set[tuple[str, ModuleId]] = set()

    def pester(self, swarm: NetworkedSwarm, said: Sequence[Announcement]) -> None:
        for module in [ours.module for ours in said]:
            for member in swarm.members(said[0].stage, module):
                where = str(member.peer), module
                if member.peer != swarm.peer and member.trains and where not in self._held:
                    parameters = self._parameters(swarm, member)
                    if parameters is not None:
                        self._held.add(where)
                        come = partial(self._come, swarm, member, parameters)
                        swarm._portal.soon(lambda come=come: swarm._telling.start(come()))

    async def _come(self, swarm: NetworkedSwarm, to: Announcement, parameters: int) -> None:
        join = Join(
            stage=to.stage,
            module=str(to.module),
            version=to.version,
            digest=to.digest,
            work=to.work,
            path=int(to.path or 0),
            tokens=1,
            norm=1.0,
            parameters=parameters,
            nonce=bytes(16),
            reduces=False,
            patience=0.0,
        )
        try:
            async with swarm._transport.dial(to.peer, f"dipaco/1/{swarm._address.fingerprint}/round") as stream:
                await stream.send(join)
                await both_ways(self._hold(stream), self._listen(stream))
        except (ConnectionError, EOFError, TimeoutError) as error:
            log.debug("let go of %s: %s", to.peer[-8:], error)
        finally:
            self._held.discard((str(to.peer), to.module))

    async def _hold(self, stream: Stream) -> None:
        for moved in itertools.count(1):
            await stream.send(Alive(moved=moved))
            await asyncio.sleep(ALIVE_SECONDS)

    async def _listen(self, stream: Stream) -> None:
        while isinstance(await stream.receive(), Alive | Roster | Reassign):
            pass
        raise EOFError("it is over")


class Stranger(SimulatedProcess):
    """An outsider of a simulated swarm."""

    def __init__(self, world: "World", name: str, machine: Machine, outsider: Outsider, path: int) -> None:
        super().__init__(world, name, machine)
        self.outsider = outsider
        self.path = path

    def _live(self, program: Program, stop: Stopping, random: Random) -> None:
        with self._swarm(program, stop, random) as swarm:
            around = Surroundings(stop, random, self.path, self._world.address.fingerprint)
            self.outsider.live(swarm, around)


class HostilePeer(SimulatedPeer):
    """A member of a simulated swarm that is not what it seems."""

    def __init__(self, world: "World", name: str, path: int | None, machine: Machine, member: Member) -> None:
        super().__init__(world, name, path, machine)
        self.member = member

    def _bent(self, swarm: NetworkedSwarm, stop: Stopping) -> NetworkedSwarm:
        random = Random(f"{self._world.seed}/{self.owner}/hostile")
        around = Surroundings(stop, random, self.path or 0, self._world.address.fingerprint)
        return cast(NetworkedSwarm, self.member.bend(swarm, around))
