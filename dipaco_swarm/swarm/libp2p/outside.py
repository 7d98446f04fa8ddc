"""How this machine looks from a run's bootstrap nodes, for `doctor`: a short visit that joins nothing."""

import asyncio
import contextlib
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.swarm.addresses import is_relayed
from dipaco_swarm.swarm.libp2p.identity import Identity, load_identity
from dipaco_swarm.swarm.libp2p.reachability import our_version, ports_of
from dipaco_swarm.swarm.libp2p.settings import NodeSettings
from dipaco_swarm.swarm.libp2p.starting import open_door

VISIT_SECONDS = 25.0
RELAY_SECONDS = 5.0
"""A bootstrap node that relays takes a peer in within a second."""


@dataclass(frozen=True)
class Outside:
    """What the bootstrap node that answered first says about us."""

    seen_at: str
    """The IP address that we come from."""
    port: int | None
    """Where all that tried can dial us there; None: some cannot."""
    tried: bool
    """False: it did not try."""
    relayed: bool
    """Whether others can come through it; not tried where they can dial us."""
    clock_ahead: float
    """Seconds that our clock is ahead of its."""
    version: str
    our_version: str


def look_from_outside(address: RunAddress, listen: str) -> Outside | None:
    """Listen as a peer would, and ask the bootstrap nodes; None when none of them can say.

    Raises NodeError when this machine cannot listen there, UnreachableError when nobody answers.
    """

    async def in_time() -> Outside | None:
        try:
            async with asyncio.timeout(VISIT_SECONDS):
                return await _look(address, listen)
        except TimeoutError:
            raise UnreachableError(
                f"no bootstrap node spoke to us within {VISIT_SECONDS:.0f} s; something else may listen at its address"
            ) from None

    return asyncio.run(in_time())


async def _look(address: RunAddress, listen: str) -> Outside | None:
    settings = NodeSettings(listen=listen, reachable=None)
    with tempfile.TemporaryDirectory(prefix="dipaco-") as home:
        identity = load_identity(Path(home))
        async with open_door(identity, address.bootstraps, settings) as node:
            ports = ports_of(await node.addresses())
            for place in address.bootstraps:
                asked = time.time()
                first = await node.ask(place)
                answered = time.time()
                if first is not None:
                    break
            else:
                return None
            # knocking takes as long as it takes, so the clock is asked before
            knocks = [said for said in await asyncio.gather(*(node.ask(p, ports) for p in address.bootstraps)) if said]
        told = [said.reached for said in knocks if said.reached is not None]
        open_ports = [port for port in ports if told and all(port in reached for reached in told)]
        return Outside(
            seen_at=first.seen_at.rpartition("/")[2],
            port=open_ports[0] if open_ports else None,
            tried=bool(told),
            relayed=not open_ports and await _is_relayed(identity, address, settings),
            clock_ahead=(asked + answered) / 2 - first.time,
            version=first.version,
            our_version=our_version(),
        )


async def _is_relayed(identity: Identity, address: RunAddress, settings: NodeSettings) -> bool:
    with contextlib.suppress(TimeoutError):
        async with open_door(identity, address.bootstraps, settings, relayed=True) as node:
            async with asyncio.timeout(RELAY_SECONDS):
                while not any(map(is_relayed, await node.addresses())):
                    await asyncio.sleep(0.2)  # the daemon tells nobody when it has been taken in
                return True
    return False
