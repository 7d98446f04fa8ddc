"""Programs that answer, and clients that ask them: on this machine, or in hosts of the network laboratory."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.chaos.crew import Place, enter
from benchmarks.chaos.lab import NAMESPACES
from benchmarks.serving.rows import Answer, Row

SWARM = [sys.executable, "-c", "from dipaco_swarm.cli.swarm import main; main()"]
PROMPTS = (
    "def main(",
    "Permission is hereby granted",
    "#include <stdio.h>\nint",
    "class A:\n    def __init__(self, name: str, size: int = 10, *, strict: bool = False) -> None:\n"
    '        """What is kept of a file: its name, and how many of its lines were read before it was closed."""\n',
    "import os\nimport sys\nfrom pathlib import Path\n\nROOT = Path(__file__).parent\n\n\ndef read(name: str) -> str:\n"
    "    with open(ROOT / name, encoding='utf-8') as file:\n        return file.read()\n\n\nfor name in sys.argv:\n",
    "x",
)
"""Short ones, and such as have more tokens than the router reads."""
HERE = "this gateway"
"""As a gateway calls itself as a writer."""
START_SECONDS, ANSWER_SECONDS = 240.0, 120.0
ONE_THREAD: Mapping[str, str] = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Door:
    """A server that speaks as OpenAI's."""

    url: str
    model: str
    namespace: str | None = None
    """Where it can be reached; None: on this machine."""
    log: Path | None = None

    def enter(self) -> None:
        """Put this thread where the door is."""
        if self.namespace is not None:
            enter(NAMESPACES / self.namespace)

    def said(self) -> str:
        """What its program has printed."""
        return "" if self.log is None else self.log.read_text()

    def body(self, prompt: str, tokens: int, seed: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "seed": seed,
            "stream": True,
            "temperature": 1.0,
        }


@dataclass
class Heard:
    """What has come of one answer."""

    text: str = ""
    tokens: int = 0
    by: tuple[str, ...] = ()
    reason: str | None = None
    first: float | None = None


def stream(door: Door, body: Mapping[str, Any]) -> Iterator[Heard]:
    """An answer as it grows: after every event of a stream. It is whole when there is a `reason` at the end."""
    heard, begun = Heard(), time.monotonic()
    url = f"{door.url}/completions"
    # verify: certificates of an address without https would take 20 ms to read, of each answer
    with httpx.stream("POST", url, json=dict(body), timeout=ANSWER_SECONDS, verify=False) as events:
        for line in events.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            for choice in event.get("choices", ()):
                heard.tokens += 1
                heard.text += choice.get("text") or ""
                heard.reason = choice.get("finish_reason") or heard.reason
                if choice.get("text") and heard.first is None:
                    heard.first = time.monotonic() - begun
                if (writer := choice.get("written_by")) is not None:
                    heard.by = (*heard.by, "" if writer["by"] == HERE else writer["by"])
            yield heard


def ask(door: Door, prompt: str, tokens: int, seed: int) -> Answer | None:
    """One answer; None: it did not come whole."""
    begun, heard = time.monotonic(), Heard()
    with contextlib.suppress(httpx.HTTPError):
        for heard in stream(door, door.body(prompt, tokens, seed)):  # noqa: B007  # the last one is wanted
            pass
    if heard.first is None or heard.reason not in ("length", "stop"):
        return None
    # some tokens are half a character, and come with the next; a text seldom ends before it is full
    return Answer(heard.first, time.monotonic() - begun, tokens if heard.reason == "length" else heard.tokens, heard.by)


def row_of(way: str, door: Door, clients: int, answers: int, tokens: int, line: str = "no delay") -> Row:
    """`answers` in all, by so many clients at once, each its next when it has the one before."""
    each = -(-answers // clients)

    def client(number: int) -> list[Answer | None]:
        return [ask(door, prompt, tokens, 100 * number + i) for i, prompt in enumerate(prompts(each, number))]

    with ThreadPoolExecutor(clients, initializer=door.enter) as pool:
        begun = time.monotonic()
        found = [answer for of in pool.map(client, range(clients)) for answer in of]
        seconds = time.monotonic() - begun
    whole = [answer for answer in found if answer is not None]
    return Row(way, clients, whole, seconds, len(found) - len(whole), line)


def prompts(count: int, first: int = 0) -> list[str]:
    """What is asked, one after the other."""
    return [PROMPTS[(first + i) % len(PROMPTS)] for i in range(count)]


def in_turn(
    way: str, door: Door, answers: int, tokens: int, loop: Callable[[str, int], Answer], line: str = "no delay"
) -> Row:
    """The row of one client; before each of its answers a loop of this process writes the same one, given prompt and
    seed, so that both have the same machine."""

    def pairs() -> list[tuple[Answer, Answer | None]]:
        return [(loop(prompt, seed), ask(door, prompt, tokens, seed)) for seed, prompt in enumerate(prompts(answers))]

    found: list[tuple[Answer, Answer | None]] = within(door, pairs)
    whole = [(ours, theirs) for ours, theirs in found if theirs is not None]
    answered = [theirs for _, theirs in whole]
    seconds, lost = sum(each.seconds for each in answered), len(found) - len(whole)
    return Row(way, 1, answered, seconds, lost, line, in_a_loop=[ours for ours, _ in whole])


def warm_up(door: Door) -> None:
    """Each prompt once, so that paths are in memory and peers are known."""
    with ThreadPoolExecutor(1, initializer=door.enter) as pool:
        list(pool.map(lambda prompt: ask(door, prompt, 4, 0), PROMPTS))


def within(door: Door, do: Callable[[], Any]) -> Any:
    """The result of this, done where the door is."""
    with ThreadPoolExecutor(1, initializer=door.enter) as pool:
        return pool.submit(do).result()


@contextlib.contextmanager
def served(model: str, log: Path, *command: object, host: Place | None = None) -> Iterator[Door]:
    """`dipaco-swarm serve`, while the block lasts. `host`: where it is; None: here."""
    words = [*SWARM, "serve", *map(str, command), "--port", "0"]
    namespace = None if host is None else host.namespace
    with process(words, log, ONE_THREAD, host) as running:
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(r"http://\S+/v1", log.read_text())) is None:
            if running.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"dipaco-swarm serve did not begin: {log.read_text()}")
            time.sleep(0.1)
        yield Door(found[0], model, namespace, log)


@contextlib.contextmanager
def process(
    words: Sequence[str], log: Path, environment: Mapping[str, str], host: Place | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A program, ended with the block; what it prints is in `log`."""
    if host is not None and host.namespace is not None:
        words = ["ip", "netns", "exec", host.namespace, *words]
    with (
        log.open("wb") as out,
        subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment}) as running,
    ):
        try:
            yield running
        finally:
            running.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(20)
            running.kill()
