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
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from hivemind.dht import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure, P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from dipaco_swarm.errors import NodeError, RemoteDataError, UnreachableError
from dipaco_swarm.machine.clock import SYSTEM_CLOCK, Clock
from dipaco_swarm.swarm.addresses import address_of, is_on_this_machine, is_relayed, name_in, place_in
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.libp2p import reachability as reach
from dipaco_swarm.swarm.libp2p import relay
from dipaco_swarm.swarm.libp2p.dht import DhtRecords, SignedRecords
from dipaco_swarm.swarm.libp2p.identity import Identity, load_identity
from dipaco_swarm.swarm.libp2p.pipe import Pipe, hand_streams_to, open_stream, read_stream_info
from dipaco_swarm.swarm.libp2p.rate_limit import Pace
from dipaco_swarm.swarm.libp2p.stale_sockets import sweep
from dipaco_swarm.swarm.libp2p.stream import PipeStream
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.threads import Threads
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.transport import Meter, NotOfThisRun, Stream, StreamHandler
from dipaco_swarm.swarm.wire import Hello, Welcome

log = logging.getLogger(__name__)

START_SECONDS = 90.0
"""hivemind waits 15 s for the daemon, which a loaded machine misses; the daemon itself says when it cannot start."""
DAEMON_IDLE_SECONDS = 15
"""After a killed peer its daemon ends by itself this soon."""

MAX_STREAMS = 4096
"""Streams that others may have open to us at once; more are closed unheard."""

DIAL_SECONDS = 10.0
CLOSE_SECONDS = 2.0
MAX_REMEMBERED = 4096

MEET_ATTEMPTS = 2
ASK_SECONDS = 6.0
"""A bootstrap node that has not said by then how it sees us is not waited for."""
DOUBTS = 2
"""So often in a row a reachable peer must be found unreachable; one lost packet should not make it one."""
RELAY_ATTEMPTS = 12
"""A daemon relays with the wrong limits about every fifth time."""


@dataclass(frozen=True)
class NodeSettings:
    """What this machine chose about its network."""

    listen: str = "/ip4/0.0.0.0/tcp/0"
    announce: tuple[str, ...] = ()
    """Addresses to tell others instead of the ones found; for ports forwarded by a router."""
    reachable: bool | None = True
    """Whether others can dial us; None: the bootstrap nodes are asked, at the start and now and then.

    Whom nobody can dial dials out, takes what others want of it through a bootstrap node, which relays, and stores no
    records for others. It leads and reduces only where no member of the group can be dialled.
    """
    bandwidth: float | None = None
    """Bytes per second of modules, outer gradients and blobs that we send at most."""

    def settled(self, places: Sequence[str]) -> "NodeSettings":
        """The same, on the port that was found free: whoever knows these addresses of ours should find us there again.

        Nothing changes where the operator has chosen the port, or what others are told.
        """
        # among the others may be one that our router has chosen
        found = reach.ports_of([place for place in places if is_on_this_machine(place)] or places)
        if not self.listen.endswith("/tcp/0") or self.announce or not found:
            return self
        return replace(self, listen=f"{self.listen.removesuffix('/tcp/0')}/tcp/{found[0]}")


class Node:
    """An open node. Make one with `open_node`."""

    dht: DHTNode

    def __init__(
        self, p2p: P2P, identity: Identity, settings: NodeSettings, daemon: str, daemon_ended: asyncio.Event
    ) -> None:
        self.p2p = p2p
        self.daemon_ended = daemon_ended
        self.identity = identity
        self.settings = settings
        self.clock: Clock = SYSTEM_CLOCK
        self.timing = Timing()
        self.random: Random = SystemRandom()
        self.reachable = settings.reachable is not False
        """Whether others can dial us, as far as we know."""
        self.meter = Meter(self.clock)
        self._pace = Pace(settings.bandwidth)
        self._seen_at: tuple[str, ...] = ()
        """Addresses at which bootstrap nodes see us, and at which we can be dialled."""
        self._doubts = 0
        self.daemon = daemon
        """Where the daemon listens: the path of a socket. We listen for its streams next to it."""
        self._socket = f"{daemon}.in"
        self._handlers: dict[str, StreamHandler] = {}
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._streams: Counter[str] = Counter()
        """Open ones, by peer."""
        self._by_relay: set[str] = set()
        """Peers that can be dialled and that we may be talking to through a relay all the same."""
        self._server: asyncio.Server | None = None
        self._tasks = Tasks()

    @property
    def peer(self) -> PeerName:
        return self.identity.peer

    @property
    def records(self) -> DhtRecords:
        return DhtRecords(self.dht, self.identity, self.clock)

    @property
    def lost(self) -> bool:
        return self.daemon_ended.is_set()

    def executor(self) -> Threads:
        return Threads()

    async def addresses(self) -> tuple[str, ...]:
        """Where others can dial us, each ending in /p2p/OUR-NAME: as we are seen, through relays, near by."""
        try:
            visible = [str(address) for address in await self.p2p.get_visible_maddrs(latest=True)]
        except ValueError:  # hivemind's word for "none"
            visible = []
        found = {*visible, *(address_of(place, self.peer) for place in self._seen_at)}

        def worth(address: str) -> tuple[bool, bool, bool, str]:
            seen = place_in(address) in self._seen_at
            return is_on_this_machine(address), not seen, not is_relayed(address), address

        return tuple(sorted(found, key=worth))

    async def meet(self, bootstraps: Sequence[str]) -> None:
        """Connect to the bootstrap nodes. Raises UnreachableError when none of them answers."""

        async def connect(place: str) -> str | None:
            try:
                async with asyncio.timeout(DIAL_SECONDS):
                    await self._connect(name_in(place), [place])
            except (ControlFailure, P2PDaemonError, TimeoutError, OSError, EOFError, ValueError) as error:
                return str(error).partition("\n")[0] or "no answer"
            return None

        failures: list[str | None] = []
        for _ in range(MEET_ATTEMPTS):
            failures = list(await asyncio.gather(*(connect(place) for place in bootstraps)))
            if None in failures:
                return
        raise UnreachableError(_nobody_answers(bootstraps, str(failures[0])))

    async def ask(self, bootstrap: str, ports: Sequence[int] = ()) -> Welcome | None:
        """How the node at this address sees us, having knocked at these ports; None when it does not say."""
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await self._connect(name_in(bootstrap), [bootstrap])
                async with self.dial(name_in(bootstrap), reach.PROTOCOL) as stream:
                    await stream.send(Hello(ports=tuple(ports)))
                    answer = await stream.receive()
        except (ControlFailure, P2PDaemonError, OSError, EOFError, ValueError, RemoteDataError) as error:
            log.debug("%s does not say how it sees us: %s", bootstrap, error)
            return None
        return answer if isinstance(answer, Welcome) else None

    async def look(self, bootstraps: Sequence[str]) -> None:
        """Ask the bootstrap nodes at which addresses they see us and, when we do not know, whether they can dial us.

        One of them that cannot is enough: it may be the only one that sees us from outside our home.
        """
        ports = reach.ports_of(await self.addresses())
        asked = ports if self.settings.reachable is None else ()
        welcomes = [said for said in await asyncio.gather(*(self.ask(place, asked) for place in bootstraps)) if said]
        if self.settings.reachable:
            self._seen_at = _places(welcomes, lambda _: ports)
            return
        told = [said for said in welcomes if said.reached is not None]
        if not told:
            return
        if all(said.reached for said in told):
            self._doubts, self.reachable = 0, True
            self._seen_at = _places(told, lambda said: said.reached or ())
        else:
            self._doubts += 1
            if self._doubts >= DOUBTS or not self._seen_at:
                self.reachable, self._seen_at = False, ()

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        """Call `handler` with each stream that a peer opens for `protocol`; the stream closes when it returns."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: Pipe(self._accepted), self._socket)
        known = protocol in self._handlers
        self._handlers[protocol] = handler
        if not known:
            await hand_streams_to(self.daemon, self._socket, protocol)

    def _accepted(self, pipe: Pipe) -> None:
        if len(self._tasks) < MAX_STREAMS:
            self._tasks.start(self._handle(pipe))
        else:
            pipe.close()

    async def _handle(self, pipe: Pipe) -> None:
        try:
            peer, address, protocol = await read_stream_info(pipe)
            with self._counted(peer):
                await self._handlers[protocol](PipeStream(peer, pipe, self.meter, self._pace, self.timing, address))
        except RemoteDataError as error:
            log.warning("ignored a peer that broke the protocol: %s", error)
        except (EOFError, ConnectionError, TimeoutError) as error:
            log.debug("a stream ended early: %s", error)
        finally:
            pipe.close()

    @contextlib.asynccontextmanager
    async def dial(self, peer: str, protocol: str, *, timeout: float | None = None) -> AsyncIterator[Stream]:
        """A stream to a peer. Raises ConnectionError when it cannot be reached in time."""
        try:
            async with asyncio.timeout(timeout or self.timing.dial):
                pipe = await self._open(peer, protocol)
        except (ControlFailure, P2PDaemonError, TimeoutError, EOFError, OSError) as error:
            if "protocols not supported" in str(error):
                raise NotOfThisRun(f"peer {peer[-8:]} is there and takes no part in this run") from None
            log.debug("peer %s cannot be reached: %s", peer[-8:], error)
            raise ConnectionError(f"peer {peer[-8:]} cannot be reached just now") from None
        except ValueError:
            raise ConnectionError(f"{peer[:80]!r} is not the name of a peer") from None
        try:
            with self._counted(peer):
                yield PipeStream(peer, pipe, self.meter, self._pace, self.timing)
        finally:
            pipe.close()

    @contextlib.contextmanager
    def _counted(self, peer: str) -> Iterator[None]:
        self._streams[peer] += 1
        try:
            yield
        finally:
            self._streams[peer] -= 1
            if not self._streams[peer]:
                del self._streams[peer]

    async def _open(self, peer: str, protocol: str) -> Pipe:
        """A stream over the connection there is, or one that libp2p finds, or one to where the peer said it is."""
        if peer in self._by_relay and peer not in self._streams:
            self._by_relay.discard(peer)
            await self._leave_relay(peer)
        try:
            return await open_stream(self.daemon, peer, protocol)
        except (ControlFailure, P2PDaemonError):
            if not self._addresses.get(peer):
                raise
            await self._connect(peer, self._addresses[peer])
            return await open_stream(self.daemon, peer, protocol)

    async def _leave_relay(self, peer: str) -> None:
        """Connect anew, directly; libp2p keeps the connection that it has, however slow. A relay is found again."""
        with contextlib.suppress(ControlFailure, P2PDaemonError):
            await self.p2p._client.disconnect(PeerID.from_base58(peer))
            await self._connect(peer, [place for place in self._addresses[peer] if not is_relayed(place)])

    def remember(self, peer: str, addresses: Sequence[str], *, reachable: bool) -> None:
        """Where a peer says that it can be dialled; `reachable`: also without a relay."""
        if reachable and addresses != self._addresses.get(peer) and any(map(is_relayed, addresses)):
            self._by_relay.add(peer)  # nobody could dial it when it started
        if len(self._addresses) >= MAX_REMEMBERED and peer not in self._addresses:
            forgotten = next(iter(self._addresses))
            self._addresses.pop(forgotten)
            self._by_relay.discard(forgotten)
        self._addresses[peer] = tuple(addresses)

    def addresses_of(self, peer: str) -> tuple[str, ...]:
        """Where a peer said that it can be dialled, best first."""
        return self._addresses.get(peer, ())

    async def _connect(self, peer: str, addresses: Sequence[str]) -> None:
        bare = [Multiaddr(place_in(address)) for address in addresses]
        # hivemind's P2P has no public way to connect to an address
        await self.p2p._client.connect(PeerID.from_base58(peer), bare)

    async def greet(self, address: str) -> None:
        """Make sure that we and the node at this address know each other, in libp2p and in the DHT."""
        peer = name_in(address)
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await self._connect(peer, [address])
                await self.dht.protocol.call_ping(PeerID.from_base58(peer))
        except (ControlFailure, P2PDaemonError, TimeoutError, OSError, EOFError, ValueError) as error:
            log.debug("%s does not answer: %s", address, error)

    def let_go(self) -> None:
        """Of what hivemind keeps for ever about requests and peers that are no more; for now and then."""
        answering = self.p2p._client.control._handler_tasks
        for call in [call for call, task in answering.items() if task.done()]:  # its peer did not wait for the answer
            del answering[call]
        blacklist, searches, table = self.dht.blacklist, self.dht.pending_get_requests, self.dht.protocol.routing_table
        for peer in [peer for peer in blacklist.ban_counter if peer not in blacklist]:
            del blacklist.ban_counter[peer]
        for key in [key for key, searching in searches.items() if not searching]:
            del searches[key]
        for bucket in table.buckets:
            for spare in list(bucket.replacement_nodes)[: -bucket.size]:
                del table[spare]

    async def close(self) -> None:
        """End what still serves others."""
        if self._server is not None:
            self._server.close()
            Path(self._socket).unlink(missing_ok=True)
        await self._tasks.end()


@contextlib.asynccontextmanager
async def open_node(
    identity: Identity, bootstraps: Sequence[str], settings: NodeSettings, doors: Sequence[str] = ()
) -> AsyncIterator[Node]:
    """Start the daemon, join the DHT, and yield the node; everything ends with the block.

    Raises NodeError when this machine is the reason (port in use, no daemon), UnreachableError when no bootstrap node
    answers.
    """
    async with contextlib.AsyncExitStack() as opened:
        node = await opened.enter_async_context(open_door(identity, bootstraps, settings, doors))
        if bootstraps and settings.reachable is not False:
            await node.look(bootstraps)
            if not node.reachable:
                # libp2p is told at its start that it needs a relay; who cannot be dialled starts twice
                await opened.aclose()
                node = await opened.enter_async_context(open_door(identity, bootstraps, settings, doors, relayed=True))
        attempts = 0
        while not bootstraps and not await _relays_as_told(node) and attempts < RELAY_ATTEMPTS:
            attempts += 1
            await opened.aclose()
            node = await opened.enter_async_context(open_door(identity, bootstraps, settings, doors))
        node.dht = await _join(node, doors or bootstraps)
        opened.push_async_callback(lambda: _in_time(node.dht.shutdown()))
        if not bootstraps:
            await node.serve(reach.PROTOCOL, reach.Doorkeeper().answer)
        yield node


@contextlib.asynccontextmanager
async def open_door(
    identity: Identity,
    bootstraps: Sequence[str],
    settings: NodeSettings,
    doors: Sequence[str] = (),
    *,
    relayed: bool = False,
) -> AsyncIterator[Node]:
    """A node without the DHT: it can dial and be dialled, and nobody knows of it. Raises as `open_node`.

    `doors`: peers through which to come in; none: the bootstrap nodes. `relayed`: others are to come to us through the
    bootstrap nodes.
    """
    _check_port(settings.listen)
    relayed = relayed or settings.reachable is False
    ended = asyncio.Event()
    async with _daemon(identity, bootstraps, settings, doors or bootstraps, ended, relayed=relayed) as control:
        p2p = await _speak_to(control, doors or bootstraps)
        node = Node(p2p, identity, settings, control.value_for_protocol("unix"), ended)
        node.reachable = not relayed
        try:
            if relayed and bootstraps:
                await node.meet(doors or bootstraps)
            yield node
        finally:
            await node.close()
            await _in_time(p2p.shutdown())


async def _in_time(closing: Coroutine[Any, Any, None]) -> None:
    """hivemind waits for ever for a daemon that has ended."""
    with contextlib.suppress(TimeoutError, OSError, EOFError, ControlFailure, P2PDaemonError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await closing


async def _speak_to(control: Multiaddr, doors: Sequence[str]) -> P2P:
    """The daemon at this address; now and then it gives up over its first connections when it is already up."""
    try:
        return await P2P.replicate(control)
    except (OSError, EOFError) as error:
        if doors:
            raise UnreachableError(_nobody_answers(doors, "the network daemon gave up")) from None
        raise NodeError(f"the network daemon ended as soon as it had started ({error}); try again") from None


async def _relays_as_told(node: Node) -> bool:
    """Whether peers behind routers can talk through this node; also where it cannot be told."""
    listen = node.settings.listen
    if is_on_this_machine(listen):
        return True  # there is no router between here and here
    places = [*await node.addresses()]
    if not listen.endswith("/tcp/0"):
        places.append(address_of(listen.replace("/0.0.0.0/", "/127.0.0.1/"), node.peer))
    with tempfile.TemporaryDirectory(prefix="dipaco-") as home:
        try:
            async with open_door(load_identity(Path(home)), places, NodeSettings("/ip4/127.0.0.1/tcp/0")) as visitor:
                limit = await relay.data_limit(visitor.daemon, node.identity.peer)
        except (UnreachableError, ControlFailure, P2PDaemonError, OSError, EOFError, ValueError) as error:
            log.info("this node cannot see whether it relays for peers behind routers: %s", error)
            return True
    return limit is None or limit >= relay.DATA_LIMIT


def _places(welcomes: Sequence[Welcome], ports_of: Callable[[Welcome], Sequence[int]]) -> tuple[str, ...]:
    seen = (f"{said.seen_at}/tcp/{port}" for said in welcomes if said.seen_at for port in ports_of(said))
    return tuple(dict.fromkeys(seen))


async def _join(node: Node, bootstraps: Sequence[str]) -> DHTNode:
    try:
        return await DHTNode.create(
            node.p2p,
            # the same in every life: a table of peers keeps those of former lives beside the one of now
            node_id=DHTID.generate(source=node.identity.peer),
            initial_peers=list(bootstraps),
            client_mode=not node.reachable,
            record_validator=SignedRecords(),
            # what others say must be fresh: no caches between a statement and its reader
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            wait_timeout=5,
            # one stall fails all requests under way, which hivemind would punish one by one: 5 s to the power of them
            blacklist_time=3.0,
            backoff_rate=1.0,
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
async def _daemon(
    identity: Identity,
    bootstraps: Sequence[str],
    settings: NodeSettings,
    doors: Sequence[str],
    ended: asyncio.Event,
    *,
    relayed: bool,
) -> AsyncIterator[Multiaddr]:
    """Run hivemind's `p2pd` and yield its control address; `ended` is set when it is there no more."""
    sweep()
    binary = files("hivemind.hivemind_cli") / "p2pd"
    control = Multiaddr(f"/unix/tmp/dipaco-{secrets.token_urlsafe(8)}.sock")
    arguments = [
        f"-listen={control}",
        f"-hostAddrs={settings.listen}",
        f"-id={identity.path}",
        f"-idleTimeout={DAEMON_IDLE_SECONDS}s",
        "-dhtClient=1" if relayed else "-dhtServer=1",
        "-relay=1",
        "-connManager=1",
        "-tls=1",
        "-persistentConnMaxMsgSize=4194304",
    ]
    if not is_on_this_machine(settings.listen):
        arguments += ["-natPortMap=1", "-autonat=1"]
    if settings.announce:
        arguments.append(f"-announceAddrs={','.join(settings.announce)}")
    if settings.reachable is False:
        arguments += ["-noListenAddrs=1"]
    if bootstraps:
        arguments += [f"-bootstrapPeers={','.join(doors)}", "-relayService=0"]
    else:
        arguments += relay.SERVICE
    if bootstraps and not relayed:
        arguments += ["-b=1"]  # a relayed daemon has met its relays itself, and now and then gives up over that
    if bootstraps and settings.reachable is not True:
        # used by libp2p as soon as it thinks that nobody can dial us, which for some it is told
        arguments += ["-autoRelay=1", "-relayDiscovery=0", f"-trustedRelays={','.join(relay.one_each(bootstraps))}"]
    if bootstraps and relayed:
        arguments += ["-forceReachabilityPrivate=1"]
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
        drain = asyncio.create_task(_drain(process, ended))
        yield control
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 2)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):  # it has ended, and the loop was too busy to hear it
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


async def _drain(process: asyncio.subprocess.Process, ended: asyncio.Event) -> None:
    """Keep the daemon's output flowing, as a full pipe would stop it; to its end."""
    assert process.stdout is not None
    async for line in process.stdout:
        log.debug("daemon: %s", line.decode(errors="replace").rstrip())
    ended.set()


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
