"""What is said when an average is checked after its round: its reducer shows from what it was made.

How it is checked: `round/auditing.py`. The bytes of contributions and of an average follow these messages, each behind
the header of a piece.
"""

from typing import Annotated, Literal

from pydantic import Field

from dipaco_swarm.swarm.fields import (
    MAX_MEMBERS,
    MAX_PIECES,
    Hash,
    Index,
    Message,
    ModuleName,
    Parameters,
    Peer,
    RoundId,
    Signature,
    Version,
)
from dipaco_swarm.swarm.wire import Roster


class SignedInput(Message):
    """A contribution to a piece, as its member has signed it."""

    member: Index
    """In the roster."""
    digest: Hash
    signature: Signature


class AskInputs(Message):
    """Member -> reducer, after a round: from what have you made this piece?"""

    kind: Literal["ask-inputs"] = "ask-inputs"
    round_id: RoundId
    piece: Index
    whole: bool = False
    """With what we have ourselves: the average, and our own contribution."""


class InputsAre(Message):
    """The answer: from these, and the bytes follow; where `whole`, the average comes first. NotHere: not any more."""

    kind: Literal["inputs"] = "inputs"
    inputs: tuple[SignedInput, ...] = Field(min_length=1, max_length=MAX_MEMBERS)
    signature: Signature
    """The reducer's, under all of these."""


class NotShown(Message):
    """Member -> other members: this reducer does not show me from what it has made the piece; see for yourselves."""

    kind: Literal["not-shown"] = "not-shown"
    round_id: RoundId
    piece: Index


class Accusation(Message):
    """Either way: what a reducer has signed is not what its inputs make. Average and inputs follow: make it anew."""

    kind: Literal["accusation"] = "accusation"
    stage: Index
    module: ModuleName
    version: Version
    parameters: Parameters
    """Of the module."""
    roster: Roster
    reducer: Index
    """In the roster."""
    generation: Index
    pieces: tuple[tuple[Index, Hash], ...] = Field(min_length=1, max_length=MAX_PIECES)
    """What the reducer made in that generation, and the digest of each."""
    seal: Signature
    """Under all of them."""
    piece: Index
    mask: Annotated[bytes, Field(min_length=1, max_length=MAX_MEMBERS // 8)]
    """Who is in its average."""
    inputs: tuple[SignedInput, ...] = Field(min_length=1, max_length=MAX_MEMBERS)
    shown: Signature
    """The reducer's, under the list of inputs."""


class Convicted(Message):
    """In our own file: whom we have convicted of a wrong average by making it anew. Nobody has to believe this."""

    kind: Literal["convicted"] = "convicted"
    reducer: Peer
    stage: Index
    module: ModuleName
    version: Version
