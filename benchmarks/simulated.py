"""Whole swarms in virtual time, by the thousand: what breaks, what heals, what is lost.

    python -m benchmarks.simulated [--seeds 1000] [--first 0] [--jobs 2] [--seconds 200]
    python -m benchmarks.simulated --scale 16 64 256 1024 [--rounds 10]

Every seed is a random swarm of 4 to 16 peers (table, codec, lines, machines) and, but for every fourth, random faults.
Four of eight overlap rounds with training, as runs do unless they say otherwise; with --overlap all.
Exit code 1 when an invariant does not hold somewhere; the seeds are printed, and each fails alone as well:

    python -m benchmarks.simulated --first 1234 --seeds 1 --verbose
"""

import argparse
import gc
import itertools
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

from dipaco_swarm.swarm import records
from dipaco_swarm.testing.aims import AIMS, ANYTHING, Aim
from dipaco_swarm.testing.stories import Outcome, tell

FAULTLESS = 4
"""Every so-manieth seed has no faults."""


READ_LATELY = 1 << 14
"""So many records are remembered."""


def workplace() -> Path:
    """In memory where that is possible: the programs flush their files to the disk, thousands of times."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def prepare() -> None:
    """One thread, no log, a collector that looks seldom, and records that are decoded once for all who read them."""
    import torch

    if not hasattr(records.decode_announcement, "cache_info"):
        setattr(records, "decode_announcement", lru_cache(READ_LATELY)(records.decode_announcement))  # noqa: B010
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    if not gc.get_freeze_count():  # once: garbage that is frozen stays
        gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def overlaps(seed: int) -> bool:
    """Whether rounds of a seed overlap with training: four do, and four do not, with and without faults."""
    return seed // FAULTLESS % 2 == 1


def play(seed: int, seconds: float, overlap: bool, aim: Aim = ANYTHING) -> Outcome:
    """The story of a seed. Whatever aims at something breaks something."""
    prepare()
    faulty = aim != ANYTHING or seed % FAULTLESS != 0
    with tempfile.TemporaryDirectory(prefix="dipaco-simulated-", dir=workplace()) as folder:
        return tell(seed, Path(folder), faulty=faulty, seconds=seconds, overlap=overlap, aim=aim)


def outcomes(seeds: Sequence[int], seconds: float, jobs: int, *, overlap: bool, aim: Aim) -> Iterator[Outcome]:
    one, every = partial(play, aim=aim), [overlap or overlaps(seed) for seed in seeds]
    if jobs == 1:
        yield from map(one, seeds, itertools.repeat(seconds), every)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dipaco_swarm.testing.stories"])
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:  # Python 3.11 may hang where it renews processes
        yield from pool.map(one, seeds, itertools.repeat(seconds), every)


def sweep(seeds: Sequence[int], seconds: float, jobs: int, *, overlap: bool, aim: Aim, verbose: bool) -> bool:
    """Play the seeds and print what came of them; whether every invariant held."""
    began = time.monotonic()
    found: list[Outcome] = []
    for outcome in outcomes(seeds, seconds, jobs, overlap=overlap, aim=aim):
        found.append(outcome)
        for violation in outcome.violations:
            print(f"seed {outcome.seed}: {violation}", flush=True)
        if verbose:
            print(f"seed {outcome.seed}: {outcome.peers} peers, {outcome.plan}")
            print("\n".join(outcome.lines))
    report(found, time.monotonic() - began)
    return not any(outcome.violations for outcome in found)


def report(found: Sequence[Outcome], wall: float) -> None:
    calm = [outcome for outcome in found if not outcome.faults]
    rough = [outcome for outcome in found if outcome.faults]
    print(f"\n| | {len(calm)} seeds without faults | {len(rough)} seeds with {_kinds(rough)} |\n|---|---|---|")
    for name, row in (
        ("peers", lambda some: f"{sum(o.peers for o in some):,}"),
        ("virtual hours", lambda some: f"{sum(o.virtual_seconds for o in some) / 3600:.1f}"),
        ("versions committed", lambda some: f"{sum(o.commits for o in some):,}"),
        ("versions with a twin", lambda some: f"{sum(o.forks for o in some):,}"),
        ("one again after the last fault, median / most", _healing),
        ("tokens trained", lambda some: f"{sum(o.balance.trained for o in some):,}"),
        ("tokens lost", _lost),
        ("somebody was demoted / most often one by one", _demotions),
        ("CPU seconds a seed", lambda some: f"{statistics.mean(o.cpu_seconds for o in some):.2f}" if some else "-"),
        ("violations", lambda some: f"{sum(len(o.violations) for o in some)}"),
    ):
        print(f"| {name} | {row(calm)} | {row(rough)} |")
    lost: Counter[str] = Counter()
    for outcome in found:
        lost.update(outcome.balance.lost)
    trained = max(1, sum(outcome.balance.trained for outcome in found))
    for reason, tokens in lost.most_common():
        print(f"| lost: {reason} | | {tokens:,} ({100 * tokens / trained:.2f} %) |")
    print(f"\n{len(found)} seeds in {wall:.0f} s: {len(found) / wall:.2f} a second")


def _kinds(found: Sequence[Outcome]) -> str:
    return f"{sum(len(outcome.faults) for outcome in found):,} faults"


def _healing(found: Sequence[Outcome]) -> str:
    healing = [outcome.healing_seconds for outcome in found]
    return f"{statistics.median(healing):.0f} s / {max(healing):.0f} s" if healing else "-"


def _lost(found: Sequence[Outcome]) -> str:
    lost = sum(sum(outcome.balance.lost.values()) for outcome in found)
    return f"{lost:,} ({100 * lost / max(1, sum(outcome.balance.trained for outcome in found)):.2f} %)"


def _demotions(found: Sequence[Outcome]) -> str:
    most = max((outcome.most_demotions for outcome in found), default=0)
    return f"{sum(outcome.demotions for outcome in found):,} / {most}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0, help="of virtual time until calm")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--overlap", action="store_true", help="training goes on in the rounds of all seeds")
    parser.add_argument("--aim", choices=sorted(AIMS), help="what faults aim at, many of them; else at nothing")
    parser.add_argument("--verbose", action="store_true", help="print everything that every peer said")
    parser.add_argument("--scale", type=int, nargs="+", metavar="PEERS", help="ten rounds of so many peers on a grid")
    parser.add_argument("--rounds", type=int, default=10, help="of --scale")
    options = parser.parse_args()
    if options.scale:
        from benchmarks.simulated_scale import scale

        return scale(options.scale, options.rounds)
    seeds = range(options.first, options.first + options.seeds)
    aim = ANYTHING if options.aim is None else AIMS[options.aim]
    fine = sweep(seeds, options.seconds, options.jobs, overlap=options.overlap, aim=aim, verbose=options.verbose)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
