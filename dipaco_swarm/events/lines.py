"""An event as a line of JSON, and back.

    {"kind": "caught-up", "time": 1767225600.5, "module": "L0M1", "before": 3, "version": 5}

`kind` is the event's class, `time` seconds since the epoch, and the rest are its fields.
"""

import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dipaco_swarm.events import (
    admission,
    attendance,
    going_back,
    helping,
    joining,
    operator,
    pausing,
    pushing,
    reading,
    training,
    usage,
    volunteer,
    watching,
)
from dipaco_swarm.events.event import EVENTS, Event

FAMILIES = (
    admission, attendance, going_back, helping, joining, operator, pausing, pushing, reading, training, usage,
    volunteer, watching,
)  # fmt: skip
"""Importing them has put their events into `EVENTS`."""


class BadLineError(ValueError):
    """A line that is no event: torn, of another program, or with a field that is missing, unknown or wrong."""


@dataclass(frozen=True)
class Entry:
    """An event and when it was."""

    time: float
    """Seconds since the epoch, as the machine believed."""
    event: Event


def to_line(entry: Entry) -> bytes:
    """One line, with its newline."""
    values = {"kind": entry.event.kind, "time": entry.time, **asdict(entry.event)}
    return json.dumps(values).encode() + b"\n"


def from_line(line: bytes) -> Entry:
    """The event of a line. Raises BadLineError, which names the kind, the field and what is wrong with it."""
    try:
        values = json.loads(line)
    except ValueError as error:
        raise BadLineError(f"not JSON: {error}") from None
    if not isinstance(values, dict):
        raise BadLineError(f"not an object: {line[:40]!r}")
    kind, time = values.pop("kind", None), values.pop("time", None)
    if not isinstance(kind, str) or kind not in EVENTS:
        raise BadLineError(f"kind: {kind!r} is no event of this program")
    if not isinstance(time, float | int):
        raise BadLineError(f"{kind}, time: {time!r} is no number of seconds")
    try:
        return Entry(time, _reader(kind).validate_json(json.dumps(values)))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise BadLineError(f"{kind}, {field}: {first['msg']}") from None


@cache
def _reader(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(EVENTS[kind])
