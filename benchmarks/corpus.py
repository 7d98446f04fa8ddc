"""What a peer reads, tokenizes and features before its first inner step, and for each sequence that it trains on.

    python -m benchmarks.corpus [--gb 1] [--paths 1 16 256] [--hidden 256] [--steps 8] [--before-mb 8]

Generates a corpus of JSON lines (documents of 16 kinds, words of a kind drawn from its own vocabulary), and removes it
in the end. A path is prepared and trained for some steps as a peer does it, in a process of its own: the shard is read
beside training. "Whole" is what `[data] reading = "whole"` does, measured on the first `--before-mb` of the same corpus
and multiplied: reading, tokenizing and features cost the same for each document. Nothing is averaged, and no network is
used.

Seconds count from the start of the process, imports included. Prints a table and writes it to
benchmarks/results/corpus-HARDWARE.md.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import psutil

from benchmarks.reduce import hardware
from dipaco_swarm.algorithm.paths import PathIndex, grid
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.manifest import Manifest, Stage

RESULTS = Path(__file__).parent / "results"
KINDS, WORDS, SENTENCES = 16, 4000, 1500
FILE_BYTES = 256_000_000
VOCABULARY = 8192
LENGTH, BATCH = 512, 4
SAMPLE_SECONDS = 0.05
PEER = "Qm-benchmark"
MEGA = 1e6


@dataclass(frozen=True)
class Row:
    """What a stage of so many paths cost a peer."""

    paths: int
    way: str
    seconds: float
    """To the end of the first inner step."""
    cpu_seconds: float
    """The same, of all processors together: others may use them as well."""
    first: "Work"
    """Before the first step."""
    each: "Work"
    """For each sequence of the path."""
    training_bytes: int
    """Memory of the process that trains, at most."""
    reading_bytes: int
    """Of the one that reads beside it, at most."""
    disk_bytes: int


@dataclass(frozen=True)
class Work:
    """Characters read and tokenized, and texts featured."""

    read: float
    tokenized: float
    featured: float

    def times(self, factor: float) -> "Work":
        return Work(self.read * factor, self.tokenized * factor, self.featured * factor)


# --------------------------------------------------------------------------------------------------------- the corpus


def write_corpus(folder: Path, size: int, seed: int = 0) -> None:
    """JSON lines of about `size` bytes: documents of some hundred to some thousand words, by kind in no order."""
    random, written, number = Random(seed), 0, 0
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    sentences: list[list[str]] = []
    for _ in range(KINDS):
        words = ["".join(random.choices(letters, k=random.randint(2, 9))) for _ in range(WORDS)]
        often = [1 / (1 + rank) for rank in range(WORDS)]
        sentences.append([" ".join(random.choices(words, often, k=random.randint(6, 20))) for _ in range(SENTENCES)])
    while written < size:
        with open(folder / f"{number:04d}.jsonl", "w", encoding="utf-8") as file:
            end = min(size, written + FILE_BYTES)
            while written < end:
                kind = sentences[random.randrange(KINDS)]
                text = ". ".join(random.choices(kind, k=int(random.lognormvariate(3.0, 0.9)) + 1))
                written += file.write(f'{{"text": "{text}."}}\n')
        number += 1


def config_of(folder: Path, paths: int, hidden: int, reading: str, shares: str = "nothing") -> RunConfig:
    side = round(paths**0.5)
    stages = "" if paths == 1 else f'\n[[stages]]\nrouter = "product-k-means"\nmodules = [{side}, {side}]\n'
    return parse_run_file(f"""
name = "corpus"
[model]
hidden_size = {hidden}
intermediate_size = {8 * hidden // 3 // 16 * 16}
num_hidden_layers = 8
num_attention_heads = 4
max_position_embeddings = {LENGTH}
[[levels]]
blocks = [0, 1, 2, 3]
embedding = true
[[levels]]
blocks = [4, 5, 6, 7]
head = true
[tokenizer]
vocab_size = {VOCABULARY}
[data]
source = "jsonl"
path = "{folder}/*.jsonl"
sequence_length = {LENGTH}
holdout = 0.01
routing_sample = 0.01
reading = "{reading}"
shares = "{shares}"
[inner]
batch_sequences = {BATCH}
[[stages]]
router = "single"
{stages}""")


def ordinary_path(manifest: Manifest) -> PathIndex:
    """A path whose share of the documents is nearest to the mean."""
    shares = np.array(manifest.stage.path_weights)
    return PathIndex(int(np.abs(shares - shares.mean()).argmin()))


def prepare_run(config: RunConfig, paths: int, blobs: Path, sample: int = 2000) -> Manifest:
    """The manifest of a stage of so many paths, and its files; the feature model is not trained.

    `sample`: texts that the router is fitted on.
    """
    from dipaco_swarm.algorithm.routers.product_k_means import PRODUCT_K_MEANS
    from dipaco_swarm.algorithm.routers.router import Sample, path_shares, router_to_bytes
    from dipaco_swarm.algorithm.state import vector_to_bytes
    from dipaco_swarm.training.documents import read_documents
    from dipaco_swarm.training.features import prefix_features
    from dipaco_swarm.training.modules import PathModel, build_network
    from dipaco_swarm.training.pieces import routing_prefixes
    from dipaco_swarm.training.tokenizer import load_tokenizer, train_tokenizer, vocabulary_size

    def put(data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return digest

    texts = (document.text for document in islice(read_documents(config.data), 1000))
    tokenizer_json = train_tokenizer(texts, VOCABULARY)
    tokenizer = load_tokenizer(tokenizer_json)
    network = build_network(config.model, vocabulary_size(tokenizer), config.seed)
    model = PathModel(network, config.levels)
    seeds = [put(vector_to_bytes(model.vector(level))) for level in range(2)]
    table, router = grid([1, 1]), None
    shares: tuple[float, ...] = (1.0,)
    features: tuple[str, ...] = ()
    if paths > 1:
        table, features = grid([round(paths**0.5)] * 2), tuple(seeds)
        few = config.router.model_copy(update={"max_documents": sample})
        some = islice(read_documents(config.data), 100_000)
        found = prefix_features(network, routing_prefixes(some, tokenizer, config.data, few))
        fitted = PRODUCT_K_MEANS.fit(Sample(found), table, config.router, config.seed)
        router, shares = put(router_to_bytes(PRODUCT_K_MEANS, fitted)), path_shares(fitted, found)
    stage = Stage(
        index=0,
        table=table.rows,
        path_weights=shares,
        router=router,
        seeds={str(module): seeds[module.level] for module in table.modules},
    )
    return Manifest(revision=0, config=config, tokenizer=put(tokenizer_json), stages=(stage,), feature_seeds=features)


# ------------------------------------------------------------------------------------------------------------- a peer


class Memory(threading.Thread):
    """Watches what this process and the reader beside it have in memory."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ours = self.beside = 0
        self.over = threading.Event()

    def run(self) -> None:
        here = psutil.Process()
        while not self.over.wait(SAMPLE_SECONDS):
            self.ours = max(self.ours, here.memory_info().rss)
            for child in here.children():
                try:
                    if child.cmdline() != here.cmdline():  # between fork and exec it has our memory
                        self.beside = max(self.beside, child.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue  # it ended just now


def cpu_seconds() -> float:
    """Of this process and the reader beside it."""
    processes = [psutil.Process(), *psutil.Process().children()]
    times = [process.cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))


def be_a_peer(folder: Path, paths: int, steps: int) -> None:
    """Prints a `Row` as JSON. In a process of its own: memory and seconds are its."""
    started = psutil.Process().create_time()
    memory = Memory()
    memory.start()
    from dipaco_swarm.peer.reading import ReadingRoom, open_stream
    from dipaco_swarm.peer.workbench import Preparation
    from dipaco_swarm.training.inner import InnerTrainer, StepReport, TrainingSettings
    from dipaco_swarm.training.modules import PathModel, build_network

    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    config, cache, blobs = manifest.config, folder / f"cache-{paths}", folder / "blobs"
    fetch: Callable[[str], bytes] = lambda digest: (blobs / digest).read_bytes()  # noqa: E731
    settings = TrainingSettings()
    wanted = Preparation(manifest, ordinary_path(manifest), PEER, fetch, lambda event: None)
    stream = open_stream(wanted, ReadingRoom(cache, settings, 20 * 10**9))
    model = PathModel(build_network(config.model, VOCABULARY, config.seed), config.levels)
    stream.await_first(lambda: False)

    def work() -> Work:
        done = stream.progress
        return Work(done["characters"], done["tokenized"], done["routed"])

    at_first: list[tuple[float, float, Work]] = []

    def note(report: StepReport) -> None:
        if not at_first:
            at_first.append((time.time() - started, cpu_seconds(), work()))

    InnerTrainer(model, config.inner, settings).train(stream.batches(BATCH, 0), steps, on_step=note)
    each = work().times(1 / stream.progress["sequences"])
    disk = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    stream.close()
    memory.over.set()
    row = Row(paths, "beside", *at_first[0], each, memory.ours, memory.beside, disk)
    print(json.dumps(asdict(row)))


def whole(folder: Path, paths: int, characters: int) -> None:
    """Prints a `Row` of a shard that is made whole before training, of the first characters of the corpus."""
    started = psutil.Process().create_time()
    memory = Memory()
    memory.start()
    from dipaco_swarm.training.documents import Document, read_documents
    from dipaco_swarm.training.inner import InnerTrainer, TrainingSettings
    from dipaco_swarm.training.modules import PathModel, build_network
    from dipaco_swarm.training.routed import load_routing, shard_recipe
    from dipaco_swarm.training.shards import build_shard
    from dipaco_swarm.training.tokenizer import vocabulary_size

    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    config, cache, blobs = manifest.config, folder / f"whole-{paths}", folder / "blobs"
    routing = load_routing(
        manifest, manifest.stage, lambda digest: (blobs / digest).read_bytes(), remember=cache / "features"
    )
    imported, imported_cpu = time.time() - started, cpu_seconds()
    read = 0

    def some() -> Iterator[Document]:
        nonlocal read
        for document in read_documents(config.data):
            if read >= characters:
                return
            read += len(document.text)
            yield document

    shard = build_shard(
        some,
        routing.tokenizer,
        config.data,
        config.router,
        routing.assign,
        ordinary_path(manifest),
        cache=cache / "shards",
        key=shard_recipe(manifest, manifest.stage, ordinary_path(manifest)).key(),
        remember=cache / "tokens",
    )
    built, built_cpu = time.time() - started - imported, cpu_seconds() - imported_cpu
    model = PathModel(build_network(config.model, vocabulary_size(routing.tokenizer), 0), config.levels)
    InnerTrainer(model, config.inner, TrainingSettings()).train(shard.batches(BATCH, 0), 1)
    step, step_cpu = time.time() - started - imported - built, cpu_seconds() - imported_cpu - built_cpu
    corpus = sum(file.stat().st_size for file in (folder / "corpus").iterdir())
    factor = corpus / read
    featured = shard.progress.pieces if paths > 1 else 0
    work = Work(read, shard.progress.characters, featured)
    disk = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    memory.over.set()
    row = Row(
        paths,
        "whole",
        imported + built * factor + step,
        imported_cpu + built_cpu * factor + step_cpu,
        work.times(factor),
        work.times(1 / shard.num_sequences),
        memory.ours,
        0,
        round(disk * factor),
    )
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
            for way in ("whole", "beside"):
                config = config_of(corpus, paths, options.hidden, way)
                manifest = prepare_run(config, paths, blobs)
                (folder / "manifest.json").write_text(manifest.model_dump_json())
                work = ["whole", round(options.before_mb * MEGA)] if way == "whole" else ["peer", options.steps]
                command = [sys.executable, "-m", "benchmarks.corpus", "--member", folder, paths, *work]
                ended = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
                said = json.loads(ended.stdout.splitlines()[-1])
                row = Row(**{**said, "first": Work(**said["first"]), "each": Work(**said["each"])})
                print(line_of(row), flush=True)
                yield row


HEAD = (
    "| paths | read | s to the first step | CPU s | MB read | MB tokenized | texts featured | per sequence: kB read "
    "| kB tokenized | texts featured | memory, training | memory, reading | disk |\n" + "|---" * 13 + "|"
)


def line_of(row: Row) -> str:
    first, each = row.first, row.each
    values = (
        f"{row.seconds:,.0f}",
        f"{row.cpu_seconds:,.0f}",
        f"{first.read / MEGA:.1f}",
        f"{first.tokenized / MEGA:.1f}",
        f"{first.featured:,.0f}",
        f"{each.read / 1e3:.1f}",
        f"{each.tokenized / 1e3:.1f}",
        f"{each.featured:.1f}",
        f"{row.training_bytes / MEGA:.0f} MB",
        f"{row.reading_bytes / MEGA:.0f} MB" if row.reading_bytes else "",
        f"{row.disk_bytes / MEGA:.1f} MB",
    )
    return f"| {row.paths} | {row.way} | {' | '.join(values)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=1.0, help="size of the corpus")
    parser.add_argument("--paths", type=int, nargs="+", default=[1, 16, 256], help="squares")
    parser.add_argument("--hidden", type=int, default=256, help="width of the eight blocks; 256: 10 M parameters")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--before-mb", type=float, default=8.0, help="of which a whole shard is made, to multiply")
    parser.add_argument("--member", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.member:
        folder, paths, way, amount = options.member
        (be_a_peer if way == "peer" else whole)(Path(folder), int(paths), int(amount))
        return
    rows = [HEAD, *(line_of(row) for row in measure(options))]
    RESULTS.mkdir(exist_ok=True)
    title = (
        f"# A corpus of {options.gb:g} GB, 8 blocks of width {options.hidden}\n\n`{__spec__.name}`, {hardware()}\n\n"
    )
    (RESULTS / f"corpus-{hardware()}.md").write_text(title + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
