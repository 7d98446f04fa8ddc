"""What a run answers: tokens a second and the time to the first token, at the same time for 1, 4 and 16 clients.

    python -m benchmarks.serving [--quick] [--clients 1 4 16] [--hidden 256] [--tokens 64]

Three ways, all on this machine and with the same prompts. "generate": the path in a loop of one process, as
`dipaco-swarm generate` does. "serve, here": `dipaco-swarm serve --home`, which has all paths itself. "serve, peers": a
bootstrap node and four peers, one for each path, and `dipaco-swarm serve --run`, which asks them; they train by
sleeping, so that four peers on a few cores are as if each had its own machine. "dense": a loop over one model with nine
times the parameters, which is what paths match in the paper (256 of 150 M, one of 1.3 B). "transformers serve": an
exported path behind transformers' own server, where that has its extra packages.

Last, one peer that really trains, alone and while four clients ask it without a break: at first it gives at once what
it has saved up, then its share of the time; what it does not answer, the gateway does. `--quick`: 1 and 4 clients,
fewer answers, five minutes. Exit code 1 when an aim is missed (see `missed`). Prints tables and writes them to
benchmarks/results/serving-HARDWARE.md.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import httpx

from benchmarks.chaos import crew as crews
from benchmarks.chaos.crew import Crew, Here
from benchmarks.chaos.story import Story, Verdict
from benchmarks.reduce import hardware
from benchmarks.utilisation import compute_by_sleeping, to_stderr
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.events.training import Round
from dipaco_swarm.events.usage import Usage
from dipaco_swarm.run.file import parse_run_file

RESULTS = Path(__file__).parent / "results"
PROMPTS = ("def main(", "Permission is hereby granted", "#include <stdio.h>\nint", "x", "class A:", "import os\n")
LOCAL_AIM, FIRST_AIM, SLOWER_AIM = 0.9, 0.3, 0.05
"""Tokens a second of one client to those of a loop; seconds to the first token; share of training that answers cost."""
DENSE_TIMES = 9
READY_SECONDS = 240.0

RUN_FILE = """\
name = "serving"
min_peers = 1

[model]
hidden_size = {hidden}
intermediate_size = {wide}
num_hidden_layers = 8
num_attention_heads = 4
max_position_embeddings = 512

[[levels]]
blocks = [0, 1, 2, 3]
embedding = true

[[levels]]
blocks = [4, 5, 6, 7]
head = true

[tokenizer]
vocab_size = 4096

[data]
source = "python"
max_documents = 400
sequence_length = 128
routing_sample = 0.2

[inner]
warmup_steps = 5
schedule_steps = 1000
batch_sequences = 4

[rounds]
pacing = "paced"
inner_steps = {steps}

[[stages]]
router = "product-k-means"
modules = [2, 2]
rounds = {rounds}
"""


@dataclass(frozen=True)
class Answer:
    """What one client saw of one answer."""

    first: float
    """Seconds from the question to the first token."""
    seconds: float
    tokens: int


@dataclass(frozen=True)
class Row:
    way: str
    clients: int
    tokens_a_second: float
    """Of all clients together."""
    first: Sequence[float]
    lost: int

    @property
    def line(self) -> str:
        if not self.first:
            return f"| {self.way} | {self.clients} | {self.tokens_a_second:,.0f} | - | - | - |"
        ordered = sorted(self.first)
        late = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        return (
            f"| {self.way} | {self.clients} | {self.tokens_a_second:,.0f} | {statistics.median(ordered):.2f} "
            f"| {late:.2f} | {self.lost} |"
        )


HEAD = "| way | clients | tokens/s | s to the first token, median | 95 % within | lost |\n|---|---|---|---|---|---|"


def missed(rows: Sequence[Row], slower: float) -> list[str]:
    """Aims that these rows do not meet, in words."""
    speed = {(row.way, row.clients): row.tokens_a_second for row in rows}
    found = [f"{row.way}, {row.clients} clients: {row.lost} answers lost" for row in rows if row.lost]
    here, local = speed[SERVED_HERE, 1], speed[GENERATED, 1]
    if here < LOCAL_AIM * local:
        found.append(f"one client has {here / local:.0%} of a loop's tokens a second, aim {LOCAL_AIM:.0%}")
    for row in rows:
        if row.way == SERVED_BY_PEERS and row.clients == 1 and statistics.median(row.first) > FIRST_AIM:
            found.append(f"the first token comes after {statistics.median(row.first):.2f} s, aim {FIRST_AIM} s")
    if slower > SLOWER_AIM:
        found.append(f"answers cost {slower:.1%} of training, aim {SLOWER_AIM:.0%}")
    return found


GENERATED, SERVED_HERE, SERVED_BY_PEERS = "generate", "serve, here", "serve, peers"
DENSE, TRANSFORMERS = f"a dense model, {DENSE_TIMES} x the parameters", "transformers serve, one path"


# -------------------------------------------------------------------------------------------------------------- asking


def ask(url: str, model: str, prompt: str, tokens: int, seed: int) -> Answer | None:
    """One streamed answer; None: it did not come whole."""
    how = {"model": model, "prompt": prompt, "max_tokens": tokens, "seed": seed, "stream": True, "temperature": 1.0}
    first, count, begun, reason = None, 0, time.monotonic(), None
    with httpx.stream("POST", f"{url}/completions", json=how, timeout=120) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            part = json.loads(line.removeprefix("data: "))
            for choice in part.get("choices", ()):
                reason = choice.get("finish_reason") or reason
                if choice.get("text") and first is None:
                    first = time.monotonic() - begun
            if part.get("usage"):
                count = part["usage"]["completion_tokens"]
            else:
                count += bool(part.get("choices"))
    if first is None or reason not in ("length", "stop"):
        return None
    return Answer(first, time.monotonic() - begun, count)


def row_of(way: str, url: str, model: str, clients: int, answers: int, tokens: int) -> Row:
    """So many answers for each client, all clients at once, after one for each prompt to warm up."""
    for prompt in PROMPTS:
        ask(url, model, prompt, 4, 0)

    def client(number: int) -> list[Answer | None]:
        prompts = [PROMPTS[(number + i) % len(PROMPTS)] for i in range(answers)]
        return [ask(url, model, prompt, tokens, 100 * number + i) for i, prompt in enumerate(prompts)]

    begun = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        found = [answer for of in pool.map(client, range(clients)) for answer in of]
    seconds, whole = time.monotonic() - begun, [answer for answer in found if answer is not None]
    rate = sum(answer.tokens for answer in whole) / seconds
    return Row(way, clients, rate, [answer.first for answer in whole], len(found) - len(whole))


@contextlib.contextmanager
def served(*command: object) -> Iterator[str]:
    """The address of a server of ours, while it runs."""
    words = [sys.executable, "-c", "from dipaco_swarm.cli.swarm import main; main()", "serve", *map(str, command)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*words, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        said = []
        for line in server.stdout:
            said.append(line)
            if found := re.search(r"http://\S+/v1", line):
                break
        else:
            raise RuntimeError(f"dipaco-swarm serve ended with {server.wait()}: {''.join(said)}")
        try:
            yield found[0]
        finally:
            server.terminate()


# ---------------------------------------------------------------------------------------------------------------- ways


def generated(home: Path, hidden: int, wide: int, answers: int, tokens: int) -> Iterator[Row]:
    """The same texts by a loop in this process; and a dense model's, of random numbers: they take the same time."""
    import torch

    from dipaco_swarm.gateway.asked import Asked
    from dipaco_swarm.gateway.program import on_this_machine
    from dipaco_swarm.training.inference import Sampling
    from dipaco_swarm.training.modules import build_network
    from dipaco_swarm.training.writing import write

    torch.set_num_threads(1)
    with open_run(home) as run:
        gateway, config = on_this_machine(run), run.manifest.config
        ids = [gateway.ids_of(prompt) for prompt in PROMPTS]
        larger = config.model.model_copy(update={"hidden_size": 3 * hidden, "intermediate_size": 3 * wide})
        dense = build_network(larger, gateway.vocabulary, 0).eval()

        def by_path(prompt: Sequence[int]) -> int:
            return len(list(gateway.answer(Asked(tuple(prompt), Sampling(1.0), 7, tokens))))

        def by_dense(prompt: Sequence[int]) -> int:
            return len(list(islice(write(dense, tuple(prompt), Sampling(1.0), 7), tokens)))

        for way, answer in ((GENERATED, by_path), (DENSE, by_dense)):
            for prompt in ids:
                answer(prompt)
            rates = []
            for i in range(answers):
                begun = time.monotonic()
                rates.append(answer(ids[i % len(ids)]) / (time.monotonic() - begun))
            yield Row(way, 1, statistics.median(rates), (), 0)


def by_transformers(home: Path, folder: Path, clients: Sequence[int], answers: int, tokens: int) -> Iterator[Row]:
    """A path behind `transformers serve`, if that has what it needs."""
    if importlib.util.find_spec("fastapi") is None:
        print("transformers serve needs fastapi, which is not installed here: no row of it", file=sys.stderr)
        return
    path = folder / "exported"
    swarm = [sys.executable, "-c", "from dipaco_swarm.cli.swarm import main; main()"]
    subprocess.run(
        [*swarm, "export", "--home", home, "--path", "0", "--out", path], check=True, stdout=subprocess.DEVNULL
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--port", "8123", "--device", "cpu"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        url, deadline = "http://127.0.0.1:8123/v1", time.monotonic() + READY_SECONDS
        try:
            while time.monotonic() < deadline and server.poll() is None:
                with contextlib.suppress(httpx.HTTPError):
                    httpx.get(f"{url}/models", timeout=5)
                    break
                time.sleep(0.5)
            for count in clients:
                yield row_of(TRANSFORMERS, url, str(path), count, answers, tokens)
        finally:
            server.terminate()


def by_peers(folder: Path, text: str, clients: Sequence[int], answers: int, tokens: int) -> Iterator[Row]:
    """Four peers, whose training takes none of this machine's time, and a gateway."""
    with swarm_of(folder, text, 4, sleeps=True) as story, served("--run", story.address) as url:
        for count in clients:
            yield row_of(SERVED_BY_PEERS, url, "serving", count, answers, tokens)


def training_beside(folder: Path, text: str, seconds: float, tokens: int) -> tuple[float, float, float]:
    """Tokens a second that a peer trains on while nobody asks it, when four clients begin to, and when they go on: what
    it may give at once is gone then."""
    with swarm_of(folder, text, 1, sleeps=False) as story, served("--run", story.address) as url:
        (peer,) = story.peers

        def heard() -> Usage:
            return peer.reported(Usage)[-1]

        def rate() -> float:
            begin = heard()
            most = seconds + READY_SECONDS
            story.until(lambda: heard().seconds >= begin.seconds + seconds, "the peer goes on training", most)
            end = heard()
            return (end.tokens - begin.tokens) / (end.seconds - begin.seconds)

        story.until(lambda: bool(peer.reported(Usage)), "the peer says what it has trained", READY_SECONDS)
        before = rate()
        over = threading.Event()

        def client(number: int) -> None:
            while not over.is_set():
                ask(url, "serving", PROMPTS[number], tokens, number)

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(client, number) for number in range(4)]
            try:
                at_first, later = rate(), rate()
            finally:
                over.set()
        for each in asking:
            each.result()
        after = rate()
    return (before + after) / 2, at_first, later


@contextlib.contextmanager
def swarm_of(folder: Path, text: str, peers: int, *, sleeps: bool) -> Iterator[Story]:
    """A run with a peer on each of so many paths, which has made a round. `sleeps`: inner steps take no computing."""
    folder.mkdir()
    crews.prepare()
    with Crew(folder) as crew:
        story = Story(Here, crew, parse_run_file(text), 0, folder / "cache", Verdict(), to_stderr)
        story.bootstrap(until_finished=False)
        story.prelude = partial(compute_by_sleeping, 0.2) if sleeps else None
        for path in range(peers):
            story.peer(f"peer-{path}", path)
        story.until(lambda: all(peer.reported(Round) for peer in story.peers), "everybody makes a round", READY_SECONDS)
        yield story


def trained(folder: Path, text: str) -> Path:
    """A run that has ended, in the home of its bootstrap node."""
    from dipaco_swarm.simulate import simulate

    simulate(parse_run_file(text), folder, {f"peer-{i}": i for i in range(4)})
    return folder / "bootstrap"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--hidden", type=int, default=256, help="width of the eight blocks; 256: 10 M parameters")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--answers", type=int, default=12, help="of each client")
    parser.add_argument("--seconds", type=float, default=120.0, help="training is looked at for so long, four times")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    if options.quick:
        options.clients, options.answers, options.seconds = [1, 4], 6, 40.0
    sizes = {"hidden": options.hidden, "wide": options.hidden * 11 // 4}
    asks = (options.clients, options.answers, options.tokens)
    rows: list[Row] = []

    def note(found: Iterator[Row]) -> None:
        for row in found:
            rows.append(row)
            print(row.line, flush=True)

    print(HEAD)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home = trained(folder / "run", RUN_FILE.format(steps=2, rounds=1, **sizes))
        note(generated(home, sizes["hidden"], sizes["wide"], options.answers, options.tokens))
        with served("--home", home) as url:
            note(row_of(SERVED_HERE, url, "serving", *ask_of) for ask_of in each_count(*asks))
        note(by_transformers(home, folder, *asks))
        live = RUN_FILE.format(steps=20, rounds=100_000, **sizes)
        note(by_peers(folder / "live", live, *asks))
        alone, at_first, later = training_beside(folder / "training", live, options.seconds, options.tokens)
    slower = 1 - later / alone
    training = (
        f"A peer trains on {alone:,.0f} tokens/s; on {at_first:,.0f} in the first {options.seconds:.0f} s in which "
        f"four clients ask it without a break, and on {later:,.0f} in the next, {slower:.1%} less."
    )
    print(training)
    problems = missed(rows, slower)
    RESULTS.mkdir(exist_ok=True)
    title = f"# Answers of {options.tokens} tokens, paths of 8 blocks of width {options.hidden}\n\n"
    title += f"`{__spec__.name}`, {hardware()}"
    text = "\n".join((HEAD, *(row.line for row in rows)))
    (RESULTS / f"serving-{hardware()}.md").write_text(f"{title}\n\n{text}\n\n{training}\n")
    print(*problems, sep="\n")
    sys.exit(1 if problems else 0)


def each_count(clients: Sequence[int], answers: int, tokens: int) -> Iterator[tuple[int, int, int]]:
    """What each row is asked."""
    return ((count, answers, tokens) for count in clients)


if __name__ == "__main__":
    main()
