"""A corpus that peers route together: each text once, the same sequences again, and nobody is believed for long."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import DataError
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.training.documents import Document, Portion, split_of
from dipaco_swarm.training.encoding import encoder
from dipaco_swarm.training.reading.blocks import Blocks
from dipaco_swarm.training.reading.cheap import CheapRouting
from dipaco_swarm.training.reading.making import BlockMaker, Rules, is_trained_on
from dipaco_swarm.training.reading.places import Corpus
from dipaco_swarm.training.reading.shared import slices as slices_module
from dipaco_swarm.training.reading.shared import supply as supply_module
from dipaco_swarm.training.reading.shared.belief import SHALLOW
from dipaco_swarm.training.reading.shared.inbox import Claim, Inbox, Part
from dipaco_swarm.training.reading.shared.ledger import Ledger, Use, bits_of
from dipaco_swarm.training.reading.shared.offers import (
    MAX_BYTES,
    num_stretches,
    portions_of,
    said_of,
    spans_in,
    stretch_of,
)
from dipaco_swarm.training.reading.shared.shelf import Shelf, Span
from dipaco_swarm.training.reading.shared.slices import ALL, NOWHERE, Slice, in_slices, slice_with, slices_in
from dipaco_swarm.training.reading.shared.supply import Gain, Terms, shared_supply
from dipaco_swarm.training.reading.store import BlockStore
from dipaco_swarm.training.tokenizer import end_of_text_id, load_tokenizer, train_tokenizer

LENGTH, PREFIX, BATCH, PATHS = 16, 5, 2, 4
DATA = DataConfig(source="python", sequence_length=LENGTH, holdout=0.1, routing_sample=0.1)
U2 = np.dtype("<u2")
VOCABULARY = 257
PORTIONS, EACH = 12, 20


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(train_tokenizer(["plain letters"], 257))  # one token for each byte


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices_module, "CHUNK_DOCUMENTS", 8)
    monkeypatch.setattr(supply_module, "AWAIT_SECONDS", 0.01)


def text(number: int) -> str:
    return f"d{number:04d} " + " ".join("xyz"[number % 3] * 5 for _ in range(1 + number * 7 % 12))


def portions(count: int = PORTIONS, each: int = EACH) -> list[Portion]:
    def read(portion: int) -> Iterator[Document]:
        return (Document(text(portion * each + i), "") for i in range(each))

    return [Portion(str(i), "", None, partial(read, i)) for i in range(count)]


def by_last_digit(prefixes: NDArray[np.int64]) -> NDArray[np.int64]:
    return prefixes[:, 4] % PATHS


class Peer:
    """One that reads, without a program around it."""

    def __init__(self, tokenizer: Tokenizer, home: Path, path: int, start: int, **changes: object) -> None:
        self.name = f"peer-{home.name}"
        self.tokens = True
        self.portions: Sequence[Portion] = portions()
        self.assign: Callable[[NDArray[np.int64]], NDArray[np.int64]] = by_last_digit
        self.home = home
        self.shelf_bytes = 10**9
        vars(self).update(changes)
        self.path = PathIndex(path)
        self.said: list[dict[str, object]] = []
        stream = home / f"stream-{path}"
        stream.mkdir(parents=True, exist_ok=True)
        (home / "inbox").mkdir(exist_ok=True)
        self.store = BlockStore(stream, Blocks(BATCH, 8), LENGTH, VOCABULARY)
        corpus = Corpus(self.portions, 5, start)
        self.routing = CheapRouting(encoder(tokenizer), self.assign, self.path, LENGTH, PREFIX)
        rules = Rules(DATA, end_of_text_id(tokenizer), 0.0)
        trained = partial(is_trained_on, rules=rules)
        self.shelf, self.inbox = Shelf(home / "shelf", PATHS, VOCABULARY), Inbox()
        terms = Terms(
            self.path, PATHS, start % len(self.portions), self.name, self.tokens, VOCABULARY, self.shelf_bytes
        )
        self.supply = shared_supply(
            terms, PREFIX, corpus.in_order, self.routing, trained, self.shelf, stream, self.inbox, self.said.append,
            Random(7),
        )  # fmt: skip
        self.maker = BlockMaker(self.store, corpus, self.routing, rules, lambda place: None, self.supply)
        self.ledger = self.supply._ledger
        self.parts = 0

    def next(self) -> Gain | None:
        return self.supply.next(len(self.ledger))

    def sequences(self, most: int = 10**6) -> NDArray[np.generic]:
        """Of so many blocks, (sequences, T)."""
        block = 0
        while block < most and self.maker.make(block):
            block += 1
        made = [self.store.open(each) for each in range(block)]
        return np.concatenate([rows for rows in made if rows is not None])

    def offer(self, other: "Peer", change: Callable[[Slice], Slice] = lambda said: said) -> None:
        """What the exchanges of both would bring it. `change`: what becomes of it on the way."""
        claims = [Claim(self.name, p, -1 if s.is_whole and not s.first else s.end) for p, s in self.shelf.spans.items()]
        other.inbox.claim(hash(self.name), claims)
        for portion, span in list(self.shelf.spans.items()):
            done = other.ledger.done.get(portion, 0)
            if portion in other.ledger.through or not span.first <= done < span.end:
                continue
            data = self.shelf.part(portion, done, other.path)
            assert data is not None
            changed = b"".join(change(said).to_bytes() for said in slices_in(data, PATHS, VOCABULARY))
            other.parts += 1
            file = other.home / "inbox" / f"{other.parts}.part"
            file.write_bytes(changed)
            other.inbox.put(Part(str(file), self.name, portion, done))

    @property
    def refused(self) -> dict[str, str]:
        return {str(s["refused"]): str(s["why"]) for s in self.said if "refused" in s and "why" in s}


def ours(path: int, tokenizer: Tokenizer, numbers: Sequence[int] | None = None) -> Counter[tuple[int, ...]]:
    """The texts of a path, as tokens."""
    trained = [text(i) for i in numbers or range(PORTIONS * EACH) if split_of(text(i), DATA) == "train"]
    parts = [t[at : at + 4 * LENGTH] for t in trained for at in range(0, len(t), 4 * LENGTH)]
    ids = [tuple(tokenizer.encode(part).ids) for part in parts]
    return Counter(each for each in ids if len(each) > PREFIX and each[4] % PATHS == path)


def gained(gains: Sequence[Gain]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(ids.tolist()) for gain in gains for ids in gain.texts)


def live(peers: Sequence[Peer], liars: Sequence[Peer] = (), change: Callable[[Slice], Slice] = lambda s: s,
         rounds: int = 10**6) -> dict[str, list[Gain]]:  # fmt: skip
    """All read to the end of the corpus, a slice each in turn, and hear of each other after each."""
    gains: dict[str, list[Gain]] = {peer.name: [] for peer in peers}
    living = list(peers)
    while living and rounds:
        rounds -= 1
        for peer in list(living):
            gain = peer.next()
            if gain is None:
                living.remove(peer)
            else:
                gains[peer.name].append(gain)
        for peer in peers:
            for other in peers:
                if other is not peer:
                    peer.offer(other)
            for liar in liars:
                liar.offer(peer, change)
    return gains


# -------------------------------------------------------------------------------------------------------------- values


def a_slice(texts: int = 9, scope: int = ALL, overlap: int = 1) -> Slice:
    random = np.random.default_rng(texts)
    routes = random.integers(0, PATHS, (texts, overlap)).astype(np.uint16)
    routes[texts // 2 :: 4] = NOWHERE
    documents = [Document(text(i), "") for i in range(3)]
    about = slice_with(documents, True, routes, scope, [], U2)
    ids = [random.integers(0, 257, 6 + i) for i in range(len(about.numbers_of(scope)))]
    return slice_with(documents, True, routes, scope, ids, U2)


def same(one: Slice, other: Slice) -> bool:
    arrays = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("routes", "lengths", "ids"))
    rest = ("documents", "characters", "digest", "is_last", "scope")
    return arrays and all(getattr(one, name) == getattr(other, name) for name in rest)


@pytest.mark.parametrize("overlap", [1, 2])
def test_a_slice_goes_through_bytes_and_a_peer_is_told_its_own_tokens(overlap: int) -> None:
    several = [a_slice(9, ALL, overlap), a_slice(0), a_slice(5, NOWHERE), a_slice(7, 2)]
    back = slices_in(b"".join(each.to_bytes() for each in several), PATHS, VOCABULARY)
    assert all(same(one, other) for one, other in zip(several, back, strict=True))
    whole = several[0]
    for path in range(PATHS):
        told = whole.told_to(path)
        (sent,) = slices_in(told.to_bytes(), PATHS, VOCABULARY)
        assert sent.scope == path
        assert [t.tolist() for t in sent.texts_of(path)] == [t.tolist() for t in whole.texts_of(path)]
        assert len(sent.texts_of(path)) == len(whole.numbers_of(path))
        assert (sent.routes == whole.routes).all()
        assert not sent.has_tokens_of(path + 1)
    assert sum(len(whole.texts_of(path)) for path in range(PATHS)) >= len(whole.lengths)
    assert len(whole.without_tokens().ids) == 0


def test_whatever_bytes_come_they_are_slices_or_are_refused() -> None:
    good, random, read = a_slice().to_bytes() + a_slice(5, 2).to_bytes(), Random(1), 0
    for _ in range(4000):
        data = bytearray(good)
        for _ in range(random.randint(0, 3)):
            data[random.randrange(len(data))] = random.randrange(256)
        try:
            found = slices_in(bytes(data[: random.choice((len(data), random.randrange(len(data))))]), PATHS, VOCABULARY)
        except ValueError:
            continue
        read += 1
        for each in found:
            assert all(len(each.texts_of(p)) == len(each.numbers_of(p)) for p in range(PATHS) if each.has_tokens_of(p))
            assert (each.ids.astype(np.int64) < VOCABULARY).all()
    assert read > 100


def test_tokens_that_there_are_not_are_refused_wherever_they_stand(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Behind a prefix nothing else looks at them before they are trained on, and an embedding has no row for them."""
    other, peer = Peer(tokenizer, tmp_path / "other", 1, 0), Peer(tokenizer, tmp_path / "peer", 1, 6)
    live([other])

    def spoilt(said: Slice) -> Slice:
        ids = said.ids.copy()
        ids[-1:] = VOCABULARY
        return replace(said, ids=ids)

    other.offer(peer, spoilt)
    rows = peer.sequences()
    assert f"none of {VOCABULARY}" in peer.refused[other.name]
    assert rows.max() < VOCABULARY


def test_slices_of_a_portion_are_small_at_first_and_have_all_documents() -> None:
    documents = [Document(text(i), "") for i in range(50)]
    found = list(in_slices(documents))
    assert [len(some) for some, _ in found] == [1, 2, 2, 2, 4, 8, 8, 8, 8, 7]
    assert [is_last for _, is_last in found] == [False] * 9 + [True]
    assert [d for some, _ in found for d in some] == documents
    assert list(in_slices([])) == [([], True)]


def test_the_shelf_gives_what_is_there_whole_and_lets_the_oldest_go(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, PATHS, VOCABULARY)
    shelf.look()
    several = [replace(a_slice(4 + i), is_last=i == 4) for i in range(5)]
    for number, said in enumerate(several):
        shelf.add(3, number, said)
    shelf.add(8, 2, a_slice(6))
    assert shelf.spans == {3: Span(0, 5, True), 8: Span(2, 3, True)}
    part = shelf.part(3, 2, 1)
    assert part is not None
    assert all(
        same(one.told_to(1), other) for one, other in zip(several[2:], slices_in(part, PATHS, VOCABULARY), strict=True)
    )
    assert shelf.part(3, 5, 1) is shelf.part(8, 0, 1) is shelf.part(4, 0, 1) is None
    whole = (tmp_path / "3.routed").read_bytes()
    for cut in range(0, len(whole), 37):
        (tmp_path / "3.routed").write_bytes(whole[:cut])
        torn = Shelf(tmp_path, PATHS, VOCABULARY)
        part = torn.part(3, 0, 1)
        given = [] if part is None else slices_in(part, PATHS, VOCABULARY)
        torn.look()
        assert torn.spans.get(3, Span(0, 0, False)).end == len(given) < 5
        if given:
            torn.add(3, len(given), several[len(given)])
            added = torn.read(3, len(given))
            assert added is not None
            assert same(added, several[len(given)])
    os.utime(tmp_path / "8.routed", ns=(0, 0))  # the clock of files may not have ticked since it was written
    assert shelf.make_room(10) == [8]
    assert 8 not in shelf.spans


def test_a_ledger_is_read_up_to_where_it_is_torn(tmp_path: Path) -> None:
    file, uses = tmp_path / "ledger", []
    ledger = Ledger(file)
    for number in range(5):
        use = Use(7, number, 3, 100, number == 4, 40, bits_of([1, 5, 39], 40), "")
        ledger.add(use)
        uses.append(use)
    assert uses[0].numbers.tolist() == [1, 5, 39]
    assert ledger.through == {7}
    whole = file.read_bytes()
    for cut in range(0, len(whole), 13):
        file.write_bytes(whole[:cut])
        torn = Ledger(file)
        assert torn.uses == uses[: len(torn)]
        assert torn.done.get(7, 0) == len(torn) == whole[:cut].count(b"\n")
        torn.add(uses[len(torn)])
        assert Ledger(file).uses == uses[: len(torn)]


def test_an_offer_says_in_few_bytes_what_there_is(tmp_path: Path) -> None:
    spans = {p: Span(0, 9, True) for p in (*range(120, 132), 140)} | {141: Span(5, 7, False), 142: Span(0, 3, False)}
    said = said_of(spans)
    assert said == b"142+3,141@5+2,120-131,140"
    found: dict[int, Span] = {}
    for stretch in range(num_stretches(150)):
        found |= spans_in(said, stretch, 150)
    assert found == {p: Span(0, -1, True) if s.is_whole else s for p, s in spans.items()}
    many = {portion: Span(0, 9, True) for portion in range(0, 10_000, 2)}
    assert len(said_of(many)) <= MAX_BYTES
    assert len(spans_in(said_of(many), 0, 10_000)) > 20
    assert {stretch_of(portion, 10_000) for portion in range(10_000)} == set(range(16))
    assert num_stretches(3) == 3
    for wrong in (b"x", b"1-", b"5-3", b"150", b"0-99999", b"1+99999999999", b",", b"\xff", b"1@2"):
        with pytest.raises(ValueError, match=r"is not a list|names portions|ascii"):
            spans_in(wrong, 0, 150)


def test_an_offer_of_the_same_portions_again_and_again_is_read_so_often_and_no_more() -> None:
    portions = 1 << 20
    assert [portions_of(stretch, 150) for stretch in (0, 15)] == [range(10), range(141, 150)]
    assert all(p in portions_of(stretch_of(p, number), number) for number in (1, 5, 16, 1000) for p in range(number))
    assert spans_in(b"0-999999", 3, portions).keys() == set(portions_of(3, portions)[:4096]), (
        "of a large corpus as well"
    )
    began = time.process_time()
    for _ in range(100):
        assert len(spans_in(b",".join([b"0-99999"] * 50), 0, portions)) == 4096
    assert time.process_time() - began < 2.0, "each took a fifth of a second"


# -------------------------------------------------------------------------------------------------------- one who reads


@pytest.mark.parametrize("tokens", [True, False])
def test_alone_a_peer_routes_all_of_it_and_has_each_text_once(
    tokenizer: Tokenizer, tmp_path: Path, tokens: bool
) -> None:
    peer = Peer(tokenizer, tmp_path, 1, 4, tokens=tokens)
    gains = live([peer])[peer.name]
    assert gained(gains) == ours(1, tokenizer)
    assert peer.routing.work.featured == sum(sum(ours(path, tokenizer).values()) for path in range(PATHS))
    moved = Peer(tokenizer, tmp_path, 2, 4, tokens=tokens)  # another path, and what was routed is still here
    assert gained(live([moved])[moved.name]) == ours(2, tokenizer)
    assert moved.routing.work.featured == 0


def test_the_sequences_are_the_same_again_without_the_others_and_whatever_was_forgotten(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    one, other = Peer(tokenizer, tmp_path / "one", 0, 0), Peer(tokenizer, tmp_path / "other", 1, 6)
    live([other], rounds=8)
    other.offer(one)
    first = one.sequences(9)
    assert {use.by for use in one.ledger.uses} == {"", other.name}
    again = Peer(tokenizer, tmp_path / "one", 0, 0)
    whole = again.sequences()
    assert (whole[: len(first)] == first).all()
    stream = again.store.folder
    before = {file.name: file.read_bytes() for file in stream.glob("*.bin")}
    for name in sorted(before):
        (stream / name).unlink()
        fresh = Peer(tokenizer, tmp_path / "one", 0, 0)
        assert fresh.maker.make(int(name.removesuffix(".bin")))
        assert fresh.routing.work.featured == 0, "what is known need not be routed"
        assert (stream / name).read_bytes() == before[name]


def test_documents_that_are_gone_are_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    peer = Peer(tokenizer, tmp_path, 0, 0)
    live([peer])
    shorter = Peer(tokenizer, tmp_path, 0, 0, portions=portions(PORTIONS, 3))
    with pytest.raises(DataError, match="fewer documents than when its texts were routed"):
        [shorter.supply.next(place) for place in range(len(shorter.ledger))]


# ------------------------------------------------------------------------------------------------------------ together


@pytest.mark.parametrize("tokens", [True, False])
def test_together_each_text_is_routed_about_once(tokenizer: Tokenizer, tmp_path: Path, tokens: bool) -> None:
    peers = [Peer(tokenizer, tmp_path / str(i), i, 3 * i, tokens=tokens) for i in range(PATHS)]
    gains = live(peers)
    for peer in peers:
        assert gained(gains[peer.name]) == ours(peer.path, tokenizer)
        assert len({use.by for use in peer.ledger.uses}) == PATHS
        assert not peer.refused
    texts = sum(sum(ours(path, tokenizer).values()) for path in range(PATHS))
    routed = [sum(use.texts for use in peer.ledger.uses if not use.by) for peer in peers]
    assert sum(routed) < 1.3 * texts
    assert max(routed) < 0.5 * texts


def test_who_vanishes_in_the_middle_of_a_portion_costs_that_portion(tokenizer: Tokenizer, tmp_path: Path) -> None:
    one, other, gone = (Peer(tokenizer, tmp_path / name, i, 4 * i) for i, name in enumerate(("one", "other", "gone")))
    live([one, other, gone], rounds=3)
    for peer in (one, other):
        peer.inbox.claim(hash(gone.name), ())  # nobody hears of it any more
    gains = live([one, other])
    for peer in (one, other):
        begun = [use.portion for use in peer.ledger.uses if use.by == gone.name]
        assert begun
        assert set(begun) <= peer.ledger.through
        before = [Gain(gain.texts, 0, 0, 0) for gain in (peer.supply.next(place) for place in range(6)) if gain]
        assert gained(gains[peer.name]) <= ours(peer.path, tokenizer)
        assert before
        again = [gain for gain in (peer.supply.next(place) for place in range(len(peer.ledger))) if gain]
        assert gained(again) == ours(peer.path, tokenizer)


def test_who_finds_all_in_the_hands_of_others_waits_for_it_and_routes_only_what_does_not_come(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply_module, "AWAIT_SECONDS", 20.0)
    one, late = Peer(tokenizer, tmp_path / "one", 0, 0), Peer(tokenizer, tmp_path / "late", 1, 6)
    live([one])
    late.inbox.claim(0, [Claim(one.name, portion, -1) for portion in one.shelf.spans])
    coming = threading.Timer(0.2, lambda: one.offer(late))
    coming.start()
    gains = [late.next()]
    coming.join()
    assert late.ledger.uses[0].by == one.name
    monkeypatch.setattr(supply_module, "AWAIT_SECONDS", 0.01)
    file = Path(late.inbox._parts.pop().file)
    file.unlink()
    while (gain := late.next()) is not None:
        gains.append(gain)
    assert gained([gain for gain in gains if gain]) == ours(1, tokenizer)
    assert {use.portion for use in late.ledger.uses if not use.by} == {PORTIONS - 1}


def test_what_is_kept_for_others_stays_within_its_share(tokenizer: Tokenizer, tmp_path: Path) -> None:
    peer = Peer(tokenizer, tmp_path, 0, 0, shelf_bytes=4000)
    live([peer])
    assert peer.shelf.size < 8000
    assert any("gone" in said for said in peer.said)


# --------------------------------------------------------------------------------------------------------------- liars


def other_paths(said: Slice) -> Slice:
    routes = np.where(said.routes == NOWHERE, NOWHERE, (said.routes + 1) % PATHS).astype(np.uint16)
    texts = [np.full(PREFIX + 3, 9)] * len(replace(said, routes=routes).numbers_of(said.scope))
    return replace(slice_with([], said.is_last, routes, said.scope, texts, U2), documents=said.documents,
                   characters=said.characters, digest=said.digest)  # fmt: skip


def too_few(said: Slice) -> Slice:
    kept = replace(said, routes=said.routes[: len(said.routes) // 2])
    count = len(kept.numbers_of(said.scope))
    return replace(kept, lengths=said.lengths[:count], ids=said.ids[: int(said.lengths[:count].sum())])


def garbage(said: Slice) -> Slice:
    ids = said.ids.copy()
    ends = np.cumsum(said.lengths)
    for end in ends.tolist():
        ids[end - 1] = 7
    return replace(said, ids=ids)


def other_documents(said: Slice) -> Slice:
    return replace(said, digest=b"x" * 8)


def endless(said: Slice) -> Slice:
    texts = [np.ones(100 * LENGTH, dtype=np.int64)] * len(said.lengths)
    return replace(said, lengths=np.array([len(t) for t in texts], dtype=np.uint32),
                   ids=np.concatenate([*texts, np.zeros(0)]).astype(U2))  # fmt: skip


@pytest.mark.parametrize(
    ("change", "tokens"),
    [(other_paths, True), (too_few, True), (garbage, True), (other_documents, True), (endless, True),
     (other_paths, False), (too_few, False), (other_documents, False)],
)  # fmt: skip
def test_a_peer_that_lies_is_found_out_within_its_first_portion(
    tokenizer: Tokenizer, tmp_path: Path, change: Callable[[Slice], Slice], tokens: bool
) -> None:
    liar, honest = (
        Peer(tokenizer, tmp_path / name, 3, start, tokens=tokens) for name, start in (("liar", 6), ("h", 9))
    )
    live([liar])
    peer = Peer(tokenizer, tmp_path / "one", 1, 0, tokens=tokens)
    gains = live([peer, honest], [liar], change)
    assert set(peer.refused) == set(honest.refused) == {liar.name}
    of_the_liar = [use for use in peer.ledger.uses if use.by == liar.name]
    assert len({use.portion for use in of_the_liar}) <= 1
    assert sum(use.texts for use in of_the_liar) <= EACH
    if not of_the_liar:
        assert gained(gains[peer.name]) == ours(1, tokenizer), "what it had routed was routed anew"
    assert {use.by for use in peer.ledger.uses} >= {"", honest.name}
    again = Peer(tokenizer, tmp_path / "one", 1, 0, tokens=tokens)
    liar.offer(again, change)
    assert again.supply._belief.refused.keys() == {liar.name}, "after a restart it is believed again"


def test_who_is_new_is_looked_at_where_a_portion_begins_and_little_by_little_deeper(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks deep in a portion reads all before it: with hundreds of peers that is more than all else together."""
    rare = 12

    def read(portion: int) -> Iterator[Document]:  # texts of path 1 come only after so many
        numbers = (1000 * portion + 10 * i + (i >= rare) for i in range(100))
        return (Document(f"d{number:04d} xyz", "") for number in numbers)

    def said_of_all(portion: Portion) -> Iterator[Slice]:
        for documents, is_last in in_slices(portion.read()):
            texts = peer.routing.texts_of(documents)
            begun = peer.routing.begin(texts)
            routes = np.array([[int(ids[4]) % PATHS if len(ids) > PREFIX else NOWHERE] for ids in begun], np.uint16)
            mine = [ids for ids, path in zip(peer.routing.whole(texts), routes[:, 0], strict=True) if path == 1]
            yield slice_with(documents, is_last, routes, 1, mine, U2)

    every = [Portion(str(i), "", None, partial(read, i)) for i in range(9)]
    peer = Peer(tokenizer, tmp_path / "one", 1, 0, portions=every)
    belief, slices = peer.supply._belief, peer.supply._slices
    peer.supply._trained = belief._trained = lambda document: True
    looked: list[tuple[int, int]] = []

    def noted(portion: int, number: int) -> tuple[list[Document], bool]:
        looked.append((portion, number))
        return list(in_slices(slices.portions[portion].read()))[number]

    monkeypatch.setattr(slices, "read", noted)
    for portion in range(9):
        for number, said in enumerate(said_of_all(slices.portions[portion])):
            assert belief.problem("somebody", portion, number, said, 10**9) is None
    deep = [at for at in looked if at[1] > SHALLOW]
    assert looked[0] == (0, 0), "its first slice, whatever is in it"
    assert len(deep) == 1, "and one with texts of ours, where none is where a portion begins"
    (portion, number), first = deep[0], next(n for n, s in enumerate(said_of_all(every[0])) if len(s.numbers_of(1)))
    assert portion > 1
    assert number == first, "as soon as it goes so deep"
