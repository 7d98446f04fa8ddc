"""A peer tries what others have contributed, now and then, and says whom it doubts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from dipaco_swarm.algorithm.doubts import FIRST, Trial, how_far
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.training import Doubted
from dipaco_swarm.machine.manners import RUN, Pause
from dipaco_swarm.outer_round import RoundReport
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.peer.trying import GUESSED_STEPS, MOST_TRIED, SHARE, Judge, Trying
from dipaco_swarm.swarm.encoded_average import EncodedAverage
from dipaco_swarm.swarm.interface import Agreed, NotAgreed, Outcome, PeerName
from dipaco_swarm.swarm.reduced import Reduced, ReducedPiece
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from tests.clocks import HandClock

MODULE = ModuleId(1, 2)
US, HONEST, HOSTILE = "us", "honest", "hostile"
LENGTHS = {US: 2.0, HONEST: 3.0, HOSTILE: 30.0}
COUNT = 1000
TOKENS, FEW_TOKENS = 4000, 100
STEP_TOKENS, STEP_SECONDS = 512, 1.5
PAUSE = Pause("asked", "until you go on")
FIRST_SECONDS = GUESSED_STEPS * STEP_SECONDS / SHARE
"""Until a trial is earned."""


class Bench:
    """A trainer whose loss bends by the fourth power of what is put on it, for noise nine times as much."""

    def __init__(self, clock: HandClock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.levels: list[int] = []
        self.tried: list[int] = []
        """Contributions, of each time."""
        self.noise = 0.0
        self.during: Callable[[], object] = lambda: None
        """What happens meanwhile."""

    def bends(
        self, level: int, ways: Sequence[Iterable[tuple[slice, Tensor]]], stop: Callable[[], bool]
    ) -> list[Trial]:
        assert not stop()
        self.clock.now += self.seconds
        self.levels.append(level)
        self.tried.append(len(ways) - 1)
        self.during()
        if stop():
            return []
        *of_members, noise = [Trial(length**4 / COUNT**2, 1e-3, length) for length in map(how_far, ways)]
        self.noise = noise.length
        return [*of_members, replace(noise, bend=9 * noise.bend)]


def reduced(vectors: Mapping[str, Tensor], tokens: Mapping[str, int]) -> Reduced:
    given = {name: codec_of("fp32").encode(vector) for name, vector in vectors.items()}
    return Reduced("fp32", dict.fromkeys(vectors, 1.0), tokens, [ReducedPiece(7, 7 + COUNT, given)])


def over(contributed: Mapping[str, float | Tensor], late: Iterable[str] = ()) -> RoundReport:
    """A round in which these vectors were contributed, or all numbers as that; `late`: not to most reducers."""
    vectors = {name: torch.ones(COUNT) * of_one for name, of_one in contributed.items()}
    average = cast(EncodedAverage, None)
    claimed = {PeerName(name): FEW_TOKENS if name == "few" else TOKENS for name in vectors}
    counted = {name: tokens for name, tokens in claimed.items() if name not in {*late}}
    of_all = {str(name): tokens for name, tokens in claimed.items()}
    outcome = Agreed(average, tuple(claimed), counted, reduced=reduced(vectors, of_all))
    outcomes: dict[ModuleId, Outcome] = {ModuleId(0, 0): NotAgreed("nobody came"), MODULE: outcome}
    return RoundReport(1, 1, 1.0, 1.0, outcomes, {}, {})


Made = tuple[Trying, Any, list[Event], Bench]
Make = Callable[..., Made]


@pytest.fixture
def make() -> Make:
    def made(seconds: float = 1.0, pacing: str = "paced", *, leaves: bool = False) -> Made:
        clock, told = HandClock(), list[Event]()
        bench = Bench(clock, seconds)
        screen, swarm = SimpleNamespace(event=told.append), SimpleNamespace(peer=US)
        manners = SimpleNamespace(now=RUN)
        around = SimpleNamespace(clock=clock, screen=screen, swarm=swarm, stop=lambda: leaves, manners=manners)
        group, rules = (
            SimpleNamespace(averaging="robust"),
            SimpleNamespace(rounds=SimpleNamespace(pacing=pacing), tokens_per_step=STEP_TOKENS),
        )
        base = SimpleNamespace(base=SimpleNamespace(params=torch.zeros(5000)))
        peer = SimpleNamespace(
            stage=1,
            trainer=bench,
            doubts=None,
            groups={MODULE: group},
            rules=rules,
            progress={MODULE: base},
            tokens_per_second=STEP_TOKENS / STEP_SECONDS,
        )
        trying = Trying(cast(Surroundings, around))
        clock.now += FIRST_SECONDS
        return trying, cast(PathInTraining, peer), told, bench

    return made


def test_whose_contribution_bends_the_loss_far_more_is_doubted_and_that_is_said_once(make: Make) -> None:
    trying, peer, told, bench = make(seconds=0.0)
    trying.look(peer, over(LENGTHS))
    assert bench.levels == [MODULE.level]
    assert bench.noise == pytest.approx(LENGTHS[HONEST] * COUNT**0.5, rel=1e-3)  # a usual length
    assert peer.doubts.peers == (HOSTILE,)
    (event,) = told
    assert isinstance(event, Doubted)
    assert (event.peer, event.module) == (HOSTILE, "L1M2")
    assert not event.repeats
    assert event.of_noise == pytest.approx(30**4 / (9 * 3**4), rel=1e-3)
    assert "1111.1 times as much as noise" in event.line
    trying.look(peer, over(LENGTHS))
    assert len(told) == 1


def test_nothing_of_a_synchronous_run_or_of_one_that_counts_all_hangs_on_it(make: Make) -> None:
    trying, peer, _, bench = make(pacing="synchronous")
    trying.look(peer, over(LENGTHS))
    trying, peer, _, other = make()
    peer.groups[MODULE].averaging = "mean"
    trying.look(peer, over(LENGTHS))
    assert not bench.levels
    assert not other.levels


def test_who_sends_the_same_again_is_doubted(make: Make) -> None:
    trying, peer, told, _ = make(seconds=0.0)
    for round_number in range(3):
        vectors = {
            name: torch.randn(
                COUNT, generator=torch.Generator().manual_seed(seed + 10 * round_number * (name != HOSTILE))
            )
            for seed, name in enumerate((US, HONEST, HOSTILE))
        }
        trying.look(peer, over(vectors))
    assert peer.doubts.peers == (HOSTILE,)
    (event,) = told
    assert isinstance(event, Doubted)
    assert event.repeats
    assert event.of_noise is None
    assert "sends what it has sent before; it is left out" in event.line


def random_numbers(names: Sequence[str], seed: int) -> dict[str, float | Tensor]:
    return {
        name: torch.randn(COUNT, generator=torch.Generator().manual_seed(100 * seed + i))
        for i, name in enumerate(names)
    }


def test_who_brings_again_what_came_too_late_is_not_doubted(make: Make) -> None:
    trying, peer, told, _ = make(seconds=0.0)
    of_x = random_numbers(["x"], 9)
    trying.look(peer, over(random_numbers([US, HONEST, "b"], 0)))
    trying.look(peer, over(random_numbers([US, HONEST, "b"], 1) | of_x, late=["x"]))
    trying.look(peer, over(random_numbers([US, HONEST, "b"], 2) | of_x))
    assert not told, "it counts for the first time"
    trying.look(peer, over(random_numbers([US, HONEST, "b"], 3) | of_x))
    assert peer.doubts.peers == ("x",)


def test_whose_few_steps_go_where_those_before_went_is_not_doubted_unless_they_are_the_same(make: Make) -> None:
    trying, peer, told, _ = make(seconds=0.0)
    way = torch.randn(COUNT, generator=torch.Generator().manual_seed(7))
    for seed in range(3):
        step = way + 0.3 * torch.randn(COUNT, generator=torch.Generator().manual_seed(50 + seed))  # cosine 0.92
        trying.look(peer, over(random_numbers([US, HONEST, "b"], seed) | {"few": step}))
    assert not told
    for seed in (4, 5):
        trying.look(peer, over(random_numbers([US, HONEST, "b"], seed) | {"few": way}))
    assert peer.doubts.peers == ("few",)


def test_who_leaves_tries_nothing_more(make: Make) -> None:
    trying, peer, _, bench = make(leaves=True)
    trying.look(peer, over(LENGTHS))
    assert not bench.levels


def seeded(trying: Trying) -> None:
    trying._judge = Judge(US, torch.Generator().manual_seed(3))


CROWD = {f"peer-{i:03d}": 3.0 for i in range(60)} | {US: 2.0}


def test_in_a_large_round_some_are_drawn_and_in_time_whoever_does_harm_is_found(make: Make) -> None:
    trying, peer, told, bench = make(seconds=0.0)
    seeded(trying)
    for _ in range(60):
        trying.look(peer, over(CROWD | {HOSTILE: 30.0}))
    assert set(bench.tried) == {1 + MOST_TRIED}
    assert {event.peer for event in told if isinstance(event, Doubted)} == {HOSTILE}


def test_a_doubt_is_not_over_by_trials_of_others(make: Make) -> None:
    trying, peer, _, _ = make(seconds=0.0)
    seeded(trying)
    trying.look(peer, over(LENGTHS))
    for _ in range(FIRST + 2):
        trying.look(peer, over(CROWD | {HOSTILE: 3.0}))
    assert peer.doubts.peers == (HOSTILE,)
    for _ in range(FIRST):
        trying.look(peer, over(LENGTHS | {HOSTILE: 3.0}))
    assert not peer.doubts.peers


def test_who_pauses_tries_nothing_and_gives_up_what_was_begun(make: Make) -> None:
    trying, peer, told, bench = make(seconds=1.0)
    manners = cast(Any, trying._around.manners)
    trying.look(peer, over(LENGTHS))
    assert (len(bench.levels), trying._last) == (1, 1.0)
    bench.clock.now += 2 * FIRST_SECONDS
    bench.seconds = 0.25
    bench.during = lambda: setattr(manners, "now", PAUSE)
    trying.look(peer, over(LENGTHS))
    assert len(bench.levels) == 2
    assert trying._last == 1.0, "nobody knows how long it would have taken"
    bench.clock.now += 2 * FIRST_SECONDS
    trying.look(peer, over(LENGTHS))
    assert len(bench.levels) == 2
    assert len(told) == 1
    assert peer.doubts._of[HOSTILE].left == FIRST, "no trial of it has ended without harm"


def test_at_a_change_of_stage_what_was_contributed_before_is_forgotten(make: Make) -> None:
    trying, peer, told, _ = make(seconds=0.0)
    stale = random_numbers([HOSTILE], 9)
    for stage in (1, 2, 3):
        peer.stage = stage
        trying.look(peer, over(random_numbers([US, HONEST, "b"], stage) | stale))
    assert not told
    trying.look(peer, over(random_numbers([US, HONEST, "b"], 7) | stale))
    assert peer.doubts.peers == (HOSTILE,)


def test_in_a_round_of_two_nobody_is_tried(make: Make) -> None:
    trying, peer, told, bench = make()
    trying.look(peer, over({US: 1.0, HOSTILE: 30.0}))
    assert not bench.levels
    assert not told


def test_who_has_reduced_nothing_tries_nothing(make: Make) -> None:
    trying, peer, told, bench = make()
    report = over(LENGTHS)
    outcome = report.outcomes[MODULE]
    assert isinstance(outcome, Agreed)
    nothing = replace(outcome, reduced=Reduced("fp32", dict.fromkeys(LENGTHS, 1.0), {}, []))
    trying.look(peer, replace(report, outcomes={MODULE: nothing}))
    assert not bench.levels
    assert not told


def test_it_takes_a_small_share_of_the_time(make: Make) -> None:
    trying, peer, _, bench = make(seconds=4.0)
    began = bench.clock.now - FIRST_SECONDS
    bench.clock.now -= 0.1
    trying.look(peer, over(LENGTHS))
    assert not bench.levels, "it is not earned yet"
    for _ in range(300):
        bench.clock.now += 10.0
        trying.look(peer, over(LENGTHS))
        spent, earned = 4.0 * len(bench.levels), SHARE * (bench.clock.now - began)
        assert spent <= earned + 1.0
    assert spent > 0.8 * earned


def test_who_has_not_contributed_everywhere_is_not_tried(make: Make) -> None:
    trying, peer, told, bench = make()
    report = over(LENGTHS)
    outcome = report.outcomes[MODULE]
    assert isinstance(outcome, Agreed)
    assert outcome.reduced is not None
    some = ReducedPiece(2000, 2000 + COUNT, {k: v for k, v in outcome.reduced.pieces[0].given.items() if k != HOSTILE})
    both = Reduced("fp32", outcome.reduced.scales, outcome.reduced.tokens, [*outcome.reduced.pieces, some])
    report.outcomes[MODULE] = Agreed(outcome.encoded, outcome.contributors, reduced=both)  # type: ignore[index]
    trying.look(peer, report)
    assert not bench.levels  # two are left
    assert not told
