"""The averages of the last rounds: as blobs, kept on the disk for those who are a few versions behind."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.strategies import CODECS
from dipaco_swarm.swarm.encoded_average import MAX_CHAIN, EncodedAverage, Span, piece_counts
from dipaco_swarm.swarm.framing import LENGTH, MAX_MESSAGE_BYTES, decode, encode
from dipaco_swarm.swarm.round.codecs.codec import Buffer, codec_of
from dipaco_swarm.swarm.states.shelf import Shelf
from dipaco_swarm.swarm.wire import AverageHeader, PackedAverage


@dataclass(frozen=True, eq=False)
class AverageBlob:
    """An average as it is asked for, and between which states it lies (their digests)."""

    packed: PackedAverage
    data: Buffer
    base: str
    to: str


def shelved(average: EncodedAverage, shelf: Shelf) -> EncodedAverage:
    """The same average, packed, and its pieces on a shelf."""
    parts = _packed(average)
    data, digest = shelf.put(parts), hashlib.sha256()
    for part in parts:
        digest.update(part)
    pieces, at = [], len(data) - sum(map(len, average.pieces))
    for piece in average.pieces:
        pieces.append(memoryview(data)[at : at + len(piece)])
        at += len(piece)
    return replace(average, pieces=pieces, blob=(digest.hexdigest(), data))


def pack(average: EncodedAverage, to: str) -> AverageBlob:
    """The same average is the same blob at every member. `to`: digest of the state that it leads to."""
    if average.blob is not None:
        digest, data = average.blob
    else:
        data = b"".join(_packed(average))
        digest = hashlib.sha256(data).hexdigest()
    return AverageBlob(PackedAverage(digest=digest, size=len(data)), data, average.base, to)


def _packed(average: EncodedAverage) -> list[Buffer]:
    """The parts of its blob."""
    header = AverageHeader(
        base=average.base,
        work=average.work,
        parameters=average.parameters,
        codec=average.codec,
        piece_parameters=average.piece_parameters,
        sizes=tuple(map(len, average.pieces)),
        spans=tuple((span.stop, span.effective_paths, span.decay) for span in average.spans),
    )
    said = encode(header)
    return [LENGTH.pack(len(said)), said, *average.pieces]


def unpack(peer: str, data: Buffer, parameters: int) -> EncodedAverage:
    """The average in a blob of a module with so many parameters.

    Raises RemoteDataError, which names the peer that said what to ask for, when it is none.
    """
    length = LENGTH.unpack_from(data)[0] if len(data) >= LENGTH.size else MAX_MESSAGE_BYTES
    if length > min(MAX_MESSAGE_BYTES, len(data) - LENGTH.size):
        raise RemoteDataError(peer, "names a blob that is not an average")
    header = decode(peer, bytes(data[LENGTH.size : LENGTH.size + length]))
    if not isinstance(header, AverageHeader) or header.parameters != parameters or header.codec not in CODECS:
        raise RemoteDataError(peer, f"names a blob that is not an average of {parameters} parameters")
    codec, counts = codec_of(header.codec), piece_counts(parameters, header.piece_parameters)
    at = LENGTH.size + length
    stops = [stop for stop, *_ in header.spans]
    fits = len(header.sizes) == len(counts) and len(data) == at + sum(header.sizes)
    if not fits or stops != sorted({*stops}) or stops[0] < 1 or stops[-1] != parameters:
        raise RemoteDataError(peer, "names an average whose pieces do not fit its module")
    pieces = []
    for size, count in zip(header.sizes, counts, strict=True):
        pieces.append(memoryview(data)[at : at + size])
        at += size
        try:
            codec.check(pieces[-1], count)
        except ValueError as error:
            raise RemoteDataError(peer, f"names an average whose pieces do not fit its module: {error}") from None
    starts = [0, *stops[:-1]]
    return EncodedAverage(
        base=header.base,
        work=header.work,
        spans=tuple(Span(start, *rest) for start, rest in zip(starts, header.spans, strict=True)),
        codec=header.codec,
        parameters=parameters,
        piece_parameters=header.piece_parameters,
        pieces=pieces,
    )


class KeptAverages:
    """The last averages of each module: MAX_CHAIN of them, and no more bytes than one of its states."""

    def __init__(self) -> None:
        self._blobs: dict[tuple[int, ModuleId], list[AverageBlob]] = {}
        """By stage and module, the oldest first."""

    def hold(self, stage: int, module: ModuleId, blob: AverageBlob, parameters: int) -> None:
        """`parameters`: how many the module has."""
        held = self._blobs.setdefault((stage, module), [])
        if any((other.base, other.to) == (blob.base, blob.to) for other in held):
            return
        held.append(blob)
        while len(held) > MAX_CHAIN or not is_cheaper([kept.packed for kept in held], parameters):
            del held[0]

    def release(self, stage: int, module: ModuleId) -> None:
        self._blobs.pop((stage, module), None)

    def get(self, digest: str) -> Buffer | None:
        """The bytes of a blob, as long as it is kept."""
        blobs = (blob for held in self._blobs.values() for blob in held)
        return next((blob.data for blob in blobs if blob.packed.digest == digest), None)

    def chain(self, stage: int, module: ModuleId, bases: Collection[str], to: str) -> tuple[PackedAverage, ...]:
        """What leads to a state from the nearest of these, in order; empty where that is not known."""
        by_end = {blob.to: blob for blob in self._blobs.get((stage, module), [])}
        found: list[PackedAverage] = []
        while to not in bases:
            blob = by_end.pop(to, None)
            if blob is None:
                return ()
            found.insert(0, blob.packed)
            to = blob.base
        return tuple(found)


def is_cheaper(averages: Sequence[PackedAverage], parameters: int) -> bool:
    """Whether these are fewer bytes than a state: its parameters and their momentum."""
    return sum(packed.size for packed in averages) < 2 * 4 * parameters
