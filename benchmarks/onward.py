"""A run of 2x2 paths that starts from a checkpoint, against that checkpoint and against training it on as it is.

    python -m benchmarks.onward [--seeds 2] [--base-rounds 16] [--rounds 10] [--home DIR]

For each seed a dense model is trained and exported, as anybody's checkpoint. From that folder (`[model] from`) two runs
begin: one of 2x2 paths without a warm-up, and one that trains the same model on, on all documents, with as many steps
of the same batch. All three are scored on the same held-out documents, the same tokens of them. Each is one process
(`dipaco-swarm simulate`) on the text of the Python installation. With --home an interrupted call goes on.

Prints a table and writes it to benchmarks/results/onward-HARDWARE.md.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reduce import hardware
from dipaco_swarm.client.exporting import export
from dipaco_swarm.client.visits import evaluate
from dipaco_swarm.dashboard.screens import open_screen
from dipaco_swarm.dashboard.views import Evaluation
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.simulate import simulate

RESULTS = Path(__file__).parent / "results"
STEPS = 50
"""Inner steps of a round."""
SHARED = """
name = "{name}"
min_peers = {peers}
seed = {seed}
{model}
[data]
source = "python"
max_documents = {documents}
sequence_length = 256
holdout = 0.06
routing_sample = 0.06
[inner]
learning_rate = {learning_rate}
embedding_learning_rate_ratio = {embedding_ratio}
head_learning_rate_ratio = {head_ratio}
beta2 = 0.99
warmup_steps = 20
schedule_steps = {schedule}
batch_sequences = 4
[outer]
learning_rate = 0.7
momentum = 0.3
[rounds]
pacing = "synchronous"
inner_steps = 50
[[stages]]
{stage}
rounds = {rounds}
"""
FRESH = """
[model]
hidden_size = 96
intermediate_size = 256
num_hidden_layers = 4
num_attention_heads = 4
max_position_embeddings = 256
[[levels]]
blocks = [0, 1, 2, 3]
embedding = true
head = true
[tokenizer]
vocab_size = 2048
"""
HALVES = """
[model]
from = "{folder}"
[[levels]]
blocks = [0, 1]
embedding = true
[[levels]]
blocks = [2, 3]
head = true
"""
SINGLE, GRID = 'router = "single"', 'router = "product-k-means"\nmodules = [2, 2]'


@dataclass(frozen=True)
class Row:
    """What came out for one seed: perplexities on the same tokens."""

    seed: int
    tokens: int
    checkpoint: float
    continued: float
    routed: float


def measure(home: Path, seed: int, base_rounds: int, rounds: int, documents: int) -> Row:
    """Train all three in `home`, or go on where that was left."""
    rates = {"learning_rate": 3e-3, "embedding_ratio": 30.0, "head_ratio": 6.0}
    made = _trained(home / "base", seed, 1, FRESH, SINGLE, base_rounds, documents, rates)
    folder = home / "checkpoint"
    if not folder.exists():
        export(home / "base" / "bootstrap", 0, folder)
    model = HALVES.format(folder=folder)
    gentle = {"learning_rate": 1e-3, "embedding_ratio": 10.0, "head_ratio": 3.0}
    continued = _trained(home / "dense", seed, 1, model, SINGLE, rounds, documents, gentle)
    routed = _trained(home / "grid", seed, 4, model, GRID, rounds, documents, gentle)
    if not made.tokens == continued.tokens == routed.tokens:
        raise AssertionError(f"not the same tokens: {made.tokens}, {continued.tokens}, {routed.tokens}")
    return Row(seed, made.tokens, made.perplexity, continued.perplexity, routed.perplexity)


def _trained(
    home: Path, seed: int, peers: int, model: str, stage: str, rounds: int, documents: int, rates: dict[str, float]
) -> Evaluation:
    text = SHARED.format(
        name=home.name,
        peers=peers,
        seed=seed,
        model=model,
        documents=documents,
        schedule=rounds * STEPS,
        stage=stage,
        rounds=rounds,
        **rates,
    )
    names = {f"peer-{number}": number for number in range(peers)}
    with open_screen("plain") as screen:
        simulate(parse_run_file(text), home, names, cache=home.parent / "cache", screen=screen)
    return evaluate(home / "bootstrap", None)


def table(rows: Sequence[Row], base_rounds: int, rounds: int) -> str:
    """The page of results, as Markdown."""
    lines = [
        "# A run that starts from a checkpoint",
        "",
        f"`python -m benchmarks.onward --seeds {len(rows)} --base-rounds {base_rounds} --rounds {rounds}` on "
        f"{hardware()}. Perplexity on held-out documents, the first 32 tokens of each piece excluded, the same tokens "
        f"in each line. The checkpoint is a dense model of {base_rounds * STEPS} steps; from its folder two runs "
        f"begin, {rounds * STEPS} steps of 1,024 tokens a path each, with the same learning rates.",
        "",
        "| seed | tokens scored | the checkpoint | trained on, dense | 2x2 paths from it | against the checkpoint | "
        "against dense |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.seed} | {row.tokens:,} | {row.checkpoint:.2f} | {row.continued:.2f} | {row.routed:.2f} | "
            f"{100 * (row.routed / row.checkpoint - 1):+.1f} % | {100 * (row.routed / row.continued - 1):+.1f} % |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--base-rounds", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--home", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dipaco-onward-") as temporary:
        home = (arguments.home or Path(temporary)).resolve()
        rows: list[Row] = []
        for seed in range(arguments.seeds):
            place = home / str(seed)
            rows.append(measure(place, seed, arguments.base_rounds, arguments.rounds, arguments.documents))
            print(table(rows, arguments.base_rounds, arguments.rounds), flush=True)
    page = table(rows, arguments.base_rounds, arguments.rounds)
    (RESULTS / f"onward-{hardware()}.md").write_text(page)


if __name__ == "__main__":
    main()
