"""A second bootstrap node: `dipaco-bootstrap standby`, `appoint` and `promote`."""

import re
from pathlib import Path

from dipaco_swarm.errors import UsageError
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.orders import Appoint


def appointment(text: str) -> Appoint:
    """Read what a standby says of itself, KEY@MULTIADDR[,MULTIADDR...]. Raises UsageError."""
    key, _, rest = "".join(text.split()).partition("@")
    places = tuple(place for place in rest.split(",") if place)
    if not re.fullmatch(r"[0-9a-f]{64}", key) or not places:
        raise UsageError(
            f"{text[:80]!r} is not what a standby says of itself: 64 digits, @, and where it can be dialled; copy it "
            "from its screen, or from the line `standing by` of its log"
        )
    for place in places:
        RunAddress.parse(f"dipaco:x:{'a' * 32}@{place}")
    return Appoint(key=key, places=places)


def home_of_standby(run: str | None, home: Path | None) -> Path:
    """Raises UsageError when nobody says which."""
    from dipaco_swarm.settings import default_home

    if home is not None:
        return home
    if run is None:
        raise UsageError("say which standby: --home DIR as it was given, or --run ADDRESS")
    return default_home(RunAddress.parse(run).name, "standby")
