"""What comes of the weights of a mixture: how often each source is read, and what share it really has."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dipaco_swarm.run.data import DataConfig
from dipaco_swarm.strategies import SOURCES
from dipaco_swarm.training.documents import Document, portions_of


@dataclass(frozen=True)
class SourceSample:
    """One of [[data.sources]], and what was found of it."""

    index: int
    source: str
    path: str | None
    documents: int
    """That were read for this report."""
    characters: int
    wanted: float
    """Its share of the characters, by the weights."""
    size: int | None
    """Bytes, as they are stored; None where nobody knows."""
    epochs: float | None = None
    """How often it is read until each source was read once; None where sizes are not known."""
    reached: float | None = None
    """Its share of all that is read until then."""

    @property
    def called(self) -> str:
        return f"data.sources[{self.index}]" + (f" ({self.path})" if self.path else f" ({self.source})")


def sources_of(data: DataConfig, found: Sequence[Sequence[Document]]) -> tuple[SourceSample, ...]:
    """`found`: the documents that were read of each source. Raises DataError."""
    total = sum(part.weight for part in data.sources)
    sizes = [
        None if SOURCES[part.source].is_remote else _size([portion.size for portion in portions_of(part)])
        for part in data.sources
    ]
    read: Sequence[float | None] = [None] * len(sizes)
    if None not in sizes:
        read = times_read(
            [size or 1 for size in sizes],
            [part.weight for part in data.sources],
            [part.epochs for part in data.sources],
        )
    amounts = [None if each is None else each * (size or 1) for each, size in zip(read, sizes, strict=True)]
    whole = sum(amount or 0.0 for amount in amounts)
    return tuple(
        SourceSample(
            index=index,
            source=part.source,
            path=part.path,
            documents=len(found[index]),
            characters=sum(len(document.text) for document in found[index]),
            wanted=part.weight / total,
            size=sizes[index],
            epochs=read[index],
            reached=None if amount is None else amount / whole,
        )
        for index, (part, amount) in enumerate(zip(data.sources, amounts, strict=True))
    )


def times_read(sizes: Sequence[int], weights: Sequence[float], epochs: Sequence[int]) -> list[float]:
    """How often each source is read until all were read once, where a source ends after its `epochs`."""
    read = [0.0] * len(sizes)
    living = set(range(len(sizes)))
    while min(read) < 1:
        pace = {index: weights[index] / sizes[index] for index in living}  # epochs for each unit of weight
        # up to the next event: a source was read for the first time, or for the last
        until = {index: 1.0 if read[index] < 1 else float(epochs[index]) for index in living}
        step = min((until[index] - read[index]) / pace[index] for index in living)
        for index in living:
            read[index] += pace[index] * step
            if math.isclose(read[index], until[index], rel_tol=1e-9):
                read[index] = until[index]
        living = {index for index in living if read[index] < epochs[index]}
    return read


def _size(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
