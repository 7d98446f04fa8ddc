"""How large a run is: for one peer, and in all."""

from collections.abc import Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.paths import PathTable
from dipaco_swarm.algorithm.stages import table_of
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.training.needs import ANCHOR_BYTES, NODE_DISK_BYTES, PathNeeds, round_bytes


@dataclass(frozen=True)
class StageSize:
    """One stage."""

    index: int
    router: str
    paths: int
    modules: int
    parameters: int
    """Of all its modules."""
    rounds: int | None
    """None: until the operator says so."""
    tokens: int | None
    """That each path trains on."""
    sends: int
    """Bytes of a member in a round of each of its modules, at most: as many as it takes in."""


@dataclass(frozen=True)
class Sizes:
    """The whole run."""

    levels: tuple[int, ...]
    """Parameters of a module of each level."""
    path: int
    """Parameters."""
    vocabulary: int
    peer: PathNeeds
    node_disk: int
    """Bytes, in all stages; beside them blobs and documents."""
    stages: tuple[StageSize, ...]


def sizes_of(config: RunConfig, vocabulary: int, levels: Sequence[int]) -> Sizes:
    """`vocabulary`: tokens. `levels`: parameters of a module of each level. Raises ManifestError for a bad table."""
    tables = [table_of(config, index) for index in range(len(config.stages))]
    stages = tuple(_stage(config, index, table, levels) for index, table in enumerate(tables))
    path, bank = sum(levels), max(stage.parameters for stage in stages)
    before = sum(stage.parameters for stage in stages)
    return Sizes(
        levels=tuple(levels),
        path=path,
        vocabulary=vocabulary,
        peer=PathNeeds.of(path),
        node_disk=(NODE_DISK_BYTES + ANCHOR_BYTES * config.anchors.keep) * bank + 8 * (before - bank),
        stages=stages,
    )


def _stage(config: RunConfig, index: int, table: PathTable, levels: Sequence[int]) -> StageSize:
    stage = config.stages[index]
    rounds = config.rounds_of(stage)
    return StageSize(
        index=index,
        router=stage.router,
        paths=table.num_paths,
        modules=len(table.modules),
        parameters=sum(levels[module.level] for module in table.modules),
        rounds=rounds,
        tokens=None if rounds is None else rounds * config.round_tokens,
        sends=round_bytes(config.wire.codec, sum(levels)),
    )
