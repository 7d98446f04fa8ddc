"""The network node of this machine: a libp2p daemon, hivemind's DHT on top of it, and the streams of our protocol.

hivemind's own `DHT` forks a Python process around the same parts; here they live in the loop of the caller, so that a
peer is one Python process and one daemon. The daemon is started in a session of its own: Ctrl+C in a terminal goes to
us alone, and we say goodbye first.
"""

import asyncio
import contextlib
import logging
import re
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from hivemind.dht import DHTNode
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure, P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from dipaco_swarm.errors import NodeError, RemoteDataError, UnreachableError
from dipaco_swarm.swarm.channels import end_all, supervise
from dipaco_swarm.swarm.identity import Identity
from dipaco_swarm.swarm.pipe import Pipe, hand_streams_to, open_stream, read_stream_info
from dipaco_swarm.swarm.records import SignedRecords
from dipaco_swarm.swarm.sockets import sweep
from dipaco_swarm.swarm.wire import Meter, Stream

log = logging.getLogger(__name__)

START_SECONDS = 90.0
"""hivemind waits 15 s for the daemon, which a loaded machine misses; the daemon itself says when it cannot start."""
DAEMON_IDLE_SECONDS = 15
"""After a killed peer its daemon ends by itself this soon."""

MAX_STREAMS = 4096
"""Streams that others may have open to us at once; more are closed unheard."""

DIAL_SECONDS = 10.0
MAX_REMEMBERED = 4096

StreamHandler = Callable[[Stream], Awaitable[None]]


@dataclass(frozen=True)
class NodeSettings:
    """What this machine chose about its network."""

    listen: str = "/ip4/0.0.0.0/tcp/0"
    announce: tuple[str, ...] = ()
    """Addresses to tell others instead of the ones found; for ports forwarded by a router."""
    reachable: bool = True
    """False: nobody can dial us; we dial out, store no records for others, lead and reduce nothing."""


class NotOfThisRun(ConnectionError):
    """A peer that can be reached and does not speak the protocol, whose name has the run's fingerprint in it."""


class Node:
    """An open node. Make one with `open_node`."""

    def __init__(self, p2p: P2P, dht: DHTNode, identity: Identity, settings: NodeSettings, daemon: str) -> None:
        self.p2p = p2p
        self.dht = dht
        self.identity = identity
        self.settings = settings
        self.meter = Meter()
        self._daemon = daemon
        """Where the daemon listens: the path of a socket. We listen for its streams next to it."""
        self._socket = f"{daemon}.in"
        self._handlers: dict[str, StreamHandler] = {}
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def addresses(self) -> tuple[str, ...]:
        """Where others can dial us, each ending in /p2p/OUR-NAME; loopback last. Nowhere, for one behind a router."""
        try:
            visible = [str(address) for address in await self.p2p.get_visible_maddrs(latest=True)]
        except ValueError:  # hivemind's word for "none"
            return ()
        return tuple(sorted(visible, key=lambda address: (address.startswith("/ip4/127."), address)))

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        """Call `handler` with each stream that a peer opens for `protocol`; the stream closes when it returns."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: Pipe(self._accepted), self._socket)
        known = protocol in self._handlers
        self._handlers[protocol] = handler
        if not known:
            await hand_streams_to(self._daemon, self._socket, protocol)

    def _accepted(self, pipe: Pipe) -> None:
        if len(self._tasks) < MAX_STREAMS:
            supervise(self._tasks, self._handle(pipe))
        else:
            pipe.close()

    async def _handle(self, pipe: Pipe) -> None:
        try:
            peer, protocol = await read_stream_info(pipe)
            await self._handlers[protocol](Stream(peer, pipe, self.meter))
        except RemoteDataError as error:
            log.warning("ignored a peer that broke the protocol: %s", error)
        except (EOFError, ConnectionError, TimeoutError) as error:
            log.debug("a stream ended early: %s", error)
        finally:
            pipe.close()

    @contextlib.asynccontextmanager
    async def dial(self, peer: str, protocol: str, *, timeout: float = DIAL_SECONDS) -> AsyncIterator[Stream]:
        """A stream to a peer. Raises ConnectionError when it cannot be reached in time."""
        try:
            async with asyncio.timeout(timeout):
                pipe = await self._open(peer, protocol)
        except (ControlFailure, P2PDaemonError, TimeoutError, EOFError, OSError) as error:
            if "protocols not supported" in str(error):
                raise NotOfThisRun(f"peer {peer[-8:]} is there and takes no part in this run") from None
            log.debug("peer %s cannot be reached: %s", peer[-8:], error)
            raise ConnectionError(f"peer {peer[-8:]} cannot be reached just now") from None
        except ValueError:
            raise ConnectionError(f"{peer[:80]!r} is not the name of a peer") from None
        try:
            yield Stream(peer, pipe, self.meter)
        finally:
            pipe.close()

    async def _open(self, peer: str, protocol: str) -> Pipe:
        """A stream over the connection there is, or one that libp2p finds, or one to where the peer said it is."""
        try:
            return await open_stream(self._daemon, peer, protocol)
        except (ControlFailure, P2PDaemonError):
            if not self._addresses.get(peer):
                raise
            await self._connect(peer, self._addresses[peer])
            return await open_stream(self._daemon, peer, protocol)

    def remember(self, peer: str, addresses: Sequence[str]) -> None:
        """Where a peer says that it can be dialled."""
        if len(self._addresses) >= MAX_REMEMBERED and peer not in self._addresses:
            self._addresses.pop(next(iter(self._addresses)))
        self._addresses[peer] = tuple(addresses)

    async def _connect(self, peer: str, addresses: Sequence[str]) -> None:
        bare = [Multiaddr(address.rpartition("/p2p/")[0] or address) for address in addresses]
        # hivemind's P2P has no public way to connect to an address
        await self.p2p._client.connect(PeerID.from_base58(peer), bare)

    async def greet(self, address: str) -> None:
        """Make sure that we and the node at this address know each other, in libp2p and in the DHT."""
        peer = address.rpartition("/p2p/")[2]
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await self._connect(peer, [address])
                await self.dht.protocol.call_ping(PeerID.from_base58(peer))
        except (ControlFailure, P2PDaemonError, TimeoutError, OSError, EOFError, ValueError) as error:
            log.debug("%s does not answer: %s", address, error)

    async def close(self) -> None:
        """End what still serves others."""
        if self._server is not None:
            self._server.close()
            Path(self._socket).unlink(missing_ok=True)
        await end_all(self._tasks)


@contextlib.asynccontextmanager
async def open_node(identity: Identity, bootstraps: Sequence[str], settings: NodeSettings) -> AsyncIterator[Node]:
    """Start the daemon, join the DHT, and yield the node; everything ends with the block.

    Raises NodeError when this machine is the reason (port in use, no daemon), UnreachableError when no bootstrap node
    answers.
    """
    _check_port(settings.listen)
    async with _daemon(identity, bootstraps, settings) as control:
        p2p = await P2P.replicate(control)
        dht: DHTNode | None = None
        try:
            dht = await _join(p2p, bootstraps, settings)
            node = Node(p2p, dht, identity, settings, control.value_for_protocol("unix"))
            try:
                yield node
            finally:
                await node.close()
        finally:
            if dht is not None:
                await dht.shutdown()
            await p2p.shutdown()


async def _join(p2p: P2P, bootstraps: Sequence[str], settings: NodeSettings) -> DHTNode:
    try:
        return await DHTNode.create(
            p2p,
            initial_peers=list(bootstraps),
            client_mode=not settings.reachable,
            record_validator=SignedRecords(),
            # what others say must be fresh: no caches between a statement and its reader
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            wait_timeout=5,
            strict=False,
            ensure_bootstrap_success=True,
        )
    except (RuntimeError, P2PDaemonError, ControlFailure) as error:
        raise UnreachableError(_nobody_answers(bootstraps, str(error))) from None


def _nobody_answers(bootstraps: Sequence[str], detail: str) -> str:
    return (
        f"no bootstrap node answers at {', '.join(bootstraps)} ({detail}); check the run address and your connection, "
        "or ask the operator whether the node is up"
    )


@contextlib.asynccontextmanager
async def _daemon(identity: Identity, bootstraps: Sequence[str], settings: NodeSettings) -> AsyncIterator[Multiaddr]:
    """Run hivemind's `p2pd` and yield its control address."""
    sweep()
    binary = files("hivemind.hivemind_cli") / "p2pd"
    control = Multiaddr(f"/unix/tmp/dipaco-{secrets.token_urlsafe(8)}.sock")
    arguments = [
        f"-listen={control}",
        f"-hostAddrs={settings.listen}",
        f"-id={identity.path}",
        f"-idleTimeout={DAEMON_IDLE_SECONDS}s",
        "-dhtServer=1" if settings.reachable else "-dhtClient=1",
        "-relay=1",
        "-connManager=1",
        "-tls=1",
        "-persistentConnMaxMsgSize=4194304",
    ]
    if not settings.listen.startswith("/ip4/127."):
        arguments += ["-natPortMap=1", "-autonat=1"]
    if settings.announce:
        arguments.append(f"-announceAddrs={','.join(settings.announce)}")
    if not settings.reachable:
        arguments += ["-noListenAddrs=1"]
    if bootstraps:
        arguments += ["-b=1", f"-bootstrapPeers={','.join(bootstraps)}"]
    try:
        process = await asyncio.create_subprocess_exec(
            str(binary),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise NodeError(
            f"the network daemon cannot be started on {sys.platform}: {error}; reinstall hivemind, and on Windows "
            "use WSL"
        ) from None
    drain: asyncio.Task[None] | None = None
    try:
        await _until_ready(process, bootstraps)
        drain = asyncio.create_task(_drain(process))
        yield control
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 2)
            except TimeoutError:
                process.kill()
                await process.wait()
        if drain is not None:
            await drain


async def _until_ready(process: asyncio.subprocess.Process, bootstraps: Sequence[str]) -> None:
    """Read the daemon's output until it says its name; diagnose it when it does not."""
    assert process.stdout is not None
    said: list[str] = []
    try:
        async with asyncio.timeout(START_SECONDS):
            async for line in process.stdout:
                text = line.decode(errors="replace").strip()
                if text.startswith("Peer ID:"):
                    return
                said.append(text)
    except TimeoutError:
        raise NodeError(
            f"the network daemon did not start within {START_SECONDS:.0f} s; the machine may be overloaded, "
            f"or its temporary folder full. It said: {'; '.join(said[-3:]) or 'nothing'}"
        ) from None
    await process.wait()  # reaped here, and not by whoever ends it next
    last = _without_time(said[-1]) if said else "nothing"
    if any("bootstrap" in line for line in said):
        raise UnreachableError(_nobody_answers(bootstraps, last))
    raise NodeError(f"the network daemon stopped at once; it said: {last}")


def _without_time(line: str) -> str:
    """What the daemon said, without the date that Go puts before it."""
    return re.sub(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ", "", line)


async def _drain(process: asyncio.subprocess.Process) -> None:
    """Keep the daemon's output flowing; a full pipe would stop it."""
    assert process.stdout is not None
    async for line in process.stdout:
        log.debug("daemon: %s", line.decode(errors="replace").rstrip())


def _check_port(listen: str) -> None:
    """Raise NodeError when somebody listens there; the daemon itself would silently share the port."""
    parts = listen.split("/")
    if len(parts) < 5 or parts[1] not in ("ip4", "ip6") or parts[3] != "tcp" or not parts[4].isdecimal():
        raise NodeError(f"{listen!r} is not an address to listen on; it looks like /ip4/0.0.0.0/tcp/4001")
    host, port = parts[2], int(parts[4])
    if port == 0:
        return
    with socket.socket(socket.AF_INET if parts[1] == "ip4" else socket.AF_INET6, socket.SOCK_STREAM) as probe:
        # as a server would: ports of closed connections may be taken again
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise NodeError(
                f"port {port} on {host} cannot be used: {error.strerror}; another program (a second node?) has it, "
                "so stop that or choose another port with --listen"
            ) from None
