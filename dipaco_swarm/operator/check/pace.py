"""How long a round of a stage takes a swarm of so many peers on such lines.

Rates are those of docs/operator.md: what a codec sends of a parameter, and how much of a line a round gets. A round's
training and its exchange go on beside each other where rounds overlap, and one after the other where not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.pacing.pacing import pacing_of
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.stages import table_of
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.strategies import CODECS

LINE_SHARE = 0.85
"""Of a line's megabits, that an exchange reaches: measured on 20 Mbit/s."""
EXCHANGES = 4
"""A round should take so many times as long as its exchange: later than that costs perplexity (docs/decisions/0031)."""


@dataclass(frozen=True)
class Crowd:
    """Who will be there."""

    peers: int
    uplink: float
    """Mbit/s of each."""
    tokens_per_second: float | None
    """That each trains on; None: nobody knows yet."""


@dataclass(frozen=True)
class RoundTime:
    """A round of one stage."""

    stage: int
    peers_a_path: float
    members: int
    """Of the largest module group."""
    training: float | None
    """Seconds."""
    exchange: float
    """Seconds: all modules of a path, one after the other."""
    sends: int
    """Bytes of a member."""
    seconds: float | None
    """From one round to the next."""
    stage_seconds: float | None
    advice: str


def round_time(config: RunConfig, index: int, levels: Sequence[int], crowd: Crowd) -> RoundTime:
    """`levels`: parameters of a module of each level."""
    table = table_of(config, index)
    a_path = crowd.peers / table.num_paths
    members = {module: _members(table, module, a_path) for module in table.modules_of(_busiest(table))}
    codec = CODECS[config.wire.codec].bytes_on_the_way
    sends = sum(2 * (n - 1) / n * codec * levels[module.level] for module, n in members.items())
    exchange = sends * 8 / (crowd.uplink * 1e6 * LINE_SHARE)
    training = None
    if crowd.tokens_per_second is not None:
        alike = pacing_of(config.rounds.pacing).whole or a_path < 1  # else replicas share the tokens of a round
        training = config.round_tokens / crowd.tokens_per_second / (1 if alike else a_path)
    seconds = None
    if training is not None:
        seconds = max(training, exchange) if config.rounds.overlaps else training + exchange
    rounds = config.rounds_of(config.stages[index])
    turns = max(1.0, 1 / a_path)  # with fewer peers than paths they go round
    return RoundTime(
        stage=index,
        peers_a_path=a_path,
        members=max(members.values()),
        training=training,
        exchange=exchange,
        sends=round(sends),
        seconds=seconds,
        stage_seconds=None if seconds is None or rounds is None else rounds * seconds * turns,
        advice=_advice(config, crowd, table, training, exchange),
    )


def _members(table: PathTable, module: ModuleId, a_path: float) -> int:
    return max(1, round(len(table.paths_through(module)) * a_path))


def _busiest(table: PathTable) -> PathIndex:
    """The path whose modules have the most members."""

    def members(path: PathIndex) -> int:
        return sum(len(table.paths_through(module)) for module in table.modules_of(path))

    return max(map(PathIndex, range(table.num_paths)), key=members)


def _advice(config: RunConfig, crowd: Crowd, table: PathTable, training: float | None, exchange: float) -> str:
    """What to change, if anything."""
    said = []
    if crowd.peers < table.num_paths:
        said.append(
            f"{crowd.peers} peers go round {table.num_paths} paths, with --path auto: fewer paths would move faster"
        )
    if training is not None and training < EXCHANGES * exchange:
        steps = config.rounds.inner_steps * EXCHANGES * exchange / training
        said.append(
            f"the exchange takes {exchange / max(training, 1e-9):.1f} times as long as training: rounds.inner_steps = "
            f"{_round_up(steps)} would make a round as long as {EXCHANGES} exchanges"
            + ("" if config.wire.codec in ("int4", "e3m0") else ', and wire.codec = "int4" halves an exchange')
        )
    return "; ".join(said)


def _round_up(steps: float) -> int:
    """To two digits: nobody wants 1,237 steps."""
    unit: int = 10 ** max(0, len(str(int(steps))) - 2)
    return math.ceil(steps / unit) * unit
