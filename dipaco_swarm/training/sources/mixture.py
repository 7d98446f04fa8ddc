"""`[[data.sources]]`: several sources of any kinds, of which everybody reads as much as their weights say.

The next document is one of the source that is furthest behind its share of the characters read so far: no random
numbers, so that all peers read the same, and the mixture is there from the first documents on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.data import DataConfig, MixedSource, SourceConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import Document, Portion, portions_of, read_documents


class Mixing:
    """Which source of a mixture is read next: its whole state are the characters that were read of each."""

    def __init__(self, parts: Sequence[MixedSource], taken: Sequence[int] = (), epochs: int | None = None) -> None:
        """`taken`: so far; nothing, if that is not given. `epochs`: instead of those of the run file."""
        self._parts = parts
        self._epochs = [part.epochs if epochs is None else epochs for part in parts]
        self.taken = list(taken) or [0] * len(parts)
        self.read_through = [0] * len(parts)
        """How often each source was read to its end."""

    def documents(self, opened: Callable[[int], Iterator[Document]]) -> Iterator[Document]:
        """The documents, until each source was read once; then those that may not be read again are left out.

        `opened`: the documents of a source from the first on, or, at its first call, from where it is to begin. Raises
        DataError when a source has none.
        """
        living = [index for index in range(len(self._parts)) if self.read_through[index] < self._epochs[index]]
        streams = {index: opened(index) for index in living}
        while living and min(self.read_through) == 0:
            index = min(living, key=lambda index: self.taken[index] / self._parts[index].weight)
            document = next(streams[index], None)
            if document is not None:
                self.taken[index] += len(document.text)
                yield document
                continue
            if not self.taken[index]:
                raise DataError(nothing_in(index, self._parts[index]))
            self.read_through[index] += 1
            if self.read_through[index] < self._epochs[index]:
                streams[index] = opened(index)
            else:
                living.remove(index)


def read(data: SourceConfig, reach: Reach) -> Iterator[Document]:
    """Each document once; when a source has ended the others go on."""
    return _mixed(_parts(data), reach, epochs=1)


def with_repeats(data: DataConfig, reach: Reach) -> Iterator[Document]:
    """A source that ends is begun again, `epochs` times in all, until each was read once."""
    return _mixed(data.sources, reach)


def _mixed(parts: Sequence[MixedSource], reach: Reach, epochs: int | None = None) -> Iterator[Document]:
    return Mixing(parts, epochs=epochs).documents(lambda index: read_documents(parts[index], reach=reach))


def portions(data: SourceConfig, reach: Reach) -> Sequence[Portion]:
    """Those of all sources, each named after the number of its source."""
    return [
        replace(portion, name=f"{index}: {portion.name}")
        for index, part in enumerate(_parts(data))
        for portion in portions_of(part, reach=reach)
    ]


def nothing_in(index: int, part: SourceConfig) -> str:
    """What to tell the operator of a source without documents."""
    return (
        f'data.sources[{index}] has no documents at all (source="{part.source}", path="{part.path}"); bring some, or '
        "leave it out"
    )


def _parts(data: SourceConfig) -> Sequence[MixedSource]:
    assert isinstance(data, DataConfig), "a mixture is never a part of another"
    return data.sources
