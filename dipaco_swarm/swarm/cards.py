"""What a peer says of itself for people: a name that it chose, and how much of the time it trained.

It stands in the announcement of one of its modules alone, and nothing is decided by it. The name is data of a stranger:
short, printable, and shown beside the name that nobody can choose.
"""

import unicodedata
from dataclasses import dataclass

MAX_NICKNAME = 32


@dataclass(frozen=True)
class Card:
    """Of one peer."""

    nickname: str = ""
    trained: float | None = None
    """Share of the time lately, 0 to 1; None: it has not said."""


NO_CARD = Card()


def is_nickname(text: str) -> bool:
    """Whether others take it: characters that can be printed, none at the ends that nobody sees, and not too many."""
    return len(text) <= MAX_NICKNAME and text.isprintable() and text == text.strip()


def nickname_of(text: str) -> str:
    """As it is sent: composed, and without blanks around it. Raises ValueError when it is none."""
    name = unicodedata.normalize("NFC", text).strip()
    if not is_nickname(name):
        raise ValueError(f"it has at most {MAX_NICKNAME} characters, all of them printable")
    return name
