"""A member announces states that it never sends: of its own modules, and that it holds those of others."""

import asyncio
from pathlib import Path
from random import Random

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.testing.cast import enter
from dipaco_swarm.testing.network import home_line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import Plan, StagePlan
from dipaco_swarm.testing.saboteur import Saboteur
from dipaco_swarm.testing.world import World

PLAN = Plan((StagePlan(((0, 0), (0, 1), (1, 0), (1, 1))),), inner_steps=10)
HONEST_SECONDS = 60.0
ATTACKED_SECONDS = 180.0


def test_the_others_and_the_operator_s_node_go_on_where_states_are_announced_and_not_sent(tmp_path: Path) -> None:
    """The node asked for that state and no other, for as long as it was announced: nothing newer was kept."""
    chance = Random("unsent")
    world = World(11, PLAN, tmp_path / "world")
    made: list[int] = []
    behind: dict[ModuleId, int] = {}

    async def story(world: World) -> None:
        for path in range(3):
            world.start(f"peer-{path}", path, Machine(home_line(chance)))
        hostile = enter(world, "hostile", "unsent", 3, Machine(home_line(chance)))  # both modules with the number 1
        assert isinstance(hostile, Saboteur)
        hostile.role.active = False
        hostile.start()
        await asyncio.sleep(HONEST_SECONDS)
        hostile.role.active = True
        kept = {module: state.version for module, state in world.operator.kept(0).items()}
        await asyncio.sleep(ATTACKED_SECONDS)
        for module, state in world.operator.kept(0).items():
            if not module.index:
                made.append(state.version - kept[module])
            newest = max(version for version, _ in world.states()[0, module].values())
            behind[module] = newest - state.version

    world.play(story)
    assert min(made) >= 10, f"{made} versions of the modules of others in {ATTACKED_SECONDS:.0f} s"
    assert max(behind.values()) <= 3, behind
    assert not world.failures()
    assert not world.ledger.violations
