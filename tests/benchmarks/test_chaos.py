"""The scenarios of benchmarks/chaos, short: one path, few peers, real processes, real faults."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos import crew
from benchmarks.chaos.__main__ import Result, one_run
from benchmarks.chaos.facts import Facts, Made, at_rest, culprits, doubts, growth
from benchmarks.chaos.lab import Lab
from benchmarks.chaos.scenarios import SCENARIOS, Length
from benchmarks.chaos.story import Verdict, run_file, toml_of
from dipaco_swarm.dashboard.metrics import Journal, metrics_file
from dipaco_swarm.events.training import Doubted
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.swarm.bans import Bans, bans_file
from dipaco_swarm.swarm.checks import Convicted

# rounds of a second: where they take a tenth of one, every word is of an older version, and forks are hardly noticed
SHORT = {
    "rounds": {"inner_steps": 12},
    "data": {"max_documents": 200},
    "model": {"hidden_size": 32, "intermediate_size": 64},
}


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in crew.ENVIRONMENT.items():  # of this module alone: another test asks a hub
            patch.setenv(name, value)
        crew.prepare()
        yield


LONG = pytest.mark.long
"""What the soak has besides others, or virtual time has many times over."""


def test_two_runs_are_compared_after_as_many_tokens() -> None:
    begun, end = Result(32.0, 4e6, 1), Result(16.0, 12e6, 30)  # four times the tokens, half the perplexity
    assert end.perplexity_after(12e6, begun) == pytest.approx(16.0)
    assert end.perplexity_after(4e6, begun) == pytest.approx(32.0 / 2**0.5)
    assert end.perplexity_after(60e6, begun) == pytest.approx(8.0)


@pytest.mark.swarm
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "length"),
    [
        pytest.param("quiet", Length(rounds=2, minutes=0, peers=3), marks=LONG),
        ("soak", Length(rounds=2, minutes=0.2, peers=3)),
        pytest.param("kill-half", Length(rounds=2, minutes=0, peers=4), marks=LONG),
        pytest.param("freeze", Length(rounds=2, minutes=0.4, peers=4), marks=LONG),
        pytest.param("last-holder", Length(rounds=2, minutes=0, peers=3), marks=LONG),
        pytest.param("bootstrap-down", Length(rounds=4, minutes=0, peers=3), marks=LONG),
        pytest.param("partition", Length(rounds=2, minutes=0, peers=4), marks=LONG),
    ],
)
def test_a_swarm_comes_through(name: str, length: Length, tmp_path: Path) -> None:
    scenario = replace(SCENARIOS[name], stage=None, changes=SHORT, cpu_share=25)
    if scenario.networked and (missing := Lab.missing()) is not None:
        pytest.skip(missing)
    verdict = Verdict()
    one_run(name, scenario, length, tmp_path / "run", tmp_path / "cache", 0, "loopback", verdict)
    assert verdict.passed, [(expected, seen) for expected, ok, seen in verdict.checks if not ok]
    assert (verdict.figures["faults"] == "none") == (name == "quiet")


def test_facts_tell_forks_versions_and_silence() -> None:
    def made(time: float, peer: str, module: str, version: int, digest: str) -> Made:
        return Made(time, peer, 1, 0, module, version, digest, contributors=2, tokens=10)

    facts = Facts(
        (
            made(0.0, "a", "L0M0", 1, "x"),
            made(0.1, "b", "L0M0", 1, "x"),
            made(5.0, "a", "L1M0", 1, "y"),
            made(6.0, "b", "L1M0", 1, "z"),
            made(9.0, "a", "L0M0", 2, "w"),
        )
    )
    assert facts.version(2) == 1
    assert facts.version(3) == 0
    assert facts.forks() == [("L1M0", 1)]
    assert facts.rounds() == 4
    assert facts.by(["b"]).newest() == {"L0M0": 1, "L1M0": 1}
    assert facts.longest_gap(0.0, 10.0) == pytest.approx(8.9)  # L0M0, from 0.1 to 9
    assert facts.longest_gap(0.05, 10.0) == pytest.approx(8.9)
    assert facts.parted(0.0) == ["L1M0"]
    assert facts.parted(0.05) == ["L0M0", "L1M0"]
    assert facts.contributed() == pytest.approx(25)
    assert facts.discarded() == pytest.approx(5)
    assert facts.seconds_a_round() == pytest.approx(9.0)
    assert growth([(0.0, 5.0), (10.0, 25.0), (20.0, 45.0)], unit=20).slope == pytest.approx(6.0)


def test_what_is_given_back_is_not_growth_and_what_is_kept_is() -> None:
    saves = [(5.0 * step, 20.0 * (step % 7 == 0)) for step in range(120)]
    assert growth(at_rest(saves)).slope == 0
    keeps = [(at, value + at / 60) for at, value in saves]
    assert growth(at_rest(keeps)).slope == pytest.approx(1.0, rel=0.05)
    assert growth(at_rest(keeps)).is_surely_above(0.5)
    assert not growth(at_rest(saves)).is_surely_above(0.5)


def test_what_goes_up_and_down_for_a_few_minutes_does_not_surely_grow_and_nothing_known_is_no_good_news() -> None:
    up_and_down = [(60.0 * minute, value) for minute, value in enumerate([3.0, -4.0, 5.0, -2.0, 6.0, 4.0])]
    found = growth(up_and_down)
    assert found.slope > 0.5
    assert not found.is_surely_above(0.5)
    assert str(found) == "+0.80 ± 1.01"
    assert growth(up_and_down[:2]).is_surely_above(0.5)


def test_a_ban_and_what_two_doubt_are_found_in_the_homes(tmp_path: Path) -> None:
    members = [crew.Member(name, crew.Here(name), tmp_path, "peer", ()) for name in ("a", "b", "c")]
    run = "0123456789abcdef" * 4
    assert culprits(members, run) == []
    bans = Bans(bans_file(members[0].home, run))
    bans.convict(Convicted(reducer="mallory", stage=0, module="L0M0", version=3))
    of_b, of_c = (Journal(metrics_file(member.home)) for member in members[1:])
    of_b.note(Doubted("mallory", "L0M0", None, repeats=True))
    of_b.note(Doubted("mallory", "L0M0", 2.6, repeats=False))
    of_c.note(Doubted("mallory", "L1M0", 2.6, repeats=False))
    assert culprits(members, run) == ["a has banned mallory"], "what one finds leaves nobody out"
    assert [name for name, _ in doubts(members)] == ["b", "b", "c"]
    of_c.note(Doubted("mallory", "L0M0", None, repeats=True))
    _, *doubted = culprits(members, run)
    assert len(doubted) == 2
    assert doubted[1].startswith("c: L0M0: peer mallory sends what it has sent before")


def test_run_files_are_written_as_an_operator_would() -> None:
    for scenario in SCENARIOS.values():
        config = run_file("chaos", scenario.stage, {"rounds": 7}, scenario.changes)
        again = parse_run_file(toml_of(config))
        assert again == config
        assert again.stages[-1].rounds == 7
