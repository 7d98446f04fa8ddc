"""What several processes on one path are worth: one process against two, on the cores of this machine.

    python -m benchmarks.together [--quick] [--devices cpu,cpu] [--repetitions N]

The same parameters, batches and optimizer; `--device cpu` with the threads that torch takes, then with one thread, then
the devices that are asked for, which share the threads among them. Rows are taken in turns. Before anything is timed,
all must come to the same losses. Prints a table and writes it to benchmarks/results/together-HARDWARE.md.
"""

import argparse
import os
import re
import time
from dataclasses import dataclass, replace
from itertools import cycle
from statistics import median

import torch

from benchmarks.inner import INNER, RESULTS, Case, cases, hardware
from dipaco_swarm.cli.words import devices_choice
from dipaco_swarm.training.gradients import Gradients
from dipaco_swarm.training.helper import HelperSettings
from dipaco_swarm.training.inner import InnerTrainer, StepReport, TrainingSettings
from dipaco_swarm.training.together import Together

SEQUENCES = 8
CHECKED_STEPS = 3
HELPERS_SECONDS = 120.0


class Contender:
    """A trainer of one case, on some devices, each with so many threads."""

    def __init__(self, name: str, case: Case, devices: tuple[str, ...], threads: int) -> None:
        self.name, self.threads = name, threads
        self._case = case
        self._batches = cycle(case.batches())
        model = case.path_model()
        model.to(devices[0])
        settings = TrainingSettings(devices[0], threads)
        passes = settings.passes(case.sequences)
        ours = Gradients(model, passes)
        levels = tuple(model.levels)
        helper = HelperSettings(case.model, case.vocabulary, levels, passes, threads)
        self._together = Together(model, ours, helper, devices[1:]) if len(devices) > 1 else None
        config = INNER.model_copy(update={"batch_sequences": case.sequences})
        self._trainer = InnerTrainer(model, config, settings, self._together or ours)

    def begin(self) -> None:
        if self._together is not None and not self._together.await_helpers(HELPERS_SECONDS):
            raise SystemExit(f"{self.name}: the helpers did not come within {HELPERS_SECONDS:.0f} s")

    def train(self, steps: int) -> list[StepReport]:
        torch.set_num_threads(self.threads)
        reports: list[StepReport] = []
        self._trainer.train(self._batches, steps, on_step=reports.append)
        return reports

    def close(self) -> None:
        self._trainer.close()


@dataclass(frozen=True)
class Row:
    """Medians of one contender."""

    name: str
    wall_ms: float
    speed: float
    """As a multiple of the first row's."""
    loss: float
    """Of the last step that was checked."""


def measure(case: Case, devices: tuple[str, ...], repetitions: int) -> list[Row]:
    threads = torch.get_num_threads()
    contenders = [Contender(f"one process, {threads} threads", case, devices[:1], threads)]
    if threads > 1:
        contenders.append(Contender("one process, 1 thread", case, devices[:1], 1))
    each = max(1, threads // len(devices))
    shared = f"{len(devices)} processes, {each} {'thread' if each == 1 else 'threads'} each"
    contenders.append(Contender(shared, case, devices, each))
    try:
        checked = []
        for contender in contenders:
            contender.begin()
            checked.append([step.loss for step in contender.train(CHECKED_STEPS)])
        for losses in checked[1:]:
            if not torch.allclose(torch.tensor(losses), torch.tensor(checked[0]), rtol=1e-4):
                raise SystemExit(f"{case.name}: losses differ: {losses} and {checked[0]}")
        times: list[list[float]] = [[] for _ in contenders]
        for _ in range(repetitions):
            for contender, taken in zip(contenders, times, strict=True):
                began = time.perf_counter()
                contender.train(case.steps)
                taken.append((time.perf_counter() - began) / case.steps)
    finally:
        torch.set_num_threads(threads)
        for contender in contenders:
            contender.close()
    return [
        Row(
            contender.name,
            1000 * median(taken),
            median(first / own for first, own in zip(times[0], taken, strict=True)),
            losses[-1],
        )
        for contender, taken, losses in zip(contenders, times, checked, strict=True)
    ]


def report(measured: list[tuple[Case, list[Row]]], repetitions: int) -> str:
    lines = [
        "# Several processes on one path",
        "",
        f"{hardware()}; torch {torch.__version__}. Load of the machine meanwhile: {os.getloadavg()[0]:.1f}.",
        "",
        "| model | batch | devices | wall ms per step | speed | loss of step 3 |",
        "|---|---|---|---:|---:|---:|",
    ]
    for case, rows in measured:
        what = f"{case.name} | {case.sequences} x {case.sequence_length}"
        lines += [f"| {what} | {row.name} | {row.wall_ms:.1f} | {row.speed:.2f} | {row.loss:.6f} |" for row in rows]
    return "\n".join(
        [*lines, "", f"Medians of {repetitions}; speed as a multiple of the first row's, within each repetition.", ""]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.together", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="some seconds; prints and writes nothing")
    parser.add_argument("--devices", type=devices_choice, default=("cpu", "cpu"), help="default cpu,cpu")
    parser.add_argument("--repetitions", type=int, default=15, metavar="N", help="default 15")
    arguments = parser.parse_args()
    repetitions = 3 if arguments.quick else arguments.repetitions
    measured = []
    for case in cases(quick=arguments.quick):
        batched = replace(case, sequences=SEQUENCES, steps=max(1, case.steps // 2))
        measured.append((batched, measure(batched, arguments.devices, repetitions)))
    text = report(measured, repetitions)
    print(text)
    if not arguments.quick:
        slug = re.sub(r"[^a-z0-9]+", "-", f"{hardware()}-torch-{torch.__version__.split('+')[0]}".lower()).strip("-")
        (RESULTS / f"together-{slug}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
