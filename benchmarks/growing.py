"""A finished run gets paths for a language that it had not seen: what it costs, and what stays as it was.

    python -m benchmarks.growing --out benchmarks/results/growing.md

A run of 2x2 paths is trained on two invented languages to its end. Then its run file gets a stage with two paths more,
for a third language in another alphabet, and the run goes on by it for a tenth of its steps. Said are perplexities by
language before and after, and which modules have other bytes.
"""

import argparse
import hashlib
import random
import tempfile
from pathlib import Path

from dipaco_swarm.algorithm.paths import ModuleId, PathTable
from dipaco_swarm.algorithm.stages import state_at_start
from dipaco_swarm.algorithm.state import vector_to_bytes
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.client.visits import held_out, score
from dipaco_swarm.operator.home import OperatorHome, load_operator_key
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.orders import Extend
from dipaco_swarm.run.signature import fingerprint_of
from dipaco_swarm.simulate import simulate
from dipaco_swarm.swarm.states.blobs import BlobStore

ALPHABETS = {"north": "aeioulmnrst", "south": "uyobdgkvzpw", "east": "абвгдежзиклмнопрст"}
WORDS = 400
FOLLOWERS = 6
"""Words that may come after a word: what there is to be learned."""
DOCUMENTS = 160
LENGTH = 200
"""Words of a document."""

RUN_FILE = """
name = "growing"
[model]
hidden_size = 48
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 64
[[levels]]
blocks = [0]
embedding = true
[[levels]]
blocks = [1]
head = true
[tokenizer]
vocab_size = 512
[data]
source = "text"
path = "{folder}/old/**/*.txt"
sequence_length = 64
holdout = 0.1
routing_sample = 0.2
reading = "whole"
[inner]
learning_rate = 3e-3
embedding_learning_rate_ratio = 10.0
warmup_steps = 20
schedule_steps = 400
batch_sequences = 8
[outer]
momentum = 0.3
[rounds]
pacing = "synchronous"
inner_steps = 20
[wire]
codec = "fp32"
[[stages]]
router = "single"
rounds = 10
[[stages]]
router = "k-means"
modules = [2, 2]
rounds = 10
"""
ADDED = """
[[stages]]
router = "added"
paths = [[2, 2], [2, 3]]
rounds = 4
[stages.parents]
L0M2 = "L0M0"
L1M2 = "L1M0"
L1M3 = "L1M1"
[stages.from_here.data]
path = "{folder}/new/**/*.txt"
[stages.from_here.inner]
warmup_steps = 0
final_learning_rate_ratio = 1.0
[stages.from_here.rounds]
inner_steps = 10
"""


def write_texts(folder: Path) -> None:
    """Documents of each language: words that follow each other by chance, some more often than others."""
    for name, letters in ALPHABETS.items():
        chance = random.Random(name)
        words = ["".join(chance.choices(letters, k=chance.randint(2, 7))) for _ in range(WORDS)]
        follows = {word: chance.choices(words, k=FOLLOWERS) for word in words}
        home = folder / ("new" if name == "east" else "old") / name
        home.mkdir(parents=True)
        for number in range(DOCUMENTS):
            word, text = chance.choice(words), []
            for _ in range(LENGTH):
                text.append(word)
                word = chance.choice(follows[word])
            (home / f"{number}.txt").write_text(" ".join(text))


def published(home: Path) -> Manifest:
    manifest = OperatorHome(home).manifest(fingerprint_of(load_operator_key(home).public_key()))
    assert manifest is not None
    return manifest


def digests(home: Path) -> dict[ModuleId, str]:
    """Of the parameters of every module of the newest stage."""
    manifest, kept, blobs = published(home), OperatorHome(home), BlobStore(home / "blobs")
    stage = manifest.stage

    def fetch(digest: str) -> bytes:
        found = blobs.get(digest)
        assert found is not None
        return found

    states = {m: kept.state(stage.index, m) or state_at_start(stage, m, fetch) for m in PathTable(stage.table).modules}
    return {m: hashlib.sha256(vector_to_bytes(state.params)).hexdigest()[:12] for m, state in states.items()}


def perplexities(home: Path, texts: Path) -> dict[str, float]:
    """Of each language's documents, all of them: of the old ones most were trained on, which is no matter here."""
    found = {}
    with open_run(home) as run:
        for name in ALPHABETS:
            pieces = held_out(run, f"{texts}/*/{name}/*.txt")
            result, _ = score(run, pieces)
            found[name] = result.total.perplexity
    return found


def measure(folder: Path) -> list[str]:
    """The report's lines."""
    write_texts(folder)
    first = parse_run_file(RUN_FILE.format(folder=folder))
    home = folder / "run"
    simulate(first, home, {f"peer-{path}": path for path in range(4)})
    before, bytes_before = perplexities(home / "bootstrap", folder), digests(home / "bootstrap")
    grown = parse_run_file((RUN_FILE + ADDED).format(folder=folder))
    OperatorHome(home / "bootstrap").order(Extend(config=grown))
    simulate(grown, home, {f"new-{path}": path for path in (4, 5)})
    after, bytes_after = perplexities(home / "bootstrap", folder), digests(home / "bootstrap")
    return list(report(first, grown, before, after, bytes_before, bytes_after))


def report(
    first: RunConfig,
    grown: RunConfig,
    before: dict[str, float],
    after: dict[str, float],
    bytes_before: dict[ModuleId, str],
    bytes_after: dict[ModuleId, str],
) -> list[str]:
    steps, more = first.steps_of(first.stages), grown.steps_of(grown.stages) - first.steps_of(first.stages)
    kept = [str(m) for m in bytes_before if bytes_after[m] == bytes_before[m]]
    lines = [
        "# Paths for a language that a finished run had not seen",
        "",
        f"First run: 2x2 paths, {steps} inner steps of a path. Two paths more: {more} steps, "
        f"{100 * more / steps:.0f} % of that. All documents of a language are scored.",
        "",
        "| language | perplexity before | after | |",
        "|---|---|---|---|",
    ]
    for name, old in before.items():
        new = after[name]
        change = "exactly the same" if old == new else f"{100 * (new / old - 1):+.1f} %"
        lines.append(f"| {name}{' (new)' if name == 'east' else ''} | {old:.4f} | {new:.4f} | {change} |")
    added = ", ".join(map(str, sorted(set(bytes_after) - set(bytes_before))))
    same = f"Modules with the same bytes as before: {', '.join(kept)}, of {len(bytes_before)}."
    return [*lines, "", f"{same} New: {added}."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="Where the report is written.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = "\n".join(measure(Path(folder))) + "\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
