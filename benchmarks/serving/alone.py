"""Answers of one machine that has all paths: in a loop, by `dipaco-swarm serve --home`, by `transformers serve`."""

import importlib.util
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import httpx
import torch

from benchmarks.serving.clients import (
    ONE_THREAD,
    PROMPTS,
    START_SECONDS,
    SWARM,
    Door,
    in_turn,
    process,
    prompts,
    row_of,
    served,
    warm_up,
)
from benchmarks.serving.rows import DENSE, GENERATED, SERVED_HERE, TRANSFORMERS, Answer, Row
from benchmarks.serving.size import Size
from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.gateway.program import on_this_machine
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.simulate import simulate
from dipaco_swarm.training.inference import Sampling
from dipaco_swarm.training.modules import build_network
from dipaco_swarm.training.tokenizer import end_of_text_id
from dipaco_swarm.training.writing import Text, write

PORT = 8123
DENSE_ANSWERS = 4


def trained(size: Size, folder: Path) -> Path:
    """A run that has ended, in the home of its bootstrap node."""
    simulate(parse_run_file(size.run_file(rounds=1, steps=2)), folder, {f"peer-{i}": i for i in range(2)})
    return folder / "bootstrap"


class Loop:
    """Texts as `generate` writes them: each by one path, in a loop of this process, on one thread."""

    def __init__(self, run: TrainedRun, tokens: int) -> None:
        torch.set_num_threads(1)
        self._tokens = tokens
        self._gateway = on_this_machine(run)
        self._end_of_text = end_of_text_id(run.tokenizer)
        self._networks = [run.load(run.model(), PathIndex(path)).eval() for path in range(run.table.num_paths)]
        for prompt in PROMPTS:
            self(prompt, 0)

    def __call__(self, prompt: str, seed: int) -> Answer:
        begun = time.monotonic()
        ids = self._gateway.ids_of(prompt)
        network = self._networks[self._gateway.path_of(ids)]
        text = Text(network, ids, Sampling(1.0, None), seed, end_of_text=self._end_of_text)
        count = len(list(islice(write(network, text), self._tokens)))
        return Answer(0.0, time.monotonic() - begun, count)


def rows(home: Path, size: Size) -> Iterator[Row]:
    """By a loop over each prompt's path; by one over a dense model of random numbers, which take the same time; and by
    `serve`, in turn with the first loop."""
    with open_run(home) as run:
        loop = Loop(run, size.tokens)
        found = [loop(prompt, seed) for seed, prompt in enumerate(prompts(size.answers[1]))]
        yield Row(GENERATED, 1, found, sum(each.seconds for each in found), streams=False)
        found = list(_of_a_dense_model(run, size))
        yield Row(DENSE, 1, found, sum(each.seconds for each in found), streams=False)
        with served("serving", home.parent / "here.log", "--home", home) as door:
            warm_up(door)
            for clients, answers in size.answers.items():
                if clients == 1:
                    yield in_turn(SERVED_HERE, door, answers, size.tokens, loop)
                else:
                    yield row_of(SERVED_HERE, door, clients, answers, size.tokens)


def _of_a_dense_model(run: TrainedRun, size: Size) -> Iterator[Answer]:
    config, gateway = run.manifest.config, on_this_machine(run)
    wider = {"hidden_size": 3 * size.hidden, "intermediate_size": 3 * size.wide}
    dense = build_network(config.model.model_copy(update=wider), gateway.vocabulary, 0).eval()
    ids = gateway.ids_of(PROMPTS[0])
    for seed in range(DENSE_ANSWERS):
        begun = time.monotonic()
        count = len(list(islice(write(dense, Text(dense, ids, Sampling(1.0, None), seed)), size.tokens)))
        yield Answer(0.0, time.monotonic() - begun, count)


def lacking(extras: Path | None) -> str | None:
    """Why there can be no row of `transformers serve`; None: there can."""
    there = [
        (extras is not None and (extras / name).is_dir()) or importlib.util.find_spec(name) is not None
        for name in ("fastapi", "accelerate")
    ]
    if not all(there):
        return "`transformers serve` needs fastapi and accelerate, which are not here (see --extras): no row of it."
    return None


def by_transformers(home: Path, size: Size, extras: Path | None) -> Iterator[Row]:
    """A path behind `transformers serve`. `extras`: a folder with what that needs."""
    path = home.parent / "exported"
    export = [*SWARM, "export", "--home", str(home), "--path", "0", "--out", str(path)]
    subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
    words = [SWARM[0], "-m", "transformers.cli.transformers", "serve", "--port", str(PORT), "--device", "cpu"]
    there = {} if extras is None else {"PYTHONPATH": str(extras)}
    door = Door(f"http://127.0.0.1:{PORT}/v1", str(path))
    with process(words, home.parent / "transformers.log", {**ONE_THREAD, **there}) as running:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and running.poll() is None:
            with suppress(httpx.HTTPError):
                httpx.get(f"{door.url}/models", timeout=5)
                break
            time.sleep(0.5)
        warm_up(door)
        for clients, answers in size.answers.items():
            yield row_of(TRANSFORMERS, door, clients, answers, size.tokens)
