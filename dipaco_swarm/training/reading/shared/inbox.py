"""What the program that trains brings its reader from others: slices that they have routed, and what they are at."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Slices of a portion from one peer."""

    file: str
    peer: str
    portion: int
    number: int
    """Of the first slice."""


@dataclass(frozen=True)
class Claim:
    """A portion that a peer has routed, or is routing."""

    peer: str
    portion: int
    end: int
    """Slices that are done; -1: all."""


class Inbox:
    """Filled by one thread, emptied by another."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._parts: deque[Part] = deque()
        self._claims: dict[int, tuple[Claim, ...]] = {}
        """By stretch."""

    def put(self, part: Part) -> None:
        with self._lock:
            self._parts.append(part)
            self._lock.notify_all()

    def wait(self, seconds: float) -> bool:
        """Until there is a part; whether there is."""
        with self._lock:
            return self._lock.wait_for(lambda: bool(self._parts), seconds)

    def take(self) -> Part | None:
        with self._lock:
            return self._parts.popleft() if self._parts else None

    def claim(self, stretch: int, claims: Sequence[Claim]) -> None:
        """What others say of a stretch now."""
        with self._lock:
            self._claims[stretch] = tuple(claims)

    def hear(self, said: Mapping[str, object]) -> None:
        """A line from the other program."""
        match said:
            case {"part": dict(part)}:
                self.put(Part(**part))
            case {"stretch": int(stretch), "claims": list(claims)}:
                self.claim(stretch, [Claim(*claim) for claim in claims])

    def claims(self) -> dict[int, list[Claim]]:
        """By portion."""
        found: dict[int, list[Claim]] = {}
        with self._lock:
            for claims in self._claims.values():
                for claim in claims:
                    found.setdefault(claim.portion, []).append(claim)
        return found
