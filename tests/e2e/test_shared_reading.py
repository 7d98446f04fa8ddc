"""Two readers, processes of their own, that route a corpus together over the protocol."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.corpus import config_of, prepare_run
from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.reading import RoutedByOthers, RoutesRefused
from dipaco_swarm.peer.reading import ReadingRoom, open_stream
from dipaco_swarm.peer.workbench import Fetch, Preparation
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.training.inner import TrainingSettings
from dipaco_swarm.training.reading.shared.subject import LEDGER
from dipaco_swarm.training.reading.stream import Stream
from tests.hub import Hub

BATCH, FILES = 4, 12
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files, a portion and a stretch each, of 200 documents."""
    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(1)
    for number in range(FILES):
        kinds = [[f"{letter}{i}" for i in range(50)] for letter in "abcd"]
        rows = ({"text": " ".join(random.choice(kinds[random.integers(4)], 400))} for _ in range(200))
        (folder / f"{number:02d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


class Reader:
    """A stream, and its batches."""

    def __init__(self, manifest: Manifest, hub: Hub, corpus: Path, home: Path, path: int) -> None:
        self.told: list[Event] = []
        swarm = hub.swarm(f"peer-{home.name}")
        self.name, offer = swarm.peer, swarm.sharing.offer
        self.offered: set[str] = set()
        self.offers = threading.Condition()

        def offer_and_tell(topic: str, said: bytes | None) -> None:
            offer(topic, said)
            with self.offers:
                self.offered.add(topic)
                self.offers.notify_all()

        swarm.sharing.offer = offer_and_tell  # type: ignore[method-assign]
        fetch: Fetch = lambda digest: (corpus / "blobs" / digest).read_bytes()  # noqa: E731
        wanted = Preparation(manifest, PathIndex(path), swarm.peer, fetch, self.told.append, swarm.sharing)
        self.stream: Stream = open_stream(wanted, ReadingRoom(home, TrainingSettings(threads=1), 10**9))
        self.batches: Iterator[object] = iter(self.stream.batches(BATCH, 1))

    def take(self, count: int) -> list[object]:
        taken: list[object] = []
        while len(taken) < count:
            batch = next(self.batches)
            if batch is not None:
                taken.append(batch.tolist())  # type: ignore[attr-defined]
        return taken

    @property
    def ledger(self) -> str:
        return (self.stream.store.folder / LEDGER).read_text(encoding="utf-8")


def test_two_peers_route_a_corpus_together_and_each_has_its_sequences_again(corpus: Path, tmp_path: Path) -> None:
    config = config_of(corpus, 4, 32, "beside", "tokens")
    (corpus / "blobs").mkdir(exist_ok=True)
    manifest = prepare_run(config, 4, corpus / "blobs")
    with Hub() as hub:
        other = Reader(manifest, hub, corpus, tmp_path / "two", 1)
        while other.stream.store.end is None:
            other.take(1)
        with other.offers:  # else one might have routed this little corpus before anybody says a word
            assert other.offers.wait_for(lambda: len(other.offered) == FILES, 60)
        one = Reader(manifest, hub, corpus, tmp_path / "one", 0)
        first = one.take(2)
        while f'"by": "{other.name}"' not in one.ledger:
            assert one.stream.store.end is None, "a whole corpus, and nothing of the other was used"
            first += one.take(1)
        assert any(isinstance(event, RoutedByOthers) for event in one.told)
        for reader in (one, other):
            assert not [event for event in reader.told if isinstance(event, RoutesRefused)]
            reader.stream.close()
    with Hub() as hub:
        again = Reader(manifest, hub, corpus, tmp_path / "one", 0)
        assert again.take(len(first)) == first
        again.stream.close()
