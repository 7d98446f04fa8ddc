"""Strangers who say anything to two honest peers of one process, for as long as you like.

    python -m benchmarks.fuzz [--minutes 1] [--seed 0]

What they say is drawn from the classes of the messages, by a seed. They come to every protocol under new names, and
are announced as members, so that honest peers come to them. Exit code 1 when a mistake of ours was found, or when the
honest peers do not agree any more; its traceback is printed.
"""

import argparse
import asyncio
import contextlib
import itertools
import logging
import sys
import time
from dataclasses import dataclass

import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup, PeerName
from dipaco_swarm.swarm.local import LocalNetwork, LocalSwarms, LocalTransport, local_address
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.states.blobs import MemoryBlobs
from dipaco_swarm.testing.stranger import Visitor

FINGERPRINT = "a" * 32
PROTOCOLS = ("round", "exchange", "store")
MODULE = ModuleId(0, 0)
STATE = ModuleState(3, torch.arange(3000.0), torch.ones(3000), work=7)
VISITORS = 8
"""At once."""


@dataclass(frozen=True)
class Played:
    """What came of it."""

    said: int
    refused: int
    mistakes: int
    agreed: bool
    """Whether the honest peers agreed on a round in the end."""


def play(seed: int, seconds: float) -> Played:
    """Two honest peers make rounds while strangers come for so many seconds; then they make one alone."""
    network = LocalNetwork()
    values = {
        "stage": (0,),
        "module": (str(MODULE),),
        "version": (STATE.version, STATE.version + 1),
        "digest": (STATE.digest, "f" * 64),
        "to": (STATE.digest,),
        "work": (STATE.work, STATE.work + 1, 1 << 61),
        "path": (0, 1),
        "parameters": (len(STATE.params),),
        "leader": (None, "peer-0", "stranger"),
    }
    visitor = Visitor(network, seed, values)
    with LocalSwarms(network) as swarms, contextlib.ExitStack() as opened:
        address = local_address("test", FINGERPRINT, "peer-0")
        peers = [opened.enter_context(swarms.open(f"peer-{i}", address, MemoryBlobs())) for i in range(2)]
        group = ModuleGroup(0, MODULE, {PathIndex(0): 0.5, PathIndex(1): 0.5})
        for path, peer in enumerate(peers):
            peer.configure_rounds("int8", 4.0)
            peer.hold(0, MODULE, STATE)
            peer.announce([_said(peer.peer, path)], [group])
        stop = asyncio.Event()
        visits = asyncio.run_coroutine_threadsafe(_visits(network, visitor, peers, stop), swarms._loop)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for peer in peers:
                network_says = Announcement(PeerName("stranger"), 0, MODULE, PathIndex(1), 3, STATE.digest, 7)
                swarms.portal.soon(peer._directory.heard_directly, network_says)
            _round(peers, group, patience=0.2)
        swarms.portal.soon(stop.set)
        visits.result(60)
        mistakes = sum(peer._transport.border.bugs for peer in peers)
        agreed = any(_round(peers, group, patience=20.0) for _ in range(5))
        return Played(visitor.said, visitor.refused, mistakes, agreed)


async def _visits(network: LocalNetwork, visitor: Visitor, peers: list[NetworkedSwarm], stop: asyncio.Event) -> None:
    """Strangers come to everybody, and one of them is there to be come to."""
    there = LocalTransport(network, "stranger")
    there.open()
    for protocol in PROTOCOLS:
        await there.serve(f"dipaco/1/{FINGERPRINT}/{protocol}", visitor.babble)
    numbers = itertools.count()

    async def come() -> None:
        while not stop.is_set():
            for peer in peers:
                for protocol in PROTOCOLS:
                    await visitor.visit(peer.peer, f"dipaco/1/{FINGERPRINT}/{protocol}", f"visitor-{next(numbers)}")
            await asyncio.sleep(0.01)  # the honest have their turn

    await asyncio.gather(*(come() for _ in range(VISITORS)))
    await there.close()


def _round(peers: list[NetworkedSwarm], group: ModuleGroup, patience: float) -> bool:
    """Whether the honest peers agree on a round of theirs."""
    parts = [
        Contribution(group, PathIndex(path), STATE.version, torch.ones(len(STATE.params)), 5, STATE.digest, STATE.work)
        for path in range(len(peers))
    ]
    begun = [peer.begin_round(part, patience=patience) for peer, part in zip(peers, parts, strict=True)]
    outcomes = [round.outcome(timeout=60.0) for round in begun]
    return all(isinstance(outcome, Agreed) and len(outcome.contributors) == len(peers) for outcome in outcomes)


def _said(peer: PeerName, path: int) -> Announcement:
    return Announcement(peer, 0, MODULE, PathIndex(path), STATE.version, STATE.digest, STATE.work, catching_up=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("dipaco_swarm.swarm.border").addFilter(lambda record: record.exc_info is not None)
    logging.getLogger("dipaco_swarm.swarm.border").setLevel(logging.DEBUG)
    until, seed, failed = time.monotonic() + 60 * arguments.minutes, arguments.seed, False
    while time.monotonic() < until:
        played = play(seed, min(20.0, max(1.0, until - time.monotonic())))
        print(f"seed {seed}: {played}", flush=True)
        failed |= played.mistakes > 0 or not played.agreed
        seed += 1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
