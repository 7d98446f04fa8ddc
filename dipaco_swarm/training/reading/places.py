"""Where in the corpus the reader is. A block can be made again from its place, whatever has been forgotten since."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import ANYWHERE, Document, Portion, in_chunks, in_turns, portions_of
from dipaco_swarm.training.sources.mixture import Mixing

TOGETHER = 8
"""Portions that are read in turns, as a portion often has documents of one kind."""


@dataclass(frozen=True)
class Spot:
    """Where in one source of a mixture the reader is."""

    group: int = 0
    """As of a `Place`; counted on when the source is read again."""
    documents: int = 0
    characters: int = 0
    """Of the source, that were read in all."""


@dataclass(frozen=True)
class Place:
    """The whole state of the reader between two chunks of documents, and how it has fared so far."""

    group: int = 0
    """Portions that are read together; counted from this peer's first."""
    documents: int = 0
    """Documents of the group that have been consumed."""
    pending: tuple[int, ...] = ()
    """Tokens that do not fill a sequence yet."""
    skip: int = 0
    """Sequences that the next chunk completes, and that belong to blocks before."""
    read: int = 0
    """Documents consumed in all, of all splits."""
    characters: int = 0
    """Characters of them."""
    routed: int = 0
    """Texts whose path was asked for."""
    kept: int = 0
    """Texts of our path."""
    tokenized: int = 0
    """Characters that were tokenized."""
    sequences: int = 0
    """Sequences that came of it."""
    spots: tuple[Spot, ...] = ()
    """In each source of a mixture; `group` and `documents` say nothing then."""

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "Place":
        """Of `asdict`, through JSON. Raises TypeError and KeyError for what is none."""
        spots = tuple(Spot(**spot) for spot in fields.get("spots", ()))
        return cls(**{**fields, "pending": tuple(fields["pending"]), "spots": spots})


@dataclass(frozen=True)
class Position:
    """Where the next chunk of documents begins: the part of a `Place` that the corpus understands."""

    group: int = 0
    documents: int = 0
    spots: tuple[Spot, ...] = ()


class Corpus:
    """All portions in the order of one peer: shuffled as for everybody, and begun at a place of its own."""

    def __init__(self, portions: Sequence[Portion], seed: int, start: int) -> None:
        """`seed`: of the run. `start`: any number; peers with other numbers begin elsewhere, and wrap around."""
        order = np.random.default_rng([abs(seed), len(portions)]).permutation(len(portions))
        self.in_order = [portions[index] for index in order]
        """As all peers have them."""
        ours = np.roll(order, -(start % len(portions)))
        self._groups = [ours[first : first + TOGETHER] for first in range(0, len(ours), TOGETHER)]
        self._portions = portions

    @property
    def num_groups(self) -> int:
        return len(self._groups)

    def documents(self, group: int, skip: int = 0) -> Iterator[Document]:
        """The documents of a group but for the first `skip`."""
        streams = [self._portions[index].read() for index in self._groups[group]]
        return islice(in_turns(streams), skip, None)

    def chunks(self, place: Place) -> Iterator[tuple[list[Document], Position]]:
        """What follows a place, to the end: some documents, and where it goes on after them."""
        group, done = place.group, place.documents
        while group < self.num_groups:
            for chunk in in_chunks(self.documents(group, done)):
                done += len(chunk)
                yield chunk, Position(group, done)
            group, done = group + 1, 0

    def for_all(self) -> Iterator[Document]:
        """The documents in an order that all peers have."""
        return chain.from_iterable(portion.read() for portion in self.in_order)


class MixedCorpus:
    """Several sources, each with an order of its own for each peer, mixed by the weights of the run file."""

    def __init__(self, data: DataConfig, corpora: Sequence[Corpus]) -> None:
        """`corpora`: of each of `data.sources`."""
        self._parts = data.sources
        self._corpora = corpora

    def chunks(self, place: Place) -> Iterator[tuple[list[Document], Position]]:
        """As of a `Corpus`; small sources come again."""
        spots = list(place.spots or [Spot()] * len(self._parts))
        mixing = Mixing(self._parts, [spot.characters for spot in spots])
        for spot, corpus, index in zip(spots, self._corpora, range(len(spots)), strict=True):
            mixing.read_through[index] = spot.group // corpus.num_groups
        streams = [self._from(index, spot) for index, spot in enumerate(spots)]

        def opened(index: int) -> Iterator[Document]:
            for spot, document in streams[index]:
                spots[index] = replace(spot, characters=mixing.taken[index])
                if document is None:
                    return
                spots[index] = replace(spot, characters=mixing.taken[index] + len(document.text))
                yield document

        for chunk in in_chunks(mixing.documents(opened)):
            yield chunk, Position(spots=tuple(spots))

    def _from(self, index: int, spot: Spot) -> Iterator[tuple[Spot, Document | None]]:
        """The documents of a source from a spot on, each with the spot after it; None: it was read once more."""
        corpus, group, done = self._corpora[index], spot.group, spot.documents
        while True:
            for document in corpus.documents(group % corpus.num_groups, done):
                done += 1
                yield Spot(group, done), document
            group, done = group + 1, 0
            if group % corpus.num_groups == 0:
                yield Spot(group), None

    def for_all(self) -> Iterator[Document]:
        return Mixing(self._parts, epochs=1).documents(lambda index: self._corpora[index].for_all())


def corpus_of(data: DataConfig, seed: int, start: int, reach: Reach = ANYWHERE) -> Corpus | MixedCorpus:
    """The documents of a run as a peer reads them. `seed`, `start`: see `Corpus`. Raises DataError."""
    corpora = [Corpus(portions_of(part, reach=reach), seed, start) for part in data.parts]
    return MixedCorpus(data, corpora) if data.sources else corpora[0]
