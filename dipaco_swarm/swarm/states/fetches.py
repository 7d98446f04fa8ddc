"""How a peer comes by a state that others have: whom it asks, in which order, and what it takes."""

import asyncio
import contextlib
from collections.abc import Sequence

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.swarm.directory import Directory
from dipaco_swarm.swarm.fetching import Older
from dipaco_swarm.swarm.states.store import Store
from dipaco_swarm.swarm.transport import Transport


class Fetches:
    """Used in the loop, but for `holders` and `senders`."""

    def __init__(
        self,
        transport: Transport,
        directory: Directory,
        store: Store,
        bootstraps: Sequence[str],
    ) -> None:
        """`bootstraps`: names of nodes that may have any state."""
        self._transport = transport
        self._directory = directory
        self._store = store
        self._bootstraps = tuple(bootstraps)

    def holders(self, stage: int, module: ModuleId, digest: str) -> list[str]:
        """Whom to ask for a state, or for what led to it, in this order."""
        members = list(self._directory.members(stage, module))
        self._transport.random.shuffle(members)  # joiners spread over the holders
        # who announces it first, then who may have had it before; of those the operator's nodes and whom we know before
        # strangers, as anybody may announce anything; and keepers, which are in no round, before who trains
        roots, knows = self._bootstraps, self._directory.knows
        members.sort(
            key=lambda said: (said.digest != digest, said.peer not in roots, not knows(said.peer), said.trains)
        )
        asked = dict.fromkeys((*(said.peer for said in members), *self._bootstraps))
        return [peer for peer in asked if peer != self._transport.peer]

    def senders(self, known: Sequence[str], first: str | None) -> list[str]:
        """Whom to ask for a file, in this order: `first`, the operator's nodes, whom we know, strangers."""
        others = list(known)
        self._transport.random.shuffle(others)  # a name can be made up so that it would be the first of all
        others.sort(key=self._transport.border.is_strange)
        asked = dict.fromkeys((*([] if first is None else [first]), *self._bootstraps, *others))
        return [peer for peer in asked if peer != self._transport.peer]

    async def state(
        self,
        holders: Sequence[str],
        stage: int,
        module: ModuleId,
        digest: str,
        timeout: float,  # for all of it; half of it for the averages
        parameters: int | None,
        older: Older | None,
    ) -> ModuleState | None:
        """See `Swarm.fetch_state`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                made = older and await self._store.make_state(holders, stage, module, digest, older, timeout / 2)
                return made or await self._store.fetch_state(holders, stage, module, digest, parameters)
        return None
