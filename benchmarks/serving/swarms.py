"""Answers of a swarm: four peers on two paths, a gateway on a machine of its own, lines without delay and home lines.

The peers train by sleeping, so that four of them on two cores are as if each had a machine; what they may give beside
training is bounded as ever. A fifth lies, and has to be found before anything is measured. When the run is over, all
states stay as they are, peers answer with all their time, and two are killed.
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
from benchmarks.serving.alone import Loop
from benchmarks.serving.clients import PROMPTS, Door, Heard, in_turn, row_of, served, stream, warm_up, within
from benchmarks.serving.rows import AT_FIRST, SERVED_AFTER, SERVED_BY_PEERS, Killed, Row
from benchmarks.serving.size import Size
from benchmarks.utilisation import LINES, RENTED, compute_by_sleeping, to_stderr
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.events.training import Steps
from dipaco_swarm.events.volunteer import Joined
from dipaco_swarm.gateway.asked import Asked
from dipaco_swarm.gateway.program import on_this_machine
from dipaco_swarm.gateway.words import Words
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.swarm.questions import Tokens
from dipaco_swarm.training.inference import Sampling

READY_SECONDS = 400.0
STEP_SECONDS = 1.0
"""Of an inner step."""
MOST_LIES = 40
"""The liar is to be found within so many questions."""
KILL_AT_ONCE, KILL_TOKENS = 4, 24
"""Clients that ask while peers are killed; tokens of each of their texts."""


class Swarm:
    """Four peers, a liar, and who they are asked by."""

    def __init__(self, story: Story, node: Member, liar: Member) -> None:
        self.story = story
        self.node = node
        self.liar = liar
        self.asker = story.lab.host("asker")

    def begins(self) -> None:
        """From here on each path has two honest peers in training, and the liar is in it as well."""
        everybody = self.story.peers
        self.story.until(lambda: all(peer.reported(Steps) for peer in everybody), "everybody trains", READY_SECONDS)

    def names(self) -> dict[str, Member]:
        """Peers, as the others call them."""
        return {peer.reported(Joined)[-1].peer: peer for peer in self.story.peers}

    def served(self) -> contextlib.AbstractContextManager[Door]:
        """A gateway."""
        log = self.story.crew.folder / "gateway.log"
        return served("serving", log, "--run", self.story.address, host=self.asker)

    def all_on(self, line: Link) -> None:
        """From here on everybody but the operator has such a line."""
        assert isinstance(self.asker, Host)
        for host in (self.asker, *(peer.line for peer in self.story.peers)):
            host.change(line)
        self.node.line.change(Link() if line == Link() else RENTED)

    def end(self) -> None:
        """The operator ends the run, if it is not over by itself; from here on states stay as they are, and peers are
        there for answers alone."""
        kept = OperatorHome(self.node.home)
        fingerprint = RunAddress.parse(self.story.address).fingerprint

        def is_over() -> bool:
            manifest = kept.manifest(fingerprint)
            return manifest is not None and manifest.finished

        if not is_over():
            kept.tell_to_advance()
        self.story.until(is_over, "the run is over", READY_SECONDS)
        self.story.pause(5.0)  # until all have heard of it


@contextlib.contextmanager
def swarm_of(folder: Path, size: Size, lab: Lab | None) -> Iterator[Swarm]:
    """Two honest peers for each path, and a liar, just started. `lab`: where they are; None: on this machine."""
    folder.mkdir()
    with Crew(folder) as crew:
        config = parse_run_file(size.run_file(rounds=size.rounds, steps=size.steps))
        story = Story(lab or Here, crew, config, 0, folder / "cache", Verdict(), to_stderr)
        story.peers_leave = False
        node = story.bootstrap(until_finished=False)
        story.prelude = partial(compute_by_sleeping, STEP_SECONDS)
        for number in range(4):
            story.peer(f"peer-{number}", number % 2)
        story.prelude = lie_by_sleeping
        liar = story.peer("liar", 0)
        yield Swarm(story, node, liar)


def lie_by_sleeping() -> None:
    """Train as the others, and say other tokens than the path writes."""
    from dipaco_swarm.peer import answering

    compute_by_sleeping(STEP_SECONDS)
    honest = answering._said

    def lie(*asked: object) -> Tokens:
        said = honest(*asked)  # type: ignore[arg-type]
        return said.model_copy(update={"tokens": tuple((token + 1) % 4000 for token in said.tokens)})

    setattr(answering, "_said", lie)  # noqa: B010  # in a process of its own


def texts_of_the_liar(swarm: Swarm, door: Door) -> int:
    """Ask until somebody is asked nothing more; how many texts the liar had written until then."""
    name = swarm.liar.reported(Joined)[-1].peer

    def ask() -> int:
        count = 0
        for i in range(MOST_LIES):
            if accused(door):
                return count
            heard = Heard()
            for heard in stream(door, door.body(prompt_of(i), KILL_TOKENS, i)):  # noqa: B007  # the last one
                pass
            count += name in heard.by
        return count

    found: int = within(door, ask)
    return found


def accused(door: Door) -> list[str]:
    """What a gateway has said of peers that it asks nothing more."""
    return [line for line in door.said().splitlines() if "asked nothing more" in line]


def rows(swarm: Swarm, door: Door, size: Size, *, lines: bool) -> Iterator[Row]:
    """What clients see without a delay, and, with `lines`, when everybody has a home line. Who asks alone asks first:
    later peers may have given what they had saved up."""
    warm_up(door)
    many = [clients for clients in size.answers if clients > 1]
    yield _alone(SERVED_BY_PEERS, swarm, door, size)
    if lines:
        swarm.all_on(LINES["home"])
        for way, clients in ((SERVED_BY_PEERS, 1), (AT_FIRST, max(many)), (SERVED_BY_PEERS, max(many))):
            yield row_of(way, door, clients, size.answers[clients], size.tokens, "home line")
        swarm.all_on(Link())
    for clients in many:
        yield row_of(SERVED_BY_PEERS, door, clients, size.answers[clients], size.tokens)


def rows_after_the_end(swarm: Swarm, door: Door, size: Size) -> Iterator[Row]:
    """The same of peers that train no more."""
    for _ in range(2):  # what is asked first opens the run anew, and the first answer of each peer is checked
        warm_up(door)
    yield _alone(SERVED_AFTER, swarm, door, size)
    for clients in size.answers:
        if clients > 1:
            yield row_of(SERVED_AFTER, door, clients, size.answers[clients], size.tokens)


def _alone(way: str, swarm: Swarm, door: Door, size: Size) -> Row:
    """One client, in turn with a loop of this machine over the modules that the operator has."""
    with open_run(swarm.node.home) as run:
        loop = Loop(run, size.tokens)
        return in_turn(way, door, size.answers[1], size.tokens, loop)


# -------------------------------------------------------------------------------------------------------- killing


def killed(swarm: Swarm, door: Door, size: Size, seed: int, of_the_liar: int) -> Killed:
    """Of a run that is over: two peers are killed while they write, and all texts are what they would have been."""
    own = _undisturbed(swarm.node.home, size)
    found, at = _while_killing(swarm, door, size, seed)
    identical = sum(heard.reason is not None and heard.text == text for heard, text in zip(found, own, strict=True))
    said, liar = accused(door), swarm.liar.reported(Joined)[-1].peer
    several = sum(len(heard.by) > 1 for heard in found)
    return Killed(len(found), identical, at, several, of_the_liar, len(said) == 1 and liar[-8:] in said[0])


def _undisturbed(home: Path, size: Size) -> list[str]:
    """What `generate` writes on this machine with the modules that the operator has."""
    texts = []
    with open_run(home) as run:
        gateway = on_this_machine(run)
        for i in range(size.prompts):
            ids = gateway.ids_of(prompt_of(i))
            words = Words(gateway.tokenizer, ids, ())
            pieces = gateway.answer(Asked(ids, Sampling(1.0, None), i, KILL_TOKENS))
            texts.append("".join([words.take(piece.written.token) for piece in pieces]) + words.rest())
    return texts


def prompt_of(number: int) -> str:
    return f"{PROMPTS[number % len(PROMPTS)]}{number}"


def _while_killing(swarm: Swarm, door: Door, size: Size, seed: int) -> tuple[list[Heard], list[int]]:
    """All texts; and after how many tokens of theirs two writers were killed."""
    draw = random.Random(seed)
    third = size.prompts // 3
    plan = [
        (draw.randrange(a, a + third), draw.randrange(1, KILL_TOKENS // 3)) for a in (third // 2, third // 2 + third)
    ]
    lock, names, gone, at = threading.Lock(), swarm.names(), set[str](), list[int]()

    def text_of(number: int) -> Heard:
        heard = Heard()
        for heard in stream(door, door.body(prompt_of(number), KILL_TOKENS, number)):
            with lock:
                writer = heard.by[-1] if heard.by and heard.reason is None else ""
                is_due = bool(plan) and number >= plan[0][0] and heard.tokens >= plan[0][1]
                if is_due and writer in names and writer not in gone:
                    del plan[0]
                    gone.add(writer)
                    at.append(heard.tokens)
                    swarm.story.kill(names[writer])
        return heard

    with ThreadPoolExecutor(KILL_AT_ONCE, initializer=door.enter) as pool:
        return list(pool.map(text_of, range(size.prompts))), at
