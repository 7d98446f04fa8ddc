"""Answers of one machine that has all paths: in a loop, by `dipaco-swarm serve --home`, by `transformers serve`."""

import importlib.util
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import httpx
import torch

from benchmarks.serving.clients import ONE_THREAD, PROMPTS, START_SECONDS, SWARM, Door, process, row_of, served, warm_up
from benchmarks.serving.rows import DENSE, GENERATED, SERVED_HERE, TRANSFORMERS, Answer, Row
from benchmarks.serving.size import Size
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.gateway.asked import Asked
from dipaco_swarm.gateway.program import on_this_machine
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.simulate import simulate
from dipaco_swarm.training.inference import Sampling
from dipaco_swarm.training.modules import build_network
from dipaco_swarm.training.writing import Text, write

PORT = 8123


def trained(size: Size, folder: Path) -> Path:
    """A run that has ended, in the home of its bootstrap node."""
    simulate(parse_run_file(size.run_file(rounds=1, steps=2)), folder, {f"peer-{i}": i for i in range(2)})
    return folder / "bootstrap"


def in_a_loop(home: Path, size: Size) -> Iterator[Row]:
    """Tokens of each prompt's path, as `generate` writes them; and a dense model's, of random numbers: they take the
    same time."""
    torch.set_num_threads(1)
    with open_run(home) as run:
        gateway, config = on_this_machine(run), run.manifest.config
        ids = [gateway.ids_of(prompt) for prompt in PROMPTS]
        wider = {"hidden_size": 3 * size.hidden, "intermediate_size": 3 * size.wide}
        dense = build_network(config.model.model_copy(update=wider), gateway.vocabulary, 0).eval()
        yield _loop(
            GENERATED, size.answers[1], ids, lambda i: gateway.answer(Asked(i, Sampling(1.0, None), 7, size.tokens))
        )
        yield _loop(DENSE, 6, ids, lambda i: islice(write(dense, Text(dense, i, Sampling(1.0, None), 7)), size.tokens))


def _loop(
    way: str, answers: int, prompts: Sequence[tuple[int, ...]], answer: Callable[[tuple[int, ...]], Iterator[object]]
) -> Row:
    for prompt in prompts:
        next(answer(prompt))
    found = []
    for i in range(answers):
        begun = time.monotonic()
        count = len(list(answer(prompts[i % len(prompts)])))
        found.append(Answer(0.0, time.monotonic() - begun, count))
    return Row(way, 1, found, sum(each.seconds for each in found), streams=False)


def by_serve(home: Path, size: Size, folder: Path) -> Iterator[Row]:
    with served("serving", folder / "here.log", "--home", home) as door:
        warm_up(door)
        for clients, answers in size.answers.items():
            yield row_of(SERVED_HERE, door, clients, answers, size.tokens)


def lacking(extras: Path | None) -> str | None:
    """Why there can be no row of `transformers serve`; None: there can."""
    there = [
        (extras is not None and (extras / name).is_dir()) or importlib.util.find_spec(name) is not None
        for name in ("fastapi", "accelerate")
    ]
    if not all(there):
        return "`transformers serve` needs fastapi and accelerate, which are not here (see --extras): no row of it."
    return None


def by_transformers(home: Path, size: Size, folder: Path, extras: Path | None) -> Iterator[Row]:
    """A path behind `transformers serve`. `extras`: a folder with what that needs."""
    path = folder / "exported"
    export = [*SWARM, "export", "--home", str(home), "--path", "0", "--out", str(path)]
    subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
    words = [SWARM[0], "-m", "transformers.cli.transformers", "serve", "--port", str(PORT), "--device", "cpu"]
    there = {} if extras is None else {"PYTHONPATH": str(extras)}
    door = Door(f"http://127.0.0.1:{PORT}/v1", str(path))
    with process(words, folder / "transformers.log", {**ONE_THREAD, **there}) as running:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and running.poll() is None:
            with suppress(httpx.HTTPError):
                httpx.get(f"{door.url}/models", timeout=5)
                break
            time.sleep(0.5)
        warm_up(door)
        for clients, answers in size.answers.items():
            yield row_of(TRANSFORMERS, door, clients, answers, size.tokens)
