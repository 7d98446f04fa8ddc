"""Asking peers to write: what they say comes as it was said, and whoever is silent, gone or busy is told apart."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest
from pydantic import ValidationError

from dipaco_swarm.swarm import asking
from dipaco_swarm.swarm.askers import (
    MAX_KNOWN,
    QUESTIONS,
    QUESTIONS_A_MINUTE,
    QUESTIONS_OF_AN_ADDRESS,
    QUESTIONS_OF_ONE,
    Askers,
)
from dipaco_swarm.swarm.asking import Say, UnansweredError
from dipaco_swarm.swarm.door import Admission
from dipaco_swarm.swarm.interface import Swarm
from dipaco_swarm.swarm.local import Direct, LocalNetwork
from dipaco_swarm.swarm.local_stream import LocalStream
from dipaco_swarm.swarm.questions import AskText, Begins, NotNow, Said, TextEnds, Tokens, Waits
from tests.clocks import HandClock
from tests.hub import Hub, until

from .conftest import MakeSwarms

ASKED = AskText(stage=1, path=3, text=(5, 6, 7), most_tokens=4, seed=-1)
BEGINS = Begins(modules=(("L0M1", 7, "a" * 64),))


class Counter:
    """A desk in a thread: says what it was told to, one after the other."""

    def __init__(self, words: Sequence[Said]) -> None:
        self.words = words
        self.asked: list[AskText] = []
        self.ended = threading.Event()

    def take(self, asked: AskText, asker: str, say: Say) -> Callable[[], None]:
        self.asked.append(asked)
        threading.Thread(target=lambda: deque(map(say, self.words), 0)).start()
        return self.ended.set


class Drip:
    """A desk that says a token now and then: it is slow, and never silent."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.ended = threading.Event()

    def take(self, asked: AskText, asker: str, say: Say) -> Callable[[], None]:
        def drip() -> None:
            say(BEGINS)
            for _ in range(self.tokens):
                if self.ended.wait(0.02):
                    return
                say(Tokens(tokens=(1,)))
            say(TextEnds())

        threading.Thread(target=drip).start()
        return self.ended.set


class Unread(Direct):
    """A link on which the tokens of one peer are never taken."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    async def carry(self, stream: LocalStream, item: object, size: int) -> None:
        if isinstance(item, Tokens) and stream.me == self._peer:
            await asyncio.Event().wait()
        await super().carry(stream, item, size)


def answer(swarm: Swarm, peer: str, asked: AskText = ASKED, patience: float = 20.0) -> list[Begins | Tokens]:
    return list(swarm.asking.ask(peer, asked, patience=patience))


def test_what_a_peer_says_comes_as_it_was_said(make_swarms: MakeSwarms) -> None:
    one, other, *_ = make_swarms(2)
    words = [Tokens(tokens=(1, 2)), Tokens(tokens=(3,), logprobs=(-0.5,), likeliest=(((3, -0.5), (9, -1.0)),))]
    desk = Counter([BEGINS, *words, TextEnds()])
    one.asking.open(desk)
    until(lambda: bool(_try(other, one.peer)))
    assert answer(other, one.peer) == [BEGINS, *words]
    assert desk.asked[-1] == ASKED
    until(desk.ended.is_set)
    desk.words = [NotNow(reason="busy", seconds=7.0)]
    with pytest.raises(UnansweredError, match="busy") as refused:
        answer(other, one.peer)
    assert refused.value.again_seconds == 7.0


def _try(swarm: Swarm, peer: str) -> list[Begins | Tokens] | None:
    try:
        return answer(swarm, peer)
    except UnansweredError:
        return None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([Tokens(tokens=(1,))], "none"),
        ([BEGINS, BEGINS], "none"),
        ([TextEnds()], "none"),
        ([BEGINS, Tokens(tokens=(1, 2, 3)), Tokens(tokens=(4, 5))], "5 tokens"),
        ([BEGINS, Tokens(tokens=(1,))], "silent for 0 s"),
        ([Waits(seconds=0.9)], "silent for 1 s"),
        ([Waits(seconds=0.9), BEGINS, Tokens(tokens=(1,))], "silent for 0 s"),
        ([Waits(seconds=21.0)], "others are before, for 21 s"),
        ([Waits(seconds=0.9), Waits(seconds=0.9)], "none"),
        ([BEGINS, Waits(seconds=0.9)], "none"),
    ],
)
def test_an_answer_that_does_not_fit_is_none(words: list[Said], why: str) -> None:
    with Hub() as hub:
        one, other = hub.swarm("one"), hub.swarm("other")
        desk = Counter(words)
        one.asking.open(desk)
        with pytest.raises(UnansweredError, match=why):
            answer(other, "one", patience=0.3)
        until(desk.ended.is_set)


def test_a_peer_that_drips_is_given_up_and_one_that_is_read_slowly_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "FIRST_SECONDS", 0.5)
    monkeypatch.setattr(asking, "SLOWEST_TOKEN_SECONDS", 0.001)
    with Hub() as hub:
        one, other, third = (hub.swarm(name) for name in ("one", "other", "third"))
        drip = Drip(500)
        one.asking.open(drip)
        with pytest.raises(UnansweredError, match="too slow") as given_up:
            answer(other, "one", ASKED.model_copy(update={"most_tokens": 500}))
        assert given_up.value.again_seconds == asking.SLOW_AGAIN
        until(drip.ended.is_set)

        quick = Counter([BEGINS, Tokens(tokens=(1,)), Tokens(tokens=(2,)), TextEnds()])
        third.asking.open(quick)
        said = other.asking.ask("third", ASKED, patience=20)
        began = time.monotonic()
        next(said)
        until(lambda: quick.ended.is_set() and time.monotonic() - began > 1.0)
        assert len(list(said)) == 2


def test_what_waits_for_a_slow_reader_is_no_more_than_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    put, came = asking._Heard.put, []

    def count(self: asking._Heard, said: Said | UnansweredError) -> None:
        came.append(said)
        put(self, said)

    monkeypatch.setattr(asking._Heard, "put", count)
    with Hub() as hub:
        one, other = hub.swarm("one"), hub.swarm("other")
        desk = Counter([BEGINS, *[Tokens(tokens=(1,))] * 2000])
        one.asking.open(desk)
        said = other.asking.ask("one", ASKED, patience=20)
        next(said)
        until(desk.ended.is_set)  # its stream is ended, though nobody has read what it said
        assert len(came) <= asking._most(ASKED) + 4
        with pytest.raises(UnansweredError, match="5 tokens"):
            list(said)


def test_who_does_not_read_the_rest_of_an_answer_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LAST_SECONDS", 0.1)
    with Hub(network=LocalNetwork(Unread("one"))) as hub:
        one, other = hub.swarm("one"), hub.swarm("other")
        desk = Counter([BEGINS, Tokens(tokens=(1,))])
        one.asking.open(desk)
        streams = [other.asking.ask("one", ASKED, patience=20) for _ in range(QUESTIONS_OF_ONE)]
        assert all(next(stream) == BEGINS for stream in streams)
        with pytest.raises(UnansweredError, match="too many"):  # the desk goes on, and they may have to wait for it
            answer(other, "one")
        assert not desk.ended.is_set()
        streams.clear()
        until(lambda: _begins(other))

        desk.words = [BEGINS, Tokens(tokens=(1,)), TextEnds()]
        streams = [other.asking.ask("one", ASKED, patience=20) for _ in range(QUESTIONS_OF_ONE)]
        assert all(next(stream) == BEGINS for stream in streams)
        until(lambda: _begins(other))


def test_who_does_not_answer_is_said_so_at_once() -> None:
    with Hub() as hub:
        other = hub.swarm("other")
        hub.swarm("one")
        for name in ("one", "nobody"):
            with pytest.raises(UnansweredError):
                answer(other, name)


def test_a_peer_that_goes_in_the_middle_is_gone() -> None:
    with Hub() as hub:
        other = hub.swarm("other")
        with hub.open("one") as one:
            one.asking.open(Counter([BEGINS, Tokens(tokens=(1,))]))
            said = other.asking.ask("one", ASKED, patience=20)
            assert [next(said), next(said)] == [BEGINS, Tokens(tokens=(1,))]
        with pytest.raises(UnansweredError):
            next(said)


def test_who_stops_listening_is_written_for_no_more() -> None:
    with Hub() as hub:
        one, other = hub.swarm("one"), hub.swarm("other")
        desk = Counter([BEGINS, Tokens(tokens=(1,))])
        one.asking.open(desk)
        with closing(other.asking.ask("one", ASKED, patience=20)) as said:  # type: ignore[type-var]
            next(said)
            assert not desk.ended.is_set()
        until(desk.ended.is_set)


def test_one_asker_does_not_take_all_the_room() -> None:
    with Hub() as hub:
        one, other, third = (hub.swarm(name) for name in ("one", "other", "third"))
        one.asking.open(Counter([BEGINS]))
        streams = [other.asking.ask("one", ASKED, patience=20) for _ in range(QUESTIONS_OF_ONE)]
        assert all(next(stream) == BEGINS for stream in streams)
        with pytest.raises(UnansweredError, match="too many"):
            answer(other, "one")
        assert next(third.asking.ask("one", ASKED, patience=20)) == BEGINS
        streams.clear()  # nobody listens any more
        until(lambda: _begins(other))


def test_who_is_banned_is_answered_nothing() -> None:
    with Hub() as hub:
        one, other, third = (hub.swarm(name) for name in ("one", "other", "third"))
        one.asking.open(Counter([BEGINS, TextEnds()]))
        one.door.admission = Admission(banned=frozenset({"other"}))
        with pytest.raises(UnansweredError, match="you are banned here"):
            answer(other, "one")
        assert answer(third, "one") == [BEGINS]
        one.door.admission = Admission(
            admitted=frozenset({"nobody"})
        )  # a run for the invited: whoever may read, may ask
        assert answer(other, "one") == [BEGINS]


@pytest.mark.parametrize(
    ("places", "most"),
    [
        (["/ip4/203.0.113.7/tcp/{}"], QUESTIONS_OF_AN_ADDRESS),
        (["/ip6/2001:db8:0:1::{}/tcp/4001"], QUESTIONS_OF_AN_ADDRESS),
        (["/ip6/2001:db8:0:{}::1/tcp/4001"], QUESTIONS_OF_AN_ADDRESS),
        (["/ip6/2001:db8:{}::1/tcp/4001"], 2 * QUESTIONS),
        (["/ip4/203.0.113.{}/tcp/4001"], 2 * QUESTIONS),
        (["/ip4/203.0.113.7/tcp/4001/p2p/relay/p2p-circuit"], QUESTIONS),
        (["/ip4/203.0.113.7/tcp/4001/p2p/relay/p2p-circuit", "/ip4/203.0.114.{}/tcp/4001"], 2 * QUESTIONS),
        (["", "/ip4/not-one/tcp/1", "/dns4/a/tcp/1"], 2 * QUESTIONS),
    ],
)
def test_many_names_of_one_address_do_not_take_all_the_room(places: list[str], most: int) -> None:
    askers = Askers(lambda: 0.0)
    asked = [(f"peer-{i}", places[i % len(places)].format(i + 1)) for i in range(20)]
    came = [each for each in asked if askers.refuses(*each) is None and askers.begin(*each) is None]  # type: ignore[func-returns-value]
    assert len(came) == most
    for each in came:
        askers.end(*each)
    assert askers.refuses(*came[0]) is None


def test_whoever_asks_without_a_break_waits_for_the_next_minute() -> None:
    clock = HandClock(120.0)
    askers = Askers(clock.monotonic)
    for i in range(QUESTIONS_A_MINUTE):
        assert askers.refuses("one", "") is None
        assert askers.refuses(f"of many {i % 9}", "/ip4/203.0.113.7/tcp/1") is None
    clock.now += 20
    assert askers.refuses("one", "") == 40
    assert askers.refuses("another", "/ip4/203.0.113.7/tcp/2") == 40
    assert askers.refuses("another", "/ip4/203.0.113.8/tcp/2") is None
    for i in range(MAX_KNOWN):
        askers.refuses(f"stranger {i}", "")
    assert askers.refuses("one more", "") is None, "names are free, and keep nobody out"
    assert askers.refuses("another", "/ip4/203.0.113.7/tcp/2") == 40
    assert all(len(asked) <= MAX_KNOWN for asked in askers._asked)
    clock.now += 40
    assert askers.refuses("another", "/ip4/203.0.113.7/tcp/2") is None


def test_who_has_no_question_here_comes_before_those_who_have_all_places() -> None:
    askers = Askers(lambda: 0.0)
    for name in ("one", "two"):
        for _ in range(QUESTIONS_OF_ONE):
            assert askers.refuses(name, "") is None
            askers.begin(name, "")
    assert askers.refuses("one", "") == 5.0
    assert askers.refuses("another", "") is None


def _begins(swarm: Swarm) -> bool:
    try:
        return next(swarm.asking.ask("one", ASKED, patience=20)) == BEGINS
    except UnansweredError:
        return False


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": ()},
        {"text": (1,) * ((1 << 14) + 1)},
        {"written": 3},
        {"drawn": 9},
        {"most_tokens": 1 << 14},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"seed": 1 << 64},
        {"alternatives": 21},
    ],
)
def test_questions_have_bounds(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AskText.model_validate({**ASKED.model_dump(), **wrong})
    with pytest.raises(ValidationError):
        Tokens(tokens=(1, 2), logprobs=(-1.0,), likeliest=((),))
