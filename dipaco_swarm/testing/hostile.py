"""Strangers of a simulated swarm: they know the run address, are in nobody's round, and want to move the model."""

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING

import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest
from dipaco_swarm.swarm.interface import Announcement
from dipaco_swarm.swarm.networked import NetworkedSwarm
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
        self.forged: dict[str, int] = {}
        """Digest of a state that it has claimed to have -> its version."""

    def _live(self, program: Program, stop: Stopping, random: Random) -> None:
        with self._swarm(program, stop, random) as swarm:
            signed = swarm.newest_manifest(timeout=LOOK_SECONDS)
            assert signed is not None, "the operator's node answers nobody"
            manifest = open_manifest(signed, self._world.address.fingerprint)
            while not stop():
                swarm.announce(list(self._claims(swarm, manifest, random)))
                stop.wait(BETWEEN_CLAIMS_SECONDS)

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
