"""Hostile peers on purpose: what does one of them do to a swarm, and to what it trains?

    python -m benchmarks.hostile --poison [--quick] [--seeds 2] [--jobs 2] [ROLE ..]          poison, without a network
    python -m benchmarks.hostile --alarms [--seeds 2] [--jobs 2]     who finds harm in whom, without a network
    python -m benchmarks.hostile --virtual [--seeds 20] [--jobs 2] [--members 4] [ROLE ..]    swarms in virtual time
    python -m benchmarks.hostile --virtual --quick                   the worst ten of these, in ten minutes
    python -m benchmarks.hostile [--quick] [ROLE ..]                 real processes on this machine
    python -m benchmarks.hostile --cost                              what the defences cost when nobody attacks
    python -m benchmarks.hostile --list

`flip*2` is a role played by two names at once; the roles are those of `dipaco_swarm/testing/cast.py`. What --virtual
has played is kept below --out, and not played again by the same code: it may be stopped and gone on with (--seconds 0
only prints the table). What the table in results/ is of lies packed beside it; to go on from there:

    xz -dc benchmarks/results/hostile-virtual.jsonl.xz > bench-out/hostile/virtual.jsonl

Prints a table and writes it to benchmarks/results/. Exit status 1 where an aim is missed.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUICK_SECONDS = 540.0
"""In which --virtual --quick plays what it can."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", nargs="*", help="only these; see --list")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--poison", action="store_true", help="rounds without a network, of a real small model")
    kind.add_argument("--alarms", action="store_true", help="honest members that try each other's contributions")
    kind.add_argument("--virtual", action="store_true", help="whole swarms in virtual time")
    kind.add_argument("--cost", action="store_true", help="signatures and averages, when nobody attacks")
    kind.add_argument("--list", action="store_true", help="the roles, and nothing else")
    parser.add_argument("--quick", action="store_true", help="the worst ones")
    parser.add_argument(
        "--seeds",
        type=int,
        default=2,
        help="of --poison and --alarms; of --virtual: of each role, shared among the sizes of its groups; "
        "another form of a role has a fifth",
    )
    parser.add_argument("--jobs", type=int, default=1, help="of --poison, --alarms and --virtual: processes")
    parser.add_argument("--seconds", type=float, help="of --virtual: no seed begins after that (--quick: 540)")
    parser.add_argument("--members", type=int, nargs="+", help="sizes of groups, of --virtual; honest peers, else")
    parser.add_argument(
        "--window", type=float, help="of real processes: seconds before, during, after (25; --quick 11)"
    )
    parser.add_argument("--out", type=Path, default=Path("bench-out/hostile"), help="what is read once")
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.chdir(ROOT)
    from dipaco_swarm.testing.cast import ROLES

    if options.list:
        print("\n".join(f"{name:15} {role.about}" for name, role in ROLES.items()))
        return 0
    from benchmarks.hostile.columns import is_role

    if unknown := [name for name in options.role if not is_role(name)]:
        print(f"there is no role {unknown[0]!r}; see --list", file=sys.stderr)
        return 2
    from dipaco_swarm.errors import SwarmError

    try:
        return play(options)
    except SwarmError as error:
        print(error, file=sys.stderr)
        return 2


def play(options: argparse.Namespace) -> int:
    """What was asked for; whether an aim is missed."""
    if options.poison:
        return poison(options)
    if options.alarms:
        return alarms(options)
    if options.cost:
        return cost(options)
    return virtual(options) if options.virtual else real(options)


def real(options: argparse.Namespace) -> int:
    """The table of real processes; whether an aim is missed."""
    from benchmarks.hostile import columns
    from benchmarks.hostile.real import WORST, rows
    from benchmarks.reduce import hardware
    from dipaco_swarm.testing.cast import ROLES

    roles = options.role or (WORST if options.quick else [role for role in ROLES if role != "dead"])
    options.window = options.window or (11.0 if options.quick else 25.0)
    honest = options.members[0] if options.members else 3
    found = rows(roles, honest, options.window, tell)
    about = (
        f"`python -m benchmarks.hostile`: a bootstrap node and {honest} honest peers of one module group as processes; "
        f"each role for {options.window:.0f} s once it could be found, and as long before it and after it, one after "
        "the other in one swarm. A quarter of a version more or less says nothing in so short a time; what is made "
        "before is the median of all roles. Training: tokens a second, of those before the role came. Who takes part "
        "uses the same two cores: where the honest train less for it, by its share at most, so many fewer versions are "
        "expected."
    )
    text = columns.page(f"Hostile peers as real processes: {hardware()}", about, found)
    print(text)
    missed = [role for (role, size), seen in found.items() if seen.missed(role, size)]
    missed += [role for role in roles if (role, honest + 1) not in found]
    return written("real", text, missed, len(roles), options)


def virtual(options: argparse.Namespace) -> int:
    """The table of swarms in virtual time; whether an aim is missed."""
    from benchmarks.hostile import columns
    from benchmarks.hostile.seeds import VARIANTS, Kept, plan, sweep
    from benchmarks.hostile.virtual import AFTER_SECONDS, OUT_SECONDS, WINDOW_SECONDS, WORST
    from benchmarks.reduce import hardware

    quick = options.quick and not options.role
    wanted = list(WORST) if quick else plan(options.role, options.members or ())
    kept = Kept(options.out / "virtual.jsonl")
    limit = QUICK_SECONDS if quick and options.seconds is None else options.seconds
    found = sweep(wanted, options.seeds, options.jobs, kept, seconds=limit, tell=tell)
    seeds = sorted({columns.seeds for columns in found.values()})
    of_role = Counter[str]()
    for (role, _), row in found.items():
        of_role[role] += row.seeds

    def fewest(roles: Iterable[str]) -> int:
        return min((of_role[role] for role in roles), default=0)

    about = (
        f"`python -m benchmarks.hostile --virtual --seeds {options.seeds}`: two paths that share a module, members in "
        f"overlapped rounds of 6 to 9 s; {2 * WINDOW_SECONDS:.0f} s of an attack of one of them, or of a stranger "
        f"beside them, its second half once the others go on without it ({OUT_SECONDS:.0f} s later at most), and "
        f"{AFTER_SECONDS:.0f} s once it is over. Before: the same honest members and machines of that "
        f"seed with nobody else. Of {fewest(of_role.keys() - VARIANTS)} seeds of each role, and of "
        f"{fewest(of_role.keys() & VARIANTS)} of one that is another form of another, shared among the sizes of its "
        f"groups, {' to '.join(map(str, seeds[:1] + seeds[1:][-1:]))} a row: versions are means, the rest is "
        "medians; twins, ended programs and states of an outsider are of all, and so is in how many rounds somebody "
        "did what it does until most others went on without it. Pace is judged by these means, and one version in "
        f"{AFTER_SECONDS:.0f} s ({60 / AFTER_SECONDS:.0f} a minute), divided by the root of the number of "
        f"seeds, is missed by nobody. Of twins {100 * columns.TWINS_OF_HONEST:.0f} in a hundred seeds are "
        "allowed, which members that begin in one moment make with nobody hostile among them."
    )
    text = columns.page(f"Hostile peers in virtual time: {hardware()}", about, found)
    print(text)
    missed = [role for (role, size), seen in found.items() if seen.missed(role, size)]
    missed += [role for role, size in wanted if (role, size) not in found]
    return written("virtual", text, missed, len(wanted), options)


def poison(options: argparse.Namespace) -> int:
    """The table of what poison does to a model; whether an aim is missed."""
    from benchmarks.hostile import harm

    began = time.monotonic()
    tell(harm.HEAD)
    rows = harm.table_rows(options.out, options.seeds, options.role, quick=options.quick, jobs=options.jobs, tell=tell)
    missed = [row.attack for row in rows if row.missed]
    return written("poison", harm.page(rows, options.seeds, time.monotonic() - began), missed, len(rows), options)


def alarms(options: argparse.Namespace) -> int:
    """The table of who finds harm in whom; whether honest members do too often."""
    from benchmarks.hostile.alarms import HEAD, missed, page, table_rows

    began = time.monotonic()
    tell(HEAD)
    rows = table_rows(options.out, options.seeds, options.jobs, tell)
    too_often = ["honest"] if missed(rows) else []
    return written("alarms", page(rows, options.seeds, time.monotonic() - began), too_often, 1, options)


def cost(options: argparse.Namespace) -> int:
    """The table of what the defences cost; whether an aim is missed."""
    from benchmarks.hostile.cost import SIZES, cost_of, page

    found = [cost_of(size) for size in options.members or SIZES]
    print(text := page(found))
    return written("cost", text, [str(one.members) for one in found if one.missed], len(found), options)


def tell(said: str) -> None:
    """At once, also into a file."""
    print(said, flush=True)


def written(name: str, text: str, missed: Sequence[str], rows: int, options: argparse.Namespace) -> int:
    """Keep the page of a whole table; whether an aim is missed."""
    from benchmarks.reduce import hardware

    if not (options.quick or options.role or options.members):
        place = Path("benchmarks") / "results" / f"hostile-{name}-{hardware()}.md"
        place.write_text(text)
        print(f"written to {place}")
    print(f"{len(missed)} of {rows} rows miss their aim")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
