"""The rows of the table: what is trained. A row of paths is a run file; a dense row is a model and a number of steps.

Everything that rows have in common is in `run_file`; a row says what it changes. To add one, add a line to ROWS.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from types import MappingProxyType
from typing import Any

from benchmarks.quality.merges import Merge
from dipaco_swarm.run.config import RunConfig

Stages = list[dict[str, Any]]


@dataclass(frozen=True)
class Scale:
    """How large all of it is."""

    name: str
    side: int
    """Modules of a level: side x side paths."""
    domain_bytes: int
    """Of each domain of the corpus, at most."""
    sequence_length: int
    steps: int
    """Inner steps of every path in all, the warm-up included."""
    warmup: int
    """Inner steps of the one path that all others start from."""
    inner_steps: int
    """Between two outer rounds."""
    seeds: tuple[int, ...]
    scarce_documents: int
    """Documents read in the rows of scarce data."""
    router: Mapping[str, Any]
    rerouting: Mapping[str, Any]

    @property
    def paths(self) -> int:
        return self.side**2

    @property
    def rounds(self) -> int:
        """Outer rounds after the warm-up."""
        return (self.steps - self.warmup) // self.inner_steps


SMALL = Scale(
    name="small",
    side=2,
    domain_bytes=700_000,
    sequence_length=128,
    steps=500,
    warmup=140,
    inner_steps=20,
    seeds=(0, 1, 2),
    scarce_documents=80,
    router={"min_share": 0.5},
    rerouting={"window": 64, "steps": 150, "batch_sequences": 16, "learning_rate": 1e-3, "max_documents": 1500},
)
OVERLAP = replace(SMALL, name="overlap", steps=540, seeds=(0, 1))
"""For rows that differ in their outer rounds: twenty of them (`overlap.py`)."""
FULL = Scale(
    name="full",
    side=4,
    domain_bytes=4_000_000,
    sequence_length=256,
    steps=1000,
    warmup=300,
    inner_steps=50,
    seeds=(0,),
    scarce_documents=700,
    router={"min_share": 0.5, "max_documents": 4000},
    rerouting={"window": 64, "steps": 600, "batch_sequences": 16, "learning_rate": 1e-3, "max_documents": 3000},
)

PATH = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
}
"""0.46 million parameters with a vocabulary of 2,048."""
LARGER: dict[str, dict[str, Any]] = {
    "small": {**PATH, "hidden_size": 160, "intermediate_size": 432, "num_attention_heads": 5},
    "full": {
        **PATH,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
    },
}
"""At least four times the parameters of a path: 1.9 million, 3.4 million."""
COMPARED = ("product", "discriminative")
"""What is compared within the noise of seeds, and so made with all of them."""
TWO_LEVELS = [{"embedding": True, "blocks": [0, 1]}, {"blocks": [2, 3], "head": True}]
FOUR_LEVELS = [{"embedding": True, "blocks": [0]}, {"blocks": [1]}, {"blocks": [2]}, {"blocks": [3], "head": True}]
"""For path-specific ends: embedding, first and last block and head of every path are its own (paper section 7.1)."""


def run_file(
    scale: Scale,
    seed: int,
    corpus: str,
    tokenizer: str,
    changes: Mapping[str, Any] = MappingProxyType({}),
    *,
    after: Sequence[Mapping[str, Any]] = (),
    peers: int = 1,
) -> RunConfig:
    """The run file of a row.

    `changes` has sections, of which each replaces only the keys it names; `after`: the stages after the warm-up.
    `corpus` is a folder, `tokenizer` a file.
    """
    settings: dict[str, Any] = {
        "name": "quality",
        "seed": seed,
        "min_peers": peers,
        "model": PATH,
        "levels": TWO_LEVELS,
        "tokenizer": {"path": tokenizer},
        "data": {
            "source": "jsonl",
            "path": f"{corpus}/*.jsonl",
            "sequence_length": scale.sequence_length,
            "holdout": 0.05,
            "routing_sample": 0.1,
        },
        "inner": {
            "learning_rate": 3e-3,
            "embedding_learning_rate_ratio": 30.0,
            "head_learning_rate_ratio": 6.0,
            "beta2": 0.99,
            "warmup_steps": 50,
            "schedule_steps": scale.steps,
            "batch_sequences": 4,
        },
        "outer": {"learning_rate": 0.7, "momentum": 0.6, "rescale": True, "ramp_rounds": 3},
        "rounds": {"pacing": "synchronous", "inner_steps": scale.inner_steps},
        "wire": {"codec": "fp32"},
        "router": scale.router,
        "stages": [{"router": "single", "rounds": scale.warmup // scale.inner_steps}, *after],
    }
    for section, values in changes.items():
        settings[section] = {**settings.get(section, {}), **values} if isinstance(values, Mapping) else values
    return RunConfig.model_validate_json(json.dumps(settings))


@dataclass(frozen=True)
class Row:
    """Something to train and to score."""

    name: str
    about: str
    stages: Stages = field(default_factory=list)
    """After the warm-up; none: a dense model."""
    peers: int = 1
    changes: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 0
    """Of a dense model."""
    windows: tuple[int, ...] = ()
    """Also scored with re-routing every so many tokens."""
    repeated: bool = False
    """Made with every seed of the scale; the other rows with the first alone."""
    merge: Merge = "rebase"
    """How a round's result that comes late is merged."""


def rows_of(scale: Scale) -> tuple[Row, ...]:
    """All rows of a scale, cheap and telling ones first."""
    n, paths, rounds = scale.side, scale.paths, scale.rounds
    grid, table = f"{n}x{n}", [n, n]
    ends: dict[str, Any] = {"levels": FOUR_LEVELS}
    scarce: dict[str, Any] = {"data": {"max_documents": scale.scarce_documents, "routing_sample": 0.2}}
    larger = LARGER[scale.name]
    whole = [{"embedding": True, "blocks": list(range(larger["num_hidden_layers"])), "head": True}]
    trained = scale.steps - scale.warmup

    def stage(router: str, count: int = rounds, **more: Any) -> dict[str, Any]:
        return {"router": router, "rounds": count, **more}

    def paths_of(name: str, about: str, stages: Stages, windows: tuple[int, ...] = (), **changes: Any) -> Row:
        return Row(name, about, stages, paths, changes, windows=windows)

    def dense(name: str, about: str, steps: int = scale.steps, rate: float = 3e-3, **changes: Any) -> Row:
        inner = {"learning_rate": rate, "schedule_steps": steps}
        return Row(name, about, changes={"inner": inner, **changes}, steps=steps)

    flat = [stage("k-means", paths=[[i, i] for i in range(paths)])]
    clustered = [stage("k-means", modules=table)]
    with_ends = [stage("k-means", modules=["path", n, n, "path"])]
    half = rounds // 2
    rerouted = [stage("k-means", half, modules=table), stage("discriminative", rounds - half)]
    windows = tuple(w for w in (64, 32, 16) if w < scale.sequence_length - 32)
    compared = {"dense", *(f"{grid} {kind}" for kind in COMPARED)}
    rows = (
        dense("dense", "dense, a path's size, same steps"),
        dense("dense, lr 5e-3", "same, another learning rate", rate=5e-3),
        paths_of(f"{grid} k-means", f"{n} modules at each of two levels", clustered),
        paths_of(f"{grid} product", "product k-means", [stage("product-k-means", modules=table)]),
        paths_of(
            f"{grid} discriminative",
            "k-means, re-routed half-way by what the paths like",
            rerouted,
            windows,
            rerouting=scale.rerouting,
        ),
        paths_of(f"flat {paths}", "paths that share nothing", flat),
        paths_of(f"{grid} ends", "path-specific ends: embedding, outer blocks, head", with_ends, **ends),
        Row(f"DiLoCo {paths}", "one path, as many workers", [stage("single")], paths),
        dense(
            "larger, lr 2e-3",
            f"{larger['hidden_size']} wide, {larger['num_hidden_layers']} blocks, same steps",
            rate=2e-3,
            model=larger,
            levels=whole,
        ),
        dense("larger, lr 1e-3", "same, another learning rate", rate=1e-3, model=larger, levels=whole),
        dense(
            "dense, same FLOPs",
            "a path's size, as many steps as all paths together",
            steps=scale.warmup + paths * trained,
        ),
        paths_of(f"{grid} int8", "k-means, outer gradients in 8 bits", clustered, wire={"codec": "int8"}),
        paths_of(
            f"{grid} overlap",
            "k-means, each document trained on two paths",
            [stage("k-means", modules=table, overlap=2)],
        ),
        paths_of(f"scarce: flat {paths}", f"{scale.scarce_documents} documents", flat, **scarce),
        paths_of(
            f"scarce: flat {paths} early",
            "same, a tenth of each shard held out",
            flat,
            **scarce,
            early_stopping={"share": 0.1, "every": 2},
        ),
        paths_of(f"scarce: {grid} k-means", f"{scale.scarce_documents} documents", clustered, **scarce),
        paths_of(f"scarce: {grid} ends", f"{scale.scarce_documents} documents", with_ends, **scarce, **ends),
    )
    return tuple(replace(row, repeated=row.name in compared) for row in rows)


def chosen_rows(rows: Sequence[Row], patterns: Sequence[str]) -> tuple[Row, ...]:
    """The rows whose names match any of the patterns (* and ? as in file names); all without patterns."""
    return tuple(row for row in rows if not patterns or any(fnmatch(row.name, pattern) for pattern in patterns))
