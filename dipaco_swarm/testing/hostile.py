"""Strangers of a simulated swarm: they know the run address, are in nobody's round, and want to move the model."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest
from dipaco_swarm.swarm.interface import Announcement, Role
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.round.questions import Questions
from dipaco_swarm.swarm.round.standing import Key
from dipaco_swarm.testing.process import Machine, SimulatedProcess
from dipaco_swarm.testing.program import Program

if TYPE_CHECKING:
    from dipaco_swarm.testing.world import World

LOOK_SECONDS = 20.0
BETWEEN_CLAIMS_SECONDS = 5.0
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


class Stranger(SimulatedProcess):
    """Announces states that it has made up, for every module of a path, until it is asked to stop."""

    def __init__(self, world: "World", name: str, machine: Machine, forge: Forge, path: int) -> None:
        super().__init__(world, name, machine)
        self.forge = forge
        self.path = path
        self.pause = BETWEEN_CLAIMS_SECONDS
        self.forged: dict[str, int] = {}
        """Digest of a state that it has claimed to have -> its version."""

    def _live(self, program: Program, stop: Stopping, random: Random) -> None:
        with self._swarm(program, stop, random) as swarm:
            signed = swarm.newest_manifest(timeout=LOOK_SECONDS)
            assert signed is not None, "the operator's node answers nobody"
            manifest = open_manifest(signed, self._world.address.fingerprint)
            while not stop():
                said = list(self._claims(swarm, manifest, random))
                swarm.announce(said)
                self._pester(swarm, said)
                stop.wait(self.pause)

    def _pester(self, swarm: NetworkedSwarm, said: Sequence[Announcement]) -> None:
        """What it does besides, each time."""

    def _claims(self, swarm: NetworkedSwarm, manifest: Manifest, random: Random) -> Iterator[Announcement]:
        stage = manifest.stage.index
        for module in PathTable(manifest.stage.table).modules_of(PathIndex(self.path)):
            swarm.look_up(stage, [module], timeout=LOOK_SECONDS)
            others = [said for said in swarm.members(stage, module) if said.peer != swarm.peer]
            if others:
                yield self._claim(swarm, stage, module, max(others, key=lambda said: said.version), random)

    def _claim(
        self, swarm: NetworkedSwarm, stage: int, module: ModuleId, best: Announcement, random: Random
    ) -> Announcement:
        state = self.forge(best, self._world.plan.parameters, random)
        swarm.hold(stage, module, state)
        self.forged[state.digest] = state.version
        return Announcement(
            swarm.peer, stage, module, PathIndex(self.path), state.version, state.digest, state.work, tokens=A_LOT
        )


Pretend = Callable[[Announcement], Announcement]
"""What a stranger says, from what the foremost member of a group says."""


def has_trained_much(said: Announcement) -> Announcement:
    return replace(said, tokens=A_LOT, tokens_per_second=1e9)


def is_on_its_way(said: Announcement) -> Announcement:
    return replace(said, version=max(0, said.version - 1), digest="0" * 64, tokens=0, catching_up=True)


def is_there(said: Announcement) -> Announcement:
    return replace(said, tokens=0)


class Pretender(Stranger):
    """Says that it is a member like any other, but for something; trains nothing, and takes part in nothing."""

    def __init__(
        self, world: "World", name: str, machine: Machine, path: int, pretend: Pretend = is_there, pause: float = 5.0
    ) -> None:
        super().__init__(world, name, machine, takeover, path)
        self.pretend = pretend
        self.said = 0
        """So many times it has said that it is a member."""
        self.pause = pause

    def _claim(
        self, swarm: NetworkedSwarm, stage: int, module: ModuleId, best: Announcement, random: Random
    ) -> Announcement:
        self.said += 1
        return replace(self.pretend(best), peer=swarm.peer, path=PathIndex(self.path), role=Role.TRAINS, reduces=True)


class Caller(Pretender):
    """Asks everybody, again and again, where it stands: as if it gathered the round."""

    def __init__(self, world: "World", name: str, machine: Machine, path: int) -> None:
        super().__init__(world, name, machine, path, pause=0.5)

    def _pester(self, swarm: NetworkedSwarm, said: Sequence[Announcement]) -> None:
        if swarm._rounds is None:
            swarm.configure_rounds(self._world.plan.codec, 4.0)
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
