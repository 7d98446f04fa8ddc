"""The server of the page: an address, a socket, and a thread of its own.

The socket is opened before anything slow, so that an address that cannot be used costs no waiting. uvicorn has an event
loop of its own in the thread; Ctrl+C belongs to the program, which ends it.
"""

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dipaco_swarm.errors import UsageError
from dipaco_swarm.events.operator import PageServed
from dipaco_swarm.page.watch import Watch
from dipaco_swarm.settings import Web, check_web

WAITING = 512
"""Connections that wait to be accepted."""
MOST_CONNECTIONS = 4000
LAST_SECONDS = 3
"""For what is being answered when the program ends."""


def bound(web: Web) -> socket.socket:
    """A socket at that address. Raises UsageError when it cannot be had."""
    try:
        family, _, _, _, place = socket.getaddrinfo(web.host, web.port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{web.asked}: {web.host!r} is no address ({reason}); give 127.0.0.1:{web.port}") from None
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(place)
        opened.listen(WAITING)
    except OSError as error:
        opened.close()
        raise UsageError(f"{web.asked}: {_why(error, web)}") from None
    return opened


def _why(error: OSError, web: Web) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"another program listens on port {web.port}; end it, or choose another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"this machine does not have the address {web.host}; 127.0.0.1 is this machine, 0.0.0.0 all it has"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {web.port} is not for ordinary users; choose one from 1024 on, with a reverse proxy before it"
    return f"it cannot be used ({error.strerror}); choose another"


@contextmanager
def serving(watch: Watch, web: Web) -> Iterator[PageServed]:
    """Serve the page until the block ends; what to tell the operator. Raises UsageError."""
    check_web()
    from uvicorn import Config, Server  # with the extra alone

    from dipaco_swarm.page.app import Application
    from dipaco_swarm.page.impatient import ImpatientProtocol

    opened = bound(web)
    port = opened.getsockname()[1]
    server = Server(
        Config(
            Application(watch, web.names).asgi(),
            http=ImpatientProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=LAST_SECONDS,
        )
    )
    thread = threading.Thread(target=server.run, args=([opened],), name="page-server", daemon=True)
    thread.start()
    try:
        yield PageServed(f"http://{Web(web.host, port)}/", web.is_public)
    finally:
        watch.board.close()
        server.should_exit = True
        thread.join(LAST_SECONDS + 2)
        opened.close()
