"""Whole swarms in virtual time with somebody hostile among them, by role, size of the group, and seed."""

import asyncio
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.hostile.columns import Columns
from benchmarks.simulated import prepare, workplace
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.testing.cast import Process, enter
from dipaco_swarm.testing.hostile import Claimer, Stranger
from dipaco_swarm.testing.network import home_line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import Plan, StagePlan
from dipaco_swarm.testing.world import World

PLAN = Plan((StagePlan(((0, 0), (0, 1))),), inner_steps=10, parameters=6000)
"""Two paths that share their first module, of enough numbers that contributions can be compared."""
SHARED = (0, ModuleId(0, 0))
WARM_UP_SECONDS = 90.0
WINDOW_SECONDS = 150.0
"""Before, during, and after the attack."""
HEALING_SECONDS = 60.0
"""From the end of the attack until it is looked at again."""
SIZES = (2, 4, 8)


@dataclass(frozen=True)
class Window:
    """What was made between two moments."""

    versions: int
    """Of the shared module."""
    tokens: int
    """Trained on by the honest."""


def play(role: str, size: int, seed: int, names: int = 1) -> Columns:
    """`size` members of one group, of whom `names` are hostile if the role is that of members."""
    prepare()
    with tempfile.TemporaryDirectory(prefix="dipaco-hostile-", dir=workplace()) as folder:
        return _play(World(seed, PLAN, Path(folder) / "world"), role, size, names)


def _play(world: World, role: str, size: int, names: int) -> Columns:
    chance = Random(f"{world.seed}/{role}/{size}")
    hostile = [enter(world, f"hostile-{n}", role, n % 2, Machine(home_line(chance))) for n in range(names)]
    count = size if isinstance(hostile[0], Stranger) else max(1, size - names)
    honest = [f"peer-{number}" for number in range(count)]
    windows: list[Window] = []
    made_with = 0
    adopted: list[str] = []

    def so_far() -> Window:
        trained = (
            tokens for (who, place), tokens in world.ledger.trained.items() if who[:5] == "peer-" and place == SHARED
        )
        return Window(len(world.ledger.versions[SHARED]), sum(trained))

    async def window() -> None:
        before = so_far()
        await asyncio.sleep(WINDOW_SECONDS)
        after = so_far()
        windows.append(Window(after.versions - before.versions, after.tokens - before.tokens))

    async def story(world: World) -> None:
        nonlocal made_with
        for number, name in enumerate(honest):
            world.start(name, number % 2, Machine(home_line(chance), step_seconds=chance.choice([0.5, 1.0])))
        await asyncio.sleep(WARM_UP_SECONDS)
        await window()
        for process in hostile:
            process.start()
        known = set(world.ledger.versions[SHARED])
        await window()
        made_with = sum(
            any(name.startswith("hostile") for name in version.tokens)
            for digest, version in world.ledger.versions[SHARED].items()
            if digest not in known
        )
        adopted.extend(forged_states_taken(world, hostile))
        for process in hostile:
            if process.is_alive:
                process.kill()
        await asyncio.sleep(HEALING_SECONDS)
        await window()

    world.play(story)
    seconds = {name: world.peers[name].machine.step_seconds for name in honest}
    most = sum(WINDOW_SECONDS / each for each in seconds.values()) * world.config.tokens_per_step
    versions = [60 * window.versions / WINDOW_SECONDS for window in windows]
    failures = [failure for failure in world.failures() if not failure.startswith("hostile")]
    return Columns(
        versions=(versions[0], versions[1], versions[2]),
        trained=(windows[0].tokens / most, windows[1].tokens / most, windows[2].tokens / most),
        counted=made_with / max(1, windows[1].versions),
        adopted=len(adopted),
        ended=len(failures),
    )


def forged_states_taken(world: World, hostile: Sequence[Process]) -> list[str]:
    """By whom a state of a stranger was taken, or gone on from."""
    outsiders = [process.outsider for process in hostile if isinstance(process, Stranger)]
    forged = {digest for outsider in outsiders if isinstance(outsider, Claimer) for digest in outsider.forged}
    at = [peer for states in world.states().values() for peer, (_, digest) in states.items() if digest in forged]
    kept = [str(module) for module, state in world.operator.kept(0).items() if state.digest in forged]
    versions = (version for of in world.ledger.versions.values() for version in of.values())
    made = [version.digest for version in versions if version.parent in forged]
    return [*at, *kept, *made]


def rows(roles: Sequence[str], sizes: Sequence[int], seeds: int, jobs: int) -> dict[tuple[str, int], Columns]:
    """Role and size -> its columns, the mean of the seeds; what must not be is added up."""
    plan = [(role, size) for role in roles for size in sizes]
    work = [(role, size, seed) for role, size in plan for seed in range(seeds)]
    if jobs == 1:
        found = [play(*one) for one in work]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            found = list(pool.map(play, *zip(*work, strict=True)))
    grouped: dict[tuple[str, int], list[Columns]] = {key: [] for key in plan}
    for (role, size, _), columns in zip(work, found, strict=True):
        grouped[role, size].append(columns)
    return {key: Columns.mean(several) for key, several in grouped.items()}
