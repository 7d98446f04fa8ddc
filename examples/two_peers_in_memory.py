"""One outer round of a module group of two, in one process: what each peer does, and that both end on the same bytes.

    python examples/two_peers_in_memory.py

Two paths share one module. Their peers train apart (here: any two vectors), average their outer gradients in the
module group, and take the same outer step. All of it is the real protocol; only the network is a local one. With
`open_swarm` in the place of `LocalSwarms` the same lines run over libp2p.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import torch

from dipaco_swarm.algorithm.outer import outer_gradient
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.outer_step import outer_step
from dipaco_swarm.run.config import OuterConfig
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup
from dipaco_swarm.swarm.local import LocalSwarms, local_address
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.states.blobs import MemoryBlobs

MODULE = ModuleId(level=0, index=0)
GROUP = ModuleGroup(stage=0, module=MODULE, path_weights={PathIndex(0): 0.5, PathIndex(1): 0.5})
START = ModuleState.seed(torch.zeros(4))
LEARNED = (torch.tensor([1.0, 0.0, 2.0, 0.0]), torch.tensor([0.0, 1.0, 2.0, 0.0]))
"""Where inner training has taken the module's parameters, on the shard of path 0 and on that of path 1."""


def announce(swarm: NetworkedSwarm, path: PathIndex) -> None:
    """Say what we train and where we stand; a round expects everybody who has said so."""
    swarm.configure_rounds("fp32", norm_clip=4.0)
    swarm.announce([Announcement(swarm.peer, 0, MODULE, path, START.version, START.digest)], [GROUP])


def one_round(swarm: NetworkedSwarm, path: PathIndex) -> ModuleState:
    """Contribute, wait for the group's average, step. Returns the module's next version."""
    gradient = outer_gradient(START.params, LEARNED[path])
    contribution = Contribution(GROUP, path, START.version, gradient, 1000, START.digest)
    outcome = swarm.all_reduce([contribution], patience=10.0)[MODULE]
    if not isinstance(outcome, Agreed):  # weather is a value: nothing has changed, try again
        raise SystemExit(f"no round: {outcome.reason}")
    return outer_step(START, outcome.encoded, OuterConfig(learning_rate=0.7, momentum=0.9))


def main() -> None:
    address = local_address("example", "0" * 32, "ada")
    with LocalSwarms() as network, ExitStack() as opened:
        swarms = [opened.enter_context(network.open(name, address, MemoryBlobs())) for name in ("ada", "ben")]
        for path, swarm in enumerate(swarms):
            announce(swarm, PathIndex(path))
        for swarm in swarms:
            while len(swarm.members(0, MODULE)) < len(swarms):
                swarm.look_up(0, [MODULE], timeout=10.0)
        with ThreadPoolExecutor(2) as pool:
            ada, ben = pool.map(one_round, swarms, [PathIndex(0), PathIndex(1)])
    print(f"ada: version {ada.version}, {[round(x, 4) for x in ada.params.tolist()]}, digest {ada.digest[:16]}")
    print(f"ben: version {ben.version}, {[round(x, 4) for x in ben.params.tolist()]}, digest {ben.digest[:16]}")
    print("same bytes" if ada.digest == ben.digest else "different bytes")


if __name__ == "__main__":
    main()
