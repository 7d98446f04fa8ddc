"""Which of the versions that are announced may be there: everybody can announce any. Pure.

For what nobody checks by fetching it: what a screen shows, and where a peer goes that trains where it is needed. What
is taken as a state is believed by `evidence.py`.
"""

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

AHEAD = 2
"""Versions that one peer may be ahead of a node of the operator's, which fetches every one within seconds."""


class Said(Protocol):
    """What a peer announces of a module."""

    @property
    def peer(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def known(self) -> bool:
        """Whether the peer has contributed, as far as we know."""
        ...


S = TypeVar("S", bound=Said)


def plausible(announced: Sequence[S], operators: Collection[str]) -> tuple[S, ...]:
    """What is announced of a module, without a version that a single peer is far ahead with.

    `operators`: names of the operator's nodes. Where none of them is heard of, all that is announced.
    """
    kept = [said.version for said in announced if said.peer in operators]
    if not kept:
        return tuple(announced)
    others = sorted(said.version for said in announced if said.known)
    most = max(max(kept) + AHEAD, others[-2] if len(others) > 1 else 0)
    return tuple(said for said in announced if said.version <= most)
