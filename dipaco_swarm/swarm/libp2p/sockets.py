"""Sockets as files: in a folder that is ours alone, whatever the umask; what a killed program and its daemon leave
behind, and how the next one clears it away.
"""

import contextlib
import errno
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from glob import glob
from pathlib import Path

FOLDER = Path("/tmp")
"""A short one: the name of a socket has some hundred bytes at most."""
OURS = "dipaco-sockets-"
LEFT_BEHIND = (f"{OURS}*/*", "dipaco-*.sock", "dipaco-*.sock.in", "hivemind-p2pclient-*.sock")
"""The last three are of earlier versions."""
YOUNG_SECONDS = 5.0
"""A socket is a file a moment before anybody listens there; one so young is let alone..."""
EMPTY_SECONDS = 300.0
"""... and an empty folder for longer than a daemon takes to start."""


@contextlib.contextmanager
def folder_of_sockets() -> Iterator[Path]:
    """A new one, that nobody else may look into: whoever connects to a socket there is the program itself."""
    folder = Path(tempfile.mkdtemp(prefix=OURS, dir=FOLDER))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(folder: Path = FOLDER) -> int:
    """Remove sockets at which nobody listens any more; returns how many. Those of other users stay."""
    removed, before = 0, time.time() - EMPTY_SECONDS
    old = [each for name in glob(f"{OURS}*", root_dir=folder) if _changed_at(each := folder / name) < before]
    for pattern in LEFT_BEHIND:
        for file in (folder / name for name in glob(pattern, root_dir=folder)):  # pathlib's ends where a folder goes
            with contextlib.suppress(FileNotFoundError, PermissionError):  # another program was quicker, or owns it
                if file.is_socket() and time.time() - file.stat().st_mtime > YOUNG_SECONDS and _is_dead(file):
                    file.unlink()
                    removed += 1
    for each in old:
        with contextlib.suppress(OSError):  # somebody listens there
            each.rmdir()
    return removed


def _changed_at(path: Path) -> float:
    """Of what another program has just removed: now."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return time.time()


def _is_dead(file: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a listener that is busy is not dead
        return probe.connect_ex(str(file)) == errno.ECONNREFUSED
