"""hivemind's `p2pd`, the program that speaks libp2p for us: started, watched and ended.

It is started in a session of its own: Ctrl+C in a terminal goes to us alone, and we say goodbye first.
"""

import asyncio
import contextlib
import logging
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from hivemind.utils.multiaddr import Multiaddr

from dipaco_swarm.errors import NodeError, nobody_answers
from dipaco_swarm.machine.open_files import allow_open_files
from dipaco_swarm.swarm.addresses import is_on_this_machine
from dipaco_swarm.swarm.libp2p import relay
from dipaco_swarm.swarm.libp2p.identity import Identity
from dipaco_swarm.swarm.libp2p.settings import NodeSettings
from dipaco_swarm.swarm.libp2p.sockets import folder_of_sockets, sweep

log = logging.getLogger(__name__)

START_SECONDS = 90.0
"""hivemind waits 15 s for the daemon, which a loaded machine misses; the daemon itself says when it cannot start."""
DAEMON_IDLE_SECONDS = 15
"""After a killed peer its daemon ends by itself this soon."""
CONNECTIONS, CONNECTIONS_OF_A_BOOTSTRAP_NODE = 512, 2048
"""At most; 150 kB each. Where there are more, the daemon cuts a quarter, those that weigh least (`Connections.keep`),
also new ones: else a crowd that has just come would be what is kept."""
END_SECONDS = 2.0
"""A daemon that was asked to end and has not by then is killed."""


@dataclass(frozen=True)
class Daemon:
    """A running daemon."""

    control: Multiaddr
    """Where it listens to us: a unix socket."""
    process: asyncio.subprocess.Process
    ended: asyncio.Event
    """Set when it is there no more."""
    most: int
    """Connections that it keeps."""

    @property
    def socket(self) -> str:
        """The path of that socket."""
        return str(self.control.value_for_protocol("unix"))

    def kill(self) -> None:
        """For one that does not answer any more; `ended` follows."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


@contextlib.asynccontextmanager
async def running_daemon(
    identity: Identity, bootstraps: Sequence[str], settings: NodeSettings, doors: Sequence[str]
) -> AsyncIterator[Daemon]:
    """The daemon, until the block ends. `doors`: see `starting.open_door`.

    Raises NodeError when this machine is the reason (port in use, no daemon), UnreachableError when the daemon finds
    no bootstrap node.
    """
    _check_port(settings.listen)
    allow_open_files()
    sweep()
    with folder_of_sockets() as folder:
        control = Multiaddr(f"/unix{folder / 'daemon.sock'}")
        arguments = [f"-listen={control}", f"-id={identity.path}"]
        arguments += _arguments(bootstraps, settings, doors)
        process = await _started(arguments, {} if bootstraps else relay.ENVIRONMENT)
        daemon = Daemon(control, process, asyncio.Event(), most_connections(bootstraps))
        drain: asyncio.Task[None] | None = None
        try:
            await _until_ready(process, bootstraps)
            drain = asyncio.create_task(_drain(process, daemon.ended))
            yield daemon
        finally:
            await _end(process)
            if drain is not None:
                await drain


def most_connections(bootstraps: Sequence[str]) -> int:
    """`bootstraps`: through which it comes in; none: it is one itself."""
    return CONNECTIONS if bootstraps else CONNECTIONS_OF_A_BOOTSTRAP_NODE


def _arguments(bootstraps: Sequence[str], settings: NodeSettings, doors: Sequence[str]) -> list[str]:
    """What the daemon is told of the network."""
    most = most_connections(bootstraps)
    arguments = [
        f"-hostAddrs={settings.listen}",
        f"-idleTimeout={DAEMON_IDLE_SECONDS}s",
        "-relay=1",
        "-connManager=1",
        "-connGrace=0s",
        f"-connHi={most}",
        f"-connLo={most * 3 // 4}",
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
        arguments += ["-b=1", f"-bootstrapPeers={','.join(doors)}", "-relayService=0"]
    else:
        arguments += relay.SERVICE
    return arguments


async def _started(arguments: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            str(files("hivemind.hivemind_cli") / "p2pd"),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **environment},
        )
    except OSError as error:
        raise NodeError(
            f"the network daemon cannot be started on {sys.platform}: {error}; reinstall hivemind, and on Windows "
            "use WSL"
        ) from None


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), END_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and the loop was too busy to hear it
            process.kill()
        await process.wait()


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
        raise nobody_answers(bootstraps, last)
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
