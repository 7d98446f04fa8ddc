"""A volunteer's desk: nobody's question holds up the others for longer than a part of a text takes."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.machine.clock import SystemClock
from dipaco_swarm.peer.answering import AnswerDesk
from dipaco_swarm.swarm.questions import AskText, Begins, NotNow, Said, TextEnds, Tokens
from dipaco_swarm.training import writing
from dipaco_swarm.training.modules import level_sizes
from dipaco_swarm.training.tokenizer import load_tokenizer, train_tokenizer, vocabulary_size
from tests.hub import until

from .test_manifest import manifest

TOKENIZER = train_tokenizer(["some text"], 257)
POSITIONS, PART = 64, 7


@dataclass
class Standing:
    """A path that stays as it is."""

    path: PathIndex
    base: dict[ModuleId, ModuleState]
    is_done: bool = True


@pytest.fixture
def desk() -> Iterator[AnswerDesk]:
    run = manifest()
    model = run.config.model.model_copy(update={"max_position_embeddings": POSITIONS})
    run = run.model_copy(update={"config": run.config.model_copy(update={"model": model})})
    sizes = level_sizes(run.rules.model, run.rules.levels, vocabulary_size(load_tokenizer(TOKENIZER)))
    base = {ModuleId(level, 0): ModuleState.seed(torch.ones(size)) for level, size in enumerate(sizes)}
    desk = AnswerDesk(SystemClock(), "cpu", 4)
    desk.enter(run, Standing(PathIndex(0), base), lambda digest: TOKENIZER)
    yield desk
    desk.close()


def ask(length: int, most_tokens: int) -> AskText:
    return AskText(stage=0, path=0, text=(1,) * length, most_tokens=most_tokens)


def is_over(said: list[Said]) -> bool:
    return isinstance(said[-1], TextEnds | NotNow) if said else False


def test_who_goes_while_a_text_is_judged_is_answered_no_further(
    desk: AnswerDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "PART", PART)
    gone, other, taken = list[Said](), list[Said](), threading.Event()

    def say(word: Said) -> None:
        gone.append(word)
        if len(gone) == 3:
            assert taken.wait(60)
            end()

    end = desk.take(ask(500, 0), "who goes", say)
    taken.set()
    until(lambda: len(gone) == 3)
    desk.take(ask(3, 40), "another", other.append)  # takes as long as the parts that are left
    until(lambda: is_over(other))
    begins, first, part = gone
    assert isinstance(begins, Begins)
    assert isinstance(first, Tokens)
    assert isinstance(part, Tokens)
    assert len(part.tokens) == PART


def test_others_go_on_while_a_long_text_is_read_and_when_its_context_is_cut(
    desk: AnswerDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "PART", PART)
    passes: list[int] = []
    one_pass = writing.Batch._pass

    def count(self: writing.Batch, tokens: list[list[int]], *rest: object, **how: Tensor) -> object:
        passes.append(max(map(len, tokens)))
        return one_pass(self, tokens, *rest, **how)

    monkeypatch.setattr(writing.Batch, "_pass", count)
    long, short, order = list[Said](), list[Said](), list[str]()

    def say(word: Said) -> None:
        long.append(word)
        if isinstance(word, Begins):
            desk.take(ask(3, 2), "another", short_one)
        if isinstance(word, Tokens):
            order.append("long")

    def short_one(word: Said) -> None:
        short.append(word)
        if isinstance(word, TextEnds):
            order.append("short")

    desk.take(ask(200, 4), "somebody", say)
    until(lambda: is_over(long) and is_over(short))
    assert order[0] == "short"
    assert max(passes) == PART, passes
    assert isinstance(long[-1], TextEnds)
    assert sum(len(word.tokens) for word in long if isinstance(word, Tokens)) == 4
