"""Where the operator's node hears of who was convicted: it makes no rounds, and sees for itself all the same."""

import asyncio

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.checks import Accusation
from dipaco_swarm.swarm.proofs import Proof
from dipaco_swarm.swarm.round.accusing import Accusing
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from dipaco_swarm.swarm.round.standing import Standing
from dipaco_swarm.swarm.transport import Portal, Stream, Transport


class Court:
    """Of one node. `open` may be called from any thread but the loop's, all others in the loop."""

    def __init__(self, portal: Portal, transport: Transport, run: str, standing: Standing) -> None:
        """`run`: its fingerprint."""
        self._portal = portal
        self._transport = transport
        self._run = run
        self._protocol = f"dipaco/1/{run}/round"
        self._standing = standing
        self._compute = transport.executor()
        self._accusing: Accusing | None = None

    def open(self, codec: str) -> None:
        """Hear who accuses reducers of rounds with this codec, and of those with one before no more."""
        self._portal.run(self._open(codec))

    async def stop(self) -> None:
        await self._forget()
        self._compute.close()

    async def _open(self, codec: str) -> None:
        await self._forget()
        self._accusing = Accusing(
            self._transport, self._protocol, self._run, codec_of(codec), self._compute, self._standing
        )
        await self._transport.serve(self._protocol, self._on_stream)

    async def _forget(self) -> None:
        if self._accusing is not None:
            await self._accusing.stop()

    async def _on_stream(self, stream: Stream) -> None:
        async with asyncio.timeout(self._transport.timing.silence):
            message = await stream.receive()
        assert self._accusing is not None, "it is there before anybody is heard"
        match message:
            case Accusation():
                await self._accusing.hear(stream, message)
            case Proof():
                if not self._standing.ban(message):
                    raise RemoteDataError(stream.peer, "accuses somebody of what it does not prove")
            case _:
                raise RemoteDataError(stream.peer, f"says {type(message).__name__} to a node that makes no rounds")
