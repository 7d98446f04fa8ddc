"""Faults on purpose: does a swarm of real processes come through, and what does it cost?

    python -m benchmarks.chaos kill-half [--rounds N] [--minutes M] [--seed S]
    python -m benchmarks.chaos --list

Every member is a process of its own; where the network is part of the story, in a network namespace of its own
(benchmarks/chaos/lab.py), which needs root, iproute2 and iptables. A scenario prints what happens, checks what must be
true afterwards and that its faults really happened, and writes a report to benchmarks/results/. Exit status 0: all
checks passed.
"""

import argparse
import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.chaos import crew as crews
from benchmarks.chaos.lab import Lab
from benchmarks.chaos.scenarios import SCENARIOS, Length, Scenario, undisturbed, warm_up
from benchmarks.chaos.story import Disappointed, Story, Verdict, run_file
from benchmarks.reduce import hardware
from dipaco_swarm.errors import SwarmError

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "scenario", nargs="*", help="see --list; several are played one after the other; all: each once"
    )
    parser.add_argument("--rounds", type=int, help="how many outer rounds it is about")
    parser.add_argument("--minutes", type=float, help="for what goes by the clock (soak)")
    parser.add_argument("--line", choices=["loopback", "home", "far"], default="loopback", help="for deadlines")
    parser.add_argument("--peers", type=int, default=8, help="where all are alike")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--keep", type=Path, help="keep logs and homes here")
    parser.add_argument("--list", action="store_true", help="the scenarios, and nothing else")
    options = parser.parse_args(arguments)
    if options.list or not options.scenario:
        for name, scenario in SCENARIOS.items():
            print(f"{name:15} {scenario.about}")
        return 0 if options.list else 2
    unknown = [name for name in options.scenario if name not in SCENARIOS]
    if unknown:
        print(f"there is no scenario {unknown[0]!r}; see --list", file=sys.stderr)
        return 2
    if any(SCENARIOS[name].networked for name in options.scenario) and (missing := Lab.missing()) is not None:
        print(f"no network namespaces here: {missing}", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    crews.prepare()
    passed = True
    for name in options.scenario:
        with tempfile.TemporaryDirectory(prefix="dipaco-chaos-") as temporary:
            folder = options.keep / name if options.keep else Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            scenario = SCENARIOS[name]
            length = Length(options.rounds or scenario.rounds, options.minutes or scenario.minutes, options.peers)
            began = time.monotonic()
            verdict = play(name, scenario, length, folder, options.seed, options.line)
            title = name if name != "deadlines" else f"deadlines-{options.line}"
            title += f"-seed-{options.seed}" if options.seed else ""
            text = page(title, scenario, length, options.seed, verdict, time.monotonic() - began)
            print("\n" + text)
            place = Path("benchmarks") / "results" / f"chaos-{title}-{hardware()}.md"
            place.write_text(text)
            passed = passed and verdict.passed
    return 0 if passed else 1


def play(name: str, scenario: Scenario, length: Length, folder: Path, seed: int, line: str = "loopback") -> Verdict:
    """One scenario, and its twin without faults where it has one."""
    verdict = Verdict()

    def run(
        part: str, scenario: Scenario, length: Length, verdict: Verdict, start: Path | None = None
    ) -> Result | None:
        return one_run(name, scenario, length, folder / part, folder / "cache", seed, line, verdict, start)

    if not scenario.compared:
        run("run", scenario, length, verdict)
        return verdict
    # another warm-up would be another clustering, and that is several per cent of perplexity
    begun, calm, start = Verdict(), Verdict(), folder / "start" / "bootstrap"
    warm = run("start", replace(scenario, play=warm_up), length, begun)
    if warm is None:
        return begun  # else nothing is asked of it: all leave it at once, whatever is under way
    disturbed = run("run", scenario, length, verdict, start)
    if not verdict.passed or disturbed is None:
        return verdict
    print(f"\nthe same run without faults, to {disturbed.tokens:,.0f} tokens\n", flush=True)
    twin = Length(4 * length.rounds, 0, length.peers, disturbed.tokens)
    fault_free = run("twin", replace(scenario, play=undisturbed), twin, calm, start)
    verdict.check("the run without faults comes through", fault_free is not None and calm.passed)
    if fault_free is not None:
        alike = fault_free.perplexity_after(disturbed.tokens, warm)
        ratio = disturbed.perplexity / alike
        verdict.figures["perplexity"] = (
            f"{disturbed}; without faults {fault_free}, {alike:.2f} after as many as with them; before both {warm}"
        )
        verdict.check("perplexity within 3 % of the run without faults", ratio < 1.03, f"{100 * (ratio - 1):+.1f} %")
        verdict.check("... and not so far below that the two cannot be compared", ratio > 0.9, f"{ratio:.2f}")
        more = fault_free.tokens / disturbed.tokens
        verdict.check("... after as many tokens, to a tenth", abs(more - 1) < 0.1, f"{100 * (more - 1):+.1f} %")
    return verdict


@dataclass(frozen=True)
class Result:
    """What a run ended with."""

    perplexity: float
    tokens: float
    """That counted."""
    version: int
    """Of the modules."""

    def perplexity_after(self, tokens: float, begun: "Result") -> float:
        """What this run had after fewer tokens, or has after some more, by a power law through what it began with.

        Who is told to leave ends a round first, so two runs are never of as many tokens: a tenth more of them is
        several per cent of perplexity here. `tokens`: since `begun`.
        """
        share = math.log1p(tokens / begun.tokens) / math.log1p(self.tokens / begun.tokens)
        return begun.perplexity * math.pow(self.perplexity / begun.perplexity, share)

    def __str__(self) -> str:
        return f"{self.perplexity:.2f} after {self.tokens:,.0f} tokens at version {self.version}"


def one_run(
    name: str,
    scenario: Scenario,
    length: Length,
    folder: Path,
    cache: Path,
    seed: int,
    line: str,
    verdict: Verdict,
    start: Path | None = None,
) -> Result | None:
    """Play it, from the beginning or from a copy of a bootstrap node's home; None when it broke off."""
    folder.mkdir(parents=True)
    end = {"rounds": length.rounds} if scenario.ends_by_rounds else {}
    config = run_file(f"chaos-{name}", scenario.stage, end, scenario.changes)
    with contextlib.ExitStack() as open_until_the_end:
        # faults of programs need no network of their own, and can be played where there are no namespaces
        lab = open_until_the_end.enter_context(Lab()) if scenario.networked else crews.Here
        crew = open_until_the_end.enter_context(crews.Crew(folder))
        story = Story(lab, crew, config, seed, cache, verdict, lambda said: print(said, flush=True), start)
        story.line, story.cpu_share = line, scenario.cpu_share
        try:
            scenario.play(story, length)
            story.conclude()
            result = Result(story.perplexity(), story.contributed(), story.version())
            verdict.figures["perplexity"] = str(result)
            return result
        except (Disappointed, SwarmError) as broken:
            story.check("the story comes to its end", False, broken)
            for member in crew.members.values():
                last = "\n".join(f"    {said}" for said in member.said().splitlines()[-8:])
                print(f"{member.name}{'' if member.running else ' (not running)'}\n{last}", flush=True)
            return None


def commit() -> str:
    """Of this tree, as far as git knows; reports of other scenarios do not count as changes."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ".", ":!benchmarks/results"], check=False)
    return (head.stdout.strip() or "unknown") + ("" if changed.returncode == 0 else ", changed")


def page(name: str, scenario: Scenario, length: Length, seed: int, verdict: Verdict, seconds: float) -> str:
    """The report, as Markdown."""
    rounds = f", {length.rounds} rounds" if not length.minutes else f", {length.minutes:g} minutes of churn"
    lines = [
        f"# chaos {name}: {'passed' if verdict.passed else 'FAILED'}",
        "",
        f"{scenario.about} Seed {seed}{rounds}, {seconds / 60:.0f} min in all, {hardware()}, commit {commit()}.",
        "",
        "| expected | | seen |",
        "|---|---|---|",
        *(f"| {expected} | {'yes' if ok else '**no**'} | {seen} |" for expected, ok, seen in verdict.checks),
        "",
        "| figure | |",
        "|---|---|",
        *(f"| {figure} | {seen} |" for figure, seen in verdict.figures.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
