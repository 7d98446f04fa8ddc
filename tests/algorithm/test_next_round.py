"""How near the next round is, as a volunteer is told, also while rounds are under way; how long it waits for others."""

from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import torch

from dipaco_swarm.algorithm.pacing.paced import PATIENCE_FLOOR_SECONDS
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.progress import ModuleProgress, Part
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.pacing import NextRound, next_round, patience
from dipaco_swarm.path_in_training import InFlight, PathInTraining, RoundRules
from dipaco_swarm.run.config import OuterConfig, RoundsConfig
from dipaco_swarm.swarm.interface import Announcement, PeerName, Role, Swarm

ROUND_TOKENS = 1000
OWN, OTHERS = ModuleId(0, 0), ModuleId(1, 0)
STATE = ModuleState(3, torch.zeros(1), torch.zeros(1))
ME, ELSE = PeerName("me"), PeerName("else")


@dataclass
class Sight:
    """What a peer sees of the others."""

    peer: PeerName = ME
    said: dict[ModuleId, tuple[Announcement, ...]] = field(default_factory=dict)

    def members(self, stage: int, module: ModuleId) -> tuple[Announcement, ...]:
        return self.said.get(module, ())

    def is_gathering(self, stage: int, module: ModuleId, version: int, *, by_strangers: bool = False) -> bool:
        return False


def path_in_training(
    tokens: tuple[int, int],
    *,
    pacing: str = "paced",
    last_version: int | None = None,
    others: tuple[Announcement, ...] = (),
    in_flight: dict[ModuleId, int] | None = None,
) -> PathInTraining:
    """A path of two modules, on which a peer trains 50 tokens a second. `in_flight`: tokens that are on their way."""
    rounds = RoundsConfig.model_validate({"pacing": pacing, "inner_steps": 10})
    nothing = cast(Any, None)
    progress = {module: ModuleProgress(STATE, count) for module, count in zip((OWN, OTHERS), tokens, strict=True)}
    return PathInTraining(
        swarm=cast(Swarm, Sight(said={OTHERS: others})),
        stage=0,
        table=PathTable(((0, 0), (1, 0))),
        path=PathIndex(0),
        groups={},
        rules=RoundRules(
            OuterConfig(),
            rounds,
            ROUND_TOKENS // 10,
            {} if last_version is None else dict.fromkeys(progress, last_version),
        ),
        model=nothing,
        trainer=nothing,
        batches=iter(()),
        newest=nothing,
        progress=progress,
        in_flight={
            module: InFlight(nothing, Part(count, torch.zeros(1)), progress[module])
            for module, count in (in_flight or {}).items()
        },
        tokens_per_second=50.0,
    )


OTHER = Announcement(
    ELSE, 0, OTHERS, PathIndex(1), STATE.version, STATE.digest, tokens=700, tokens_per_second=150.0, role=Role.TRAINS
)


@pytest.mark.parametrize("pacing", ["paced", "synchronous"])
def test_alone_it_is_the_share_of_the_own_steps(pacing: str) -> None:
    assert next_round(path_in_training((400, 100), pacing=pacing)) == NextRound(0.4, 12.0)
    assert next_round(path_in_training((1300, 100), pacing=pacing)) == NextRound(1.0, 0.0)


def test_what_is_on_its_way_is_not_in_the_next_round() -> None:
    peer = path_in_training((1200, 1200), in_flight={OWN: 1000, OTHERS: 1000})
    assert next_round(peer) == NextRound(0.2, 16.0)
    peer = path_in_training((1200, 300), in_flight={OWN: 1000})
    assert next_round(peer) == NextRound(0.3, 14.0)


def test_a_merge_changes_nothing_of_it() -> None:
    before = path_in_training((1200, 1100), in_flight={OWN: 1000, OTHERS: 1000})
    after = path_in_training((200, 100))
    assert next_round(before) == next_round(after)


def test_paced_rounds_count_the_tokens_of_the_group_and_its_speed() -> None:
    assert next_round(path_in_training((0, 500), others=(OTHER,))) == NextRound(0.6, 4.0)  # 1200 of 2 x 1000
    behind = replace(OTHER, version=STATE.version - 1)
    assert next_round(path_in_training((0, 500), others=(behind,))) == NextRound(0.25, 7.5)
    under_way = path_in_training((0, 500), others=(OTHER,), in_flight={OTHERS: 250})
    assert next_round(under_way) == NextRound(0.3, 7.0)  # of the others the same half is taken to be in it


def test_who_is_a_stranger_itself_waits_for_the_others_to_have_nine_tenths_of_theirs() -> None:
    us = Announcement(ME, 0, OTHERS, PathIndex(0), STATE.version, STATE.digest, tokens=9000, known=False)
    assert next_round(path_in_training((0, 9000), others=(us, replace(OTHER, tokens=600)))) == NextRound(2 / 3, 2.0)
    assert next_round(path_in_training((0, 9000), others=(us,))) == NextRound(1.0, 0.0)


def test_there_is_none_after_the_last() -> None:
    assert next_round(path_in_training((400, 100), last_version=3)) is None
    last = path_in_training((400, 100), last_version=4, in_flight={OWN: 100, OTHERS: 100})
    assert next_round(last) is None


@pytest.mark.parametrize(("tokens", "training", "waits"), [(900, 0.2, 18.0), (900, 60.0, 60.0), (5000, 0.2, 20.0)])
def test_before_its_first_round_others_are_waited_for_as_long_as_its_training_took(
    tokens: int, training: float, waits: float
) -> None:
    """The last piece of training may be a moment, as another module's round was due just now. A round's at most."""
    assert patience(path_in_training((100, tokens)), OTHERS, training) == waits


@pytest.mark.parametrize(("speed", "waits"), [(50.0, 4.0), (1.0, 200.0), (1000.0, PATIENCE_FLOOR_SECONDS)])
def test_others_have_two_steps_of_ours_to_come_however_soon_a_round_is(speed: float, waits: float) -> None:
    """Of 100 tokens each."""
    peer = path_in_training((10, 10))
    peer.tokens_per_second = speed
    assert patience(peer, OTHERS, 0.1) == waits
