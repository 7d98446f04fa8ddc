"""What a value from others may be: the ranges of numbers, the length of texts. Messages and records are made of these.

Nothing here is a guess about honest values; each bound is far beyond them, and low enough that nothing that is computed
from such values overflows. What we say of ourselves passes `at_most` where it may be beyond.
"""

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from dipaco_swarm.algorithm.state import MAX_WORK
from dipaco_swarm.swarm.cards import MAX_NICKNAME, is_nickname

MAX_MEMBERS = 1024
"""More than a module group has; larger masks and rosters are refused."""

MAX_MASK_BYTES = MAX_MEMBERS // 8

MAX_STATE_PARAMETERS = 1 << 32
"""Of one module."""

MAX_PIECES = 1 << 14
"""Of one vector: the longest one in the largest pieces."""

MAX_BASES = 4
"""States that a peer has and may go on from."""

MAX_CLAIMS = 8
"""States that are asked about at once."""

MAX_NAMES = 64
"""In the answer to that."""

MAX_INDEX = (1 << 31) - 1
"""Of a version, a stage, a path, a piece, a generation."""

MAX_TOKENS = 1 << 48
"""Of one member in one round: all members together are still less than MAX_WORK."""

MAX_NORM = 1e18
"""Of an outer gradient; its square is still an ordinary number, in fp32 as well: whoever measures it finds the same."""

MAX_SPEED = 1e12
"""Bytes, or tokens, a second."""

MIN_SPEED = 1e-3
"""The same; who is slower is said to stand still."""

MAX_SECONDS = 1e6
"""Twelve days of patience."""

MAX_TIME = 1e12
"""Seconds since the epoch."""


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _printable(text: str) -> str:
    """What is shown on other people's screens has no control characters in it."""
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


def _trimmed(text: str) -> str:
    if not is_nickname(text):
        raise ValueError("has blanks at its ends")
    return text


Printable = AfterValidator(_printable)
Peer = Annotated[str, Field(pattern=r"^[!-~]{1,80}$")]
"""ASCII: what else can be printed hangs on the version of Python, and all must agree on what others say of it."""
Reason = Annotated[str, Field(max_length=200), Printable]
Word = Annotated[str, Field(max_length=80), Printable]
Nickname = Annotated[str, Field(max_length=MAX_NICKNAME), Printable, AfterValidator(_trimmed)]
Percent = Annotated[int, Field(ge=0, le=100)]
ModuleName = Annotated[str, Field(pattern=r"^L\d{1,4}M\d{1,6}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""Of a state or a blob, in hexadecimal."""
Hash = Annotated[bytes, Field(min_length=32, max_length=32)]
RoundId = Annotated[bytes, Field(min_length=16, max_length=16)]
Mask = Annotated[bytes, Field(max_length=MAX_MASK_BYTES)]
"""Little-endian bits: members of a roster, by index."""
Nonce = Annotated[bytes, Field(min_length=16, max_length=16)]
"""Drawn anew by who says it."""
Signature = Annotated[bytes, Field(min_length=64, max_length=64)]
"""Ed25519, with the key that a peer's name has in it."""
Index = Annotated[int, Field(ge=0, le=MAX_INDEX)]
Version = Annotated[int, Field(ge=0, le=MAX_INDEX)]
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Work = Annotated[int, Field(ge=0, le=MAX_WORK)]
Size = Annotated[int, Field(ge=0, lt=1 << 62)]
Parameters = Annotated[int, Field(gt=0, le=MAX_STATE_PARAMETERS)]
Norm = Annotated[float, Field(ge=0, le=MAX_NORM)]
Scale = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(gt=0, le=MAX_NORM)]
Loss = Annotated[float, Field(ge=-MAX_NORM, le=MAX_NORM)]
Speed = Annotated[float, Field(ge=0, le=MAX_SPEED), AfterValidator(lambda speed: speed if speed >= MIN_SPEED else 0.0)]
"""What is less than MIN_SPEED is none: how long something takes at that speed is still an ordinary number."""
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Time = Annotated[float, Field(ge=0, le=MAX_TIME)]

N = TypeVar("N", int, float)


def at_most(most: N, value: N) -> N:
    """A value of our own as we may say it; what is not a number is 0."""
    return min(value, most) if value >= 0 else most * 0
