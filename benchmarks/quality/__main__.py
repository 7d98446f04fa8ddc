"""How good the models are that a swarm trains, next to dense models, DiLoCo and flat mixtures of paths.

    python -m benchmarks.quality [--small | --overlap | --robust | --reading] [--seeds 0 1 2] [--rows '2x2 *' dense]
                                 [--out DIR]

Every row of paths is a run file given to `simulate`, the code of the product; dense rows are trained by the same inner
trainer. All rows are scored on the same held-out tokens, none of them among the first 32 of a piece. Two rows run at a
time, as processes with one thread each. Each result is a file: what is finished is not repeated, so the same command
goes on after an interruption. Prints the table and writes it, with a chart, to benchmarks/results/. `--overlap` has
rows of its own, about outer rounds: how late they are merged, and how they travel; `--robust`, about what bounds
contributions; `--reading`, about shards made whole and streams.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.reduce import hardware

if TYPE_CHECKING:
    from benchmarks.quality.measure import Workshop
    from benchmarks.quality.rows import Row

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--small",
        action="store_true",
        help="2 x 2 paths, three seeds of the main rows: about eleven minutes on two cores",
    )
    parser.add_argument("--overlap", action="store_true", help="instead: rows that differ in their outer rounds alone")
    parser.add_argument("--robust", action="store_true", help="instead: rows that differ in what bounds contributions")
    parser.add_argument("--reading", action="store_true", help="instead: rows that differ in how documents are read")
    parser.add_argument("--sorted", action="store_true", help="with --reading: a file for each kind of documents")
    parser.add_argument("--long", action="store_true", help="with --reading: documents of 22 sequences, not of two")
    parser.add_argument("--half", action="store_true", help="with --reading: a stage ends half-way through its shards")
    parser.add_argument("--at-once", type=int, default=2, help="rows at a time, of one thread each")
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of the scale's own")
    parser.add_argument("--rows", nargs="+", default=[], help="names of rows, * and ? as in file names")
    parser.add_argument("--list", action="store_true", help="the names of the rows, and nothing else")
    parser.add_argument("--out", type=Path, default=Path("bench-out/quality"), help="corpus, caches, single results")
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, here and in the processes
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.chdir(ROOT)  # paths in run files are relative, so that two checkouts make the same runs

    from benchmarks.quality import report
    from benchmarks.quality.corpus import build_corpus, mixed
    from benchmarks.quality.measure import Workshop
    from benchmarks.quality.overlap import overlap_page, overlap_rows
    from benchmarks.quality.reading import CHARACTERS, READING, half, reading_page, reading_rows
    from benchmarks.quality.robust import robust_page, robust_rows
    from benchmarks.quality.rows import FULL, OVERLAP, SMALL, chosen_rows, rows_of

    scale = OVERLAP if options.overlap else SMALL if options.small or options.robust else FULL
    every = overlap_rows() if options.overlap else robust_rows() if options.robust else rows_of(scale)
    if options.reading:
        scale, every = half() if options.half else READING, reading_rows()
    rows = chosen_rows(every, options.rows)
    if options.list or not rows:
        print("\n".join(row.name for row in every))
        return 0 if options.list else 2
    corpus = build_corpus(options.out, scale.domain_bytes, print)
    folder = options.out / scale.name
    if options.reading:
        characters = None if options.long else CHARACTERS
        corpus = corpus if options.sorted else mixed(corpus, characters=characters)
        folder /= "sorted" if options.sorted else "long" if options.long else "short"
        folder = folder.with_name(f"{folder.name}-half") if options.half else folder
    workshop = Workshop(scale, folder, corpus)
    workshop.prepare()
    began = time.monotonic()
    seeds = options.seeds or list(scale.seeds)
    jobs = [(row, seed) for seed in seeds for row in rows if row.repeated or seed == seeds[0]]
    waiting = [(row, seed) for row, seed in jobs if workshop.result(row, seed) is None]
    failed = run_all(workshop, waiting, options.at_once)

    found = {row.name: [r for seed in seeds if (r := workshop.result(row, seed)) is not None] for row in rows}
    seconds, load = time.monotonic() - began, os.getloadavg()[0]
    name = "robust" if options.robust else scale.name
    command = (
        f"python -m benchmarks.quality{'' if scale is FULL else f' --{name}'}{' --sorted' if options.sorted else ''}"
        f"{' --long' if options.long else ''}{' --half' if options.half else ''}"
    )
    name += "-sorted" if options.sorted else "-long" if options.long else ""
    name += "-half" if options.half else ""
    intro = f"`{command}`: {len(waiting)} results in {seconds:.0f} s, load average at the end {load:.1f}"
    page = overlap_page if options.overlap else robust_page if options.robust else report.page
    page = reading_page if options.reading else page
    text = page(f"Quality, {name}: {hardware()}", intro, scale, rows, found)
    print(text)
    if not (options.rows or options.seeds or failed):
        place = Path("benchmarks") / "results" / f"quality-{name}-{hardware()}.md"
        place.write_text(text)
        print(f"written to {place}")
        if not (options.overlap or options.robust or options.reading):
            report.draw(place.with_suffix(".png"), rows, found, f"{scale.name}: {scale.side} x {scale.side} paths")
    return 1 if failed else 0


def run_all(workshop: "Workshop", jobs: "Sequence[tuple[Row, int]]", at_once: int) -> list[str]:
    """Each job as a process, so many at a time; returns the names of those that failed. Ctrl+C ends them."""
    from benchmarks.quality.measure import work

    processes = multiprocessing.get_context("forkserver")  # libraries that take seconds to load are loaded once
    processes.set_forkserver_preload(["benchmarks.quality.measure", "datasets", "sklearn.cluster"])
    logs = workshop.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    left = list(jobs)
    running: dict[int, tuple[ForkServerProcess, str, float]] = {}
    failed = []
    try:
        while left or running:
            while left and len(running) < at_once:
                row, seed = left.pop(0)
                log = logs / workshop.file(row, seed).with_suffix(".log").name
                process = processes.Process(target=work, args=(workshop, row, seed, log))
                process.start()
                running[process.sentinel] = process, f"{row.name}, seed {seed}", time.monotonic()
            for sentinel in wait(list(running)):
                assert isinstance(sentinel, int)
                process, name, began = running.pop(sentinel)
                process.join()
                outcome = "done" if process.exitcode == 0 else f"FAILED, its log is in {logs}"
                failed += [name] if process.exitcode else []
                count = len(jobs) - len(left) - len(running)
                print(f"{count:3} of {len(jobs)}  {name}: {outcome}, {time.monotonic() - began:.0f} s", flush=True)
    finally:
        for process, _, _ in running.values():
            process.terminate()
            process.join()
    return failed


if __name__ == "__main__":
    sys.exit(main())
