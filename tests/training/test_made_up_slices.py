"""Slices that are nobody's work: what one name can take from us with a few bytes, and what many names can."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.training.documents import Document, Portion
from dipaco_swarm.training.reading.shared import belief as belief_module
from dipaco_swarm.training.reading.shared import exchange as exchange_module
from dipaco_swarm.training.reading.shared import slices as slices_module
from dipaco_swarm.training.reading.shared import supply as supply_module
from dipaco_swarm.training.reading.shared.belief import NOT_HERE, PASSED_OVER, SHALLOW
from dipaco_swarm.training.reading.shared.exchange import Exchange, Subject
from dipaco_swarm.training.reading.shared.inbox import Claim, Part
from dipaco_swarm.training.reading.shared.shelf import Shelf
from dipaco_swarm.training.reading.shared.slices import NOWHERE, Slice, in_slices, slice_with
from dipaco_swarm.training.reading.shared.supply import Gain
from dipaco_swarm.training.tokenizer import load_tokenizer, train_tokenizer

from .test_shared_reading import PATHS, PORTIONS, U2, VOCABULARY, Peer, gained, live, ours, portions

PATH = 1
FEWEST_BYTES = 33
SLICES = 7
"""Of each portion."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(train_tokenizer(["plain letters"], 257))


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices_module, "CHUNK_DOCUMENTS", 8)
    monkeypatch.setattr(supply_module, "AWAIT_SECONDS", 0.01)


def made_up(*, is_last: bool, scope: int = PATH) -> Slice:
    """The least that can be said."""
    said = slice_with([], is_last, np.zeros((0, 1), np.uint16), scope, [], U2)
    assert len(said.to_bytes()) == FEWEST_BYTES
    return said


def give(peer: Peer, name: str, portion: int, said: Sequence[Slice]) -> None:
    """The next slices of a portion, as somebody of this name says them."""
    peer.parts += 1
    file = peer.home / "inbox" / f"{peer.parts}.part"
    file.write_bytes(b"".join(each.to_bytes() for each in said))
    peer.inbox.put(Part(str(file), name, portion, peer.ledger.done.get(portion, 0)))


def come_to(peer: Peer, number: int) -> tuple[int, list[Gain]]:
    """Route alone until slice `number` of some portion is the next; which portion, and what was gained."""
    gains = list[Gain]()
    while number not in peer.ledger.done.values():
        gain = peer.next()
        assert gain is not None
        gains.append(gain)
    return next(portion for portion, done in peer.ledger.done.items() if done == number), gains


def to_the_end(peer: Peer) -> list[Gain]:
    return list(iter(peer.next, None))


@pytest.mark.parametrize("tokens", [True, False])
def test_nobody_unknown_ends_a_portion_by_saying_so(tokenizer: Tokenizer, tmp_path: Path, tokens: bool) -> None:
    peer = Peer(tokenizer, tmp_path, PATH, 0, tokens=tokens)
    portion, gains = come_to(peer, SHALLOW)
    give(peer, "new", portion, [made_up(is_last=True)])
    gains += to_the_end(peer)
    assert peer.refused.keys() == {"new"}
    assert gained(gains) == ours(PATH, tokenizer)
    assert {use.by for use in peer.ledger.uses} == {""}


def test_in_a_run_of_routes_tokens_are_not_taken_and_who_sends_them_is_judged_by_the_rest(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """A peer of our own path has them and sends them, and does no wrong."""
    other, peer = (
        Peer(tokenizer, tmp_path / name, PATH, start, tokens=False) for name, start in (("other", 0), ("peer", 6))
    )
    live([other])

    def spoilt(said: Slice) -> Slice:
        return replace(said, ids=np.full_like(said.ids, 7))

    other.offer(peer, spoilt)
    gains = to_the_end(peer)
    assert not peer.refused
    assert other.name in {use.by for use in peer.ledger.uses}
    assert gained(gains) == ours(PATH, tokenizer)


def test_slices_after_the_last_one_end_the_portion_and_not_training(tokenizer: Tokenizer, tmp_path: Path) -> None:
    peer = Peer(tokenizer, tmp_path, PATH, 0)
    portion, gains = come_to(peer, SLICES - 1)
    *_, (documents, is_last) = in_slices(peer.supply._slices.portions[portion].read())
    assert is_last
    assert len(documents) == 1
    give(peer, "new", portion, [made_up(is_last=False)] * 3)
    give(peer, "other", portion, [made_up(is_last=False, scope=NOWHERE)])
    gains += to_the_end(peer)
    assert sum(use.by == "new" for use in peer.ledger.uses) == 3, "as many as it has said, and the last one is lost"
    assert gained(gains) <= ours(PATH, tokenizer)
    assert sum((ours(PATH, tokenizer) - gained(gains)).values()) <= 2
    assert peer.ledger.through == set(range(PORTIONS))
    assert peer.supply._looked_at(Part("", "third", portion, 0), SLICES + 2, made_up(is_last=False, scope=NOWHERE)) is (
        None
    )
    assert peer.refused["third"] == NOT_HERE
    again = Peer(tokenizer, tmp_path, PATH, 0)
    assert portion not in again.ledger.through, "it is found out anew"
    assert to_the_end(again) == []
    assert again.ledger.through == set(range(PORTIONS))
    repeated = [again.supply.next(place) for place in range(len(again.ledger))]
    assert gained([gain for gain in repeated if gain]) == gained(gains)


def test_of_one_who_has_never_been_looked_at_few_slices_are_used(tokenizer: Tokenizer, tmp_path: Path) -> None:
    peer = Peer(tokenizer, tmp_path, PATH, 0)
    portion, _ = come_to(peer, SHALLOW)
    give(peer, "new", portion, [made_up(is_last=False)] * 200)
    to_the_end(peer)
    assert peer.refused.keys() == {"new"}
    assert sum(use.by == "new" for use in peer.ledger.uses) <= PASSED_OVER


@pytest.mark.parametrize("tokens", [True, False])
def test_after_each_liar_a_slice_is_routed_here_and_what_was_read_is_not_read_again(
    tokenizer: Tokenizer, tmp_path: Path, tokens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply_module, "AWAIT_SECONDS", 20.0)
    opened: list[str] = []

    def counted(portion: Portion) -> Callable[[], Iterator[Document]]:
        def read() -> Iterator[Document]:
            opened.append(portion.name)
            return portion.read()

        return read

    every = [replace(portion, read=counted(portion)) for portion in portions()]
    peer = Peer(tokenizer, tmp_path, PATH, 0, tokens=tokens, portions=every)
    come_to(peer, 2)
    routed, portion = (peer.supply._ours[i] for i in (0, 3))
    assert peer.ledger.done[portion] > 0
    opened.clear()
    peer.inbox.claim(0, [Claim("somebody", each, -1) for each in range(PORTIONS)])  # all of it is in others' hands
    for liar in "abcd":
        give(peer, liar, portion, [made_up(is_last=True, scope=PATH if tokens else NOWHERE)])
    for count in range(1, 5):
        assert peer.next() is not None
        assert (peer.ledger.uses[-1].portion, peer.ledger.uses[-1].by) == (routed, "")
        assert len(peer.refused) == count
    assert opened.count(every[portion].name) <= 1, "to compare with what they say"


def test_only_the_newest_of_those_who_are_not_believed_are_remembered(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(belief_module, "MOST_REFUSED", 3)
    monkeypatch.setattr(belief_module, "MOST_TALLIES", 2)
    belief = Peer(tokenizer, tmp_path, PATH, 0).supply._belief
    for name in "abcdeb":
        belief.refuse(name, "it lied")
        belief.problem(name, 0, SHALLOW, made_up(is_last=False), PATHS)
    assert list(belief.refused) == ["d", "e", "b"]
    assert list(belief._tallies) == ["e", "b"]
    again = Peer(tokenizer, tmp_path, PATH, 0).supply._belief
    assert list(again.refused) == ["d", "e", "b"]


def test_whom_the_exchange_does_not_ask_is_forgotten_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "MOST_REFUSED", 3)
    monkeypatch.setattr(exchange_module, "MOST_PASSED_OVER", 2)

    class Nobody:
        def serve(self, topic: str, answer: object) -> None:
            assert topic

        def offer(self, topic: str, said: bytes | None) -> None:
            assert topic

        def offers(self, topic: str, *, timeout: float) -> dict[str, bytes]:
            return {}

        def ask(self, peer: str, topic: str, name: str, *, timeout: float, limit: int) -> bytes | None:
            return None

    subject = Subject(1, "0123456789abcdef", PORTIONS, 0, PathIndex(PATH), PATHS, VOCABULARY, tokens=True)
    shelf = Shelf(tmp_path / "shelf", PATHS, VOCABULARY)
    made = Exchange(Nobody(), subject, shelf, tmp_path / "inbox", lambda line: None, lambda event: None)
    for name in "abcde":
        made.hear({"refused": name})
        assert not made._bring(0, 0, name)
    made.close()
    assert list(made._refused) == ["c", "d", "e"]
    assert list(made._passed_over) == ["d", "e"]
