"""One row with one seed: train it, score it, say what it cost.

Rows of paths that have a warm-up in common share it: it is trained once, by one peer, and each row goes on from a copy
of its bootstrap node's home, under its own run file. Tokens of documents and features of prefixes are on disk and
shared as between peers of one machine.
"""

import hashlib
import json
import os
import shutil
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch

from benchmarks.quality.merges import merging
from benchmarks.quality.rows import Row, Scale, run_file
from dipaco_swarm.algorithm.paths import PathIndex, PathTable
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.client.visits import score, score_rerouted
from dipaco_swarm.files import locked, write_whole
from dipaco_swarm.operator.home import OperatorHome, load_operator_key
from dipaco_swarm.run.config import RunConfig, WireConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import fingerprint_of, sign_manifest
from dipaco_swarm.simulate import simulate
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from dipaco_swarm.training.documents import read_documents, split_of
from dipaco_swarm.training.evaluation import Score, evaluate
from dipaco_swarm.training.inner import InnerTrainer, TrainingSettings
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.pieces import EvaluationSet, evaluation_pieces
from dipaco_swarm.training.routed import shard_recipe
from dipaco_swarm.training.shards import ShardRecipe, build_shard
from dipaco_swarm.training.tokenizer import load_tokenizer, train_tokenizer, vocabulary_size

VOCABULARY = 2048
TOKENIZER_DOCUMENTS = 1000
PIECES_PER_DOMAIN = 60
"""Held-out pieces that everything is scored on."""


@dataclass(frozen=True)
class Result:
    """What came out of one row with one seed; a JSON file."""

    row: str
    seed: int
    key: str
    """Digest of what was run; another key means the result is of something else and is made again."""
    domains: Mapping[str, tuple[float, int]]
    """Per domain of the held-out pieces: log-likelihood in nats, targets."""
    rerouted: Mapping[str, tuple[float, int]]
    """Re-routing window -> log-likelihood and targets, of all domains."""
    parameters: int
    """Of all paths together."""
    parameters_per_token: int
    """Of the one path that a token is trained on."""
    tokens: int
    """Trained on, by all paths, the warm-up included."""
    unique_tokens: tuple[int, int]
    """Of the shards of the last stage: the smallest, the median."""
    bytes_sent: int
    """By all peers, in all outer rounds."""
    cpu_seconds: float
    """Training and routing, the shared warm-up included; without the scoring."""
    seconds: float
    """Wall clock, as `cpu_seconds`."""
    best: tuple[float, int] | None = None
    """Of the best snapshot of each path, with early stopping: log-likelihood and targets, of all domains."""

    @property
    def total(self) -> Score:
        return sum((Score(*pair) for pair in self.domains.values()), Score())


@dataclass(frozen=True)
class Workshop:
    """Where everything of a scale is kept."""

    scale: Scale
    folder: Path
    """Ours alone; below it results, caches, warm-ups."""
    corpus: Path

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.json"

    def config(self, row: Row, seed: int) -> RunConfig:
        """The run file of a row."""
        corpus, tokenizer = str(self.corpus), str(self.tokenizer)
        return run_file(self.scale, seed, corpus, tokenizer, row.changes, after=row.stages, peers=row.peers)

    def key(self, row: Row, seed: int) -> str:
        corpus = (self.corpus / "done.txt").read_text()
        parts = [
            self.config(row, seed).model_dump_json(exclude_unset=True),
            f"{row.steps} {row.windows} {PIECES_PER_DOMAIN}",
            corpus,
        ]
        if row.merge != "rebase":
            parts.append(row.merge)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def file(self, row: Row, seed: int) -> Path:
        return self.folder / "results" / f"{row.name.replace(' ', '-').replace(':', '')}--seed-{seed}.json"

    def result(self, row: Row, seed: int) -> Result | None:
        """What was measured before; None when nothing was, or something else."""
        try:
            found = Result(**json.loads(self.file(row, seed).read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return found if found.key == self.key(row, seed) else None

    def prepare(self) -> None:
        """The tokenizer of all rows, trained as a bootstrap node trains its own."""
        if self.tokenizer.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        data = run_file(self.scale, 0, str(self.corpus), str(self.tokenizer)).data
        texts = (d.text for d in read_documents(data) if split_of(d.text, data) == "train")
        write_whole(self.tokenizer, train_tokenizer(islice(texts, TOKENIZER_DOCUMENTS), VOCABULARY), durable=False)

    def held_out(self) -> EvaluationSet:
        """The same pieces for all rows, scarce ones too."""
        config = run_file(self.scale, 0, str(self.corpus), str(self.tokenizer))
        tokenizer = load_tokenizer(self.tokenizer.read_bytes())
        return evaluation_pieces(read_documents(config.data), tokenizer, config.data, config.router, PIECES_PER_DOMAIN)


def work(workshop: Workshop, row: Row, seed: int, log: Path) -> None:
    """`measure` as a process of its own, with one thread."""
    with log.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    measure(workshop, row, seed)


def measure(workshop: Workshop, row: Row, seed: int) -> Result:
    """Train a row, score it, and keep the result."""
    made = _paths(workshop, row, seed) if row.stages else _dense(workshop, row, seed)
    file = workshop.file(row, seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(asdict(made), indent=1).encode(), durable=False)
    return made


# ------------------------------------------------------------------------------------------------------- dense models


def _dense(workshop: Workshop, row: Row, seed: int) -> Result:
    """One model on the whole mixture, by the machinery that trains paths."""
    cpu, wall = time.process_time(), time.monotonic()
    config = workshop.config(row, seed)
    json_bytes = workshop.tokenizer.read_bytes()
    tokenizer = load_tokenizer(json_bytes)
    digest = hashlib.sha256(json_bytes).hexdigest()
    shard = build_shard(
        lambda: read_documents(config.data),
        tokenizer,
        config.data,
        config.router,
        None,
        PathIndex(0),
        cache=workshop.cache / "shards",
        key=ShardRecipe(config.data, config.router, digest, None, PathIndex(0)).key(),
        remember=workshop.cache / "tokens" / digest[:32],
    )
    network = build_network(config.model, vocabulary_size(tokenizer), seed)
    model = PathModel(network, config.levels)
    trainer = InnerTrainer(model, config.inner, TrainingSettings(threads=1))
    report = trainer.train(shard.batches(config.inner.batch_sequences, seed), row.steps)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    domains = evaluate(network, workshop.held_out(), config.router.prefix_tokens)
    size = sum(model.size(level) for level in range(model.num_levels))
    return Result(
        row=row.name,
        seed=seed,
        key=workshop.key(row, seed),
        domains=_pairs(domains),
        rerouted={},
        parameters=size,
        parameters_per_token=size,
        tokens=report.tokens,
        unique_tokens=(shard.num_tokens, shard.num_tokens),
        bytes_sent=0,
        cpu_seconds=cpu,
        seconds=wall,
    )


# -------------------------------------------------------------------------------------------------------------- paths


def _paths(workshop: Workshop, row: Row, seed: int) -> Result:
    """A whole run, simulated: one peer at a time, as another row may be running beside it."""
    config = workshop.config(row, seed)
    warm = _warmed_up(workshop, config, run_file(workshop.scale, seed, str(workshop.corpus), str(workshop.tokenizer)))
    home = workshop.folder / "runs" / workshop.file(row, seed).stem
    shutil.rmtree(home, ignore_errors=True)  # what an interrupted benchmark left
    fork(warm / "bootstrap", home / "bootstrap", config)
    cpu, wall = time.process_time(), time.monotonic()
    peers = {f"peer-{number}": number if config.stages[-1].num_paths != 1 else None for number in range(row.peers)}
    # a stream is kept for a peer's next start: each row is to have its own
    cache = home / "cache" if config.data.reading == "beside" else workshop.cache
    with merging(row.merge):
        simulate(config, home, peers, at_once=1, cache=cache)
    spent = json.loads((warm / "spent.json").read_text())
    cpu, wall = time.process_time() - cpu + spent["cpu"], time.monotonic() - wall + spent["wall"]
    pieces = workshop.held_out()
    with open_run(home / "bootstrap") as run:
        scored, _ = score(run, pieces)
        rerouted = {}
        for window in row.windows:
            found, _ = score_rerouted(run, pieces, run.window_router(), window)
            rerouted[str(window)] = (found.total.log_likelihood, found.total.tokens)
        model = run.model()
        sizes = [model.size(level) for level in range(model.num_levels)]
        manifest = run.manifest
    best = None
    if config.early_stopping is not None:
        with open_run(home / "bootstrap", best=True) as run:
            found, _ = score(run, pieces)
            best = (found.total.log_likelihood, found.total.tokens)
    for peer in peers:
        shutil.rmtree(home / peer)
    unique = _shard_tokens(workshop, manifest)
    return Result(
        row=row.name,
        seed=seed,
        key=workshop.key(row, seed),
        domains=_pairs(scored.by_domain),
        rerouted=rerouted,
        parameters=sum(sizes[module.level] for module in PathTable(manifest.stage.table).modules),
        parameters_per_token=sum(sizes),
        tokens=_tokens(manifest, row.peers),
        unique_tokens=(min(unique), int(statistics.median(unique))),
        bytes_sent=bytes_sent(manifest, sizes, row.peers),
        cpu_seconds=cpu,
        seconds=wall,
        best=best,
    )


def _warmed_up(workshop: Workshop, config: RunConfig, common: RunConfig) -> Path:
    """The home of a finished run of the first stage alone, trained by one peer; in fp32, as nothing travels.

    Its rounds and its way of reading are those of `common`, the run file without a row's changes: rows that differ in
    these begin alike.
    """
    alone = {"stages": config.stages[:1], "min_peers": 1, "wire": WireConfig(codec="fp32")}
    alone |= {"rounds": common.rounds, "outer": common.outer}
    alone |= {"data": config.data.model_copy(update={"reading": common.data.reading, "shares": common.data.shares})}
    warm = config.model_copy(update={**alone, "rerouting": None, "early_stopping": None})
    home = (
        workshop.folder
        / "warm-ups"
        / hashlib.sha256(warm.model_dump_json(exclude_defaults=True).encode()).hexdigest()[:16]
    )
    home.mkdir(parents=True, exist_ok=True)
    with locked(home):  # two rows may need it at the same time
        if not (home / "spent.json").exists():
            for left in ("bootstrap", "peer-0"):
                shutil.rmtree(home / left, ignore_errors=True)
            cpu, wall = time.process_time(), time.monotonic()
            simulate(warm, home, {"peer-0": None}, at_once=1, cache=workshop.cache)
            spent = {"cpu": time.process_time() - cpu, "wall": time.monotonic() - wall}
            write_whole(home / "spent.json", json.dumps(spent).encode(), durable=False)
    return home


def fork(begun: Path, home: Path, config: RunConfig) -> None:
    """Go on with the finished stages of `begun`, a bootstrap node's home, under a run file that has more of them."""
    shutil.copytree(begun, home)
    key, kept = load_operator_key(home), OperatorHome(home)
    manifest = kept.manifest(fingerprint_of(key.public_key()))
    assert manifest is not None, f"{begun} is the home of a run that has begun"
    assert config.stages[: len(manifest.stages)] == manifest.config.stages, "the stages behind it are the same"
    going_on = manifest.model_copy(update={"config": config, "finished": False, "revision": manifest.revision + 1})
    kept.keep_manifest(sign_manifest(going_on, key))


def _tokens(manifest: Manifest, peers: int) -> int:
    """Tokens in the batches of all peers: one peer in the warm-up, all of them afterwards."""
    config = manifest.config
    steps = [(stage.rounds or 0) * config.rounds.inner_steps for stage in manifest.stages]
    return (steps[0] + peers * sum(steps[1:])) * config.inner.batch_sequences * config.data.sequence_length


def bytes_sent(manifest: Manifest, sizes: list[int], peers: int) -> int:
    """What the peers of a butterfly all-reduce send, computed: in each round of a module k members send their parts of
    the other members' slices, and their own slice of the mean to the others: 2 (k - 1) times the encoded module."""
    total = 0
    for stage in manifest.stages[1:]:
        table = PathTable(stage.table)
        for module in table.modules:
            members = peers if table.num_paths == 1 else len(table.paths_through(module))
            encoded = codec_of(manifest.config.wire.codec).most_bytes(sizes[module.level])
            total += (stage.rounds or 0) * 2 * (members - 1) * encoded
    return total


def _shard_tokens(workshop: Workshop, manifest: Manifest) -> list[int]:
    """Tokens of each path's shard in the last stage; none where nobody makes one whole."""
    if manifest.rules.data.reading == "beside":
        return [0]
    length = manifest.config.data.sequence_length
    found = []
    for path in range(len(manifest.stage.table)):
        key = shard_recipe(manifest, manifest.stage, PathIndex(path)).key()
        made = json.loads((workshop.cache / "shards" / key / "shard.json").read_text())
        found.append(made["sequences"] * length)
    return found


def _pairs(scores: Mapping[str, Score]) -> dict[str, tuple[float, int]]:
    return {name: (found.log_likelihood, found.tokens) for name, found in scores.items()}
