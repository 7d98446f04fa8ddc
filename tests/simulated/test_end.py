"""The end of a run, for who is not there to hear it."""

from pathlib import Path

from dipaco_swarm.events.volunteer import LeftAlone
from dipaco_swarm.testing.run import Plan, StagePlan
from dipaco_swarm.testing.stories import tell
from dipaco_swarm.testing.world import World

APART = ((0,), (1,))
"""Two paths that share nothing."""


def test_who_sleeps_through_the_end_finishes_its_path_and_leaves(tmp_path: Path) -> None:
    plan = Plan((StagePlan(APART, rounds=4),), inner_steps=4, until_finished=True)
    world = World(1, plan, tmp_path / "world")
    left: list[bool] = []

    async def story(world: World) -> None:
        world.start("awake", 0)
        sleeper = world.start("asleep", 1)
        assert await world.until(lambda: sleeper.watched is not None and bool(sleeper.watched.at), 60.0)
        world.loop.freeze(sleeper.owner)
        helper = world.start("helper", 1)
        assert await world.until(lambda: world.finished, 600.0)
        assert await world.until(lambda: not (helper.is_alive or world.operator.is_alive), 120.0)
        world.loop.thaw(sleeper.owner)
        left.append(await world.until(lambda: not sleeper.is_alive, 900.0))

    world.play(story)
    assert left == [True]
    assert not world.failures()
    assert not world.ledger.violations
    assert any(who == "asleep" and LeftAlone(600.0).line == what for _, who, what in world.lines)


def test_who_hears_nobody_goes_only_where_it_has_been(tmp_path: Path) -> None:
    """It slept until all had left, and to it every other path looks as if nobody trained it."""
    assert not tell(787, tmp_path, seconds=120.0).violations
