"""Blobs as files of a home folder; both swarms keep them alike."""

import hashlib
import os
from pathlib import Path

from dipaco_swarm.errors import HomeError, cannot_write


class BlobStore:
    """Blobs as files named by their SHA-256. Files appear whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path_of(self, digest: str) -> Path:
        return self.folder / digest

    def has(self, digest: str) -> bool:
        return self.path_of(digest).is_file()

    def put(self, data: bytes) -> str:
        """Keep a blob; returns its digest. Raises HomeError when the folder cannot be written."""
        digest = hashlib.sha256(data).hexdigest()
        if not self.has(digest):
            temporary = self.path_of(digest).with_suffix(".part")
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                try:
                    temporary.write_bytes(data)
                    os.replace(temporary, self.path_of(digest))
                finally:
                    temporary.unlink(missing_ok=True)  # half a blob would keep a full disk full
            except OSError as error:
                raise cannot_write("the run's files", self.folder, error) from None
        return digest

    def drop(self, digest: str) -> None:
        """Remove a blob, if we have it; who is reading it reads on. Raises HomeError when that is not allowed."""
        try:
            self.path_of(digest).unlink(missing_ok=True)
        except OSError as error:
            raise HomeError(f"{self.path_of(digest)} cannot be removed: {error.strerror}") from None

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
        self.path_of(digest).unlink(missing_ok=True)
        return None
