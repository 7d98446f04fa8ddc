"""What a peer reads, tokenizes and features of a corpus that all route together, against routing alone.

    python -m benchmarks.corpus_shared [--gb 20] [--paths 4 16 256] [--sequences 600] [--shares tokens]

The corpus has 20 GB by its list of files, of JSON lines of 16 kinds; on the disk are 64 MB, under many names. One
peer is real: its reader, its exchange, its training step. It is on an ordinary path, and there are as many peers as
paths. The reader has the priority of the benchmark, and not the low one that it has beside training: on a machine that
others use as well it would get nothing. The other peers are played by a second process: each has
always routed as many slices as the real peer has by then, from a place of its own on; so all have done the same. Their
routes were computed before with the same router. Asking one takes 0.1 s and what 100 Mbit/s take; the directory 0.2 s.

"alone" is the same with `shares = "nothing"`, up to `--alone` sequences. The first inner step is trained; after that,
batches are only taken, as fast as they come. Seconds count from the start of the process, imports included. Prints a
table and writes it to benchmarks/results/corpus-shared-HARDWARE.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil

from benchmarks.corpus import (
    BATCH,
    LENGTH,
    MEGA,
    PEER,
    RESULTS,
    VOCABULARY,
    Memory,
    config_of,
    cpu_seconds,
    ordinary_path,
    prepare_run,
)
from benchmarks.reduce import hardware
from dipaco_swarm.peer.path_choice import number_of
from dipaco_swarm.run.manifest import Manifest

DISTINCT_BYTES = 64_000_000
POOL = 2400
"""Different documents."""
ASK_SECONDS, LOOK_SECONDS, BYTES_A_SECOND = 0.1, 0.2, 12.5e6
SAMPLED = 0.25
"""Of the documents, for the router; nobody trains on them, and nobody tokenizes them."""
DISK = 400_000_000
MOST_SECONDS = 900.0


@dataclass(frozen=True)
class Point:
    """What a peer had done by some moment."""

    seconds: float
    cpu_seconds: float
    read: int
    tokenized: int
    featured: int
    """Of which `routed` were routed for all."""
    used: int
    """Texts of all paths that were gone through."""
    characters: int
    """The same, in characters."""
    sequences: int
    received: int
    """Bytes from others."""
    reading_bytes: int
    """Memory of the reader, at most since the point before."""


@dataclass(frozen=True)
class Row:
    paths: int
    way: str
    first: Point
    middle: Point
    last: Point
    training_bytes: int
    disk_bytes: int
    routed: int
    """Slices that this peer has routed for all."""


# --------------------------------------------------------------------------------------------------------- the corpus


def write_corpus(folder: Path, size: int, seed: int = 0) -> None:
    """Files of JSON lines whose sizes add up to `size`, of which each byte is on the disk once for many names."""
    random, letters = Random(seed), "etaoinshrdlucmfwypvbgkqjxz"
    pool = []
    for kind in range(16):
        words = ["".join(random.choices(letters, k=random.randint(2, 9))) for _ in range(4000)]
        often = [1 / (1 + rank) for rank in range(4000)]
        for _ in range(POOL // 16):
            count = int(random.lognormvariate(3.0, 0.9) + 1) * 13
            pool.append(json.dumps({"text": f"{kind} " + " ".join(random.choices(words, often, k=count))}) + "\n")
    first = folder / "0000.jsonl"
    with open(first, "w", encoding="utf-8") as file:
        written = 0
        while written < DISTINCT_BYTES:
            written += file.write(random.choice(pool))
    for number in range(1, round(size / DISTINCT_BYTES)):
        os.link(first, folder / f"{number:04d}.jsonl")


# --------------------------------------------------------------------------------------------------------- the others


class Village:
    """All peers but one, and what they have routed."""

    def __init__(self, manifest: Manifest, blobs: Path, cache: Path, peers: int) -> None:
        from dipaco_swarm.training.documents import Document, portions_of
        from dipaco_swarm.training.encoding import encoder
        from dipaco_swarm.training.reading.cheap import CheapRouting
        from dipaco_swarm.training.reading.making import Rules, is_trained_on
        from dipaco_swarm.training.reading.places import Corpus
        from dipaco_swarm.training.reading.shared.slices import ALL, NOWHERE, Slice, in_slices, slice_with
        from dipaco_swarm.training.routed import load_routing
        from dipaco_swarm.training.tokenizer import end_of_text_id

        config = manifest.config
        routing = load_routing(
            manifest, manifest.stage, lambda digest: (blobs / digest).read_bytes(), remember=cache / "features"
        )
        self.ring = Corpus(portions_of(config.data), config.seed, 0).in_order
        rules = Rules(config.data, end_of_text_id(routing.tokenizer), 0.0)
        cheap = CheapRouting(
            encoder(routing.tokenizer), routing.assign, ordinary_path(manifest), LENGTH, config.router.prefix_tokens
        )
        contents: dict[int, list[Slice]] = {}
        documents: dict[str, Document] = {}
        raw: dict[int, list[tuple[list[Document], bool]]] = {}
        for portion in self.ring:
            place = int(portion.name.split(" ")[-1])
            if place not in raw:
                raw[place] = list(in_slices(portion.read()))
                documents |= {d.text: d for some, _ in raw[place] for d in some if is_trained_on(d, rules)}
        texts = cheap.texts_of(list(documents.values()))
        paths = dict(zip(texts, cheap.paths_of(cheap.begin(texts))[:, 0].tolist(), strict=True))
        tokens = dict(zip(texts, cheap.whole(texts), strict=True))
        of_document = {text: cheap.texts_of([document]) for text, document in documents.items()}
        for place, slices in raw.items():
            contents[place] = []
            for some, is_last in slices:
                here = [text for d in some if d.text in of_document for text in of_document[d.text]]
                routes = np.array([[paths[text]] for text in here]).reshape(-1, 1)
                routes = np.where(routes < 0, NOWHERE, routes).astype(np.uint16)
                whole = [tokens[text] for text in here if paths[text] >= 0]
                contents[place].append(slice_with(some, is_last, routes, ALL, whole, np.dtype("<u2")))
        self.slices = [contents[int(portion.name.split(" ")[-1])] for portion in self.ring]
        random, count = Random(1), len(self.ring)
        self.peers = {f"simulated-{i}": [random.randrange(count)] for i in range(1, peers)}
        """Name -> the portions that it has routed or is at, in order."""
        self.done: dict[int, int] = {portions[0]: 0 for portions in self.peers.values()}
        self.real: set[int] = {number_of(PEER) % count}
        self.turns = 0

    def follow(self, real: Mapping[int, int]) -> None:
        """`real`: portion -> slices of it that the real peer has routed."""
        self.real |= set(real)
        while self.turns < sum(real.values()):
            self.turns += 1
            for portions in self.peers.values():
                self._route(portions)

    def _route(self, portions: list[int]) -> None:
        at = portions[-1]
        if self.done[at] >= len(self.slices[at]):
            count = len(self.ring)
            around = ((portions[0] + i) % count for i in range(count))
            at = next((p for p in around if p not in self.done and p not in self.real), -1)
            if at < 0:
                return
            portions.append(at)
            self.done[at] = 0
        self.done[at] += 1

    def offers(self, stretch: int) -> dict[str, bytes]:
        from dipaco_swarm.training.reading.shared.offers import said_of, stretch_of
        from dipaco_swarm.training.reading.shared.shelf import Span

        found = {}
        for name, portions in self.peers.items():
            here = [p for p in portions if stretch_of(p, len(self.ring)) == stretch and self.done[p]]
            if here:
                found[name] = said_of({p: Span(0, self.done[p], self.done[p] == len(self.slices[p])) for p in here})
        return found

    def part(self, name: str) -> bytes | None:
        path, portion, number = map(int, name.split("."))
        found: list[bytes] = []
        for each in self.slices[portion][number : self.done.get(portion, 0)]:
            found.append(each.told_to(path).to_bytes())
            if sum(map(len, found)) > 2 << 20:
                break
        return b"".join(found) or None


def be_the_others(folder: Path, peers: int, address: str) -> None:
    """Answers one peer until it hangs up. Says a line when it is ready."""
    from dipaco_swarm.training.reading.shared.offers import spans_in

    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    village = Village(manifest, folder / "blobs", folder / "village", peers)
    with Listener(address, "AF_UNIX") as listener:
        print("ready", flush=True)
        with listener.accept() as line:
            said: dict[int, dict[int, int]] = {}
            while True:
                try:
                    what, *rest = line.recv()
                except EOFError:
                    return
                if what == "offer":
                    stretch, words = rest
                    spans = spans_in(words, stretch, len(village.ring))
                    ends = {p: len(village.slices[p]) if s.end < 0 else s.end for p, s in spans.items()}
                    said[stretch] = ends
                    village.follow({p: end for of in said.values() for p, end in of.items()})
                    line.send(None)
                elif what == "offers":
                    line.send(village.offers(rest[0]))
                else:
                    line.send(village.part(rest[0]))


class Line:
    """`Others` over a connection to the process that plays them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.received = 0

    def serve(self, topic: str, answer: object) -> None:
        """Nobody asks."""

    def offer(self, topic: str, said: bytes | None) -> None:
        if said is not None:
            self._call("offer", int(topic.split("/")[-1]), said)

    def offers(self, topic: str, *, timeout: float) -> Mapping[str, bytes]:
        time.sleep(LOOK_SECONDS)
        found: Mapping[str, bytes] = self._call("offers", int(topic.split("/")[-1]))
        self.received += sum(200 + len(said) for said in found.values())
        return found

    def ask(self, peer: str, topic: str, name: str, *, timeout: float, limit: int) -> bytes | None:
        found: bytes | None = self._call("ask", name)
        size = 0 if found is None else len(found)
        time.sleep(ASK_SECONDS + size / BYTES_A_SECOND)
        self.received += size
        return found

    def _call(self, *what: object) -> Any:
        with self._lock:
            self._connection.send(what)
            return self._connection.recv()


# ------------------------------------------------------------------------------------------------------------- a peer


def be_a_peer(folder: Path, paths: int, sequences: int, address: str) -> None:
    """Prints a `Row` as JSON. In a process of its own: memory and seconds are its."""
    started = psutil.Process().create_time()
    memory = Memory()
    memory.start()
    from dipaco_swarm.peer.reading import ReadingRoom, open_stream
    from dipaco_swarm.peer.workbench import Preparation
    from dipaco_swarm.training.inner import InnerTrainer, TrainingSettings
    from dipaco_swarm.training.modules import PathModel, build_network
    from dipaco_swarm.training.reading.shared.ledger import Ledger

    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    config, blobs = manifest.config, folder / "blobs"
    cache = folder / f"cache-{paths}-{config.data.shares}"
    line = Line(Client(address, "AF_UNIX")) if address else None
    events: list[str] = []
    fetch: Callable[[str], bytes] = lambda digest: (blobs / digest).read_bytes()  # noqa: E731
    wanted = Preparation(manifest, ordinary_path(manifest), PEER, fetch, lambda event: events.append(str(event)), line)
    stream = open_stream(wanted, ReadingRoom(cache, TrainingSettings(), DISK))
    for child in psutil.Process().children():
        child.nice(psutil.Process().nice())
    model = PathModel(build_network(config.model, VOCABULARY, config.seed), config.levels)
    stream.await_first(lambda: False)

    def point() -> Point:
        done, work = stream.progress, stream.work
        reading, memory.beside = memory.beside, 0
        return Point(
            time.time() - started, cpu_seconds(), work["characters"], work["tokenized"], work["featured"],
            done["routed"], done["characters"], done["sequences"], 0 if line is None else line.received, reading,
        )  # fmt: skip

    batches = stream.batches(BATCH, 0)
    InnerTrainer(model, config.inner, TrainingSettings()).train(batches, 1)
    points = [point()]
    for most in (sequences // 2, sequences):
        while stream.progress["sequences"] < most and time.time() - started < MOST_SECONDS:
            next(batches)
        points.append(point())
    disk = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    stream.close()
    memory.over.set()
    ledger = stream.store.folder / "ledger.jsonl"
    routed = sum(not use.by for use in Ledger(ledger).uses) if ledger.exists() else 0
    first, middle, last = points
    row = Row(paths, "together" if line else "alone", first, middle, last, memory.ours, disk, routed)
    print("\n".join(events), file=sys.stderr)
    print(json.dumps(asdict(row)))


# -------------------------------------------------------------------------------------------------------------- table


def measure(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus, blobs = folder / "corpus", folder / "blobs"
        corpus.mkdir()
        blobs.mkdir()
        write_corpus(corpus, round(options.gb * 1e9))
        for paths in options.paths:
            config = config_of(corpus, paths, options.hidden, "beside")
            data = config.data.model_copy(update={"routing_sample": SAMPLED})
            router = config.router.model_copy(update={"min_share": 0.0})  # a few documents that come again and again
            config = config.model_copy(update={"data": data, "router": router})
            manifest = prepare_run(config, paths, blobs, sample=900)
            for shares in (options.shares, "nothing"):
                data = data.model_copy(update={"shares": shares})
                said = manifest.model_copy(update={"config": config.model_copy(update={"data": data})})
                (folder / "manifest.json").write_text(said.model_dump_json())
                alone = shares == "nothing"
                yield run(folder, paths, options.alone if alone else options.sequences, "" if alone else "line")


def run(folder: Path, paths: int, sequences: int, line: str) -> Row:
    address = str(folder / line) if line else ""
    command = [sys.executable, "-m", "benchmarks.corpus_shared", "--member", folder, paths, sequences]
    others = None
    if address:
        others = subprocess.Popen([*map(str, command), address, "others"], stdout=subprocess.PIPE, text=True)
        assert others.stdout is not None
        others.stdout.readline()
    try:
        peer = subprocess.run([*map(str, command), address, "peer"], stdout=subprocess.PIPE, text=True, check=True)
    finally:
        if others is not None:
            others.kill()
            others.communicate()
            Path(address).unlink(missing_ok=True)
    said: dict[str, Any] = json.loads(peer.stdout.splitlines()[-1])
    first, middle, last = (Point(**said.pop(key)) for key in ("first", "middle", "last"))
    return Row(first=first, middle=middle, last=last, **said)


HEAD = (
    "| paths, peers | routed | s (CPU s) to the first step | MB read, texts featured by then | sequences | s | MB read "
    "| MB tokenized | texts featured | of corpus / peers + shard, in the second half: read | tokenized | featured "
    "| MB received "
    "| reader's memory, first half, second | disk |\n" + "|---" * 15 + "|"
)


def line_of(row: Row) -> str:
    first, middle, last = row.first, row.middle, row.last
    share = 2 / row.paths  # a part of the corpus for each peer, and a shard for each path

    def times(done: Callable[[Point], int], due: Callable[[Point], float]) -> str:
        """What was done, in shares of what a peer has to do; and so in the second half alone, when others are known."""
        later = (due(last) - due(middle)) * share
        half = f"{(done(last) - done(middle)) / later:.2f}" if later else "-"
        return f"{done(last) / (due(last) * share):.2f}, {half}"

    values = (
        f"{first.seconds:,.0f} ({first.cpu_seconds:,.0f})",
        f"{first.read / MEGA:.2f}, {first.featured:,}",
        f"{last.sequences:,}",
        f"{last.seconds:,.0f}",
        f"{last.read / MEGA:.1f}",
        f"{last.tokenized / MEGA:.1f}",
        f"{last.featured:,}",
        times(lambda point: point.read, lambda point: point.characters),
        times(lambda point: point.tokenized, lambda point: point.characters * (1 - SAMPLED)),
        times(lambda point: point.featured, lambda point: point.used),
        f"{last.received / MEGA:.1f}",
        f"{row.middle.reading_bytes / MEGA:.0f}, {last.reading_bytes / MEGA:.0f} MB",
        f"{row.disk_bytes / MEGA:.1f} MB",
    )
    return f"| {row.paths} | {row.way} | {' | '.join(values)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=20.0, help="size of the corpus")
    parser.add_argument("--paths", type=int, nargs="+", default=[4, 16, 256], help="squares; as many peers")
    parser.add_argument("--hidden", type=int, default=256, help="width of the eight blocks; 256: 10 M parameters")
    parser.add_argument("--sequences", type=int, default=600, help="that are taken")
    parser.add_argument("--alone", type=int, default=24, help="the same of a peer that routes alone")
    parser.add_argument("--shares", choices=["tokens", "routes"], default="tokens")
    parser.add_argument("--member", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.member:
        folder, paths, sequences, address, who = options.member
        if who == "others":
            be_the_others(Path(folder), int(paths), address)
        else:
            be_a_peer(Path(folder), int(paths), int(sequences), address)
        return
    rows = []
    for row in measure(options):
        rows.append(line_of(row))
        print(rows[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    title = (
        f"# A corpus of {options.gb:g} GB routed together ({options.shares}), 8 blocks of width {options.hidden}\n\n"
        f"`{__spec__.name}`, {hardware()}\n\n"
    )
    (RESULTS / f"corpus-shared-{hardware()}.md").write_text(title + "\n".join([HEAD, *rows]) + "\n")


if __name__ == "__main__":
    main()
