"""Blobs as files of a home folder; both swarms keep them alike."""

import hashlib
from pathlib import Path
from threading import Lock

from dipaco_swarm.errors import HomeError
from dipaco_swarm.files import remove, write_whole


class BlobStore:
    """Blobs as files named by their SHA-256. Files appear whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writing = Lock()  # one thread a file; the program and the wire may bring the same blob

    def path_of(self, digest: str) -> Path:
        return self.folder / digest

    def has(self, digest: str) -> bool:
        return self.path_of(digest).is_file()

    def put(self, data: bytes, *, durable: bool = True) -> str:
        """Keep a blob; returns its digest. Raises HomeError when the folder cannot be written.

        `durable`: see `files`; what was fetched can be fetched again.
        """
        digest = hashlib.sha256(data).hexdigest()
        with self._writing:
            if not self.has(digest):
                write_whole(self.path_of(digest), data, durable=durable, what="the run's files")
        return digest

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
