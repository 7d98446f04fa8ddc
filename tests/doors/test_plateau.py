"""When a stage has stopped getting better."""

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.operator.plateau import Plateau
from dipaco_swarm.run.manifest import Stage
from dipaco_swarm.run.stage import PlateauConfig

SEEDS = {"L0M0": "a" * 64, "L0M1": "b" * 64}
STAGE = Stage(index=1, table=((0,), (1,)), path_weights=(0.25, 0.75), router="c" * 64, seeds=SEEDS)
RULE = PlateauConfig(rounds=3, gain=0.01)


def losses(first: float, second: float) -> dict[PathIndex, float]:
    return {PathIndex(0): first, PathIndex(1): second}


def test_a_stage_ends_once_when_its_loss_falls_no_more() -> None:
    plateau = Plateau()
    falling = [5.0, 4.5, 4.2, 4.0, 3.995, 3.994, 3.993, 3.993]
    reached = [plateau.ends(STAGE, RULE, version, losses(loss, loss)) for version, loss in enumerate(falling)]
    assert reached == [False] * 6 + [True, False]


def test_paths_count_by_their_weight() -> None:
    for first, second, is_over in ((3.98, 4.0, True), (4.0, 3.98, False)):
        plateau = Plateau()
        plateau.ends(STAGE, RULE, 1, losses(4.0, 4.0))
        assert plateau.ends(STAGE, RULE, 4, losses(first, second)) is is_over


def test_a_path_that_is_new_is_given_its_time() -> None:
    plateau = Plateau()
    plateau.ends(STAGE, RULE, 1, {PathIndex(0): 4.0})
    assert not plateau.ends(STAGE, RULE, 4, losses(4.0, 4.0))
    assert plateau.ends(STAGE, RULE, 7, losses(4.0, 4.0))


def test_the_next_stage_begins_anew() -> None:
    plateau = Plateau()
    plateau.ends(STAGE, RULE, 1, losses(4.0, 4.0))
    assert plateau.ends(STAGE, RULE, 4, losses(4.0, 4.0))
    following = STAGE.model_copy(update={"index": 2})
    assert not plateau.ends(following, RULE, 4, losses(4.0, 4.0))
