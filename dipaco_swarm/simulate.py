"""A whole run in one process: the same bootstrap node and the same peers, as threads over the in-memory swarm.

For experiments, and as the reference that the networked run is compared with, byte for byte: with the same names of
peers, seeds and threads, synchronous rounds and no faults, both end on the same states.
"""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dipaco_swarm.algorithm.paths import ModuleId, PathTable
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.bootstrap import Kept, Operator, load_operator_key
from dipaco_swarm.dashboard.screens import NoScreen, Screen
from dipaco_swarm.manifest import RunAddress, RunConfig, fingerprint_of
from dipaco_swarm.peer import Volunteer
from dipaco_swarm.settings import PeerSettings
from dipaco_swarm.stopping import Stopping
from dipaco_swarm.swarm.blobs import BlobStore
from dipaco_swarm.swarm.memory import MemoryHub, MemorySwarm


def simulate(
    config: RunConfig, home: Path, peers: Mapping[str, int | None], *, threads: int = 1, screen: Screen | None = None
) -> dict[ModuleId, ModuleState]:
    """Run to the end of the last stage; returns the final state of every module.

    `peers`: name of each peer -> the path it asks for (None: auto). `home`: a folder for shards and checkpoints, and in
    `home/bootstrap` all that a bootstrap node keeps, for evaluation, generation and export. Raises SwarmError as a real
    node or peer would.
    """
    hub = MemoryHub(BlobStore(home / "bootstrap" / "blobs"))
    stop = Stopping()
    screen = screen or NoScreen()
    key = load_operator_key(home / "bootstrap")
    kept = Kept(home / "bootstrap")
    fingerprint = fingerprint_of(key.public_key())
    address = RunAddress(config.name, fingerprint, ())
    hub_ready = threading.Event()

    def operate() -> None:
        operator = Operator(config, key, MemorySwarm(hub, "bootstrap"), kept, screen, stop, str(address))
        hub_ready.set()
        operator.run(until_finished=True)

    def volunteer(name: str, path: int | None) -> None:
        settings = PeerSettings(
            address=address,
            path=path,
            home=home / name,
            cache=home / "cache",
            listen=None,
            device="cpu",
            micro_batch=None,
            threads=threads,
            until_finished=True,
            rounds=None,
            screen="none",
        )
        swarm = MemorySwarm(hub, name)
        stop.tell(swarm.interrupt)
        Volunteer(settings, swarm, screen, stop).live()

    with ThreadPoolExecutor(len(peers) + 1) as pool:
        work = [pool.submit(operate), *(pool.submit(volunteer, name, path) for name, path in peers.items())]
        for done in work:
            # one that fails ends all of them; its error is raised below
            done.add_done_callback(lambda future: stop.request() if future.exception() else None)
    for done in work:
        done.result()
    manifest = kept.manifest(fingerprint)
    assert manifest is not None, "the operator published one before anybody trained"
    return final_states(home / "bootstrap", manifest.stage.index, PathTable(manifest.stage.table))


def final_states(home: Path, stage: int, table: PathTable) -> dict[ModuleId, ModuleState]:
    """What a bootstrap node's home folder holds of a stage; modules it holds only as seeds are left out."""
    kept = Kept(home)
    states = {module: kept.state(stage, module) for module in table.modules}
    return {module: state for module, state in states.items() if state is not None}
