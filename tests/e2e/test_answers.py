"""Peers write for who asks: the same tokens as a run's own, whoever of them goes in the middle, and liars are found."""

import logging
import queue
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from starlette.testclient import TestClient

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.client import visits as use
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.errors import UnreachableError, UsageError
from dipaco_swarm.events.training import Round
from dipaco_swarm.events.volunteer import Joined
from dipaco_swarm.gateway.app import build_app
from dipaco_swarm.gateway.asked import Asked, Origin, SilentError, Task
from dipaco_swarm.gateway.checking import Answered, Checks
from dipaco_swarm.gateway.gateway import Gateway
from dipaco_swarm.gateway.live import LiveGateway
from dipaco_swarm.gateway.once import Once, checked
from dipaco_swarm.gateway.own_paths import OwnPaths
from dipaco_swarm.gateway.program import on_this_machine
from dipaco_swarm.gateway.scoring import scored
from dipaco_swarm.machine.clock import SYSTEM_CLOCK
from dipaco_swarm.peer import answering
from dipaco_swarm.peer.answering import AnswerDesk
from dipaco_swarm.peer.shares import Allowance
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.signature import signer_of
from dipaco_swarm.simulate import simulate
from dipaco_swarm.swarm.askers import QUESTIONS_OF_ONE
from dipaco_swarm.swarm.asking import Say, UnansweredError
from dipaco_swarm.swarm.interface import Announcement, PeerName, Role
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.questions import MAX_NEW, AskText, Begins, NotNow, TextEnds, Tokens, Waits
from dipaco_swarm.training.inference import Sampling
from tests.hub import Hub, until
from tests.pages import HERE

from .conftest import Commands, write_run_file

pytestmark = pytest.mark.timeout(300)

PROMPTS = ("def main(", "Permission is hereby granted", "#include <stdio.h>\nint", "x", "class A:", "import os\n")


@dataclass(frozen=True)
class Trained:
    """A run that was trained to its end, in its bootstrap node's home."""

    home: Path
    run: TrainedRun
    fingerprint: str

    def states(self, path: int) -> dict[ModuleId, ModuleState]:
        return {module: self.run.state_of(module) for module in self.run.table.modules_of(PathIndex(path))}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("answers")
    text = write_run_file(folder / "RUN.toml", min_peers=2, inner_steps=4, rounds=2, warmup=2).read_text()
    simulate(parse_run_file(text), folder, {"ada": 0, "ben": 3})
    home = folder / "bootstrap"
    with open_run(home) as run:
        yield Trained(home, run, signer_of((home / "manifest.json").read_bytes()))


@pytest.fixture(scope="module")
def local(trained: Trained) -> Gateway:
    return on_this_machine(trained.run)


@dataclass
class Standing:
    """A path that changes when the test says so."""

    path: PathIndex
    base: Mapping[ModuleId, ModuleState]
    is_done: bool = False


class Answerers:
    """Peers that answer, each for a path, in one process; and a gateway that asks them."""

    def __init__(self, trained: Trained, hub: Hub) -> None:
        self._trained = trained
        self._hub = hub
        self._open: dict[str, ExitStack] = {}
        self.desks: dict[str, AnswerDesk] = {}
        self.told: list[str] = []
        self.node = hub.swarm("bootstrap")
        self.node.publish_manifest((trained.home / "manifest.json").read_bytes())
        for blob in (trained.home / "blobs").iterdir():
            self.node.put_blob(blob.read_bytes())
        run, stage = trained.run, trained.run.manifest.stage.index
        states = {module: run.state_of(module) for module in run.table.modules}
        for module, state in states.items():
            self.node.hold(stage, module, state)
        self.node.announce(
            [
                Announcement(
                    self.node.peer, stage, module, None, state.version, state.digest, state.work, role=Role.KEEPS
                )
                for module, state in states.items()
            ]
        )

    def add(self, name: str, path: int, desk: AnswerDesk | None = None) -> NetworkedSwarm:
        stack = self._open[name] = ExitStack()
        swarm = stack.enter_context(self._hub.open(name))
        states, stage = self._trained.states(path), self._trained.run.manifest.stage.index
        if desk is None:
            desk = AnswerDesk(SYSTEM_CLOCK, "cpu", 4)
        desk.enter(self._trained.run.manifest, Standing(PathIndex(path), states, is_done=True), self._trained.run.fetch)
        self.desks[name] = desk
        stack.callback(desk.close)
        swarm.asking.open(desk)
        for module, state in states.items():
            swarm.hold(stage, module, state)
        swarm.announce(
            [
                Announcement(swarm.peer, stage, module, PathIndex(path), state.version, state.digest, state.work)
                for module, state in states.items()
            ]
        )
        return swarm

    def kill(self, name: str) -> None:
        """It is gone in the middle of whatever it does."""
        self._open.pop(name).close()

    def gateway(self, name: str = "gateway") -> LiveGateway:
        swarm = self._hub.swarm(name)
        manifest, table = self._trained.run.manifest, self._trained.run.table
        names = {self.node.peer, *self.desks}

        def all_are_heard() -> bool:
            swarm.look_up(manifest.stage.index, table.modules, timeout=5)
            heard = {said.peer for module in table.modules for said in swarm.members(manifest.stage.index, module)}
            return names <= heard

        until(all_are_heard)
        return LiveGateway(swarm, manifest, self._trained.fingerprint, self.told.append)

    def close(self) -> None:
        for name in list(self._open):
            self.kill(name)


@pytest.fixture
def answerers(trained: Trained) -> Iterator[Answerers]:
    with Hub("small", trained.fingerprint) as hub:
        answerers = Answerers(trained, hub)
        yield answerers
        answerers.close()


def asked(gateway: Gateway, prompt: str, seed: int = 7, most: int = 20) -> Asked:
    return Asked(gateway.ids_of(prompt), Sampling(0.9, 40), seed, most)


def tokens(gateway: Gateway, question: Asked) -> list[int]:
    return [piece.written.token for piece in gateway.answer(question)]


def test_a_peer_writes_what_this_machine_writes_and_says_from_which_states(
    trained: Trained, local: Gateway, answerers: Answerers
) -> None:
    for path in range(4):
        answerers.add(f"peer-{path}", path)
    live = answerers.gateway()
    for prompt in PROMPTS:
        question = asked(local, prompt)
        pieces = list(live().answer(question))
        assert [piece.written.token for piece in pieces] == tokens(local, question)
        origin = pieces[0].origin
        assert origin.by == f"peer-{origin.path}"
        assert origin.modules == {
            str(module): f"{state.version}:{state.digest}" for module, state in trained.states(origin.path).items()
        }
    thoughts, origin = live().think(local.ids_of(PROMPTS[1]), 2, PathIndex(1))
    ours, _ = local.think(local.ids_of(PROMPTS[1]), 2, PathIndex(1))
    assert origin.by == "peer-1"
    assert [t.token for t in thoughts] == [t.token for t in ours]
    for their, our in zip(thoughts[1:], ours[1:], strict=True):
        assert their.logprob == pytest.approx(our.logprob)
        assert [token for token, _ in their.likeliest] == [token for token, _ in our.likeliest]
    live.close(60)
    assert live.checks is not None
    assert live.checks.checked >= 1
    assert answerers.told == []


def test_where_no_peer_is_this_machine_writes(local: Gateway, answerers: Answerers) -> None:
    live = answerers.gateway()
    question = asked(local, PROMPTS[0])
    pieces = list(live().answer(question))
    assert [piece.written.token for piece in pieces] == tokens(local, question)
    assert {piece.origin.by for piece in pieces} == {""}


def test_two_of_four_go_in_the_middle_and_every_text_is_what_it_would_have_been(
    local: Gateway, answerers: Answerers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 prompts, four peers that answer for two paths; two are killed while they write."""
    monkeypatch.setattr(answering, "TELL_SECONDS", 0.0)  # so that there is a middle
    draw = random.Random(5)
    path = local.path_of(local.ids_of(PROMPTS[0]))
    for name in ("one", "two", "three", "four"):
        answerers.add(name, path)
    gateway = answerers.gateway()()
    killed = {draw.randrange(40, 80): "one", draw.randrange(100, 160): "two"}
    questions = [replace(asked(local, PROMPTS[i % 6], seed=i, most=8), path=path) for i in range(200)]
    count, lock = 0, threading.Lock()

    def answered(question: Asked) -> list[int]:
        nonlocal count
        written = []
        for place, piece in enumerate(gateway.answer(question)):
            written.append(piece.written.token)
            if place == 3:
                with lock:
                    count += 1
                    name = killed.get(count)
                    if name is not None:
                        answerers.kill(name)
        return written

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(answered, questions))
    assert found == [tokens(local, question) for question in questions]
    assert not [line for line in answerers.told if "asked nothing more" in line]
    assert all(answerers.desks[name].tokens for name in answerers.desks)


def test_many_at_once_are_divided_among_the_peers_and_none_is_asked_more_than_it_takes(
    local: Gateway, answerers: Answerers, caplog: pytest.LogCaptureFixture
) -> None:
    path = local.path_of(local.ids_of(PROMPTS[0]))
    for name in ("one", "two", "three"):
        answerers.add(name, path)
    live = answerers.gateway()
    for _ in range(3):  # who was never asked comes first; after that one of them is the quickest
        tokens(live(), replace(asked(local, PROMPTS[0], most=2), path=path))
    questions = [replace(asked(local, PROMPTS[0], seed=i, most=60), path=path) for i in range(8)]  # a check is another
    all_ask = threading.Barrier(len(questions))

    def writers(question: Asked) -> set[str]:
        pieces = live().answer(question)
        first = next(pieces)
        all_ask.wait(60)  # each is under way, with somebody
        return {first.origin.by, *(piece.origin.by for piece in pieces)}

    with ThreadPoolExecutor(len(questions)) as pool, caplog.at_level(logging.INFO):
        by = list(pool.map(writers, questions))
    assert "fell silent" not in caplog.text
    assert all(len(each) == 1 for each in by)
    assert set().union(*by) == {"one", "two", "three"}
    assert answerers.told == [f"many ask for path {path} now; this machine fetches it and writes itself"]
    live.close()


def test_who_finds_no_place_at_a_peer_has_the_next_one_while_this_machine_still_fetches_the_path(
    local: Gateway, answerers: Answerers, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, may_load = OwnPaths._load, threading.Event()

    def slowly(self: OwnPaths, path: PathIndex) -> Any:
        assert may_load.wait(60)
        return load(self, path)

    monkeypatch.setattr(OwnPaths, "_load", slowly)
    path = local.path_of(local.ids_of(PROMPTS[0]))
    answerers.add("one", path)
    gateway = answerers.gateway()()
    questions = [replace(asked(local, PROMPTS[0], seed=i, most=12), path=path) for i in range(QUESTIONS_OF_ONE + 1)]
    begun = [gateway.answer(question) for question in questions[:-1]]
    firsts = [next(pieces) for pieces in begun]  # all places are taken
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(lambda: list(gateway.answer(questions[-1])))
        until(lambda: any("this machine fetches it" in line for line in answerers.told))
        assert not late.done()
        found = [[first, *rest] for first, rest in zip(firsts, begun, strict=True)]
        found.append(late.result(60))
    assert {piece.origin.by for pieces in found for piece in pieces} == {"one"}
    may_load.set()
    for pieces, question in zip(found, questions, strict=True):
        assert [piece.written.token for piece in pieces] == tokens(local, question)


def test_who_asks_for_a_path_that_is_here_does_not_wait_for_another_that_is_fetched(
    trained: Trained, local: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, may_load = OwnPaths._load, threading.Event()

    def slowly(self: OwnPaths, path: PathIndex) -> Any:
        assert path == 0 or may_load.wait(60)
        return load(self, path)

    monkeypatch.setattr(OwnPaths, "_load", slowly)
    gateway = on_this_machine(trained.run)
    here, there = (replace(asked(local, PROMPTS[0], most=6), path=PathIndex(path)) for path in (0, 1))
    with ThreadPoolExecutor(1) as pool:
        assert tokens(gateway, here) == tokens(local, here)
        fetched = pool.submit(tokens, gateway, there)
        until(lambda: any(thread.name == "path 1" for thread in threading.enumerate()))
        assert tokens(gateway, here) == tokens(local, here)
        assert not fetched.done()
        may_load.set()
        assert fetched.result(60) == tokens(local, there)


class LyingDesk(AnswerDesk):
    """Says other tokens than its path writes."""

    def take(self, asked: AskText, asker: str, say: Say):  # type: ignore[no-untyped-def]
        def lie(word):  # type: ignore[no-untyped-def]
            say(Tokens(tokens=tuple((t + 1) % 500 for t in word.tokens)) if isinstance(word, Tokens) else word)

        return super().take(asked, asker, lie)


class BoastingDesk(AnswerDesk):
    """Names states that its path does not have."""

    def take(self, asked: AskText, asker: str, say: Say):  # type: ignore[no-untyped-def]
        def boast(word):  # type: ignore[no-untyped-def]
            say(Begins(modules=(("L0M7", 99, "0" * 64),)) if isinstance(word, Begins) else word)

        return super().take(asked, asker, boast)


@pytest.mark.parametrize("kind", [LyingDesk, BoastingDesk])
def test_a_peer_that_does_not_write_what_its_path_writes_is_asked_nothing_more(
    kind: type[AnswerDesk], local: Gateway, answerers: Answerers
) -> None:
    path = local.path_of(local.ids_of(PROMPTS[0]))
    answerers.add("liar", path, kind(SYSTEM_CLOCK, "cpu", 4))
    answerers.add("honest", path)
    live = answerers.gateway()
    question = asked(local, PROMPTS[0], most=12)
    gateway, by = live(), set()
    for _ in range(4):  # who was never asked is asked in any order
        by |= {piece.origin.by for piece in gateway.answer(question)}
    until(lambda: bool(answerers.told))
    assert "liar" in answerers.told[0]
    for _ in range(4):
        pieces = list(gateway.answer(question))
        assert {piece.origin.by for piece in pieces} == {"honest"}
        assert [piece.written.token for piece in pieces] == tokens(local, question)
    assert len(answerers.told) == 1


class DrippingDesk(AnswerDesk):
    """Never silent, and never done: a token now and then."""

    def take(self, asked: AskText, asker: str, say: Say) -> Callable[[], None]:
        over = threading.Event()

        def drip(word: object) -> None:
            if isinstance(word, Begins):
                say(word)
                for _ in range(asked.most_tokens):
                    if over.wait(0.05):
                        return
                    say(Tokens(tokens=(1,)))

        end = super().take(asked, asker, drip)

        def stop() -> None:
            over.set()
            end()

        return stop


def test_a_gateway_is_renewed_and_closed_while_a_peer_draws_out_a_check(
    trained: Trained, local: Gateway, answerers: Answerers
) -> None:
    path = local.path_of(local.ids_of(PROMPTS[0]))
    answerers.add("drip", path, DrippingDesk(SYSTEM_CLOCK, "cpu", 4))
    live = answerers.gateway()
    before, checks = live(), live.checks
    assert checks is not None
    question = asked(local, PROMPTS[0], most=400)
    states = {str(module): f"{state.version}:{state.digest}" for module, state in trained.states(path).items()}
    task, origin = Task(path, question.ids, 0, 0, 400, question), Origin(path, states, "one")
    checks.note(Answered(PeerName("one"), task, (1,) * 400, origin))
    until(lambda: bool(answerers.desks["drip"]._questions))
    live._gateway = None  # as when a new manifest is there
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(live).result(10) is not before
        assert live.checks is not None
        live.checks.note(Answered(PeerName("one"), task, (1,) * 400, origin))
        until(lambda: live.checks is not None and live.checks._is_busy)
        pool.submit(live.close).result(15)
    assert not live.checks._is_busy


def test_no_log_has_a_prompt(
    trained: Trained, local: Gateway, answerers: Answerers, caplog: pytest.LogCaptureFixture
) -> None:
    """Of whatever is said at any level by gateway and peers, with an answer, a refusal, an error and a liar."""
    prompt, ids = "# 4711 is the secret", str(local.ids_of("# 4711 is the secret"))
    path = local.path_of(local.ids_of(prompt))
    answerers.add("liar", path, LyingDesk(SYSTEM_CLOCK, "cpu", 4))
    answerers.add("honest", path)
    broken = AnswerDesk(SYSTEM_CLOCK, "cpu", 4)
    broken._load = None  # type: ignore[method-assign, assignment]
    answerers.add("broken", path, broken)
    with caplog.at_level(logging.DEBUG):
        live = answerers.gateway()
        client = TestClient(build_app(live), base_url=HERE)
        for asked in ({"prompt": prompt}, {"prompt": prompt, "max_tokens": -1}, {"prompt": prompt, "reroute": 3}):
            for _ in range(3):
                client.post("/v1/completions", json={"model": "small", "max_tokens": 4, **asked})
        live.close()
    assert len(caplog.records) > 5
    assert "could not be answered" in caplog.text
    for said in (caplog.text, "".join(answerers.told)):
        assert "4711" not in said
        assert ids[1:-1] not in said


# ------------------------------------------------------------------------------------------------ one text of somebody

SETTINGS: dict[str, Any] = {"tokens": 12, "seed": 3, "window": None}


def test_one_text_is_what_the_path_writes_here_whoever_writes_it(trained: Trained, answerers: Answerers) -> None:
    ours = "".join(use.generate(trained.home, PROMPTS[0], temperature=0.8, top_k=40, **SETTINGS))
    with checked(answerers.gateway()) as alone:
        assert "".join(alone.text(PROMPTS[0], sampling=Sampling(0.8, 40), **SETTINGS)) == ours
    assert not alone.writers
    assert ["this machine fetches it and writes itself" in line for line in answerers.told] == [True]
    for path in range(4):
        answerers.add(f"peer-{path}", path)
    with checked(answerers.gateway("another")) as asked:
        assert "".join(asked.text(PROMPTS[0], sampling=Sampling(0.8, 40), **SETTINGS)) == ours
    assert len(asked.writers) == 1
    assert len(answerers.told) == 1


def test_one_text_of_a_liar_ends_with_an_error(local: Gateway, answerers: Answerers) -> None:
    path = local.path_of(local.ids_of(PROMPTS[0]))
    answerers.add("liar", path, LyingDesk(SYSTEM_CLOCK, "cpu", 4))
    with (
        pytest.raises(UnreachableError, match="peer liar has not written what its path writes: do not use"),
        checked(answerers.gateway()) as asked,
    ):
        list(asked.text(PROMPTS[0], sampling=Sampling(0.8, 40), **SETTINGS))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tokens": 10_000}, "--tokens 10000 is more than peers take"),
        ({"seed": -(1 << 70)}, "--seed"),
        ({"sampling": Sampling(11.0)}, "--temperature 11 .* add --local"),
        ({"sampling": Sampling(1.0, 1 << 24)}, "--top-k"),
        ({"prompt": ""}, "the prompt is empty"),
    ],
)
def test_what_peers_do_not_take_is_said_before_anybody_is_asked(
    local: Gateway, changed: dict[str, Any], words: str
) -> None:
    how = {"prompt": "x", "sampling": Sampling(0.8), **SETTINGS, **changed}
    with pytest.raises(UsageError, match=words):
        next(Once(local).text(how.pop("prompt"), **how))


# ------------------------------------------------------------------------------------------------- scores of documents


class WrongScoresDesk(AnswerDesk):
    """Says that its path thinks better of texts than it does."""

    def take(self, asked: AskText, asker: str, say: Say):  # type: ignore[no-untyped-def]
        def lie(word):  # type: ignore[no-untyped-def]
            if isinstance(word, Tokens):
                word = word.model_copy(update={"logprobs": tuple(p and 0.9 * p for p in word.logprobs)})
            say(word)

        return super().take(asked, asker, lie)


def test_peers_score_documents_as_this_machine_does_and_one_that_does_not_is_left_out(
    trained: Trained, answerers: Answerers
) -> None:
    pieces = use.held_out(trained.run)
    ours, documents = use.score(trained.run, pieces)
    for path in range(3):
        answerers.add(f"peer-{path}", path)
    answerers.add("liar", 0, WrongScoresDesk(SYSTEM_CLOCK, "cpu", 4))
    live = answerers.gateway()
    told: list[str] = []
    found = scored(trained.run, live._swarm, pieces, None, told.append)
    assert {path.path: path.documents for path in found.paths} == documents
    for each in found.paths:
        assert each.tokens == ours.by_path[PathIndex(each.path)].tokens
        assert each.loss == pytest.approx(ours.by_path[PathIndex(each.path)].loss, rel=1e-5)
    assert [line for line in told if "no peer answers for path 3" in line]
    assert [line for line in told if "liar is asked nothing more" in line]
    by_peers = sum(documents[PathIndex(path)] for path in range(3))
    assert f"{by_peers} of {len(pieces.domains)} documents scored by 3 peers" in told[-1]


# ------------------------------------------------------------------------------------------------------------ a desk


def hear(desk: AnswerDesk, question: AskText, asker: str = "somebody") -> list[object]:
    """All that it says, with the tokens one by one: how many are told together is a matter of time."""
    said: list[object] = []
    over = threading.Event()

    def say(word: object) -> None:
        said.extend(one_by_one(word))
        if not isinstance(word, Begins | Tokens):
            over.set()

    desk.take(question, asker, say)
    assert over.wait(30)
    return said


def one_by_one(word: object) -> list[object]:
    return [Tokens(tokens=(token,)) for token in word.tokens] if isinstance(word, Tokens) else [word]


QUESTION = AskText(stage=1, path=2, text=(60, 61, 62), most_tokens=3, seed=1)


def test_a_desk_refuses_what_it_cannot_answer(trained: Trained) -> None:
    desk = AnswerDesk(SYSTEM_CLOCK, "cpu", 1)
    assert "not ready" in hear(desk, QUESTION)[0].reason  # type: ignore[attr-defined]
    desk.enter(trained.run.manifest, Standing(PathIndex(2), trained.states(2)), trained.run.fetch)
    assert len(hear(desk, QUESTION)) == 5
    for wrong in ({"path": 1}, {"stage": 0}, {"text": (9999,)}):
        (refusal,) = hear(desk, QUESTION.model_copy(update=wrong))
        assert isinstance(refusal, NotNow)
    desk.close()
    assert isinstance(hear(desk, QUESTION)[0], NotNow)


def test_a_text_is_written_to_its_end_with_the_states_that_it_was_begun_with(trained: Trained) -> None:
    """A newer version comes in the middle: the next question is answered with that one."""
    desk = AnswerDesk(SYSTEM_CLOCK, "cpu", 2)
    old = trained.states(2)
    standing = Standing(PathIndex(2), old)
    desk.enter(trained.run.manifest, standing, trained.run.fetch)
    new = {
        module: ModuleState(state.version + 1, state.params + 0.05, state.momentum, state.work)
        for module, state in old.items()
    }
    before = hear(desk, QUESTION.model_copy(update={"most_tokens": 20}))
    said: list[object] = []
    over = threading.Event()

    def say(word: object) -> None:
        said.extend(one_by_one(word))
        if len(said) == 2:  # it has its first token
            standing.base = new
        if not isinstance(word, Begins | Tokens):
            over.set()

    desk.take(QUESTION.model_copy(update={"most_tokens": 20}), "somebody", say)
    assert over.wait(30)
    assert said == before
    after = hear(desk, QUESTION)
    assert {version for _, version, _ in after[0].modules} == {s.version for s in new.values()}  # type: ignore[attr-defined]
    desk.close()


def test_new_texts_are_of_new_states_while_texts_overlap_and_two_versions_are_in_memory(trained: Trained) -> None:
    """Somebody always writes. A third version waits until the texts of the first are over."""
    desk = AnswerDesk(SYSTEM_CLOCK, "cpu", 4)
    standing = Standing(PathIndex(2), trained.states(2))
    desk.enter(trained.run.manifest, standing, trained.run.fetch)

    def newer() -> set[int]:
        standing.base = {
            module: ModuleState(state.version + 1, state.params + 1e-4, state.momentum, state.work)
            for module, state in standing.base.items()
        }
        return {state.version for state in standing.base.values()}

    def begin() -> tuple[set[int], Callable[[], None]]:
        """A text that goes on: the versions that it is written with, and what ends it."""
        said: queue.SimpleQueue[object] = queue.SimpleQueue()
        endless = QUESTION.model_copy(update={"most_tokens": MAX_NEW, "temperature": 0.0})
        end = desk.take(endless, "somebody", said.put)
        begins, first = said.get(timeout=30), said.get(timeout=30)
        assert isinstance(begins, Begins)
        assert isinstance(first, Tokens)
        return {version for _, version, _ in begins.modules}, end

    _, end_first = begin()
    second = newer()
    found, end_second = begin()
    assert found == second
    third = newer()
    found, end_third = begin()
    assert found == second
    assert len(desk._loaded) == 2
    end_first()
    until(lambda: len(desk._loaded) == 1)
    found, end_fourth = begin()
    assert found == third
    for end in (end_second, end_third, end_fourth):
        end()
    until(lambda: len(desk._loaded) == 1)
    desk.close()


def test_who_has_to_wait_is_told_for_how_long_and_then_answered(trained: Trained) -> None:
    desk = AnswerDesk(SYSTEM_CLOCK, "cpu", 1)
    desk.enter(trained.run.manifest, Standing(PathIndex(2), trained.states(2)), trained.run.fetch)
    alone = hear(desk, QUESTION)
    said: queue.SimpleQueue[object] = queue.SimpleQueue()
    endless = QUESTION.model_copy(update={"most_tokens": MAX_NEW, "temperature": 0.0})
    end_first = desk.take(endless, "somebody", lambda word: None)
    desk.take(QUESTION, "somebody", said.put)
    waits = said.get(timeout=30)
    assert isinstance(waits, Waits)
    assert 0 < waits.seconds <= 2
    end_first()
    found: list[object] = []
    while len(found) < len(alone):
        found.extend(one_by_one(said.get(timeout=30)))
    assert found == alone
    desk.close()


def test_who_moves_leaves_the_rest_to_others(trained: Trained) -> None:
    desk = AnswerDesk(SYSTEM_CLOCK, "cpu", 2)
    desk.enter(trained.run.manifest, Standing(PathIndex(2), trained.states(2)), trained.run.fetch)
    said: list[object] = []
    over = threading.Event()

    def say(word: object) -> None:
        said.append(word)
        if len(said) == 3:
            desk.enter(trained.run.manifest, Standing(PathIndex(1), trained.states(1)), trained.run.fetch)
        if isinstance(word, NotNow):
            over.set()

    desk.take(QUESTION.model_copy(update={"most_tokens": 1000}), "somebody", say)
    assert over.wait(30)
    assert "moved" in said[-1].reason  # type: ignore[attr-defined]
    desk.close()


def test_what_goes_on_beside_training_ends_when_the_allowance_is_used_up(trained: Trained) -> None:
    desk = AnswerDesk(SYSTEM_CLOCK, "cpu", 2)
    standing = Standing(PathIndex(2), trained.states(2))
    desk.enter(trained.run.manifest, standing, trained.run.fetch)
    desk._allowance = Allowance(SYSTEM_CLOCK, burst=0.2)
    said: queue.SimpleQueue[object] = queue.SimpleQueue()
    endless = QUESTION.model_copy(update={"most_tokens": MAX_NEW, "temperature": 0.0})
    for _ in range(2):
        desk.take(endless, "somebody", said.put)
    refusals: list[NotNow] = []
    while len(refusals) < 2:
        word = said.get(timeout=30)
        refusals += [word] if isinstance(word, NotNow) else []
    assert all(refusal.reason == answering.ENOUGH for refusal in refusals)
    assert all(refusal.seconds < 30 for refusal in refusals), "nobody waits for what one has taken in advance"
    desk.close()


def test_questions_beside_each_other_cannot_end_each_other_or_make_each_other_wait(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "TELL_SECONDS", 0.0)
    desk = AnswerDesk(SYSTEM_CLOCK, "cpu", 3)
    desk.enter(trained.run.manifest, Standing(PathIndex(2), trained.states(2), is_done=True), trained.run.fetch)
    said: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
    long = (60, 61, 62) * 150
    questions = {
        "writes": QUESTION.model_copy(update={"most_tokens": 400, "temperature": 0.0}),
        "odd": QUESTION.model_copy(update={"most_tokens": 400, "temperature": 1e-39}),
        "judges": QUESTION.model_copy(update={"text": long, "most_tokens": 0, "alternatives": 0}),
        "goes on": QUESTION.model_copy(update={"text": long * 4, "drawn": 1200, "most_tokens": 2}),
    }
    for name, question in questions.items():
        desk.take(question, name, lambda word, name=name: said.put((name, word)))  # type: ignore[misc]
    ended: dict[str, object] = {}
    order: list[str] = []
    while len(ended) < len(questions):
        name, word = said.get(timeout=60)
        order.append(name)
        if not isinstance(word, Begins | Tokens | Waits):
            ended[name] = word
    assert all(isinstance(word, TextEnds) for word in ended.values()), ended
    first, last = order.index("judges"), len(order) - order[::-1].index("judges")
    assert "writes" in order[first:last], "a long text is judged in parts"
    desk.close()


def test_checks_know_a_text_that_was_drawn_otherwise(trained: Trained, local: Gateway) -> None:
    own = OwnPaths(trained.run)
    question = replace(asked(local, PROMPTS[0], most=20), path=PathIndex(2))
    task = Task(PathIndex(2), question.ids, 0, 0, 20, question)
    pieces = list(own.write(task))
    written, origin = tuple(piece.written.token for piece in pieces), pieces[0].origin
    checks = Checks(
        trained.run, lambda module, digest: trained.states(2)[module], lambda peer, why: None, lambda path: iter(())
    )

    def fault(task: Task, written: Sequence[int], modules: Mapping[str, str] = origin.modules) -> str | None:
        return checks.fault(Answered(PeerName("p"), task, tuple(written), Origin(PathIndex(2), modules, "p")))

    assert fault(task, written) is None
    assert fault(task, (*written[:-1], 1 << 20)) == "wrote tokens that do not exist"
    assert fault(task, ()) is None
    later = Task(PathIndex(2), (*question.ids, *written[:5]), 5, 5, 15, question)
    assert fault(later, written[5:]) is None, "who goes on draws where the one before stopped"
    assert fault(later, written[4:]) is not None
    assert fault(task, (*written[:7], (written[7] + 1) % 500, *written[8:])) is not None
    assert fault(task, written, {"L0M0": "1:ab"}) is not None
    torch.manual_seed(0)
    assert fault(Task(PathIndex(2), question.ids, 0, 0, 20, replace(question, seed=8)), written) is not None


def test_an_asker_that_is_refused_by_all_is_told_why(trained: Trained, local: Gateway) -> None:
    gateway = Gateway("small", 4, 32, trained.run.routing(), None, lambda path: iter(()))
    with pytest.raises(SilentError, match="nobody answers for path"):
        tokens(gateway, asked(local, PROMPTS[0]))
    with Hub() as hub, pytest.raises(UnansweredError):
        list(hub.swarm("one").asking.ask("nobody", QUESTION, patience=5))


# -------------------------------------------------------------------------------------------------- real processes


def test_peers_that_train_answer_and_one_that_is_killed_is_replaced(commands: Commands, tmp_path: Path) -> None:
    """A live run over libp2p: a gateway asks its two peers, one is killed while it writes, and rounds go on."""
    run_file = write_run_file(tmp_path / "RUN.toml", min_peers=2, inner_steps=10, rounds=10_000, warmup=10_000)
    address = commands.bootstrap(run_file)
    peers = {}
    for label in ("one", "two"):
        commands.peer(label, address, 0)
    for label in ("one", "two"):
        commands.until_reported(label, Round, round=1)
        peers[commands.reported(label, Joined)[0].peer] = label
    commands.start("gateway", "swarm", "serve", "--run", address, "--port", "0")
    commands.until_logged("gateway", "/v1")
    assert "sees the prompt" in commands.log("gateway")
    (url,) = re.findall(r"http://\S+/v1", commands.log("gateway"))
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    how: dict[str, Any] = {"model": "small", "prompt": PROMPTS[0], "seed": 5, "extra_body": {"top_k": 40}}

    def authors(answer: Any) -> list[str]:
        return [part["by"] for signed in answer.dipaco for part in signed["written_by"]]

    first = client.completions.create(max_tokens=10, **how)
    assert first.usage is not None
    assert 1 <= first.usage.completion_tokens <= 10  # what is trained just now may end a text early
    (author,) = authors(first)
    assert author in peers
    with client.completions.create(max_tokens=2000, stream=True, **how) as stream:
        parts = []
        for part in stream:
            parts.append(part)
            if len(parts) == 5:
                victim = commands.running[peers[author]]
                victim.send_signal(signal.SIGKILL)
    assert parts[-2].choices[0].finish_reason in ("length", "stop")
    assert parts[-1].dipaco
    left = next(label for name, label in peers.items() if name != author)
    commands.until_reported(left, Round, after=len(commands.events(left)))  # answers have not stopped training
    commands.stops_on_ctrl_c("gateway", left)
