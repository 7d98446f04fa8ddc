"""Promise 2 over real libp2p: members of a module group hold identical bytes, with compression on as well."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dipaco_swarm.algorithm.outer import OuterStep, nesterov_step, rescale
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup, Swarm
from dipaco_swarm.swarm.networked import NetworkedSwarm

pytestmark = pytest.mark.swarm

PATHS = [(ModuleId(0, first), ModuleId(1, second)) for first in range(2) for second in range(2)]
"""A grid of 2x2: every module is in two paths; with two replicas a path, in groups of four."""
GROUPS = {
    module: ModuleGroup(0, module, {PathIndex(i): 0.5 for i, path in enumerate(PATHS) if module in path})
    for path in PATHS
    for module in path
}
STEP = OuterStep(learning_rate=0.7, momentum=0.9)
PARAMETERS = 150_000
ROUNDS = 5
JITTER_SECONDS = 0.2


class Peer:
    """Trains a path on random numbers, and writes down every state it agreed on."""

    def __init__(self, swarm: Swarm, index: int) -> None:
        self.swarm = swarm
        self.path = PathIndex(index % len(PATHS))
        self.states = {module: ModuleState.seed(torch.zeros(PARAMETERS)) for module in PATHS[self.path]}
        self.digests: dict[tuple[ModuleId, int], str] = {}
        self.random = random.Random(index)
        self.torch = torch.Generator().manual_seed(index)

    def announce(self) -> None:
        for module, state in self.states.items():
            self.swarm.hold(0, module, state)
        said = [
            Announcement(self.swarm.peer, 0, module, self.path, state.version, state.digest, state.work)
            for module, state in self.states.items()
        ]
        self.swarm.announce(said, [GROUPS[module] for module in self.states])

    def sees_everybody(self) -> bool:
        self.swarm.look_up(0, list(self.states), timeout=10)
        return all(len(self.swarm.members(0, module)) == 4 for module in self.states)

    def round(self) -> None:
        time.sleep(self.random.uniform(0, JITTER_SECONDS))
        parts = [
            Contribution(
                GROUPS[module],
                self.path,
                state.version,
                self._gradient(),
                self.random.randint(1, 9),
                state.digest,
                state.work,
            )
            for module, state in self.states.items()
        ]
        for module, outcome in self.swarm.all_reduce(parts, patience=30.0).items():
            assert isinstance(outcome, Agreed), outcome
            assert len(outcome.contributors) == 4
            mean = torch.cat([rescale(outcome.mean[s.start : s.stop], s.effective_paths) for s in outcome.spans])
            old = self.states[module]
            work = old.work + sum(outcome.tokens.values())
            new = ModuleState(old.version + 1, *nesterov_step(old.params, old.momentum, mean, STEP), work)
            self.states[module] = new
            self.digests[module, new.version] = new.digest
        self.announce()

    def _gradient(self) -> torch.Tensor:
        return torch.randn(PARAMETERS, generator=self.torch)


def test_after_every_commit_a_version_has_one_digest(
    make_libp2p_swarms: Callable[[int], list[NetworkedSwarm]],
) -> None:
    peers = [Peer(swarm, i) for i, swarm in enumerate(make_libp2p_swarms(8))]
    for peer in peers:
        peer.swarm.configure_rounds("int8", 4.0)
        peer.announce()
    deadline = time.monotonic() + 30
    while not all([peer.sees_everybody() for peer in peers]):
        assert time.monotonic() < deadline

    def train(peer: Peer) -> None:
        for _ in range(ROUNDS):
            peer.round()

    with ThreadPoolExecutor(len(peers)) as pool:
        for call in [pool.submit(train, peer) for peer in peers]:
            call.result(timeout=100)
    for module in GROUPS:
        for version in range(1, ROUNDS + 1):
            said = [peer.digests[module, version] for peer in peers if module in peer.states]
            assert len(said) == 4
            assert len(set(said)) == 1, f"{module} at version {version}"
