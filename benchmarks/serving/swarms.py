"""Answers of a swarm: four peers on two paths, a gateway on a machine of its own, lines without delay and home lines.

The peers train by sleeping, so that four of them on two cores are as if each had a machine; what they may give beside
training is bounded as ever. When rows are done a fifth comes, which lies; the operator ends the run, all states stay as
they are, peers answer with all their time, and two are killed.
"""

import contextlib
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.chaos.crew import Crew, Here, Member
from benchmarks.chaos.lab import Host, Lab, Link
from benchmarks.chaos.story import Story, Verdict
from benchmarks.serving.clients import PROMPTS, Door, Heard, row_of, served, stream, warm_up
from benchmarks.serving.rows import SERVED_BY_PEERS, Killed, Row
from benchmarks.serving.size import Size
from benchmarks.utilisation import LINES, RENTED, compute_by_sleeping, to_stderr
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.events.training import Round
from dipaco_swarm.events.volunteer import Joined
from dipaco_swarm.gateway.asked import Asked
from dipaco_swarm.gateway.program import on_this_machine
from dipaco_swarm.gateway.words import Words
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.swarm.questions import Tokens
from dipaco_swarm.training.inference import Sampling

READY_SECONDS = 240.0
STEP_SECONDS, STEPS = 0.2, 100
"""Of an inner step; of a round."""
MOST_LIES = 40
"""The liar is to be found within so many questions."""
KILL_AT_ONCE, KILL_TOKENS = 4, 16
"""Clients that ask while peers are killed; tokens of each of their texts."""


class Swarm:
    """Four peers and who they can be asked by."""

    def __init__(self, story: Story, node: Member) -> None:
        self.story = story
        self.node = node
        self.asker = story.lab.host("asker")

    def served(self, name: str) -> contextlib.AbstractContextManager[Door]:
        log = self.story.crew.folder / f"{name}.log"
        return served("serving", log, "--run", self.story.address, host=self.asker)

    def all_on(self, line: Link) -> None:
        """From here on everybody but the operator has such a line."""
        assert isinstance(self.asker, Host)
        for host in (self.asker, *(peer.line for peer in self.story.peers)):
            host.change(line)
        self.node.line.change(Link() if line == Link() else RENTED)


@contextlib.contextmanager
def swarm_of(folder: Path, size: Size, lab: Lab | None) -> Iterator[Swarm]:
    """Each path has two peers, which have made a round. `lab`: where they are; None: on this machine."""
    folder.mkdir()
    with Crew(folder) as crew:
        config = parse_run_file(size.run_file(rounds=100_000, steps=STEPS))
        story = Story(lab or Here, crew, config, 0, folder / "cache", Verdict(), to_stderr)
        story.peers_leave = False
        node = story.bootstrap(until_finished=False)
        story.prelude = partial(compute_by_sleeping, STEP_SECONDS)
        for number in range(4):
            story.peer(f"peer-{number}", number % 2)
        story.until(lambda: all(peer.reported(Round) for peer in story.peers), "everybody makes a round", READY_SECONDS)
        yield Swarm(story, node)


def rows(swarm: Swarm, size: Size, *, lines: bool) -> Iterator[Row]:
    """What clients see without a delay, and, with `lines`, when everybody has a home line."""
    with swarm.served("gateway") as door:
        warm_up(door)
        for clients, answers in size.answers.items():
            yield row_of(SERVED_BY_PEERS, door, clients, answers, size.tokens)
        if not lines:
            return
        swarm.all_on(LINES["home"])
        for clients in (1, max(size.answers)):
            yield row_of(SERVED_BY_PEERS, door, clients, size.answers[clients], size.tokens, "home line")
        swarm.all_on(Link())


# -------------------------------------------------------------------------------------------------------- killing


def lie_by_sleeping() -> None:
    """Train as the others, and say other tokens than the path writes."""
    from dipaco_swarm.peer import answering

    compute_by_sleeping(STEP_SECONDS)
    honest = answering._said

    def lie(*asked: object) -> Tokens:
        said = honest(*asked)  # type: ignore[arg-type]
        return said.model_copy(update={"tokens": tuple((token + 1) % 4000 for token in said.tokens)})

    setattr(answering, "_said", lie)  # noqa: B010  # in a process of its own


def killed(swarm: Swarm, size: Size, seed: int) -> Killed:
    """A liar is found, two peers are killed while they write, and all texts are what they would have been."""
    story = swarm.story
    story.prelude = lie_by_sleeping
    liar = story.peer("liar", 0)
    story.until(lambda: bool(liar.reported(Round)), "the liar makes a round", READY_SECONDS)
    OperatorHome(swarm.node.home).tell_to_advance()
    fingerprint = RunAddress.parse(story.address).fingerprint
    kept = OperatorHome(swarm.node.home)

    def is_over() -> bool:
        manifest = kept.manifest(fingerprint)
        return manifest is not None and manifest.finished

    story.until(is_over, "the run is over", READY_SECONDS)
    story.pause(5.0)  # until all have heard of it
    names = {peer.reported(Joined)[-1].peer: peer for peer in story.peers}
    own = Undisturbed(swarm.node.home, size)
    with swarm.served("checked") as door:
        wrong = _until_found(door, own)
        found = [line for line in door.said().splitlines() if "asked nothing more" in line]
        liars = [name for name in names if any(name[-8:] in line for line in found)]
        texts, at, handed_over = _while_killing(door, story, names, size, seed)
        more = [line for line in door.said().splitlines() if "asked nothing more" in line]
    identical = sum(text == own.text(i) for i, text in enumerate(texts))
    is_right = [names[name] for name in liars] == [liar] and len(more) == 1
    return Killed(len(texts), identical, at, handed_over, wrong, is_right)


class Undisturbed:
    """What `generate` writes on this machine with the modules that the operator has."""

    def __init__(self, home: Path, size: Size) -> None:
        self._home = home
        self._size = size
        self._texts: dict[int, str] = {}

    def text(self, number: int) -> str:
        """Of the prompt with this number. They are written together, when the first one is wanted."""
        if not self._texts:
            with open_run(self._home) as run:
                gateway = on_this_machine(run)
                for i in range(max(self._size.prompts, MOST_LIES)):
                    ids = gateway.ids_of(prompt_of(i))
                    asked = Asked(ids, Sampling(1.0, None), i, KILL_TOKENS)
                    words = Words(gateway.tokenizer, ids, ())
                    pieces = [words.take(piece.written.token) for piece in gateway.answer(asked)]
                    self._texts[i] = "".join(pieces) + words.rest()
        return self._texts[number]


def prompt_of(number: int) -> str:
    return f"{PROMPTS[number % len(PROMPTS)]}{number}"


def _until_found(door: Door, own: Undisturbed) -> int:
    """Ask until somebody is asked nothing more; how many texts were wrong until then."""
    texts: list[str] = []

    def ask() -> None:
        for i in range(MOST_LIES):
            if "asked nothing more" in door.said():
                return
            for heard in stream(door, door.body(prompt_of(i), KILL_TOKENS, i)):
                text = heard.text
            texts.append(text)

    with ThreadPoolExecutor(1, initializer=door.enter) as pool:
        pool.submit(ask).result()
    return sum(text != own.text(i) for i, text in enumerate(texts))


def _while_killing(
    door: Door, story: Story, names: dict[str, Member], size: Size, seed: int
) -> tuple[list[str], list[int], int]:
    """All texts; after how many tokens of theirs two writers were killed; how many texts had several writers."""
    draw = random.Random(seed)
    third = size.prompts // 3
    victims = {draw.randrange(a, a + third): draw.randrange(1, KILL_TOKENS) for a in (third // 2, third // 2 + third)}
    lock, gone, at = threading.Lock(), set[str](), list[int]()

    def text_of(number: int) -> Heard:
        heard = Heard()
        for heard in stream(door, door.body(prompt_of(number), KILL_TOKENS, number)):
            due = victims.get(number)
            if due is None or heard.tokens < due or not heard.by or heard.reason is not None:
                continue
            with lock:
                writer = heard.by[-1]
                if writer in names and writer not in gone:
                    gone.add(writer)
                    at.append(heard.tokens)
                    story.kill(names[writer])
            del victims[number]
        return heard

    with ThreadPoolExecutor(KILL_AT_ONCE, initializer=door.enter) as pool:
        found = list(pool.map(text_of, range(size.prompts)))
    return [heard.text if heard.reason else "" for heard in found], at, sum(len(heard.by) > 1 for heard in found)
