"""How much of what a peer trains on can be read out of its outer gradient: one honest attempt.

    python -m benchmarks.privacy [--quick] [--seeds 3]

An observer sits in all module groups of a path: it knows the agreed parameters that the victim started from, and gets
the victim's outer gradient as it is sent (int8). Two published methods, and a third that needs the gradient alone:

  span      DAGER (Petrov et al. 2024, arXiv 2405.15586): the gradient of the first block's value matrix is a sum of
            outer products with its inputs, so the inputs lie in its row space. Whichever tokens of the vocabulary lie
            there were in the text; put together, and checked against the second block's in the same way, they are
            sequences. (The paper takes the query matrix, whose gradient does not have the first token.)
  exposure  Carlini et al. 2019 (arXiv 1802.08232): a secret of eight random tokens stands in some training sequences,
            after a phrase that the observer knows. How high does it rank among 4,096 others by how much more likely it
            became? And does the victim's model say it, token by token, after that phrase?
  rows      rows of the embedding that moved, by how much.

`span` is played on what it was made for (one plain gradient of one short sequence), and then step by step on what a
peer really sends. Model: Llama, 4 blocks, 128 wide, 2,048 tokens, trained on other text for 300 steps first; an inner
step of AdamW takes 8 sequences of 128 tokens. A small and young model learns more from one sequence than a large one.

Prints two tables and writes them to benchmarks/results/privacy-HARDWARE.md.
"""

import argparse
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.reduce import hardware
from dipaco_swarm.algorithm.outer import outer_gradient
from dipaco_swarm.run.config import DataConfig, InnerConfig
from dipaco_swarm.run.model import LevelConfig, ModelConfig
from dipaco_swarm.strategies import CODECS
from dipaco_swarm.swarm.round.codecs.codec import Codec
from dipaco_swarm.training.documents import read_documents
from dipaco_swarm.training.inner import InnerState, InnerTrainer, TrainingSettings
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.tokenizer import load_tokenizer, prompt_ids, train_tokenizer

RESULTS = Path(__file__).parent / "results"
MODEL = ModelConfig(hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4)
LEVELS = (LevelConfig(blocks=(0, 1, 2, 3), embedding=True, head=True),)
VOCABULARY = 2048
SEQUENCES, LENGTH = 8, 128
INNER = InnerConfig(learning_rate=1e-3, warmup_steps=20, schedule_steps=10_000, batch_sequences=SEQUENCES)
STEPS_BEFORE, STEPS = 300, 50
PHRASE = "the access code of the laboratory is "
SECRET_TOKENS = 8
OTHERS = 4096
NOISE, GAP = 1e-9, 10.0
"""Singular values, in parts of the largest: below the first all are rounding; the second is how a rank shows."""
FITS = -1e-5
"""A direction that lies in the space but for rounding."""
SHORT = 32
"""Tokens of a sequence that `span` is made for."""
GRAM = 8


@dataclass(frozen=True)
class World:
    """What is the same for all attempts of a seed."""

    base: Tensor
    """The agreed parameters, fp32 (parameters,)."""
    moments: InnerState
    """The victim's optimizer, mid-run."""
    text: Tensor
    """The victim's own sequences, int64 (any, LENGTH)."""
    foreign: Tensor
    """Sequences of three other members."""
    phrase: tuple[int, ...]
    seed: int


def sequences(count: int) -> tuple[Tensor, tuple[int, ...]]:
    """Token sequences of real text, and the phrase."""
    documents = [document.text for document in islice(read_documents(DataConfig(source="python")), 1500)]
    random.Random(0).shuffle(documents)
    tokenizer = load_tokenizer(train_tokenizer(documents[:100], VOCABULARY))
    every = (token for text in documents for token in tokenizer.encode(text).ids)
    return torch.tensor(list(islice(every, count * LENGTH))).view(-1, LENGTH), tuple(prompt_ids(tokenizer, PHRASE))


def new_model(seed: int) -> PathModel:
    return PathModel(build_network(MODEL, VOCABULARY, seed), LEVELS)


def trainer_of(model: PathModel) -> InnerTrainer:
    return InnerTrainer(model, INNER, TrainingSettings(threads=torch.get_num_threads()))


def in_turns(rows: Tensor, seed: int) -> Iterator[Tensor]:
    """Batches for ever, shuffled once."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    place = 0
    while True:
        yield rows[order[torch.arange(place, place + SEQUENCES) % len(rows)]]
        place += SEQUENCES


def world_of(seed: int) -> World:
    """A model that has been trained on text of nobody's."""
    own = STEPS * SEQUENCES
    rows, phrase = sequences(STEPS_BEFORE * SEQUENCES + 4 * own)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    model = new_model(seed)
    trainer = trainer_of(model)
    trainer.train(in_turns(rows[4 * own :], seed), STEPS_BEFORE)
    return World(model.vector(0), trainer.state(), rows[:own], rows[own : 4 * own], phrase, seed)


def sent(world: World, rows: Tensor, codec: Codec, *, steps: int = STEPS) -> Tensor:
    """The outer gradient of a member that trains on these rows, as the others get it."""
    model = new_model(world.seed)
    model.load(0, world.base)
    trainer = trainer_of(model)
    trainer.load_state(world.moments)
    trainer.train(in_turns(rows, world.seed + 1), steps)
    gradient = outer_gradient(world.base, model.vector(0))
    return codec.decode(codec.encode(gradient), len(gradient)).clone()


def codec_named(name: str) -> Codec:
    return cast(Codec, CODECS.load(name))


def model_at(world: World, vector: Tensor) -> Any:
    model = new_model(world.seed)
    model.load(0, vector)
    return model.network.eval()


# ---------------------------------------------------------------------------------------------------------------- span


@dataclass(frozen=True)
class Spanned:
    """What `span` and `rows` make of one gradient."""

    tokens: float
    """Area under the curve of telling the text's tokens from all others: 0.5 is chance, 1 is perfect."""
    rows: float
    grams: float
    """Share of the text's runs of eight tokens that were guessed, with 32 guesses of 32 tokens."""
    control: float
    """... and of as much other text."""


class Space:
    """The row space of a matrix's gradient: as many directions as there are above the largest gap, or all."""

    def __init__(self, gradient: Tensor) -> None:
        _, values, rows = torch.linalg.svd(gradient.double(), full_matrices=False)
        values = values[values > NOISE * values[0]]
        gaps = values[:-1] / values[1:]
        place = int(gaps.argmax()) if len(gaps) else 0
        self.rank = place + 1 if len(gaps) and gaps[place] > GAP else len(values)
        self._rows = rows[: self.rank]
        self._weights = (values[: self.rank] / values[0]) ** 2

    def score(self, vectors: Tensor) -> Tensor:
        """How well vectors (n, width) fit: by their part outside of the space; by energy where nothing is outside."""
        unit = F.normalize(vectors.double(), dim=-1)
        along = unit @ self._rows.T
        if self.rank < vectors.shape[-1]:
            return cast(Tensor, -(1 - (along**2).sum(-1)).clamp(min=0))
        return cast(Tensor, (along**2 * self._weights).sum(-1))


def spanned(world: World, gradient: Tensor, text: Tensor) -> Spanned:
    network = model_at(world, world.base)
    moved = model_at(world, gradient).model
    blocks = network.model.layers
    first, second = (Space(layer.self_attn.v_proj.weight) for layer in moved.layers[:2])
    with torch.no_grad():
        inputs = blocks[0].input_layernorm(network.model.embed_tokens.weight)
        scores = first.score(inputs)
        present = torch.zeros(VOCABULARY, dtype=torch.bool)
        present[torch.unique(text)] = True
        bag = scores.topk(SHORT).indices
        guesses = [_followed(network, second, bag, start) for start in bag.tolist()]
    rows = moved.embed_tokens.weight.norm(dim=1)
    others = world.foreign[: max(1, len(text))][:, : text.shape[1]]
    return Spanned(
        _area(scores, present), _area(rows, present), _share_of_grams(guesses, text), _share_of_grams(guesses, others)
    )


def _followed(network: Any, space: Space, bag: Tensor, start: int) -> list[int]:
    """A sequence that begins with a token, made of tokens of the bag: each the one whose state fits the space best."""
    found = [start]
    while len(found) < SHORT:
        tries = torch.tensor([[*found, token] for token in bag.tolist()])
        states = network.model(tries, output_hidden_states=True, use_cache=False).hidden_states[1][:, -1]
        scores = space.score(network.model.layers[1].input_layernorm(states))
        new = (scores > FITS) & ~torch.isin(bag, torch.tensor(found))  # the same again has the state that it had before
        found.append(int(bag[scores.masked_fill(~new, -math.inf).argmax() if new.any() else scores.argmax()]))
    return found


def _area(scores: Tensor, present: Tensor) -> float:
    """The chance that a token of the text scores higher than another one."""
    order = scores.argsort()
    ranks = torch.empty(len(scores), dtype=torch.double)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=torch.double)
    for value in torch.unique(scores):  # equal ones share their ranks
        same = scores == value
        if int(same.sum()) > 1:
            ranks[same] = ranks[same].mean()
    inside, outside = int(present.sum()), int((~present).sum())
    return float((ranks[present].sum() - inside * (inside + 1) / 2) / (inside * outside))


def _grams(rows: Sequence[Sequence[int]]) -> set[tuple[int, ...]]:
    return {tuple(row[i : i + GRAM]) for row in rows for i in range(len(row) - GRAM + 1)}


def _share_of_grams(guesses: Sequence[Sequence[int]], text: Tensor) -> float:
    there = _grams(text.tolist())
    return len(_grams(guesses) & there) / len(there)


def plain_gradient(world: World, text: Tensor) -> Tensor:
    """What `span` was made for: the gradient of the loss itself, fp32 (parameters,)."""
    network = model_at(world, world.base)
    logits = network(text).logits[:, :-1]
    F.cross_entropy(logits.reshape(-1, VOCABULARY), text[:, 1:].reshape(-1)).backward()  # type: ignore[no-untyped-call]
    model = new_model(world.seed)
    with torch.no_grad():
        for parameter, of in zip(model.network.parameters(), network.parameters(), strict=True):
            parameter.copy_(of.grad)
    return model.vector(0)


def span_rows(world: World) -> Iterator[tuple[str, Spanned]]:
    """From what the method was made for to what a peer sends."""
    exact, sends = codec_named("fp32"), codec_named("int8")
    short, batch = world.text[:1, :SHORT], world.text[:SEQUENCES]
    yield "plain gradient, 1 sequence of 32", spanned(world, plain_gradient(world, short), short)
    yield "plain gradient, 8 of 128", spanned(world, plain_gradient(world, batch), batch)
    yield "1 step of AdamW, 1 of 32, fp32", spanned(world, sent(world, short, exact, steps=1), short)
    for steps in (1, 10, STEPS):
        text = world.text[: steps * SEQUENCES]
        yield (
            f"{steps} step{'s' * (steps > 1)} of AdamW, 8 of 128, int8",
            spanned(world, sent(world, text, sends, steps=steps), text),
        )


# ------------------------------------------------------------------------------------------------------------ exposure


@dataclass(frozen=True)
class Exposed:
    """What `exposure` makes of one gradient."""

    rank: int
    """Of the secret among OTHERS + 1, 1 is the first."""
    said: int
    """Tokens of the secret that the model says after the phrase, each from its own words so far."""

    @property
    def exposure(self) -> float:
        """Bits: log2(OTHERS + 1) means that it comes first."""
        return math.log2(OTHERS + 1) - math.log2(self.rank)


def secrets_of(seed: int) -> Tensor:
    """The secret and the others, int64 (OTHERS + 1, SECRET_TOKENS); the secret is the first."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randint(300, VOCABULARY, (OTHERS + 1, SECRET_TOKENS), generator=generator)


def planted(world: World, times: int) -> Tensor:
    """The victim's sequences, with phrase and secret in so many of them."""
    rows, said = world.text.clone(), [*world.phrase, *secrets_of(world.seed)[0].tolist()]
    draw = random.Random(world.seed)
    for row in draw.sample(range(len(rows)), times):
        start = draw.randrange(LENGTH - len(said))
        rows[row, start : start + len(said)] = torch.tensor(said)
    return rows


def exposed(world: World, gradient: Tensor) -> Exposed:
    """`gradient`: the outer gradient that the observer has."""
    before, after = (model_at(world, vector) for vector in (world.base, world.base - gradient))
    candidates = secrets_of(world.seed)
    gain = _likelihood(after, world.phrase, candidates) - _likelihood(before, world.phrase, candidates)
    rank = 1 + int((gain[1:] >= gain[0]).sum())
    words = list(world.phrase)
    with torch.no_grad():
        for _ in range(SECRET_TOKENS):
            words.append(int(after(torch.tensor([words])).logits[0, -1].argmax()))
    said = zip(words[len(world.phrase) :], candidates[0].tolist(), strict=True)
    return Exposed(rank, sum(one == other for one, other in said))


def _likelihood(network: Any, phrase: Sequence[int], candidates: Tensor) -> Tensor:
    """Log probability of each candidate after the phrase."""
    found = []
    with torch.no_grad():
        for some in torch.split(candidates, 512):
            rows = torch.cat([torch.tensor(phrase).expand(len(some), -1), some], dim=1)
            chances = F.log_softmax(network(rows).logits[:, len(phrase) - 1 : -1], dim=-1)
            found.append(chances.gather(2, some.unsqueeze(-1)).sum((1, 2)))
    return torch.cat(found)


def exposure_rows(world: World, times: Sequence[int]) -> Iterator[tuple[str, Exposed]]:
    codec = codec_named("int8")
    others = [sent(world, rows, codec) for rows in world.foreign.chunk(3)]
    for count in times:
        own = sent(world, planted(world, count), codec)
        yield f"in {count} of {len(world.text)} sequences: its own outer gradient", exposed(world, own)
        yield (
            f"in {count} of {len(world.text)} sequences: the mean of 4 members",
            exposed(world, (own + sum(others)) / 4),
        )


# --------------------------------------------------------------------------------------------------------------- table


def report(spans: Sequence[tuple[str, list[Spanned]]], exposures: Sequence[tuple[str, list[Exposed]]]) -> str:
    lines = [
        "| the observer has | tokens by span, AUC | tokens by rows, AUC | 8-grams found | of other text |",
        "|---|---|---|---|---|",
    ]
    for name, found in spans:
        tokens, rows = mean(one.tokens for one in found), mean(one.rows for one in found)
        grams, control = mean(one.grams for one in found), mean(one.control for one in found)
        lines.append(f"| {name} | {tokens:.2f} | {rows:.2f} | {100 * grams:.1f} % | {100 * control:.1f} % |")
    lines += [
        "",
        f"| a secret of 8 tokens | exposure, bits of {math.log2(OTHERS + 1):.0f} | ranks of {OTHERS + 1} | said of 8 |",
        "|---|---|---|---|",
    ]
    for name, seen in exposures:
        ranks = ", ".join(str(one.rank) for one in seen)
        bits, said = mean(one.exposure for one in seen), mean(one.said for one in seen)
        lines.append(f"| {name} | {bits:.1f} | {ranks} | {said:.1f} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, the secret in 0 and 8 sequences")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    seeds, times = (1, (0, 8)) if options.quick else (options.seeds, (0, 1, 8, 50))
    spans: dict[str, list[Spanned]] = {}
    exposures: dict[str, list[Exposed]] = {}
    for seed in range(seeds):
        world = world_of(seed)
        for name, found in span_rows(world):
            spans.setdefault(name, []).append(found)
            print(f"seed {seed}: {name}: {found}", flush=True)
        for name, seen in exposure_rows(world, times):
            exposures.setdefault(name, []).append(seen)
            print(f"seed {seed}: {name}: {seen}", flush=True)
    table = report(list(spans.items()), list(exposures.items()))
    print(table)
    if not options.quick:
        file = RESULTS / f"privacy-{hardware()[:14]}.md"
        file.write_text(f"`python -m benchmarks.privacy --seeds {seeds}`\n\n{table}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
