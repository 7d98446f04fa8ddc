"""Every file that the programs write, lock, set aside or remove goes through here.

A file appears whole or not at all: it is written beside its place and renamed. On top of that, one rule decides what a
power cut may take:

    durable        what nobody can make again: keys, manifests, module states, checkpoints, snapshots, the blobs that we
                   made, an operator's word, and the note of whose progress the others have been given
    not durable    what can be made, fetched or met again: shards, tokens, features, the blobs of others, run files,
                   addresses, exported models, metrics, how many tokens were trained, what is on the disk instead of
                   in memory

A durable file, and its name, are on the disk when the call returns. What refers to it may be written after that: a
manifest names blobs that are there. One thread writes a file at a time; `locked` keeps other processes out of a folder.
"""

import errno
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from dipaco_swarm.errors import HomeError, UsageError, cannot_write

log = logging.getLogger(__name__)

LOCK = "lock"
"""The file of a folder that `locked` holds. It stays there, empty."""

Content = bytes | Callable[[Path], object]
"""What a file is to hold, or who writes it to the path of the unfinished file; raises OSError when that fails."""


def write_whole(path: Path, content: Content, *, durable: bool, what: str | None = None, private: bool = False) -> None:
    """Write a file that appears whole or not at all, making its folder if need be.

    `durable`: by the rule of this module. `what`: what is written, for a person whose disk is full; else the file's
    name. `private`: see `replace_whole`. Raises HomeError; what was there is then still there.
    """
    try:
        make_folder(path.parent, durable=durable)
        replace_whole(path, content, durable=durable, private=private)
    except OSError as error:
        raise cannot_write(what or path.name, path.parent, error) from error


def replace_whole(path: Path, content: Content, *, durable: bool, private: bool = False) -> None:
    """`write_whole` into a folder that exists, for those who have words of their own for a person. Raises OSError.

    `private`: nobody but the owner may read the file, at no time.
    """
    unfinished = path.with_name(path.name + ".tmp")
    try:
        unfinished.unlink(missing_ok=True)  # of a program that was killed; it may be open to others
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666))
        if isinstance(content, bytes):
            unfinished.write_bytes(content)
        else:
            content(unfinished)
        if durable:
            _flush(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)  # half a file would keep a full disk full
    if durable:
        _flush_names(path.parent)


def keep_if_possible(path: Path, content: bytes) -> None:
    """Write a file without which its program goes on just as well; never raises."""
    try:
        make_folder(path.parent, durable=False)
        replace_whole(path, content, durable=False)
    except OSError as error:
        log.debug("%s cannot be written: %s", path, error.strerror or error)


def forget_if_possible(path: Path) -> bool:
    """Remove such a file; whether it was there. Never raises."""
    try:
        return remove(path)
    except HomeError as error:
        log.debug("%s", error)
    return True


def is_made(path: Path) -> bool:
    """Whether a secret that is made on first use is there. Raises HomeError for a link that leads nowhere: it is on a
    disk that is not there now, and a new one would take the link's place."""
    if path.is_symlink() and not path.exists():
        raise HomeError(
            f"{path} is a link to {os.readlink(path)}, where nothing is; mount that disk, or restore it from your copy"
        )
    return os.path.lexists(path)


def read_if_there(path: Path) -> bytes | None:
    """A file of ours, or None where there is none. Raises HomeError when it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HomeError(
            f"{path} cannot be read: {error.strerror or error}; it has to be a file that the user of this program owns"
        ) from None


def read_private(path: Path) -> bytes:
    """A file that only its owner may read. Raises OSError, and HomeError when others may read it too."""
    with open(path, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise HomeError(
                f"{path} is secret, and others of this machine may read or change it (mode {mode:04o}); if nobody "
                f"has, make it yours alone with: chmod 600 {path}"
            )
        return file.read()


def write_in_place(path: Path, content: bytes) -> None:
    """Overwrite a small file of always the same length, in one write: a program that is killed leaves old or new.

    For what changes many times a second. Not durable. Raises HomeError.
    """
    try:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        except FileNotFoundError:
            make_folder(path.parent, durable=False)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(descriptor, content, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise cannot_write(path.name, path.parent, error) from error


def make_folder(folder: Path, *, durable: bool) -> None:
    """Make a folder and what is missing above it; `durable`: for files that are. Raises OSError."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing if durable else ():
        _flush_names(each.parent)


def give_to_owner_of(home: Path, *made: Path) -> None:
    """What root makes in a folder of somebody else is theirs from now on: they could not read it. Raises OSError.

    A service often has a user of its own, and orders to it come from root.
    """
    owner = home.stat()
    if os.geteuid() == 0 != owner.st_uid:
        for path in made:  # a link that they have put there may lead anywhere
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


@contextmanager
def passing_file(folder: Path, size: int) -> Iterator[Path]:
    """A file of so many bytes whose name is gone when the block ends; who has it mapped by then keeps it as memory.

    The disk has room for all of it, and has it back with the last mapping, also after a crash. Raises OSError, also
    where the system cannot promise that room.
    """
    if not hasattr(os, "posix_fallocate"):
        raise OSError(errno.ENOTSUP, "this system does not reserve room for a file")
    make_folder(folder, durable=False)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        yield Path(file.name)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill, which becomes `path` when the block ends, or is removed when it fails.

    `path` must not exist, or be an empty folder. Not durable. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        unfinished.chmod(0o755)  # temporary folders are private, what comes out is not
        yield unfinished
        if path.exists():
            path.rmdir()
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # it is gone by now if all went well


@contextmanager
def locked(folder: Path, *, on_busy: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Alone in a folder, among all processes of this machine that ask; a process that dies lets go.

    `on_busy` is called once when another one is in there, before waiting for it; it may raise, and nobody waits.
    Raises OSError when the lock cannot be made.
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        on_busy()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def alone_in(home: Path) -> Iterator[None]:
    """The one program of its kind in its home folder, which is made if need be: two of one name would sign different
    things of one round, and overwrite each other's checkpoints.

    Raises UsageError where another one is in there, HomeError where the folder is of no use.
    """

    def busy() -> None:
        raise UsageError(f"a program runs in {home} already; stop it first, or give this one another --home")

    with ExitStack() as stack:
        try:
            make_folder(home, durable=False)
            stack.enter_context(locked(home, on_busy=busy))
        except NotImplementedError:  # a file system without locks
            log.debug("nobody can be kept out of %s", home)
        except OSError as error:
            raise HomeError(
                f"the home folder {home} cannot be used: {error.strerror or error}; "
                "choose another with --home, or make it writable"
            ) from None
        yield


def flush(file: BinaryIO) -> None:
    """Wait until what was written to an open file is on the disk. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that it is in nobody's way and still there to look at. Raises HomeError."""
    aside = path.with_name(path.name + ".damaged")
    try:
        os.replace(path, aside)
    except OSError as error:
        raise cannot_write(aside.name, aside.parent, error) from error
    return aside


def remove(path: Path) -> bool:
    """Remove a file; whether it was there. Who is reading it reads on. Raises HomeError when that is not allowed."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HomeError(f"{path} cannot be removed: {error.strerror or error}; check who owns the folder") from error
    return True


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_names(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system knows how to."""
    try:
        _flush(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems flush files alone
            raise
