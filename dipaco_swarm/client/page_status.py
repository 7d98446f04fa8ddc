"""A run's status from its page: an answer at once, where joining the swarm takes seconds. Nothing heavy is loaded."""

import json
import urllib.error
import urllib.request
from dataclasses import fields
from http.client import HTTPException

from pydantic import TypeAdapter, ValidationError

from dipaco_swarm.dashboard.views import SwarmStatus
from dipaco_swarm.errors import UnreachableError, UsageError

ANSWER_SECONDS = 10.0
MOST_BYTES = 64 << 20
"""Of a run with thousands of peers it is a tenth of that."""


def status_at(page: str) -> SwarmStatus:
    """What the page at this address says at `/api/status`. Raises UsageError for what is no page of a run, and
    UnreachableError when nobody answers."""
    if not page.startswith(("http://", "https://")):
        raise UsageError(f"--page {page[:80]!r} is no address of a page; give one like http://127.0.0.1:8080")
    try:
        with urllib.request.urlopen(f"{page.rstrip('/')}/api/status", timeout=ANSWER_SECONDS) as answer:
            body = answer.read(MOST_BYTES)
    except urllib.error.HTTPError as error:
        raise UsageError(f"{page[:80]} is no page of a run: it answers /api/status with {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise UnreachableError(f"nobody answers at {page[:80]}: {error}; is the run's page served there?") from None
    try:
        said = json.loads(body)
        known = {field.name for field in fields(SwarmStatus)}
        return TypeAdapter(SwarmStatus).validate_python({name: said[name] for name in said if name in known})
    except (ValueError, TypeError, ValidationError):
        raise UsageError(f"{page[:80]} is no page of a run of this version: its status cannot be read") from None
