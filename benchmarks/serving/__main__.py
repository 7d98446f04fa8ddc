"""What a run answers: tokens a second and the time to the first token, for 1, 4 and 16 clients at the same time.

    python -m benchmarks.serving [--quick] [--only alone swarm beside] [--extras DIR] [--hidden 256] [--tokens 64]

All on this machine, with the same prompts, one thread of arithmetic in each process. Rows of the table:

serve, peers            `dipaco-swarm serve --run` on a machine of its own, a bootstrap node and four peers, two for
                        each path, in network namespaces: without delay, then all with home lines (100/20 Mbit/s, 50 ms)
generate                the path in a loop of one process, as `dipaco-swarm generate --home` writes
a dense model           a loop over one model with nine times the parameters, of random numbers
serve, here             `dipaco-swarm serve --home`, which has all paths itself; no peer, nobody trains
transformers serve      an exported path behind transformers' own server; that needs what this project does not:
                        pip install --no-deps --target DIR fastapi==0.136.0 annotated-doc accelerate
                        and then --extras DIR

The four peers train, by sleeping: they take little time of this machine's cores from one another, and share outer
gradients over their lines. `--answers` is what it is by default (auto: four at once; more wait, or go elsewhere), and
each may answer for a twentieth of its time, and 20 seconds at once, half of it for one asker: a gateway is one. What
they do not answer the gateway writes itself, as soon as it has fetched the path; it begins to fetch when four ask for
one path at once. The first row of many clients on home lines ("at first") has that in it: 80 MB for each path. "of
peers" is the share of writers that were peers.

Without a delay, one client is compared with a loop of this machine, as busy as it is: the loop writes each text just
before the client asks for it. Aim: 90 % of its tokens a second, in the median of all texts.

A fifth peer lies, and has to be found before anything is measured. Then the run ends, so that states stay as they are
and peers have all their time for answers ("the run is over"); two are killed in the middle of texts, and each text is
compared with what `generate` writes. The home of its bootstrap node is what one machine has then.

Last ("beside"), one peer that really trains, on one thread, and four askers that ask it and nobody else: its speed
while it gives what it has saved up; then, in turn, in the long run and alone.

`--quick`: 1 and 4 clients, fewer answers, one long round, without `transformers serve`; five minutes. The whole takes a
quarter of an hour on two quiet cores. Without root or iproute2 there are no home lines, and a sentence says so. Exit
code 1 when an aim is missed (`rows.py`). Prints the table and writes it to benchmarks/results/serving-HARDWARE.md, with
--quick to serving-quick-HARDWARE.md.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks.chaos import crew as crews
from benchmarks.chaos.lab import Lab
from benchmarks.reduce import hardware
from benchmarks.serving import alone, swarms
from benchmarks.serving.beside import training_beside
from benchmarks.serving.rows import HEAD, Results, Row
from benchmarks.serving.size import Size
from benchmarks.utilisation import to_stderr

RESULTS = Path(__file__).parents[1] / "results"
PARTS = ("alone", "swarm", "beside")
FULL = {1: 16, 4: 32, 16: 64}
QUICK = {1: 12, 4: 12}
"""Clients at once, and answers in all."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--extras", type=Path, metavar="DIR", help="a folder with what `transformers serve` needs")
    parser.add_argument("--hidden", type=int, default=256, help="width of the eight blocks; 256: 10 M parameters")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--seed", type=int, default=0, help="of who is killed when")
    options = parser.parse_args(arguments)
    size = Size(options.hidden, options.tokens, FULL, 40.0, 80.0, 2, 200)
    if options.quick:
        size = Size(options.hidden, options.tokens, QUICK, 20.0, 40.0, 1, 30, documents=100, steps=55, rounds=1)
    found = Results()
    crews.prepare()
    print(HEAD)
    with tempfile.TemporaryDirectory(prefix="dipaco-serving-") as name:
        folder = Path(name)
        home = _swarm(folder, size, found, options.seed) if "swarm" in options.only else None
        if "alone" in options.only:
            extras = None if options.quick else options.extras
            _alone(home or alone.trained(size, folder / "run"), size, found, extras, quick=options.quick)
        if "beside" in options.only:
            found.beside = training_beside(folder / "beside", size)
    print("", *found.said, *(f"MISSED: {aim}" for aim in found.missed), sep="\n")
    if set(options.only) == set(PARTS):
        _write(found, size, "serving-quick" if options.quick else "serving")
    return 1 if found.missed else 0


def _alone(home: Path, size: Size, found: Results, extras: Path | None, *, quick: bool) -> None:
    _note(found, alone.rows(home, size))
    why = "`--quick` leaves `transformers serve` out." if quick else alone.lacking(extras)
    if why is None:
        _note(found, alone.by_transformers(home, size, extras))
    else:
        found.left_out.append(why)


def _swarm(folder: Path, size: Size, found: Results, seed: int) -> Path:
    """The home of its bootstrap node, which has all paths, of a run that has ended."""
    missing = Lab.missing()
    if missing is not None:
        found.left_out.append(f"No rows of home lines: {missing}.")
    with (
        Lab() if missing is None else nullcontext() as lab,
        swarms.swarm_of(folder / "live", size, lab) as swarm,
        swarm.served() as door,
    ):
        swarm.begins()
        of_the_liar = swarms.texts_of_the_liar(swarm, door)
        _note(found, swarms.rows(swarm, door, size, lines=lab is not None))
        swarm.end()
        _note(found, swarms.rows_after_the_end(swarm, door, size))
        found.killed = swarms.killed(swarm, door, size, seed, of_the_liar)
        return swarm.node.home


def _note(found: Results, rows: Iterable[Row]) -> None:
    for row in rows:
        found.rows.append(row)
        print(row, flush=True)
        if row.answers:
            to_stderr(f"slowest: {max(row.answers, key=lambda answer: answer.seconds)}")


def _write(found: Results, size: Size, name: str) -> None:
    title = f"# Answers of {size.tokens} tokens, paths of 8 blocks of width {size.hidden}\n\n"
    title += f"`python -m benchmarks.serving`, {hardware()}"
    aims = [f"Missed: {aim}." for aim in found.missed] or ["No aim is missed."]
    table = "\n".join((HEAD, *map(str, found.rows)))
    RESULTS.mkdir(exist_ok=True)
    text = "\n\n".join((title, table, *found.said, *aims))
    (RESULTS / f"{name}-{hardware()}.md").write_text(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
