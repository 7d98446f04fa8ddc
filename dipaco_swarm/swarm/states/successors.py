"""A newer state made here, from one that we have and the averages of the rounds since.

A holder says which averages lead there from what we have: our last state or, when we have gone astray alone, the one
before, from which the others went on. Each is a blob and comes as blobs do: checked by its digest, from one peer
after the other, from where it broke off. The state that they make must have the digest that was asked for. If it has
not, whoever named the averages lied: it is named in the log, and not asked for that state again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from dipaco_swarm.algorithm.forgetting import keep_last
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState, all_finite
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.encoded_average import EncodedAverage
from dipaco_swarm.swarm.fetching import Follow
from dipaco_swarm.swarm.round.codecs.codec import Buffer
from dipaco_swarm.swarm.states.averages import KeptAverages, is_cheaper, pack, unpack
from dipaco_swarm.swarm.states.shelf import Shelf
from dipaco_swarm.swarm.transport import Executor, Transport
from dipaco_swarm.swarm.wire import AskAverages, AveragesAre, PackedAverage

log = logging.getLogger(__name__)

MAX_ASKED = 8
"""Holders, for one state; then the state itself is fetched."""
MAX_LIARS = 256

Chain = tuple[PackedAverage, ...]
"""Averages, each from the state to which the one before leads."""
FetchBlob = Callable[[Sequence[str], PackedAverage], Awaitable[bytes | None]]
"""The bytes of an average from the first of these peers that sends them; None when none does."""


class Successors:
    """Asks others for averages, and takes their outer steps."""

    def __init__(
        self,
        transport: Transport,
        compute: Executor,
        protocol: str,
        kept: KeptAverages,
        fetch: FetchBlob,
        shelf: Shelf,
    ) -> None:
        self._transport = transport
        self._compute = compute
        self._protocol = protocol
        self._kept = kept
        self._fetch = fetch
        self._shelf = shelf
        self._liars: dict[tuple[str, str], None] = {}
        """Peer and digest of the state to which its averages did not lead; the oldest first."""

    async def make(
        self,
        peers: Sequence[str],
        stage: int,
        module: ModuleId,
        digest: str,
        bases: Mapping[str, ModuleState],
        follow: Follow,
    ) -> ModuleState | None:
        """The state with this digest, by the word of the first of `peers` that is right; None when none is.

        `bases`: states that we have, by digest; the nearest is gone on from.
        """
        ask = AskAverages(stage=stage, module=str(module), bases=tuple(bases), to=digest)
        parameters = max(len(base.params) for base in bases.values())
        asked = [peer for peer in peers if (peer, digest) not in self._liars][:MAX_ASKED]
        wrong: set[Chain] = set()
        for peer in asked:
            try:
                chain = await self._chain_by(peer, ask)
                if not chain or not is_cheaper(chain, parameters):
                    continue
                if chain in wrong:  # the same averages lead to the same state, whoever names them
                    raise _misled(peer, module, digest)
                found = await self._fetched(peer, asked, chain, parameters)
                if found is None:
                    continue
                state = await self._compute.aside(self._followed, follow, bases, found)
                if state is None or state.digest != digest or not await self._compute.aside(_is_finite, state):
                    wrong.add(chain)
                    raise _misled(peer, module, digest)
                ends = [*(average.base for average in found[1:]), digest]
                for average, to in zip(found, ends, strict=True):  # others may have them from us
                    self._kept.hold(stage, module, pack(average, to), parameters)
                return state
            except RemoteDataError as error:
                self._transport.border.note(error, "does without the averages of a peer")
                self._liars[peer, digest] = None
                keep_last(self._liars, MAX_LIARS)
            except (ConnectionError, EOFError, TimeoutError) as error:
                log.info("averages of %s without peer %s: %s", module, peer[-8:], str(error) or "no answer")
        return None

    async def _chain_by(self, peer: str, ask: AskAverages) -> Chain:
        """The averages that a peer names; empty when it knows of none."""
        async with self._transport.dial(peer, self._protocol) as stream:
            await stream.send(ask)
            async with asyncio.timeout(self._transport.timing.dial):
                answer = await stream.receive()
        return answer.averages if isinstance(answer, AveragesAre) else ()

    async def _fetched(
        self, peer: str, others: Sequence[str], chain: Chain, parameters: int
    ) -> list[EncodedAverage] | None:
        """The averages that a peer has named, of whoever sends them; None when nobody sends one of them."""
        found = []
        for packed in chain:
            data = self._kept.get(packed.digest) or await self._fetch(list(dict.fromkeys((peer, *others))), packed)
            if data is None:
                return None
            found.append(await self._compute.aside(self._unpacked, peer, packed.digest, data, parameters))
        return found

    def _unpacked(self, peer: str, digest: str, data: Buffer, parameters: int) -> EncodedAverage:
        shelved = self._shelf.put([data])
        return replace(unpack(peer, shelved, parameters), blob=(digest, shelved))

    def _followed(
        self, follow: Follow, bases: Mapping[str, ModuleState], averages: Sequence[EncodedAverage]
    ) -> ModuleState | None:
        base = bases.get(averages[0].base)
        return None if base is None else led_on(follow, base, averages, self._shelf)


def led_on(follow: Follow, base: ModuleState, averages: Sequence[EncodedAverage], shelf: Shelf) -> ModuleState | None:
    """The state that these averages lead to, on the shelf, and its digest known; None when one of them does not fit."""
    state = follow(base, averages, shelf)
    if state is not None:
        state.digest  # noqa: B018  # computed here, not in the loop
        shelf.rest(base, state)
    return state


def _misled(peer: str, module: ModuleId, digest: str) -> RemoteDataError:
    return RemoteDataError(peer, f"names averages that do not lead to state {digest[:8]} of {module}")


def _is_finite(state: ModuleState) -> bool:
    return all_finite(state.params) and all_finite(state.momentum)
