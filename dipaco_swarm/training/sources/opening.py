"""The lines of a file, compressed or not, and where in it they are."""

import bz2
import gzip
import lzma
import os
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from io import BufferedIOBase, BufferedReader, BytesIO, RawIOBase
from typing import IO, cast

import zstandard

ZIP = ".zip"
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ZIP)


class Lines:
    """The lines of a file; of one that is not compressed, those that begin in bytes `start` to `end`."""

    def __init__(self, file: str, start: int = 0, end: int | None = None) -> None:
        self._file = file
        self._start = start
        self._end = end
        self._count = 0
        self._member = ""

    @property
    def place(self) -> str:
        """Of the line that was read last, for a person. Reads what is before it, if need be: for messages alone."""
        before = 0
        if self._start:
            with open(self._file, "rb") as opened:
                before = sum(block.count(b"\n") for block in _blocks(opened, self._start))
                opened.seek(self._start - 1)
                before += opened.read(1) != b"\n"  # the line that began before us
        return f"{self._file}{self._member}, line {before + self._count}"

    def __iter__(self) -> Iterator[bytes]:
        self._count = 0
        if self._file.endswith(ZIP):
            yield from self._of_members()
        elif self._file.endswith(COMPRESSED):
            with closing(_opened(self._file)) as unpacked:
                yield from self._counted(unpacked)
        else:
            with open(self._file, "rb") as opened:
                if self._start:
                    opened.seek(self._start - 1)
                    opened.readline()
                while (self._end is None or opened.tell() < self._end) and (line := opened.readline()):
                    self._count += 1
                    yield line

    def _of_members(self) -> Iterator[bytes]:
        """All files of an archive, by their names."""
        with zipfile.ZipFile(self._file) as archive:
            for name in sorted(name for name in archive.namelist() if not name.endswith("/")):
                self._count, self._member = 0, f" ({name})"
                with archive.open(name) as member:
                    yield from self._counted(member)

    def _counted(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            self._count += 1
            yield line


def beginning_of(file: str) -> bytes:
    """Some first bytes of what a file holds."""
    if file.endswith(ZIP):
        with zipfile.ZipFile(file) as archive:
            names = sorted(name for name in archive.namelist() if not name.endswith("/"))
            with archive.open(names[0]) if names else BytesIO() as member:
                return member.read(64)
    with closing(_opened(file)) as opened:
        return opened.read(64)


def _opened(file: str) -> BufferedIOBase:
    """Of what is no archive."""
    match os.path.splitext(file)[1]:
        case ".gz":
            return gzip.GzipFile(file)
        case ".bz2":
            return bz2.BZ2File(file)
        case ".xz":
            return lzma.LZMAFile(file)
        case ".zst":  # tools that compress in parallel write several frames
            reader = zstandard.ZstdDecompressor().stream_reader(_plain(file), read_across_frames=True)
            return BufferedReader(cast(RawIOBase, reader))
    return _plain(file)


def _plain(file: str) -> BufferedReader:
    return open(file, "rb")


def _blocks(opened: IO[bytes], size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file."""
    while size > 0 and (block := opened.read(min(size, 1 << 20))):
        size -= len(block)
        yield block
