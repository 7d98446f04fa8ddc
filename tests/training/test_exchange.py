"""What one peer has routed comes to the reader of another: over the protocol, within one process."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.reading import RoutedByOthers, RoutesRefused
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.training.reading.shared import exchange as exchange_module
from dipaco_swarm.training.reading.shared import slices as slices_module
from dipaco_swarm.training.reading.shared import supply as supply_module
from dipaco_swarm.training.reading.shared.exchange import Exchange, Subject
from dipaco_swarm.training.reading.shared.offers import num_stretches, topic_of
from dipaco_swarm.training.reading.shared.shelf import Shelf
from dipaco_swarm.training.reading.shared.slices import slices_in
from dipaco_swarm.training.tokenizer import load_tokenizer, train_tokenizer
from tests.hub import Hub, until

from .test_shared_reading import PATHS, PORTIONS, VOCABULARY, Peer, a_slice, gained, live, other_paths, ours

CORPUS = "0123456789abcdef"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(train_tokenizer(["plain letters"], 257))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices_module, "CHUNK_DOCUMENTS", 8)
    monkeypatch.setattr(supply_module, "AWAIT_SECONDS", 0.01)
    for name, value in {
        "SOONEST": 0.01,
        "LATEST": 0.05,
        "LATEST_SATED": 0.1,
        "SAY_SECONDS": 0.02,
        "READ_BYTES_A_SECOND": 1e9,
    }.items():
        monkeypatch.setattr(exchange_module, name, value)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as opened:
        yield opened


def exchange_of(peer: Peer, swarm: NetworkedSwarm, told: list[Event], start: int = 0) -> Exchange:
    """The exchange of a peer whose reader is here."""
    subject = Subject(1, CORPUS, PORTIONS, start, peer.path, PATHS, VOCABULARY, peer.tokens)
    shelf = Shelf(peer.shelf.folder, PATHS, VOCABULARY)

    def tell_reader(line: Mapping[str, object]) -> None:
        peer.inbox.hear(line)

    made = Exchange(swarm.sharing, subject, shelf, peer.home / "inbox", tell_reader, told.append)
    for said in peer.said:
        made.hear(said)
    peer.supply._say = made.hear
    return made


@pytest.mark.parametrize("tokens", [True, False])
def test_what_others_have_routed_comes_while_the_reader_is_hungry(
    tokenizer: Tokenizer, tmp_path: Path, hub: Hub, tokens: bool
) -> None:
    one, other = (Peer(tokenizer, tmp_path / name, i, 6 * i, tokens=tokens) for i, name in enumerate(("one", "other")))
    told: list[Event] = []
    live([one])
    first = exchange_of(one, hub.swarm(one.name), [])
    second = exchange_of(other, hub.swarm(other.name), told, start=6)
    second.hear({"hungry": True})
    gains = []
    while len(other.ledger.through) < PORTIONS:
        until(lambda: bool(other.inbox._parts or (other.supply._part and other.supply._part[1])))
        gain = other.next()
        assert gain is not None
        gains.append(gain)
    assert gained(gains) == ours(1, tokenizer)
    assert {use.by for use in other.ledger.uses} == {one.name}
    assert told == [RoutedByOthers(one.name)]
    assert list((other.home / "inbox").iterdir()) == []
    assert set(other.inbox.claims()) == set(range(PORTIONS))
    second.close()
    first.close()
    reader = hub.swarm("reader")
    until(lambda: not any(reader.sharing.offers(topic_of(1, CORPUS, s), timeout=5) for s in range(PORTIONS)))
    topic = topic_of(1, CORPUS, 0)
    assert reader.sharing.ask(one.name, topic, "0.0.0", timeout=5, limit=10**6) is None, "it is closed"


def test_what_is_asked_for_is_given_and_nothing_else(tokenizer: Tokenizer, tmp_path: Path, hub: Hub) -> None:
    one = Peer(tokenizer, tmp_path / "one", 0, 0)
    live([one])
    exchange_of(one, hub.swarm(one.name), [])
    reader = hub.swarm("reader").sharing
    topic = topic_of(1, CORPUS, 0)

    def ask(name: str) -> bytes | None:
        return reader.ask(one.name, topic, name, timeout=5, limit=10**6)

    data = ask("2.3.0")
    assert data is not None
    assert all(said.scope == 2 for said in slices_in(data, PATHS, VOCABULARY))
    for name in ("4.3.0", "2.99.0", "2.3.99", "2.3", "2.3.0.0", "a.b.c", "2.3.-1", "..", "2.0x3.0"):
        try:
            assert ask(name) is None, name
        except ValueError:
            continue  # not even a name


def test_in_a_run_of_routes_no_tokens_are_given_to_those_of_our_path_either(
    tokenizer: Tokenizer, tmp_path: Path, hub: Hub
) -> None:
    one = Peer(tokenizer, tmp_path / "one", 0, 0, tokens=False)
    live([one])
    exchange_of(one, hub.swarm(one.name), [])
    reader = hub.swarm("reader").sharing
    for path in range(PATHS):
        data = reader.ask(one.name, topic_of(1, CORPUS, 0), f"{path}.0.0", timeout=5, limit=10**6)
        assert data is not None
        given = slices_in(data, PATHS, VOCABULARY)
        assert sum(len(said.routes) for said in given)
        assert all(len(said.ids) == 0 and not said.has_tokens_of(path) for said in given)


def test_a_liar_is_named_and_not_asked_again(tokenizer: Tokenizer, tmp_path: Path, hub: Hub) -> None:
    liar, other = Peer(tokenizer, tmp_path / "liar", 0, 0), Peer(tokenizer, tmp_path / "other", 1, 6)
    live([liar])
    for file in liar.shelf.folder.iterdir():
        data = file.read_bytes()
        said = [other_paths(each) for each in slices_in(data[4:], PATHS, VOCABULARY)]
        file.write_bytes(data[:4] + b"".join(each.to_bytes() for each in said))
    told: list[Event] = []
    exchange_of(liar, hub.swarm(liar.name), [])
    second = exchange_of(other, hub.swarm(other.name), told, start=6)
    second.hear({"hungry": True})
    until(lambda: bool(other.inbox._parts))
    gains = []
    while (gain := other.next()) is not None:
        gains.append(gain)
    (named,) = [event for event in told if isinstance(event, RoutesRefused)]
    assert named.peer == liar.name
    assert "is not believed about the corpus" in str(named)
    assert len(str(named)) <= 120
    assert gained(gains) == ours(1, tokenizer)
    asked = second._number
    second.hear({"hungry": True})
    looked = second._looked
    until(lambda: second._looked > looked)
    assert second._number == asked


def test_who_has_been_around_in_vain_looks_less_often_and_one_that_has_enough_does_not(tmp_path: Path) -> None:
    asked: list[str] = []
    offered = threading.Event()

    class Watched:
        def __init__(self) -> None:
            self.part: bytes | None = None

        def serve(self, topic: str, answer: object) -> None:
            assert topic

        def offer(self, topic: str, said: bytes | None) -> None:
            offered.set()

        def offers(self, topic: str, *, timeout: float) -> Mapping[str, bytes]:
            asked.append(topic)
            return {"liar": b"x", "far": b"0-999999", "one": b"0-11"}

        def ask(self, peer: str, topic: str, name: str, *, timeout: float, limit: int) -> bytes | None:
            assert peer == "one"
            return self.part

    subject = Subject(1, CORPUS, 200, 100, PathIndex(0), PATHS, VOCABULARY, tokens=True)
    shelf, lines, others = Shelf(tmp_path / "shelf", PATHS, VOCABULARY), list[Mapping[str, object]](), Watched()
    made = Exchange(others, subject, shelf, tmp_path / "inbox", lines.append, lambda event: None)
    made.hear({"routed": [3, 0, 2, False]})
    assert offered.wait(20)
    until(lambda: made._said == {0: b"3+2"})
    until(lambda: len(asked) > 2 * num_stretches(200))
    assert asked[0] == topic_of(1, CORPUS, 8), "it begins where this peer began"
    assert made._passed_over.keys() == {"one"}, "who does not send what it offers"
    until(lambda: made._pause >= exchange_module.LATEST_SATED)
    others.part = a_slice(9, 0).to_bytes()
    made._passed_over.clear()
    until(lambda: len(made._waiting) == exchange_module.SPARE_PARTS)
    brought = [line["part"] for line in lines if "part" in line]
    assert len(brought) == exchange_module.SPARE_PARTS
    seen = len(asked)
    made.hear({"hungry": True})
    until(lambda: len(made._waiting) > exchange_module.SPARE_PARTS)
    assert len(asked) > seen
    made.close()
    made._thread.join(20)
    assert not made._thread.is_alive()
