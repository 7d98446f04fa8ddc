"""Fewer bytes for the same bytes: some numbers are more frequent than others, and zstd gives them shorter codes.

What was packed says so by being shorter than it would be; what does not get shorter stays as it is. How long it is
unpacked is known before anything is unpacked, so nothing that a stranger sends takes more room than an honest piece.
"""

from collections.abc import Sequence

import zstandard

LEVEL = 1
"""Higher ones find no more: there is nothing in a gradient that repeats."""


def packed(parts: Sequence[memoryview]) -> memoryview:
    """These parts as one run of bytes. Bytes of one part are alike, and each part gets codes of its own.

    zstd's bytes may differ between its versions: what peers compare is made once, and sent to all.
    """
    size = sum(map(len, parts))
    frame = zstandard.ZstdCompressor(level=LEVEL).compressobj(size=size)
    short = bytearray()
    for part in parts:
        short += frame.compress(part)
        short += frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    short += frame.flush()
    return memoryview(short) if len(short) < size else memoryview(bytearray().join(parts))


def unpacked(data: bytes | bytearray | memoryview, size: int) -> bytearray | None:
    """What was packed, if that is `size` bytes; else None."""
    try:
        if len(data) < size and zstandard.frame_content_size(data) == size:
            return bytearray(zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False))
    except zstandard.ZstdError:
        return None
    return None
