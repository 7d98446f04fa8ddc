"""`dipaco-swarm demo`, top to bottom: START READING HERE.

Everything happens in one folder:

    run.toml     the run file              curves.png, report.md, report.json   what came out
    bootstrap/   the bootstrap node's home model/                               a path as a transformers folder
    peer-N/      the peers' homes          logs/                                what each process said
    dense/       the dense baseline        cache/                               shards and features, shared
"""

import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from threading import Thread

from rich.console import Console

from dipaco_swarm.algorithm.stages import check_tables, most_paths
from dipaco_swarm.dashboard.metrics import metrics_file, read_metrics
from dipaco_swarm.dashboard.views import duration
from dipaco_swarm.demo.processes import Process, ProcessFailedError, Troupe
from dipaco_swarm.demo.scene import Scene, actor_of, agreement_of, curve_of, events_at
from dipaco_swarm.demo.show import Show
from dipaco_swarm.errors import UsageError
from dipaco_swarm.events.training import Round, Steps
from dipaco_swarm.files import LOCK, locked
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.file import read_run_file

LOOPBACK = "--listen=/ip4/127.0.0.1/tcp/0"
COMMON = ("--until-finished", "--screen=plain")
MARK = ".dipaco-demo"
"""Says that a folder is a demo's, and may be replaced by the next one."""
LOOK_SECONDS = 0.4
DEADLINE_SECONDS = 1800.0
"""Ten times what it takes: a demo that hangs should say so."""


def run_demo(out: Path, run_file: str | None = None) -> int:
    """The whole story; 0 when all of it is there and the swarm's model is ahead of the dense one, else 1.

    `run_file`: the text of another run file than the packaged one; its stages must have a set number of rounds.
    Raises UsageError when `out` is something else than a demo's folder, and KeyboardInterrupt on Ctrl+C.
    """
    text = run_file or files("dipaco_swarm.demo").joinpath("run.toml").read_text(encoding="utf-8")
    with _folder(out) as folder:
        (folder / "run.toml").write_text(text, encoding="utf-8")
        config = read_run_file(folder / "run.toml")
        check_tables(config)
        show = Show(Console())
        try:
            show.title(folder, most_paths(config))
            started = time.time()
            _train(folder, config, show)
            return _conclude(folder, config, show, started)
        except ProcessFailedError as error:
            show.failure(str(error))
            return 1


# ------------------------------------------------------------------------------------------------------------ training


def _train(folder: Path, config: RunConfig, show: Show) -> None:
    """Bootstrap node, peers and dense baseline, each a process of its own, from beginning to end."""
    bootstrap, cache = folder / "bootstrap", folder / "cache"
    started = time.monotonic()
    with _stopping() as stop, Troupe(folder / "logs") as troupe, show.live() as audience:
        run_file = str(folder / "run.toml")
        serve = ["serve", run_file, f"--home={bootstrap}", LOOPBACK, *COMMON]
        cast = [
            troupe.start("bootstrap", "dipaco_swarm.cli.bootstrap", serve),
            troupe.start("dense", "dipaco_swarm.demo.dense", [str(bootstrap), str(cache), str(folder / "dense")]),
        ]
        address = bootstrap / "address.txt"
        imports = Thread(target=_import_what_comes_later, name="imports", daemon=True)
        while any(process.code is None for process in cast):
            if len(cast) == 2 and address.exists():
                common = [f"--run={address.read_text().strip()}", f"--cache={cache}", "--device=cpu", "--threads=1"]
                for path in range(most_paths(config)):
                    own = [f"--path={path}", f"--home={folder / f'peer-{path}'}", LOOPBACK, *COMMON]
                    cast.append(troupe.start(f"peer-{path}", "dipaco_swarm.cli.peer", [*common, *own]))
            scene = _scene(folder, config, cast, time.monotonic() - started)
            audience.show(scene)
            if scene.share > 0.8 and imports.ident is None:
                imports.start()
            if stop.wait(LOOK_SECONDS):
                raise KeyboardInterrupt
            troupe.check()
            if scene.seconds > DEADLINE_SECONDS:
                raise ProcessFailedError(f"it is not over after {duration(DEADLINE_SECONDS)}; see {folder / 'logs'}")
        audience.show(_scene(folder, config, cast, time.monotonic() - started))


def _scene(folder: Path, config: RunConfig, cast: Sequence[Process], seconds: float) -> Scene:
    """How things are now, from what the processes have written down."""
    return Scene(
        seconds=seconds,
        stages=len(config.stages),
        total_steps=config.steps_of(config.stages),
        actors=tuple(actor_of(p.name, p.code is not None, folder / p.name) for p in cast),
        agreement=agreement_of(_homes(folder, config)),
    )


def _homes(folder: Path, config: RunConfig) -> list[Path]:
    return [folder / f"peer-{path}" for path in range(most_paths(config))]


def _import_what_comes_later() -> None:
    """torch, transformers and matplotlib take seconds; meanwhile the peers train."""
    import dipaco_swarm.demo.chart
    import dipaco_swarm.demo.ending  # noqa: F401


@contextmanager
def _stopping() -> Iterator[Stopping]:
    """Ctrl+C, SIGTERM and a closed terminal end the demo, which ends all that it started, however often they come."""
    stop = Stopping()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: stop.request()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -------------------------------------------------------------------------------------------------------- what came out


def _conclude(folder: Path, config: RunConfig, show: Show, started: float) -> int:
    """Score, sample, export, draw, report."""
    from dipaco_swarm.demo import ending
    from dipaco_swarm.demo.chart import draw_chart
    from dipaco_swarm.demo.report import comparison_table, write_report

    trained = time.time()
    with show.working("scoring held-out documents, writing text, exporting a path"):
        story = ending.conclude(folder, config, _homes(folder, config))
        phases = phases_of(_homes(folder, config), started, trained)
        names = [f"path {path}" for path in range(len(story.shares))]
        curves = [curve_of(n, events_at(h)) for n, h in zip(names, story.homes, strict=True)]
        dense = curve_of("dense", events_at(folder / "dense"))
        draw_chart(folder / "curves.png", dense, curves, story.shares, story.comparison, story.caption)
        phases["evaluation, sample, export, chart"] = time.time() - trained
        write_report(folder, story, phases)
    show.result(story.ok, story.verdict, comparison_table(story.comparison), folder, sum(phases.values()))
    return 0 if story.ok else 1


def phases_of(homes: Sequence[Path], started: float, trained: float) -> dict[str, float]:
    """Seconds of each part of the run, from the times that the peers wrote down."""
    times: dict[int, list[float]] = {}
    for entry in (entry for home in homes for entry in read_metrics(metrics_file(home))):
        if isinstance(entry.event, Steps | Round):
            times.setdefault(entry.event.stage, []).append(entry.time)
    phases, before = {}, started
    for stage, at in sorted(times.items()):
        # steps are reported after they were made, which took as long as the next ones
        first, last = min(at), max(at)
        ready = "programs, tokenizer, reading documents" if stage == 0 else f"router and shards of stage {stage}"
        phases[ready] = first - before
        phases[f"stage {stage}"] = last - first
        before = last
    phases["end of training, goodbyes"] = trained - before
    return phases


# ----------------------------------------------------------------------------------------------------------- the folder


@contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """The demo's folder, empty and ours alone. Raises UsageError when it is somebody else's."""
    mark = out / MARK
    try:
        if out.exists() and not (out.is_dir() and (mark.exists() or not any(out.iterdir()))):
            raise UsageError(f"{out} exists and is not the folder of an earlier demo; choose another with --out")
        out.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise UsageError(f"{out} cannot be used: {error.strerror}; choose another with --out") from None

    def give_up() -> None:
        raise UsageError(f"another demo is running in {out}; choose another folder with --out")

    with locked(out, on_busy=give_up):
        for old in out.iterdir():
            if old.is_dir() and not old.is_symlink():
                shutil.rmtree(old)
            elif old.name not in (MARK, LOCK):
                old.unlink()
        yield out.resolve()
