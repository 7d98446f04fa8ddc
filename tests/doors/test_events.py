"""Events: every kind as a line of JSON and back, and the words that people read."""

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any

import pytest

from dipaco_swarm import events
from dipaco_swarm.events.event import EVENTS, Event, Fault, Logged, OfPeer
from dipaco_swarm.events.lines import FAMILIES, BadLineError, Entry, from_line, to_line
from dipaco_swarm.events.operator import RouterFitted
from dipaco_swarm.events.training import Commit, Loss, Round, RoundFailed, StateNotSent, Steps, TokensDropped
from dipaco_swarm.events.volunteer import BootstrapSilent, CannotWrite, ClockSet, OnlyHere, Recovered, Slept, Waiting

ONE_OF_EACH: dict[Any, Any] = {int: 3, float: 0.25, str: "L0M1", bool: True}


def example(of: Any) -> Any:
    """A value of a type."""
    origin, arguments = typing.get_origin(of), typing.get_args(of)
    if of in ONE_OF_EACH:
        return ONE_OF_EACH[of]
    if origin is typing.Literal:
        return arguments[0]
    if origin is UnionType:
        return example(arguments[0])
    if origin is tuple:
        return (example(arguments[0]), example(arguments[0]))
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return {example(arguments[0]): example(arguments[1])}
    assert isinstance(of, type), of
    assert dataclasses.is_dataclass(of), of
    hints = typing.get_type_hints(of)
    return of(**{field.name: example(hints[field.name]) for field in dataclasses.fields(of)})


def test_whoever_reads_lines_knows_all_events() -> None:
    """A module of events that nobody has imported is one whose lines no program can read."""
    here = Path(events.__file__).parent
    with_events = {file.stem for file in here.glob("*.py") if "(Event)" in file.read_text(encoding="utf-8")} - {"event"}
    assert {family.__name__.rpartition(".")[2] for family in FAMILIES} == with_events


PLAIN = sorted((kind for kind, of in EVENTS.items() if of not in (Fault, OfPeer)))


@pytest.mark.parametrize("kind", PLAIN)
def test_every_event_is_a_line_of_json_and_one_calm_line(kind: str) -> None:
    entry = Entry(1767225600.5, example(EVENTS[kind]))
    line = to_line(entry)
    assert from_line(line) == entry
    assert line.count(b"\n") == 1
    if entry.event.for_people:
        said = str(entry.event)
        assert type(entry.event).line is not Event.line, "it has no words of its own"
        assert "\n" not in said
        assert len(said) <= 160, said


STEPS = Steps(0, 1, 10, 2.5, 100, 50.0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not an object"),
        (b'{"time": 1.0}', "kind: None is no event of this program"),
        (b'{"kind": "steps-back", "time": 1.0}', "kind: 'steps-back' is no event of this program"),
        (to_line(Entry(1.0, STEPS)).replace(b'"time": 1.0', b'"time": "now"'), "steps, time: 'now'"),
        (to_line(Entry(1.0, STEPS)).replace(b'"tokens": 100', b'"tokens": "many"'), "steps, tokens: "),
        (to_line(Entry(1.0, STEPS)).replace(b'"path": 1, ', b""), "steps, path: Field required"),
        (to_line(Entry(1.0, STEPS)).replace(b'"path": 1', b'"path": 1, "more": 2'), "steps, more: "),
        (
            to_line(Entry(1.0, Round(0, 0, 1, 1, None, {"L0M0": Commit(1, "d", 1, 5)}))).replace(b"5}", b"5.5}"),
            "round, modules.L0M0.tokens: ",
        ),
    ],
)
def test_a_line_that_is_no_event_is_refused_by_the_name_of_its_field(line: bytes, words: str) -> None:
    with pytest.raises(BadLineError) as refused:
        from_line(line)
    assert words in str(refused.value)


def dropped(reason: Loss) -> TokensDropped:
    return TokensDropped(0, 1, "L0M1", 3, 1280, reason, 0, 5000)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            Round(1, 0, 60, 4, 2.0, {"L0M0": Commit(3, "d", 1, 5), "L1M1": Commit(7, "e", 2, 5)}),
            "round 4: loss 2.000, L0M0 v3 with 0 others, L1M1 v7 with 1 other",
        ),
        (RoundFailed(module="L0M0", reason="came late"), "L0M0: came late; nothing lost"),
        (
            StateNotSent(module="L0M0", version=9, again_seconds=2.0),
            "nobody sends L0M0 at version 9 just now; asking again every 2 s",
        ),
        (StateNotSent(module="L0M0", version=9), "nobody sends L0M0 at version 9 just now; training goes on"),
        (dropped("stale"), "L0M1: 1,280 tokens trained on version 3 are too old to count"),
        (
            dropped("not acknowledged"),
            "L0M1: 1,280 tokens were given to a round whose end we did not hear; they count if it was made",
        ),
        (dropped("damaged memory"), "L0M1: 1,280 tokens trained on version 3 are lost with the damaged memory"),
        (Waiting("peers", 1), "waiting for 1 more peer to start"),
        (Waiting("peers", 2), "waiting for 2 more peers to start"),
        (
            OnlyHere(("L0M0",)),
            "L0M0 is only in this machine's checkpoint; start again here to bring it back",
        ),
        (
            OnlyHere(tuple(f"L{level}M0" for level in range(6))),
            "L0M0, L1M0, L2M0 and 3 more are only in this machine's checkpoint; start again here to bring it back",
        ),
        (CannotWrite(error="the disk is full"), "the disk is full; training goes on"),
        (CannotWrite(error="the disk is full", again_seconds=10.0), "the disk is full; trying again in 10 s"),
        (BootstrapSilent(alone=False), "the bootstrap node is not to be heard; training goes on without it"),
        (
            BootstrapSilent(alone=False).after(180.0),
            "the bootstrap node is not to be heard; training goes on without it (for 3 min now)",
        ),
        (Recovered("disk"), "the disk has room again"),
        (Slept(180.0), "this machine was asleep for 3 min; looking where the group is"),
        (
            ClockSet(-3600.0),
            "this machine's clock was set back by 60 min; if it is wrong now, the others cannot hear us",
        ),
        (RouterFitted(1200, (0.25, 0.75)), "router fitted on 1,200 prefixes; shares of the paths: 25, 75 %"),
        (RouterFitted(9, (0.5, *[0.025] * 20)), "router fitted on 9 prefixes; shares of the paths: 2.5 to 50.0 %"),
        (OfPeer("ada", Logged("a line")), "ada: a line"),
    ],
)  # fmt: skip
def test_the_words_of_events(event: Event, line: str) -> None:
    assert str(event) == line
