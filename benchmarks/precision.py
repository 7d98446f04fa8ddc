"""What a volunteer's choices cost in loss: the same steps with activations or moments that are computed otherwise.

    python -m benchmarks.precision [--steps 400] [--seeds 0 1] [--threads 1]

A path of ten million parameters is trained by `InnerTrainer` on the text of the Python installation: from the same
parameters, on the same batches, once as fp32 and once with each choice. All are scored in fp32 on the same held-out
tokens. How far two seeds lie apart says what is noise. About 25 minutes on one core.

Prints a table and writes it to benchmarks/results/precision-HARDWARE.md.
"""

import argparse
import hashlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.inner import CHOICES, OURS, cases
from benchmarks.reduce import hardware
from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.run.config import InnerConfig, RunConfig
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.training.documents import read_documents, split_of
from dipaco_swarm.training.evaluation import Score, evaluate
from dipaco_swarm.training.inner import InnerTrainer, TrainingSettings
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.pieces import EvaluationSet, evaluation_pieces
from dipaco_swarm.training.shards import Shard, build_shard
from dipaco_swarm.training.tokenizer import load_tokenizer, train_tokenizer

RESULTS = Path(__file__).parent / "results"
LENGTH, BATCH = 256, 4
TOKENIZER_DOCUMENTS = 400
HELD_OUT_PIECES = 200
FP32 = "--dtype fp32"
RUN_FILE = """
name = "precision"
[model]
hidden_size = {model.hidden_size}
intermediate_size = {model.intermediate_size}
num_hidden_layers = {model.num_hidden_layers}
num_attention_heads = {model.num_attention_heads}
max_position_embeddings = {model.max_position_embeddings}
[[levels]]
blocks = [0, 1, 2, 3, 4, 5]
embedding = true
head = true
[tokenizer]
vocab_size = {vocabulary}
[data]
source = "python"
sequence_length = {length}
holdout = 0.05
[[stages]]
router = "single"
"""


@dataclass(frozen=True)
class Text:
    """What is trained on, and what is scored."""

    config: RunConfig
    vocabulary: int
    shard: Shard
    held_out: EvaluationSet


@dataclass(frozen=True)
class Trained:
    """One choice with one seed."""

    choice: str
    seed: int
    score: Score
    """Of the held-out tokens, in fp32."""
    seconds: float


def prepare(folder: Path) -> Text:
    """The text of the Python installation, packed; `folder` is for its shard."""
    case = cases(quick=False)[-1]
    config = parse_run_file(RUN_FILE.format(model=case.model, vocabulary=case.vocabulary, length=LENGTH))
    texts = (d.text for d in read_documents(config.data) if split_of(d.text, config.data) == "train")
    made = train_tokenizer(islice(texts, TOKENIZER_DOCUMENTS), case.vocabulary)
    tokenizer = load_tokenizer(made)
    shard = build_shard(
        lambda: read_documents(config.data),
        tokenizer,
        config.data,
        config.router,
        None,
        PathIndex(0),
        cache=folder,
        key=hashlib.sha256(made).hexdigest(),
    )
    pieces = evaluation_pieces(
        read_documents(config.data), tokenizer, config.data, config.router, per_domain=HELD_OUT_PIECES
    )
    return Text(config, case.vocabulary, shard, pieces)


def train(text: Text, choice: str, settings: TrainingSettings, steps: int, seed: int) -> Trained:
    """So many steps from the parameters and over the batches of a seed."""
    config = text.config
    network = build_network(config.model, text.vocabulary, seed)
    inner = InnerConfig(
        learning_rate=1e-3, warmup_steps=steps // 10, schedule_steps=steps, beta2=0.99, batch_sequences=BATCH
    )
    trainer = InnerTrainer(PathModel(network, config.levels), inner, settings)
    began = time.process_time()
    trainer.train(text.shard.batches(BATCH, seed), steps)
    seconds = time.process_time() - began
    scores = evaluate(network, text.held_out, config.router.prefix_tokens)
    return Trained(choice, seed, sum(scores.values(), Score()), seconds)


def report(results: Sequence[Trained], steps: int, parameters: int) -> str:
    """As Markdown."""
    seeds = sorted({result.seed for result in results})
    exact = {result.seed: result for result in results if result.choice == FP32}
    lines = [
        f"# What precision costs in loss: {hardware()}",
        "",
        f"`python -m benchmarks.precision`: {parameters:,} parameters, {steps} inner steps of {BATCH} x {LENGTH} "
        f"tokens of real text, seeds {', '.join(map(str, seeds))}; torch {torch.__version__}. Loss on "
        f"{results[0].score.tokens:,} held-out tokens, in nats a token; all are scored in fp32. Against fp32 with the "
        "same seed: the same batches, from the same parameters.",
        "",
        "| choice | loss of each seed | against fp32 | perplexity, against fp32 | CPU seconds |",
        "|---|---|---|---|---:|",
    ]
    for choice in dict.fromkeys(result.choice for result in results):
        own = [result for result in results if result.choice == choice]
        apart = [result.score.loss - exact[result.seed].score.loss for result in own]
        perplexity = fmean(result.score.perplexity for result in own) / fmean(
            exact[result.seed].score.perplexity for result in own
        )
        against = "-", "-"
        if choice != FP32:
            against = ", ".join(f"{value:+.4f}" for value in apart), f"{100 * (perplexity - 1):+.2f} %"
        losses = ", ".join(f"{result.score.loss:.4f}" for result in own)
        lines.append(
            f"| {choice} | {losses} | {against[0]} | {against[1]} | {fmean(result.seconds for result in own):.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    choices = {FP32: OURS, **{name: made for name, made in CHOICES.items() if made.autocast or made.eight_bit}}
    with tempfile.TemporaryDirectory() as folder:
        text = prepare(Path(folder))
        parameters = sum(p.numel() for p in build_network(text.config.model, text.vocabulary, 0).parameters())
        results = []
        for seed in arguments.seeds:
            for choice, settings in choices.items():
                results.append(train(text, choice, settings, arguments.steps, seed))
                print(f"{choice}, seed {seed}: {results[-1].score.loss:.4f}", flush=True)
    said = report(results, arguments.steps, parameters)
    print(said)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"precision-{hardware()}.md").write_text(said, encoding="utf-8")


if __name__ == "__main__":
    main()
