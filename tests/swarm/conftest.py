"""Swarms for the contract tests: the same tests run within one process, over a simulated network with delays, and over
real libp2p daemons on 127.0.0.1.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dipaco_swarm.machine.clock import SYSTEM_CLOCK
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.signature import fingerprint_of
from dipaco_swarm.swarm.interface import Swarm
from dipaco_swarm.swarm.libp2p.opening import open_swarm
from dipaco_swarm.swarm.libp2p.settings import NodeSettings
from dipaco_swarm.swarm.local import LocalNetwork, LocalSwarms, local_address
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.states.blobs import MemoryBlobs
from dipaco_swarm.testing.directory import SimulatedDirectory, SimulatedRecords
from dipaco_swarm.testing.network import Line, SimulatedNetwork

LOOPBACK = NodeSettings(listen="/ip4/127.0.0.1/tcp/0")

MakeSwarms = Callable[[int], Sequence[Swarm]]
MakeNetworked = Callable[[int], list[NetworkedSwarm]]


@pytest.fixture(scope="session")
def operator_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture
def make_libp2p_swarms(tmp_path: Path, operator_key: Ed25519PrivateKey) -> Iterator[MakeNetworked]:
    """Open n swarms in this process, each with its own daemon; the first is the bootstrap node of the others."""
    with contextlib.ExitStack() as stack:

        def make(count: int) -> list[NetworkedSwarm]:
            address = RunAddress("test", fingerprint_of(operator_key.public_key()), ())
            swarms: list[NetworkedSwarm] = []
            for i in range(count):
                swarm = stack.enter_context(open_swarm(address, tmp_path / f"home-{i}", LOOPBACK))
                swarms.append(swarm)
                if i == 0:
                    address = swarm.address
            return swarms

        yield make


@pytest.fixture
def make_local_swarms(operator_key: Ed25519PrivateKey) -> Iterator[MakeSwarms]:
    """Swarms of one process; the first is the bootstrap node of the others."""
    address = local_address("test", fingerprint_of(operator_key.public_key()), "peer-0")
    with LocalSwarms() as swarms, contextlib.ExitStack() as opened:
        yield lambda count: [
            opened.enter_context(swarms.open(f"peer-{i}", address, MemoryBlobs())) for i in range(count)
        ]


@pytest.fixture
def make_simulated_swarms(operator_key: Ed25519PrivateKey) -> Iterator[MakeSwarms]:
    """Swarms on a simulated network, in real time: quick lines, small delays, late messages, stale reads."""
    address = local_address("test", fingerprint_of(operator_key.public_key()), "peer-0")
    link = SimulatedNetwork(Random("lines"))
    directory = SimulatedDirectory(link, Random("directory"), SYSTEM_CLOCK)
    with LocalSwarms(LocalNetwork(link)) as swarms, contextlib.ExitStack() as opened:

        def make(count: int) -> list[NetworkedSwarm]:
            names = [f"peer-{number}" for number in range(count)]
            for name in names:
                link.lines[name] = Line(up=5e7, down=5e7, delay=0.002, jitter=0.002, loss=0.01)
            return [
                opened.enter_context(
                    swarms.open(name, address, MemoryBlobs(), records=SimulatedRecords(directory, name, SYSTEM_CLOCK))
                )
                for name in names
            ]

        yield make


@pytest.fixture(params=["local", "simulated", pytest.param("libp2p", marks=pytest.mark.swarm)])
def make_swarms(request: pytest.FixtureRequest) -> MakeSwarms:
    make: MakeSwarms = request.getfixturevalue(f"make_{request.param}_swarms")
    return make
