"""A run's status from its page: an answer at once, where joining the swarm takes seconds. Nothing heavy is loaded."""

import json
import threading
import urllib.error
import urllib.request
from dataclasses import fields
from http.client import HTTPException
from queue import Empty, SimpleQueue
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dipaco_swarm.dashboard.views import SwarmStatus
from dipaco_swarm.errors import UnreachableError, UsageError, printable

ANSWER_SECONDS = 10.0
"""Until something comes, or something more."""
WHOLE_SECONDS = 60.0
"""Until all of it is there."""
MOST_BYTES = 64 << 20
"""Of a run with thousands of peers it is a tenth of that."""
MOST_NUMBER = 1 << 64


def status_at(page: str) -> SwarmStatus:
    """What the page at this address says at `/api/status`. Raises UsageError for what is no page of a run, and
    UnreachableError when nobody answers."""
    if not page.startswith(("http://", "https://")):
        raise UsageError(f"--page {page[:80]!r} is no address of a page; give one like http://127.0.0.1:8080")
    try:
        body = _fetched(f"{page.rstrip('/')}/api/status")
    except urllib.error.HTTPError as error:
        raise UsageError(f"{page[:80]} is no page of a run: it answers /api/status with {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:
        why = printable(str(error))
        raise UnreachableError(f"nobody answers at {page[:80]}: {why}; is the run's page served there?") from None
    try:
        said = _harmless(json.loads(body))
        known = {field.name for field in fields(SwarmStatus)}
        return TypeAdapter(SwarmStatus).validate_python({name: said[name] for name in said if name in known})
    except (ValueError, TypeError, ValidationError, RecursionError):  # RecursionError: brackets without end
        raise UsageError(f"{page[:80]} is no page of a run of this version: its status cannot be read") from None


def _fetched(address: str) -> bytes:
    """What is there. A byte now and then would keep each read within its time for ever: all of them have one as well,
    and the thread is left to the end of the program."""
    came: SimpleQueue[bytes | Exception] = SimpleQueue()

    def read() -> None:
        try:
            with urllib.request.urlopen(address, timeout=ANSWER_SECONDS) as answer:
                came.put(answer.read(MOST_BYTES))
        except Exception as error:  # noqa: BLE001  # raised again by whoever waits for it
            came.put(error)

    threading.Thread(target=read, name="page", daemon=True).start()
    try:
        body = came.get(timeout=WHOLE_SECONDS)
    except Empty:
        raise TimeoutError(f"its answer was not whole after {WHOLE_SECONDS:.0f} s") from None
    if isinstance(body, Exception):
        raise body
    return body


def _harmless(said: Any) -> Any:
    """The same with texts as they may be shown, whoever serves the page. Raises ValueError for numbers that nothing can
    be done with."""
    match said:
        case dict():
            return {key: _harmless(inner) for key, inner in said.items()}
        case list():
            return [_harmless(inner) for inner in said]
        case str():
            return printable(said)
        case int() | float() if not abs(said) < MOST_NUMBER:  # nor is nan
            raise ValueError("too large a number")
    return said
