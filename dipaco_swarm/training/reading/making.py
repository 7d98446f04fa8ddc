"""Makes the blocks of a stream, one after the other or one from the middle, and finds what is held out of training."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dipaco_swarm.errors import DataError
from dipaco_swarm.files import flush
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.training.documents import CHUNK_DOCUMENTS, Document, in_chunks, place_in_slice, split_of
from dipaco_swarm.training.encoding import Indices
from dipaco_swarm.training.reading.cheap import CheapRouting
from dipaco_swarm.training.reading.places import Corpus, MixedCorpus, Place, Position
from dipaco_swarm.training.reading.shared.supply import SharedSupply
from dipaco_swarm.training.reading.store import BlockStore, End, Frontier

HELD_CHARACTERS = 256_000_000
"""So much of the corpus is looked through for what is held out: seconds of reading, and a hash for each document."""

Tell = Callable[[Place], None]
"""Is told how far the reader has come, after each chunk."""
Step = tuple[Place, NDArray[np.generic]]
"""The place after a chunk of documents, and the sequences that it completes, (sequences, T)."""


@dataclass(frozen=True)
class Rules:
    """What decides which sequences come out of the documents, beside their paths."""

    data: DataConfig
    end_of_text: int
    hold_out: float
    """Share of the documents that are not trained on."""


class BlockMaker:
    """Reads on from where it is, or from the place of an earlier block."""

    def __init__(
        self,
        store: BlockStore,
        corpus: Corpus | MixedCorpus,
        routing: CheapRouting,
        rules: Rules,
        tell: Tell,
        shared: SharedSupply | None = None,
    ) -> None:
        """`shared`: where texts come from if peers route the corpus together."""
        self._store = store
        self._corpus = corpus
        self._routing = routing
        self._rules = rules
        self._tell = tell
        self._shared = shared
        self._chunks: Iterator[tuple[list[Document], Position]] = iter(())
        self._at: Place | None = None
        """Where `_chunks` goes on; None: nobody knows."""
        self._left: tuple[Place, Step] | None = None
        """What of a chunk belongs to the next block, and where that begins."""

    def make(self, block: int) -> bool:
        """Make a block, and those before it whose places lead there; False: the corpus has ended before it.

        Raises DataError when the documents cannot be read, or none are of this path.
        """
        begin = block
        while self._store.frontier(begin) is None and self._store.place(begin) is None:
            begin -= 1  # the disk has lost something, as after a power cut
        for each in range(begin, block + 1):
            if self._store.size(each) == 0:
                return False
            if each == block or not self._store.has(each):
                self._make(each)
        return self._store.size(block) > 0

    def _make(self, block: int) -> None:
        store, blocks = self._store, self._store.blocks
        place = store.place(block)
        assert place is not None
        size, frontier = store.size(block), store.frontier(block) or Frontier(block, 0, place)
        place, made = frontier.place, frontier.sequences
        with closing(store.begin(block, made)) as file:
            while made < size:
                step = self._next(place)
                if step is None:
                    if blocks.start(block) + made == 0:
                        row = self._repeated(place)
                        file.write(row.tobytes())
                        made = len(row)
                    store.note_end(End(blocks.start(block) + made, replace(place, pending=())))
                    if made:
                        store.finish(block, file, place)
                    return
                following, rows = step
                taken = min(len(rows), size - made)
                file.write(rows[:taken].tobytes())
                made += taken
                if taken < len(rows):
                    place = replace(place, skip=place.skip + taken)
                    self._left = place, (following, rows[taken:])
                else:
                    place = following
                if made < size:
                    flush(file)  # before the frontier counts what was written
                    store.note(Frontier(block, made, place))
                self._tell(following)
            store.finish(block, file, place)

    def _next(self, place: Place) -> Step | None:
        """What the chunk at a place completes; None after the last document."""
        if self._left is not None and self._left[0] == place:
            (_, step), self._left = self._left, None
            return step
        if self._shared is not None:
            return self._next_shared(self._shared, place)
        if self._at != place:
            self._chunks = self._corpus.chunks(place)
        self._at = None
        found = next(self._chunks, None)
        if found is None:
            return None
        following, rows = self._packed(place, *found)
        self._at = following
        return following, rows[place.skip :]

    def _next_shared(self, shared: SharedSupply, place: Place) -> Step | None:
        """The same, of the slices at a place; there a group is a slice. Small ones are taken together."""
        after, texts = place, list[Indices]()
        while after.read - place.read < CHUNK_DOCUMENTS and (gain := shared.next(after.group)) is not None:
            texts += gain.texts
            after = replace(
                after,
                group=after.group + 1,
                read=after.read + gain.documents,
                characters=after.characters + gain.characters,
                routed=after.routed + gain.routed,
            )
        if after is place:
            return None
        following, rows = self._joined(after, texts)
        return following, rows[place.skip :]

    def _packed(self, place: Place, chunk: Sequence[Document], after: Position) -> Step:
        """The place after a chunk, which is at the position `after`, and all sequences that it completes."""
        found = self._routing.find([d for d in chunk if is_trained_on(d, self._rules)])
        characters = sum(len(document.text) for document in chunk)
        self._routing.work.characters += characters
        following = replace(
            place,
            group=after.group,
            documents=after.documents,
            spots=after.spots,
            read=place.read + len(chunk),
            characters=place.characters + characters,
            routed=place.routed + found.routed,
            tokenized=place.tokenized + found.tokenized,
        )
        return self._joined(following, found.texts)

    def _joined(self, after: Place, texts: Sequence[Indices]) -> Step:
        """`after`: the place that follows, but for what these texts change. Sequences are shuffled, each time alike."""
        length = self._store.length
        full, pending = [], list(after.pending)
        for text in texts:
            whole = len(text) // length * length
            full.append(text[:whole])
            if whole < len(text):  # the end of a text: shares its sequence with others
                pending += [*text[whole:].tolist(), self._rules.end_of_text]
        packed = len(pending) // length * length
        tokens = np.concatenate([*full, np.array(pending[:packed], dtype=np.int64)])
        following = replace(
            after,
            pending=tuple(pending[packed:]),
            skip=0,
            kept=after.kept + len(texts),
            sequences=after.sequences + len(tokens) // length,
        )
        rows = tokens.astype(self._store.dtype).reshape(-1, length)
        # blocks are small at first: without this, batches would be the sequences of one document after the other
        order = np.random.default_rng([after.sequences, len(rows)]).permutation(len(rows))
        return following, rows[order]

    def _repeated(self, place: Place) -> NDArray[np.generic]:
        """All there is where it does not fill a sequence: one that repeats it."""
        if not place.pending:
            raise DataError(_nothing(place))
        row = np.resize(np.array(place.pending, dtype=self._store.dtype), self._store.length)
        return row.reshape(1, -1)

    def hold_out(self, most: int) -> None:
        """Find up to `most` pieces of our path that nobody trains on, the same for all peers of the path."""
        found: list[Indices] = []
        seen = 0
        for chunk in in_chunks(self._corpus.for_all()):
            held = [
                d for d in chunk if split_of(d.text, self._rules.data) == "train" and not is_trained_on(d, self._rules)
            ]
            found += (text[: self._store.length] for text in self._routing.find(held).texts)
            seen += sum(len(document.text) for document in chunk)
            if len(found) >= most or seen >= HELD_CHARACTERS:
                break
        self._store.hold(found[:most])


def is_trained_on(document: Document, rules: Rules) -> bool:
    """Whether a document is neither for evaluation, nor for routers, nor held out of its shard."""
    is_held = rules.hold_out > 0 and place_in_slice(document.text) < rules.hold_out
    return split_of(document.text, rules.data) == "train" and not is_held


def _nothing(place: Place) -> str:
    """What to tell someone whose path has no documents."""
    if place.read == 0:
        return "the data source has no documents at all; check data.source and data.path"
    if place.routed == 0:
        return (
            f"none of {place.read} documents has more tokens than the router reads; bring more or longer documents, or "
            "lower router.prefix_tokens"
        )
    return (
        f"this path has no documents: the router gave all {place.routed} texts of {place.read} documents to other "
        "paths; bring more documents, train another path (--path auto), or ask the operator to raise router.min_share"
    )
