"""What the inner loop costs: `InnerTrainer.train` against a bare torch loop on the same model.

    python -m benchmarks.inner [--quick] [--threads N] [--compile] [--device cuda]

Same parameters to begin with, same batches, same fused AdamW, in one process and in turns: bare, bare again (which is
the noise floor), ours; the order is drawn anew in every repetition. `InnerTrainer` tells glibc to keep freed memory,
for the whole process, so the bare loops here have that too; `bare-libc` is the bare loop in a process of its own where
nobody told glibc anything. Before anything is timed, bare and ours must come to the same parameters. The rows of
options are ours with what a volunteer may choose.

On a GPU it is a path of the paper's size, and bare is what anybody would write there: bf16 activations under autocast.

Prints a table of medians and writes it to benchmarks/results/inner-HARDWARE.md.
"""

import argparse
import ctypes
import multiprocessing
import os
import platform
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dipaco_swarm.run.config import InnerConfig, LevelConfig, ModelConfig
from dipaco_swarm.run.file import read_run_file
from dipaco_swarm.training.inner import InnerTrainer, TrainingSettings
from dipaco_swarm.training.modules import PathModel, build_network

RESULTS = Path(__file__).parent / "results"
RUNS = Path(__file__).parents[1] / "bootstrap" / "runs"
AIM = 0.98
"""The inner loop is to be within 2 % of a bare one."""
INNER = InnerConfig(learning_rate=1e-3, warmup_steps=0, final_learning_rate_ratio=1.0, weight_decay=0.0)
"""A constant learning rate and no decay, so that a bare AdamW with one parameter group computes the same."""
OURS = TrainingSettings("cpu")
CHOICES = {
    "--dtype bf16": replace(OURS, autocast=True),
    "--moments 8-bit": replace(OURS, eight_bit=True),
    "--recompute yes": replace(OURS, recompute=True),
}
"""What a volunteer may choose: the same steps, computed otherwise."""
OURS_ON_A_GPU = TrainingSettings("cuda", autocast=True, eight_bit=False)
CHOICES_ON_A_GPU = {
    "as it comes": TrainingSettings("cuda"),
    "--dtype fp32": replace(OURS_ON_A_GPU, autocast=False),
    "--recompute yes": replace(OURS_ON_A_GPU, recompute=True),
}
"""The first is with 8-bit moments, which bare has not."""
SEED = 0
BATCHES = 8


@dataclass(frozen=True)
class Case:
    """A model and the batch it is trained with."""

    name: str
    model: ModelConfig
    vocabulary: int
    sequences: int
    sequence_length: int
    steps: int
    """Inner steps in one timed turn: a second or so."""

    def path_model(self) -> PathModel:
        blocks = tuple(range(self.model.num_hidden_layers or 0))
        network = build_network(self.model, self.vocabulary, SEED)
        return PathModel(network, (LevelConfig(blocks=blocks, embedding=True, head=True),))

    def batches(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        shape = (self.sequences, self.sequence_length)
        return [torch.randint(0, self.vocabulary, shape, generator=generator) for _ in range(BATCHES)]


def cases(*, quick: bool, device: str = "cpu") -> list[Case]:
    """The path of the demo, and one of ten million parameters; both Llama, in fp32 on the CPU. On a GPU the path of the
    paper (table 4), with eight sequences and with so many as fill the device better.
    """
    if device != "cpu":
        paper = read_run_file(RUNS / "paper-16x16.toml").model
        return [Case("paper", paper, 32_000, sequences, 1024, 3 if quick else 5) for sequences in (8, 32)]
    demo = read_run_file(RUNS / "demo-2x2.toml").model
    larger = ModelConfig(
        hidden_size=320,
        intermediate_size=864,
        num_hidden_layers=6,
        num_attention_heads=5,
        max_position_embeddings=256,
    )
    return [
        Case("demo", demo, 2048, 4, 256, 2 if quick else 10),
        Case("10M", larger, 4096, 1 if quick else 2, 256, 1 if quick else 2),
    ]


# -------------------------------------------------------------------------------------------------------- contenders


@dataclass(frozen=True)
class Cost:
    """Seconds of one turn."""

    cpu: float
    wall: float


Turn = Callable[[int], Cost]
"""Takes that many inner steps."""


class BareLoop:
    """What anybody would write who has one model, one machine and no swarm."""

    def __init__(self, case: Case, device: str = "cpu") -> None:
        self.model = case.path_model()
        self.model.network.to(device)
        self._device = device
        self._batches = cycle(case.batches())
        self._optimizer = torch.optim.AdamW(
            self.model.network.parameters(),
            lr=INNER.learning_rate,
            betas=(INNER.beta1, INNER.beta2),
            weight_decay=INNER.weight_decay,
            fused=True,
        )

    def train(self, steps: int) -> None:
        network, optimizer = self.model.network, self._optimizer
        network.train()
        for _ in range(steps):
            tokens = next(self._batches).to(self._device)
            # shifting the targets instead of the logits saves a copy of the largest tensor; ours does so too
            targets = F.pad(tokens[:, 1:], (0, 1), value=-100)
            with torch.autocast(self._device, torch.bfloat16, enabled=self._device != "cpu"):
                logits = network(input_ids=tokens, use_cache=False).logits
            loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), INNER.gradient_clip)
            optimizer.step()
            optimizer.zero_grad()


class OurLoop:
    """The same through `InnerTrainer`, called as an outer round calls it."""

    def __init__(self, case: Case, settings: TrainingSettings = OURS) -> None:
        self.model = case.path_model()
        self.model.network.to(settings.device)
        self.on_gpu = settings.device != "cpu"
        self._batches = cycle(case.batches())
        config = INNER.model_copy(update={"batch_sequences": case.sequences})
        self._trainer = InnerTrainer(self.model, config, settings)

    def train(self, steps: int) -> None:
        self._trainer.train(self._batches, steps, stop=lambda: False, on_step=lambda report: None)


def timed(train: Callable[[int], None]) -> Turn:
    def turn(steps: int) -> Cost:
        cpu, wall = time.process_time(), time.perf_counter()
        train(steps)
        if on_gpu():
            torch.cuda.synchronize()
        return Cost(time.process_time() - cpu, time.perf_counter() - wall)

    return turn


@contextmanager
def elsewhere(case: Case, threads: int) -> Iterator[Turn]:
    """The bare loop in a fresh process, which glibc treats as it treats any."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_bare, args=(theirs, case, threads))
    process.start()

    def turn(steps: int) -> Cost:
        ours.send(steps)
        cost: Cost = ours.recv()
        return cost

    try:
        yield turn
    finally:
        ours.send(0)
        process.join()


def _serve_bare(pipe: Connection, case: Case, threads: int) -> None:
    torch.set_num_threads(threads)
    turn = timed(BareLoop(case).train)
    while steps := pipe.recv():
        pipe.send(turn(steps))


def keep_freed_memory() -> None:
    """What `InnerTrainer` does to the process, before the first bare step."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 32 << 20)
        libc.mallopt(-1, 512 << 20)


# ---------------------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Row:
    """Medians of one contender."""

    name: str
    cpu_ms: float
    wall_ms: float
    cpu_speed: float
    """Speed as a multiple of the bare loop's, by CPU time: median over the repetitions of bare / this."""
    wall_speed: float


@dataclass(frozen=True)
class Outcome:
    """One case, measured."""

    case: Case
    parameters: int
    difference: float
    """Largest difference between a parameter of bare and of ours after the steps before the timing."""
    repetitions: int
    rows: tuple[Row, ...]


def measure(
    case: Case, repetitions: int, threads: int, ours_as: TrainingSettings, choices: Mapping[str, TrainingSettings]
) -> Outcome:
    """On the device of `ours_as`. Where that is a GPU, no CPU's memory is part of it."""
    bare, again, ours = BareLoop(case, ours_as.device), BareLoop(case, ours_as.device), OurLoop(case, ours_as)
    others = {name: OurLoop(case, settings) for name, settings in choices.items()}
    difference = _begin(case, bare, ours, [again, *others.values()])
    turns = {"bare": timed(bare.train), "bare again": timed(again.train), "ours": timed(ours.train)}
    turns |= {name: timed(loop.train) for name, loop in others.items()}
    with ExitStack() as until_measured:
        if not ours.on_gpu:
            turns["bare-libc"] = until_measured.enter_context(elsewhere(case, threads))
            turns["bare-libc"](3)
        return _in_turns(case, ours.model, difference, repetitions, turns)


def _begin(case: Case, bare: BareLoop, ours: OurLoop, others: Sequence[BareLoop | OurLoop]) -> float:
    """Three steps of all; how far bare and ours are apart then. Raises SystemExit where that is no rounding."""
    for loop in (bare, ours, *others):
        loop.train(3)
    apart = (bare.model.vector(0) - ours.model.vector(0)).abs()
    # AdamW's first steps are of the same length for gradients that are almost nothing, whose signs are bf16's rounding
    difference, allowed = (float(apart.mean()), 5e-4) if ours.on_gpu else (float(apart.max()), 1e-4)
    if difference > allowed:
        raise SystemExit(f"{case.name}: bare and ours compute different things: parameters differ by {difference:.1e}")
    return difference


def _in_turns(case: Case, model: PathModel, difference: float, repetitions: int, turns: Mapping[str, Turn]) -> Outcome:
    costs: dict[str, list[Cost]] = {name: [] for name in turns}
    draw = random.Random(SEED)
    for _ in range(repetitions):
        for name in draw.sample(list(turns), len(turns)):
            costs[name].append(turns[name](case.steps))
    return Outcome(
        case,
        sum(parameter.numel() for parameter in model.network.parameters()),
        difference,
        repetitions,
        tuple(row(name, costs[name], costs["bare"], case.steps) for name in turns),
    )


def row(name: str, costs: list[Cost], bare: list[Cost], steps: int) -> Row:
    return Row(
        name,
        1000 * median(cost.cpu for cost in costs) / steps,
        1000 * median(cost.wall for cost in costs) / steps,
        median(b.cpu / c.cpu for b, c in zip(bare, costs, strict=True)),
        median(b.wall / c.wall for b, c in zip(bare, costs, strict=True)),
    )


# ---------------------------------------------------------------------------------------------------------- reporting


def report(outcomes: list[Outcome], threads: int) -> str:
    lines = [
        "# The inner loop against a bare torch loop",
        "",
        f"{hardware()}; torch {torch.__version__}, {threads} {'thread' if threads == 1 else 'threads'}.",
        f"Medians; speed as a multiple of `bare`, taken within each repetition. Aim: ours >= {AIM}.",
        "",
        "| model | parameters | batch | loop | CPU ms per step | wall ms per step | speed by CPU | speed by wall |",
        "|---|---:|---|---|---:|---:|---:|---:|",
    ]
    for outcome in outcomes:
        case = outcome.case
        what = f"{case.name} | {outcome.parameters:,} | {case.sequences} x {case.sequence_length}"
        lines += [
            f"| {what} | {r.name} | {r.cpu_ms:.1f} | {r.wall_ms:.1f} | {r.cpu_speed:.3f} | {r.wall_speed:.3f} |"
            for r in outcome.rows
        ]
    times = ", ".join(f"{o.case.name} {o.repetitions} x {o.case.steps} steps" for o in outcomes)
    most = max(o.difference for o in outcomes)
    lines += [
        "",
        f"Repetitions: {times}. `bare again` is a second copy of `bare`: its distance from 1 is",
        "the noise of this measurement; on a machine that does other things too, believe the CPU columns.",
    ]
    if on_gpu():
        lines += [
            "`bare` is bf16 under autocast with fused AdamW of 32-bit moments; `ours` is that through `InnerTrainer`,",
            "and `as it comes` what a volunteer has who says nothing: with bitsandbytes' 8-bit moments.",
            f"After 3 steps the parameters of bare and ours differ by {most:.1e} in the mean.",
        ]
    else:
        lines += [
            "`bare-libc` is `bare` in a process where glibc was not told to keep freed memory.",
            f"After 3 steps the parameters of bare and ours differ by {most:.1e} at most.",
        ]
    return "\n".join([*lines, ""])


def on_gpu() -> bool:
    """Whether this process has used one."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def hardware() -> str:
    """The CPU as its maker calls it, and how many cores we may use; the GPU, where one was used."""
    if on_gpu():
        return torch.cuda.get_device_name()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    except OSError:
        found = None
    name = found[1].strip() if found else platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} {'core' if cores == 1 else 'cores'}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inner", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; prints and writes nothing")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch (default 1, the least noisy)")
    parser.add_argument("--compile", action="store_true", help="with a row for it, which takes minutes to begin")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    repetitions = 3 if arguments.quick else 25 if arguments.device == "cpu" else 5
    wanted = cases(quick=arguments.quick, device=arguments.device)
    ours_as, choices = (OURS, CHOICES) if arguments.device == "cpu" else (OURS_ON_A_GPU, CHOICES_ON_A_GPU)
    if arguments.compile:
        choices = {**choices, "--compile": replace(ours_as, compiled=True)}
    outcomes = [measure(case, repetitions, arguments.threads, ours_as, choices) for case in wanted]
    text = report(outcomes, arguments.threads)
    print(text)
    if not arguments.quick:
        RESULTS.mkdir(exist_ok=True)
        slug = re.sub(r"[^a-z0-9]+", "-", f"{hardware()}-torch-{torch.__version__.split('+')[0]}".lower()).strip("-")
        (RESULTS / f"inner-{slug}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
