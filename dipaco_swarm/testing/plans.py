"""Random plans, by a seed: tables, stages, codecs, and who is told which path."""

from dataclasses import replace
from random import Random

from dipaco_swarm.strategies import CODECS
from dipaco_swarm.testing.run import Plan, StagePlan

STAGED_SHARE = 0.5
"""Of the runs that have several stages, or an end."""
MOVING_SHARE = 0.3
"""Of the runs in which some peers go where they are needed."""
FIRST_CODECS = ("fp32", "bf16", "int8")
LATER_CODECS = 1000
"""From this seed on all codecs are drawn. Lower seeds draw from the first three, and stay the histories they were."""


def random_table(random: Random) -> tuple[tuple[int, ...], ...]:
    """One to three levels; every level shared, split or of the path's own; two to six paths."""
    levels, paths = random.randint(1, 3), random.randint(2, 6)
    while True:
        widths = [random.choice([1, 2, paths]) for _ in range(levels)]
        rows = [tuple(random.randrange(width) for width in widths) for _ in range(paths)]
        columns = [sorted({row[level] for row in rows}) for level in range(levels)]
        dense = tuple(tuple(columns[level].index(row[level]) for level in range(levels)) for row in rows)
        if len(set(dense)) == paths:
            return dense


def random_plan(random: Random, seed: int) -> Plan:
    """A run without an end in one stage, or one of several stages. `seed`: that of the story."""
    table = random_table(random)
    plan = Plan(
        stages=(StagePlan(table),),
        inner_steps=random.randint(4, 20),
        codec=random.choice(FIRST_CODECS if seed < LATER_CODECS else tuple(CODECS)),
        parameters=random.randint(8, 200),
    )
    return _in_stages(random, plan, table) if random.random() < STAGED_SHARE else plan


def random_paths(random: Random, peers: int, plan: Plan) -> list[int | None]:
    """What each peer is told. A run that is to end has somebody on every path, or somebody who goes there."""
    told: list[int | None] = [number % plan.paths for number in range(peers)]
    moving = plan.ends and peers < plan.paths
    if moving or random.random() < MOVING_SHARE:
        share = random.choice([0.3, 1.0])
        told = [path if random.random() > share else None for path in told]
    if moving and None not in told:
        told[-1] = None
    return told


def _in_stages(random: Random, plan: Plan, table: tuple[tuple[int, ...], ...]) -> Plan:
    stages = [StagePlan(table, rounds=random.randint(1, 3))]
    if random.random() < 0.5:
        tokens = int(random.uniform(0.5, 2.0) * plan.config(0).round_tokens)  # it ends in the middle of a round
        stages.insert(0, StagePlan(router="single", tokens=tokens))
    more = random.choice(["", "discriminative", "k-means"])
    if more:
        paths = None if more == "discriminative" else _other_table(random, len(table[0]))
        stages.append(StagePlan(paths, more, rounds=random.randint(1, 3)))
    ends = random.random() < 0.7
    if not ends:
        stages[-1] = replace(stages[-1], rounds=None)
    return replace(
        plan,
        stages=tuple(stages),
        early_stopping=random.random() < 0.3,
        rerouting=ends and random.random() < 0.3,
        until_finished=ends and random.random() < 0.5,
    )


def _other_table(random: Random, levels: int) -> tuple[tuple[int, ...], ...]:
    while True:
        table = random_table(random)
        if len(table[0]) == levels:
            return table
