"""What Hugging Face `datasets` may do for a volunteer, who reads what somebody else's run file names.

A data set says in its README, which the library obeys, where its files are: anywhere, by any protocol that fsspec
knows. So patterns are checked before anything is looked for, only the library's readers of text are used, a server
leads nobody into the home network, and nothing is read at once that is longer than a text.
"""

import ipaddress
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from io import BufferedReader, RawIOBase, TextIOWrapper
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urljoin
from urllib.request import getproxies

import aiohttp
from aiohttp.abc import ResolveResult

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.reach import why_not_read

READERS = ("json", "csv", "parquet", "arrow", "text")
"""Others follow links in their files (hdf5, lance) or run what these hold (pandas), and have hardly a text."""
LONGEST_LINE = 64 << 20
"""Bytes. Above any document; it is held several times over while it becomes a row."""
LARGEST_WHOLE = 256 << 20
"""Of an array of rows, or a text, which the library reads whole; it holds the former ten times over."""
ARCHIVE = "zip://"
ROWS_AT_ONCE = 256
"""Of a Parquet file: a page of some bytes may say that a million rows have the same large text."""


@dataclass
class Fence:
    """What may be read. Both raise DataError."""

    check_pattern: Callable[[str, str], None]
    """Whether files may be looked for so: (where it starts from, pattern)."""
    check_parts: Callable[[Sequence[str]], None]
    """Whether these files may be read."""
    asked: int = 0
    """How often `check_pattern` was."""


def fenced_dataset(name: str, settings: Mapping[str, Any], split: str | None, fence: Fence) -> Any:
    """As `datasets.load_dataset` with `streaming`, for a volunteer. Raises DataError, and what the library raises."""
    import datasets

    with _within(fence):
        # whoever was made last says it for all that have the same reader: it has to be the same
        builder = datasets.load_dataset_builder(name, **settings, storage_options={"https": {"get_client": client}})
        if builder.name not in READERS:
            raise DataError(f"they are read as {builder.name}; a volunteer reads {', '.join(READERS)}")
        fence.check_parts([str(file) for files in (builder.config.data_files or {}).values() for file in files])
        _bound_reading(builder)
        return builder.as_streaming_dataset(split=split)


# ------------------------------------------------------------------------------------------------------ where files are


_fence: ContextVar[Fence | None] = ContextVar("fence", default=None)


@contextmanager
def _within(fence: Fence) -> Iterator[None]:
    """Within the block `datasets` looks for no files before `fence` has agreed. Raises DataError where it does not ask,
    as another version might not.
    """
    _wrap_library()
    before = _fence.set(fence)
    try:
        yield
    finally:
        _fence.reset(before)
    if not fence.asked:
        raise DataError("this version of the package datasets does not say where it looks for files; install another")


def _wrap_library() -> None:
    """Once. Its functions ask the `Fence` that they are called within, in this thread, if there is one."""
    from datasets import StreamingDownloadManager, data_files

    if not hasattr(data_files.resolve_pattern, "asks"):
        data_files.resolve_pattern = _resolving(data_files.resolve_pattern)
        StreamingDownloadManager._extract = _extracting(StreamingDownloadManager._extract)


def _resolving(resolve: Callable[..., Any]) -> Callable[..., Any]:
    def resolved(pattern: str, base_path: str, *more: Any, **settings: Any) -> Any:
        if (fence := _fence.get()) is not None:
            fence.check_pattern(str(base_path), str(pattern))
            fence.asked += 1
        return resolve(pattern, base_path, *more, **settings)

    resolved.asks = True  # type: ignore[attr-defined]
    return resolved


def _extracting(extract: Callable[..., str]) -> Callable[..., str]:
    def extracted(manager: Any, address: str) -> str:
        found = extract(manager, address)
        if _fence.get() is not None and found.startswith(ARCHIVE):
            _check_members(found, manager)
        return found

    return extracted


def _check_members(archive: str, manager: Any) -> None:
    """The library joins names as it joins addresses: a file in a folder may be named like another address."""
    from datasets.utils.file_utils import xjoin, xwalk

    within = archive.partition("::")[2]
    for folder, _, names in xwalk(archive, download_config=manager.download_config):
        for name in names:
            place = xjoin(folder, name)
            if not place.startswith(ARCHIVE) or place.partition("::")[2] != within:
                raise DataError(f"{within} has a file in it that is named {name[:100]}, which leads elsewhere")


# ------------------------------------------------------------------------------------------------- where servers lead


async def client(**settings: Any) -> aiohttp.ClientSession:
    """What fsspec reads https:// with: it goes to no server of the home network, whoever sends it there."""
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_check_redirect)
    # where there is a proxy, that one looks up names, and is itself often in the home network
    connector = None if getproxies() else aiohttp.TCPConnector(resolver=_PublicOnly())
    return aiohttp.ClientSession(trace_configs=[trace], connector=connector, **settings)


async def _check_redirect(
    session: aiohttp.ClientSession, context: SimpleNamespace, said: aiohttp.TraceRequestRedirectParams
) -> None:
    headers = said.response.headers
    address = urljoin(str(said.response.url), headers.get("Location") or headers.get("URI") or "")
    if (why := why_not_read(address)) is not None:
        raise DataError(f"{said.response.url} leads to {address}{why}")


class _PublicOnly(aiohttp.ThreadedResolver):
    """A name may stand for any address."""

    async def resolve(self, host: str, *more: Any, **settings: Any) -> list[ResolveResult]:
        found = await super().resolve(host, *more, **settings)
        for place in found:
            if not ipaddress.ip_address(place["host"]).is_global:
                raise DataError(f"{host} is {place['host']}, which is in your own network; ask the run's operator why")
        return found


# --------------------------------------------------------------------------------------------------- how much at once


def _bound_reading(builder: Any) -> None:
    """A reader of `datasets` opens files by the `open` of its module, where the library has put its own."""
    if getattr(builder.config, "sample_by", None) == "paragraph":
        raise DataError("they are cut into paragraphs, of which none may end; a volunteer reads lines or documents")
    if builder.name == "parquet":
        builder.config.batch_size = ROWS_AT_ONCE
    module = sys.modules[builder.__module__]
    if builder.name in ("json", "text") and not hasattr(module.open, "bounds"):
        module.open = _bounded(module.open)  # type: ignore[attr-defined]


def _bounded(opened: Callable[..., Any]) -> Callable[..., Any]:
    def within_bounds(file: str, mode: str = "r", **settings: Any) -> Any:
        data = _Bytes(_Source(opened(file, "rb")))
        return data if "b" in mode else _Text(data, **settings)

    within_bounds.bounds = True  # type: ignore[attr-defined]
    return within_bounds


class _Source(RawIOBase):
    """Whatever can be read from."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Bytes(BufferedReader):
    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size >= 0:
            return super().read(min(size, LARGEST_WHOLE))
        return cast(bytes, _short(super().read(LARGEST_WHOLE + 1), LARGEST_WHOLE, "a file that is read whole"))

    def readline(self, size: int | None = -1, /) -> bytes:
        return cast(bytes, _short(super().readline(LONGEST_LINE + 1), LONGEST_LINE, "a line"))


class _Text(TextIOWrapper):
    def read(self, size: int | None = -1, /) -> str:
        return super().read(size if size is None or size < 0 else min(size, LARGEST_WHOLE))

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        return cast(str, _short(super().readline(LONGEST_LINE + 1), LONGEST_LINE, "a line"))


def _short(read: bytes | str, bound: int, what: str) -> bytes | str:
    if len(read) > bound:
        raise DataError(f"{what} is longer than {bound >> 20} MB, which a volunteer does not read")
    return read
