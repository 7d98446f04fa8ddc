"""Blobs, as files of a home folder or in memory."""

import hashlib
import io
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Protocol

from dipaco_swarm.errors import HomeError
from dipaco_swarm.files import remove, write_whole


class Blobs(Protocol):
    """Bytes by their SHA-256."""

    @property
    def shelf(self) -> Path | None:
        """A folder for what this program has on the disk instead of in memory; None: there is no disk."""
        ...

    def has(self, digest: str) -> bool: ...

    def put(self, data: bytes, *, durable: bool = True) -> str:
        """Keep a blob; returns its digest. Raises HomeError when that is not possible.

        `durable`: see `files`; what was fetched can be fetched again.
        """
        ...

    def get(self, digest: str) -> bytes | None:
        """A blob that we have, verified."""
        ...

    def open(self, digest: str) -> BinaryIO:
        """A blob that we have, to be read from."""
        ...

    def drop(self, digest: str) -> None:
        """Remove a blob, if we have it; who is reading it reads on. Raises HomeError when that is not allowed."""
        ...


class MemoryBlobs:
    """`Blobs` without a disk."""

    shelf = None

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def has(self, digest: str) -> bool:
        return digest in self._blobs

    def put(self, data: bytes, *, durable: bool = True) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self._blobs[digest] = bytes(data)
        return digest

    def get(self, digest: str) -> bytes | None:
        return self._blobs.get(digest)

    def open(self, digest: str) -> BinaryIO:
        return io.BytesIO(self._blobs[digest])

    def drop(self, digest: str) -> None:
        self._blobs.pop(digest, None)


class BlobStore:
    """Blobs as files named by their SHA-256. Files appear whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writing = Lock()  # one thread a file; the program and the wire may bring the same blob

    @property
    def shelf(self) -> Path:
        return self.folder.with_name("shelf")

    def path_of(self, digest: str) -> Path:
        return self.folder / digest

    def has(self, digest: str) -> bool:
        return self.path_of(digest).is_file()

    def put(self, data: bytes, *, durable: bool = True) -> str:
        """Raises HomeError when the folder cannot be written."""
        digest = hashlib.sha256(data).hexdigest()
        with self._writing:
            if not self.has(digest):
                write_whole(self.path_of(digest), data, durable=durable, what="the run's files")
        return digest

    def open(self, digest: str) -> BinaryIO:
        return self.path_of(digest).open("rb")

    def drop(self, digest: str) -> None:
        """Remove a blob, if we have it; who is reading it reads on. Raises HomeError when that is not allowed."""
        remove(self.path_of(digest))

    def get(self, digest: str) -> bytes | None:
        """A blob that we have, verified; a damaged file is removed and counts as missing."""
        try:
            data = self.path_of(digest).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HomeError(f"{self.path_of(digest)} cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() == digest:
            return data
        self.drop(digest)
        return None
