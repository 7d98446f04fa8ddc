"""What is remembered of others, whose names are free: of so many, and no more. Pure."""

from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def put_last(known: dict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Note it as the newest; the oldest are forgotten where there are more than `most`."""
    known.pop(key, None)
    known[key] = value
    keep_last(known, most)


def keep_last(known: dict[Any, Any], most: int) -> None:
    """Forget the oldest where there are more than `most`."""
    while len(known) > most:
        del known[next(iter(known))]
