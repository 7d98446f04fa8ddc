"""Swarms for the contract tests: the same tests run over memory and over real libp2p daemons on 127.0.0.1."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dipaco_swarm.manifest import RunAddress, fingerprint_of
from dipaco_swarm.swarm.interface import Swarm
from dipaco_swarm.swarm.libp2p.node import NodeSettings
from dipaco_swarm.swarm.memory import MemoryHub, MemorySwarm
from dipaco_swarm.swarm.networked import LibP2PSwarm, open_swarm

LOOPBACK = NodeSettings(listen="/ip4/127.0.0.1/tcp/0")

MakeSwarms = Callable[[int], list[Swarm]]


@pytest.fixture(scope="session")
def operator_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture
def make_libp2p_swarms(tmp_path: Path, operator_key: Ed25519PrivateKey) -> Iterator[Callable[[int], list[LibP2PSwarm]]]:
    """Open n swarms in this process, each with its own daemon; the first is the bootstrap node of the others."""
    with contextlib.ExitStack() as stack:

        def make(count: int) -> list[LibP2PSwarm]:
            address = RunAddress("test", fingerprint_of(operator_key.public_key()), ())
            swarms: list[LibP2PSwarm] = []
            for i in range(count):
                swarm = stack.enter_context(open_swarm(address, tmp_path / f"home-{i}", LOOPBACK))
                swarms.append(swarm)
                if i == 0:
                    address = swarm.address
            return swarms

        yield make


@pytest.fixture(params=["memory", pytest.param("libp2p", marks=pytest.mark.swarm)])
def make_swarms(request: pytest.FixtureRequest) -> MakeSwarms:
    if request.param == "libp2p":
        make: MakeSwarms = request.getfixturevalue("make_libp2p_swarms")
        return make
    hub = MemoryHub()
    return lambda count: [MemorySwarm(hub, f"peer-{i}") for i in range(count)]
