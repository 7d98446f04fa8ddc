"""A shard that is read beside training: the same sequences whatever was interrupted, forgotten or slow."""

import errno
import itertools
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from queue import Queue
from typing import BinaryIO

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import DataError
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.reading import AwaitingDocuments, CorpusEnded, FirstSequences, ReaderRestarted
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.training import documents as documents_module
from dipaco_swarm.training.documents import Document, Portion, cut, place_in_slice, split_of
from dipaco_swarm.training.encoding import encoder
from dipaco_swarm.training.packing import Assign
from dipaco_swarm.training.reading import stream as stream_module
from dipaco_swarm.training.reading.blocks import Blocks, order_in
from dipaco_swarm.training.reading.cheap import CheapRouting
from dipaco_swarm.training.reading.making import BlockMaker, Rules
from dipaco_swarm.training.reading.places import Corpus, MixedCorpus, Place
from dipaco_swarm.training.reading.reader import LEAD, Needed, Reader, Rolling
from dipaco_swarm.training.reading.store import BlockStore
from dipaco_swarm.training.reading.stream import Hear, ReaderProcess, Stream
from dipaco_swarm.training.tokenizer import end_of_text_id, load_tokenizer, train_tokenizer

LENGTH, PREFIX, BATCH = 16, 4, 2
DATA = DataConfig(source="python", sequence_length=LENGTH, holdout=0.1, routing_sample=0.1)
P0, P1 = PathIndex(0), PathIndex(1)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(train_tokenizer(["plain letters"], 257))  # one token for each byte


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "CHUNK_DOCUMENTS", 8)


def text(number: int) -> str:
    return f"{'ab'[number % 2]}{number:04d} " + " ".join("xyz"[number % 3] * 5 for _ in range(1 + number * 7 % 12))


def portions(count: int = 9, each: int = 20) -> list[Portion]:
    """Portions of numbered documents, of which no two are alike."""

    def read(portion: int) -> Iterator[Document]:
        return (Document(text(portion * each + i), "") for i in range(each))

    return [Portion(str(i), "", None, partial(read, i)) for i in range(count)]


MIXTURE = DataConfig.model_validate(
    {
        "sources": (
            {"source": "python", "weight": 0.7, "domain": "large"},
            {"source": "python", "weight": 0.3, "domain": "few", "epochs": 3},
        )
    }
)


def few_documents(portion: int) -> Iterator[Document]:
    """Seven documents, which a mixture has three times."""
    return (Document(f"b few {portion} {i} " + "w" * (5 * i), "few") for i in range(7))


def by_first_letter(prefixes: NDArray[np.int64]) -> NDArray[np.int64]:
    return prefixes[:, 0] % 2


class Bench:
    """A stream's folder, and what reads for it."""

    def __init__(self, tokenizer: Tokenizer, folder: Path, **changes: object) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.store = BlockStore(folder, Blocks(BATCH, 8), LENGTH, 257)
        self.assign: Assign | None = None
        self.portions: Sequence[Portion] = portions()
        self.mixed = False
        self.start = 0
        self.hold_out = 0.0
        self.told: list[Place] = []
        self.tell: Callable[[Place], None] = self.told.append
        self.tokenizer = tokenizer
        vars(self).update(changes)

    def corpus(self) -> Corpus | MixedCorpus:
        large = Corpus(self.portions, 5, self.start)
        if not self.mixed:
            return large
        few = [Portion(f"few {i}", "", None, partial(few_documents, i)) for i in range(2)]
        return MixedCorpus(MIXTURE, [large, Corpus(few, 5, self.start)])

    def maker(self) -> BlockMaker:
        return BlockMaker(
            self.store,
            self.corpus(),
            CheapRouting(encoder(self.tokenizer), self.assign, P0, LENGTH, PREFIX),
            Rules(DATA, end_of_text_id(self.tokenizer), self.hold_out),
            self.tell,
        )

    def sequences(self) -> NDArray[np.generic]:
        """All of the corpus, (sequences, T)."""
        maker, block = self.maker(), 0
        while maker.make(block):
            block += 1
        made = [self.store.open(each) for each in range(block)]
        return np.concatenate([rows for rows in made if rows is not None])


def tokens_of(texts: Sequence[str], tokenizer: Tokenizer, *, routed: bool) -> Counter[int]:
    """What these documents are packed from: of our path, or of the only one."""
    parts = [part.text for t in texts for part in cut(t, "", 4 * LENGTH)] if routed else list(texts)
    encoded = [tokenizer.encode(part).ids for part in parts]
    ours = [ids for ids in encoded if len(ids) > PREFIX and (not routed or ids[0] % 2 == 0)]
    ends = Counter({end_of_text_id(tokenizer): sum(len(ids) % LENGTH > 0 for ids in ours)})
    return Counter(chain.from_iterable(ours)) + ends


def test_blocks_are_as_large_as_all_before_them_and_hold_each_sequence_once() -> None:
    blocks = Blocks(4, 100)
    assert [blocks.size(i) for i in range(8)] == [4, 4, 8, 16, 32, 64, 100, 100]
    for sequence in range(1000):
        block = blocks.holding(sequence)
        assert blocks.start(block) <= sequence < blocks.start(block + 1)


def test_what_is_read_again_is_shuffled_in_windows_as_large_as_the_largest_block() -> None:
    blocks = Blocks(4, 100)
    assert all(blocks.window(block, 0) == range(block, block + 1) for block in range(60))
    windows = list(dict.fromkeys(blocks.window(block, 1) for block in range(60)))
    assert [block for window in windows for block in window][:60] == list(range(60)), "each block is in one"
    sizes = [blocks.start(window.stop) - blocks.start(window.start) for window in windows]
    assert max(sizes) <= 100
    assert all(sum(pair) > 100 for pair in itertools.pairwise(sizes)), "no two of them would be one"


def test_the_order_within_a_block_is_a_permutation_by_seed_and_epoch() -> None:
    orders = {order_in(block, 50, seed, epoch).tobytes() for block in (3, 4) for seed in (1, 2) for epoch in (0, 1)}
    assert len(orders) == 8
    assert all(sorted(np.frombuffer(order, dtype=np.int64)) == list(range(50)) for order in orders)
    assert (order_in(3, 50, 1, 0) == order_in(3, 50, 1, 0)).all()


def test_a_corpus_has_each_document_once_wherever_a_peer_begins() -> None:
    firsts = set()
    for start in range(9):
        corpus = Corpus(portions(), 5, start)
        read = [d.text for group in range(corpus.num_groups) for d in corpus.documents(group)]
        assert sorted(read) == sorted(text(i) for i in range(180))
        firsts.add(read[0])
        assert [p.name for p in corpus.in_order] == [p.name for p in Corpus(portions(), 5, 0).in_order]
    assert len(firsts) == 9


def test_a_mixture_has_the_shares_of_its_sources_and_small_ones_several_times(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    for start in (0, 3):
        bench = Bench(tokenizer, tmp_path, mixed=True, start=start)
        documents = [document for chunk, _ in bench.corpus().chunks(Place()) for document in chunk]
        count = Counter(document.text for document in documents)
        assert {count[text(i)] for i in range(180)} == {1}
        assert {count[document.text] for i in range(2) for document in few_documents(i)} == {3}
        beginning = documents[:30]
        few = sum(len(document.text) for document in beginning if document.domain == "few")
        assert few / sum(len(document.text) for document in beginning) == pytest.approx(0.3, abs=0.08)
    everybodys = list(bench.corpus().for_all())
    assert everybodys == list(Bench(tokenizer, bench.folder, mixed=True, start=1).corpus().for_all())
    assert Counter(map(len, [set(everybodys), everybodys])) == {194: 2}


def test_all_training_documents_of_the_path_are_in_the_stream_and_no_others(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    trained = [text(i) for i in range(180) if split_of(text(i), DATA) == "train"]
    for assign in (None, by_first_letter):
        sequences = Bench(tokenizer, tmp_path / str(assign), assign=assign).sequences()
        expected = tokens_of(trained, tokenizer, routed=assign is not None)
        found = Counter(sequences.ravel().tolist())
        assert not found - expected
        assert (expected - found).total() < LENGTH  # what is left over at the end does not fill a sequence


# ------------------------------------------------------------------------------------------------ made and made again


class Killed(Exception):
    """In the middle of it."""


@pytest.mark.parametrize(("assign", "mixed"), [(None, False), (by_first_letter, False), (None, True)])
def test_the_sequences_are_the_same_wherever_the_reader_was_killed(
    tokenizer: Tokenizer, tmp_path: Path, assign: Assign | None, mixed: bool
) -> None:
    whole = Bench(tokenizer, tmp_path / "whole", assign=assign, mixed=mixed).sequences()
    assert len(whole) > 40
    killed = 0
    for after in range(1, 24):
        bench = Bench(tokenizer, tmp_path / f"killed-{after}", assign=assign, mixed=mixed)
        left = after

        def kill(place: Place) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed

        bench.tell = kill
        try:
            bench.sequences()
        except Killed:
            killed += 1
            left = 2 * after  # and once more, later
            with_torn = sorted(bench.folder.glob("*.part"))
            for file in with_torn:
                file.write_bytes(file.read_bytes() + b"torn")
            try:
                bench.sequences()
            except Killed:
                killed += 1
        bench.tell = bench.told.append
        assert (bench.sequences() == whole).all()
    assert killed > 24


def test_a_block_that_was_dropped_is_made_again(tokenizer: Tokenizer, tmp_path: Path) -> None:
    bench = Bench(tokenizer, tmp_path, assign=by_first_letter)
    bench.sequences()
    files = sorted(tmp_path.glob("*.bin"))
    before = {file.name: file.read_bytes() for file in files}
    assert len(before) > 8
    for name in before:
        (tmp_path / name).unlink()
        assert bench.maker().make(int(name.removesuffix(".bin")))
        assert (tmp_path / name).read_bytes() == before[name]


def test_what_a_power_cut_took_is_made_again(tokenizer: Tokenizer, tmp_path: Path) -> None:
    bench = Bench(tokenizer, tmp_path)
    whole = bench.sequences()
    for name in ("5.json", "6.json", "5.bin"):
        (tmp_path / name).write_bytes(b"")
    again = bench.sequences()
    assert (again == whole).all()


def test_peers_of_other_numbers_begin_elsewhere_and_read_the_same_in_all(tokenizer: Tokenizer, tmp_path: Path) -> None:
    one, other = (Bench(tokenizer, tmp_path / str(start), start=start) for start in (0, 4))
    first, second = one.sequences(), other.sequences()
    assert not (first[:4] == second[:4]).all()
    in_first, in_second = (Counter(sequences.ravel().tolist()) for sequences in (first, second))
    assert (in_first - in_second).total() < LENGTH


def test_a_path_without_documents_and_an_empty_corpus_are_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def elsewhere(prefixes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.ones(len(prefixes), dtype=np.int64)

    with pytest.raises(DataError, match=r"the router gave all \d+ texts of 180 documents to other paths"):
        Bench(tokenizer, tmp_path / "none", assign=elsewhere).sequences()
    with pytest.raises(DataError, match="no documents at all"):
        Bench(tokenizer, tmp_path / "empty", portions=portions(1, 0)).sequences()


def test_a_few_short_documents_become_one_sequence(tokenizer: Tokenizer, tmp_path: Path) -> None:
    few = [Portion("", "", None, lambda: iter([Document("seven letters"[:7], "")]))]
    sequences = Bench(tokenizer, tmp_path, portions=few).sequences()
    assert sequences.shape == (1, LENGTH)
    assert len(set(sequences[0].tolist())) <= 7


# ------------------------------------------------------------------------------------------------------ cheap routing


def test_only_the_beginnings_of_what_other_paths_train_on_are_tokenized(tokenizer: Tokenizer) -> None:
    documents = [Document(f"{'ab'[i % 2]} " + "word after word " * 20, "") for i in range(40)]
    characters = sum(len(d.text) for d in documents)
    asked: list[int] = []

    def encode(texts: Sequence[str]) -> list[NDArray[np.int64]]:
        asked.append(sum(map(len, texts)))
        return encoder(tokenizer)(texts)

    def as_whole(prefixes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.zeros(len(prefixes), dtype=np.int64)

    found = CheapRouting(encode, by_first_letter, P0, 128, PREFIX).find(documents)
    assert found.tokenized == sum(asked) < 0.8 * characters
    assert found.routed == len(documents)
    assert len(found.texts) == 20
    everything = CheapRouting(encode, as_whole, P0, LENGTH, PREFIX).find(documents)
    rejoined = tokenizer.decode([t for ids in everything.texts for t in ids.tolist()])
    assert rejoined == "".join(d.text[:320] for d in documents)  # two letters more than a text are no text
    shorter = CheapRouting(encode, as_whole, P0, LENGTH, PREFIX, text_characters=64)
    assert {len(text) for text in shorter.texts_of(documents)} == {64, len(documents[0].text) % 64}


def test_the_beginning_of_a_text_has_the_prefix_of_the_whole(tokenizer: Tokenizer) -> None:
    texts = ["one two three four five six seven eight nine ten " * 9, "w" * 400, "short text", "é" * 300]
    many = load_tokenizer(train_tokenizer([*texts, "three four fives nines tens w ww www"], 400))
    seen: list[list[int]] = []

    def look(prefixes: NDArray[np.int64]) -> NDArray[np.int64]:
        seen.extend(prefixes.tolist())
        return np.zeros(len(prefixes), dtype=np.int64)

    CheapRouting(encoder(many), look, P0, 128, PREFIX).find([Document(t, "") for t in texts])
    whole = [ids.tolist() for ids in encoder(many)(texts)]
    assert seen == [ids[:PREFIX] for ids in whole if len(ids) > PREFIX]


# -------------------------------------------------------------------------------------------------------- the process


class Thread:
    """A reader in a thread, that can be killed."""

    def __init__(self, bench: Bench, hear: Hear, disk: int = 10**9, most_held: int = 0) -> None:
        self.needed = Needed()
        self._killed = threading.Event()
        self._hear = hear
        bench.tell = self._look
        reader = Reader(bench.maker(), bench.store, Rolling(bench.folder, disk), most_held, hear)
        self._thread = threading.Thread(target=self._work, args=(reader,), daemon=True)
        self._thread.start()

    def _look(self, place: Place) -> None:
        self._hear({"place": {"read": place.read}})
        if self._killed.is_set():
            raise Killed

    def _work(self, reader: Reader) -> None:
        try:
            reader.work(self.needed)
        except Killed:
            self._hear({"over": -9})
        except DataError as error:
            self._hear({"error": str(error)})
            self._hear({"over": 2})

    def come_to(self, block: int) -> None:
        self.needed.come_to(block)

    def rest(self, *, resting: bool) -> None:
        """A thread cannot be held."""

    def kill(self) -> None:
        """At its next chunk."""
        self._killed.set()

    def close(self) -> None:
        self._killed.set()
        self.needed.come_to(None)
        self._thread.join()


def take(stream: Stream, count: int, seed: int = 3, start: int = 0) -> list[list[list[int]]]:
    """Some batches, however long they take."""
    batches = (batch for batch in stream.batches(BATCH, seed, start) if batch is not None)
    return [batch.tolist() for batch in islice(batches, count)]


def test_every_sequence_comes_once_in_an_epoch_in_another_order_each_time(tokenizer: Tokenizer, tmp_path: Path) -> None:
    told: list[Event] = []
    bench = Bench(tokenizer, tmp_path)
    stream = Stream(bench.store, partial(Thread, bench), told.append)
    stream.await_first(lambda: False)
    assert isinstance(told[0], FirstSequences)
    assert told[0].documents < 60
    whole = Bench(tokenizer, tmp_path / "whole").sequences()
    count = len(whole) // BATCH
    rows = [tuple(row) for batch in take(stream, 3 * count) for row in batch]
    epochs = [rows[epoch * len(whole) : (epoch + 1) * len(whole)] for epoch in range(2)]
    for epoch in epochs:
        assert sorted(epoch) == sorted(tuple(row) for row in whole.tolist())
    assert epochs[0] != epochs[1]
    assert [event for event in told if isinstance(event, CorpusEnded)] == [CorpusEnded(180, len(whole))]
    assert take(stream, 20, seed=4) != take(stream, 20, seed=3)
    stream.close()


def test_a_reader_that_has_come_up_has_what_training_needs_and_one_block_more(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    bench, needed, said = Bench(tokenizer, tmp_path), Needed(), list[dict[str, object]]()
    reader = Reader(bench.maker(), bench.store, Rolling(tmp_path, 10**9), 0, said.append)
    assert reader.come_up(needed) == 0  # and does not wait for training
    assert [line["made"] for line in said if "made" in line] == [0, 1]
    needed.come_to(1)
    assert reader.come_up(needed) == 1
    assert [line["made"] for line in said if "made" in line] == [0, 1, 2]
    needed.come_to(None)
    assert reader.come_up(needed) is None


def test_batches_are_the_same_from_any_cursor_after_any_kill(tokenizer: Tokenizer, tmp_path: Path) -> None:
    calm = Bench(tokenizer, tmp_path / "calm", assign=by_first_letter)
    stream = Stream(calm.store, partial(Thread, calm), lambda event: None)
    whole = take(stream, 60)
    stream.close()
    bench = Bench(tokenizer, tmp_path / "killed", assign=by_first_letter)
    consumed = 0
    for lives in (1, 3, 2, 7, 4, 9, 12, 2, 13):
        stream = Stream(bench.store, partial(Thread, bench), lambda event: None)
        assert take(stream, lives, start=consumed) == whole[consumed : consumed + lives]
        stream.close()  # after the last checkpoint was saved, or before
        consumed += lives - lives // 4
    assert consumed > 40


def test_the_disk_is_kept_and_what_was_dropped_is_read_again(tokenizer: Tokenizer, tmp_path: Path) -> None:
    calm = Bench(tokenizer, tmp_path / "calm")
    stream = Stream(calm.store, partial(Thread, calm), lambda event: None)
    whole = take(stream, 500)
    stream.close()
    bench = Bench(tokenizer, tmp_path / "capped")
    cap = (LEAD + 2) * bench.store.blocks.most * bench.store.row_bytes
    stream = Stream(bench.store, partial(Thread, bench, disk=cap), lambda event: None)
    most, seen = 0, []
    for batch in stream.batches(BATCH, 3):
        if batch is None:
            continue
        seen.append(batch.tolist())
        with suppress(FileNotFoundError):  # it goes just now
            most = max(most, sum(file.stat().st_size for file in bench.folder.glob("*.bin")))
        if len(seen) == 500:
            break
    stream.close()
    assert seen == whole
    end = bench.store.end
    assert end is not None
    assert 2 * end.sequences < 500 * BATCH, "the corpus was not read again"
    one_more = bench.store.blocks.most * bench.store.row_bytes
    assert most <= cap + one_more < 0.7 * end.sequences * bench.store.row_bytes


def test_a_full_disk_costs_the_blocks_that_were_used(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tokenizer, tmp_path / "full")
    whole = Bench(tokenizer, tmp_path / "whole").sequences().tolist()
    begin, errors = BlockStore.begin, 0

    def full(store: BlockStore, block: int, sequences: int) -> BinaryIO:
        nonlocal errors
        if store is bench.store and len(list(store.folder.glob("*.bin"))) > LEAD + 2:
            errors += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return begin(store, block, sequences)

    monkeypatch.setattr(BlockStore, "begin", full)
    stream = Stream(bench.store, partial(Thread, bench), lambda event: None)
    rows = [row for batch in take(stream, len(whole) // BATCH) for row in batch]
    stream.close()
    assert errors > 2
    assert len(rows) >= len(whole) - 1
    assert not Counter(map(tuple, rows)) - Counter(map(tuple, whole))
    needed = list(range(60))
    assert not bench.store.make_room(bench.folder, 0, needed), "what is needed was removed"


def test_training_begins_while_a_source_gives_no_more_and_looks_up_meanwhile(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(stream_module, "LOOK_SECONDS", 0.01)
    go_on = threading.Event()

    def blocks_after_forty() -> Iterator[Document]:
        yield from (Document(text(i), "") for i in range(40))
        assert go_on.wait(60)
        yield from (Document(text(i), "") for i in range(40, 400))

    told: list[Event] = []
    bench = Bench(tokenizer, tmp_path, portions=[Portion("", "", None, blocks_after_forty)])
    stream = Stream(bench.store, partial(Thread, bench), told.append)
    stream.await_first(lambda: False)
    batches = stream.batches(BATCH, 3)
    assert len(list(islice((batch for batch in batches if batch is not None), 5))) == 5
    while not any(isinstance(event, AwaitingDocuments) for event in told):
        assert next(batches) is None
    go_on.set()
    assert len([batch for batch in islice((b for b in batches if b is not None), 20)]) == 20
    stream.close()


def test_reading_goes_no_further_than_training_and_its_lead(tokenizer: Tokenizer, tmp_path: Path) -> None:
    bench = Bench(tokenizer, tmp_path, portions=portions(100, 20))
    read: list[object] = []
    made: Queue[object] = Queue()

    def hear(said: dict[str, object]) -> None:
        if "place" in said:
            read.append(said)
        if "made" in said:
            made.put(said["made"])

    reader = Thread(bench, hear)
    assert [made.get(timeout=60) for _ in range(LEAD + 1)] == list(range(LEAD + 1))
    reader.come_to(1)
    assert made.get(timeout=60) == LEAD + 1
    reader.close()
    assert made.empty()
    assert len(read) < 10


def test_a_reader_that_was_killed_is_started_again_and_one_that_always_is_ends_it(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    told: list[Event] = []
    bench = Bench(tokenizer, tmp_path)
    started: list[Thread] = []

    def start(hear: Hear) -> Thread:
        started.append(Thread(bench, hear))
        return started[-1]

    stream = Stream(bench.store, start, told.append)
    batches = stream.batches(BATCH, 3)
    first = [next(b for b in batches if b is not None).tolist() for _ in range(3)]
    started[0].kill()
    more = [next(b for b in batches if b is not None).tolist() for _ in range(40)]
    assert len(started) == 2
    assert told.count(ReaderRestarted("-9")) == 1
    stream.close()
    again = Stream(bench.store, partial(Thread, bench), told.append)
    assert take(again, 43) == first + more
    again.close()

    def die() -> Iterator[Document]:
        raise Killed

    doomed = Bench(tokenizer, tmp_path / "doomed", portions=[Portion("", "", None, die)])
    hopeless = Stream(doomed.store, partial(Thread, doomed), told.append)
    with pytest.raises(DataError, match="ended 4 times without getting on, lastly with status -9"):
        hopeless.await_first(lambda: False)


def test_documents_that_cannot_be_read_end_training_with_their_words(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def broken() -> Iterator[Document]:
        yield from (Document(text(i), "") for i in range(40))
        raise DataError("the disk was pulled out")

    bench = Bench(tokenizer, tmp_path, portions=[Portion("", "", None, broken)])
    stream = Stream(bench.store, partial(Thread, bench), lambda event: None)
    with pytest.raises(DataError, match="the disk was pulled out"):
        take(stream, 100)


# ------------------------------------------------------------------------------------------------------- held out


def test_what_is_held_out_is_the_same_for_all_peers_of_a_path_and_never_trained_on(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    held: list[list[list[int]]] = []
    for start in (0, 5):
        bench = Bench(tokenizer, tmp_path / str(start), start=start, hold_out=0.2, assign=by_first_letter)
        heard = threading.Event()

        def hear(said: dict[str, object], heard: threading.Event = heard) -> None:
            if "held" in said:
                heard.set()

        reader = Thread(bench, hear, most_held=10)
        assert heard.wait(60)
        reader.close()
        stream = Stream(bench.store, partial(Thread, bench), lambda event: None)
        pieces = stream.slice(100)
        stream.close()
        assert pieces is not None
        held.append([row[:n] for row, n in zip(pieces.tokens.tolist(), pieces.lengths.tolist(), strict=True)])
        assert len(held[-1]) == 10
        ours = [text(i) for i in range(180) if split_of(text(i), DATA) == "train"]
        trained = [t for t in ours if place_in_slice(t) >= 0.2]
        assert len(ours) - len(trained) > 20
        bench.tell = bench.told.append
        sequences = Counter(bench.sequences().ravel().tolist())
        assert not sequences - tokens_of(trained, tokenizer, routed=True)
    assert held[0] == held[1]


def test_a_stream_whose_folder_was_lost_begins_anew_and_then_keeps_its_order(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    bench = Bench(tokenizer, tmp_path)
    stream = Stream(bench.store, partial(Thread, bench), lambda event: None)
    from_500 = take(stream, 12, start=500)
    stream.close()
    again = Stream(bench.store, partial(Thread, bench), lambda event: None)
    assert take(again, 5, start=507) == from_500[7:]
    assert torch.tensor(from_500[0]).shape == (BATCH, LENGTH)
    again.close()


def test_a_reader_that_rests_stands_still_and_is_ended_all_the_same() -> None:
    reader = object.__new__(ReaderProcess)
    reader._process = process = subprocess.Popen(  # whatever it does; what it reads is not looked at here
        [sys.executable, "-c", "while True: pass"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    reader._listening = threading.Thread(target=process.wait)
    reader._listening.start()
    reader.rest(resting=True)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    reader.rest(resting=False)
    assert psutil.Process(process.pid).status() != psutil.STATUS_STOPPED
    reader.rest(resting=True)
    reader.close()
    assert process.returncode == -9
