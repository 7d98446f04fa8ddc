"""Sockets as files: what a killed program and its daemon leave behind, and how the next one clears it away."""

import contextlib
import errno
import socket
import time
from pathlib import Path

FOLDER = Path("/tmp")
LEFT_BEHIND = ("dipaco-*.sock", "dipaco-*.sock.in", "hivemind-p2pclient-*.sock")
YOUNG_SECONDS = 5.0
"""A socket is a file a moment before anybody listens there; one so young is let alone."""


def sweep(folder: Path = FOLDER) -> int:
    """Remove sockets at which nobody listens any more; returns how many. Those of other users stay."""
    removed = 0
    for pattern in LEFT_BEHIND:
        for file in folder.glob(pattern):
            with contextlib.suppress(FileNotFoundError, PermissionError):  # another program was quicker, or owns it
                if file.is_socket() and time.time() - file.stat().st_mtime > YOUNG_SECONDS and _is_dead(file):
                    file.unlink()
                    removed += 1
    return removed


def _is_dead(file: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a listener that is busy is not dead
        return probe.connect_ex(str(file)) == errno.ECONNREFUSED
