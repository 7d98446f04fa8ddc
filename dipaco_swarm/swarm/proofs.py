"""What reducers sign, and what it proves when they have signed two things. How it is used: `round/seals.py`."""

from typing import Any, Literal

from pydantic import Field, model_serializer, model_validator

from dipaco_swarm.swarm.fields import (
    MAX_MEMBERS,
    Hash,
    Index,
    Message,
    ModuleName,
    Peer,
    RoundId,
    Signature,
    Version,
)

MAX_PROOFS = 16
"""At once."""


class Seal(Message):
    """What a reducer has signed: the pieces that it made in one generation of a round. Bare values, in this order."""

    reducer: Index
    """In the roster."""
    generation: Index
    digest: Hash
    """Over these pieces in order: their bytes, and the masks of who is in them."""
    signature: Signature

    @model_serializer
    def _as_bare_values(self) -> tuple[int, int, bytes, bytes]:
        return self.reducer, self.generation, self.digest, self.signature

    @model_validator(mode="before")
    @classmethod
    def _of_bare_values(cls, said: Any) -> Any:
        return dict(zip(cls.model_fields, said, strict=True)) if isinstance(said, tuple) else said


class Proof(Message):
    """Either way: this reducer has signed two averages of the same pieces. Whoever checks that bans its name."""

    kind: Literal["proof"] = "proof"
    reducer: Peer
    stage: Index
    module: ModuleName
    version: Version
    roster: Hash
    """SHA-256 of the roster as it is sent."""
    generation: Index
    digests: tuple[Hash, Hash]
    signatures: tuple[Signature, Signature]


class AskSeals(Message):
    """Member -> member, when averages differ: what have the reducers of this round signed to you?"""

    kind: Literal["ask-seals"] = "ask-seals"
    round_id: RoundId


class SealsAre(Message):
    """The answer: the seals of all pieces; none while some are missing, or where the round is not known."""

    kind: Literal["seals"] = "seals"
    seals: tuple[Seal, ...] = Field(max_length=MAX_MEMBERS)
