"""How the values of a run are made: frozen, strictly typed, checked; and the texts that several of them hold."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints
from pydantic_core import PydanticKnownError

from dipaco_swarm.strategies import Choices

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a blob, in hexadecimal."""

RunName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]


def one_of(choices: Choices[Any]) -> BeforeValidator:
    """A text that is one of these names; another one is answered with all of them."""

    def check(value: object) -> object:
        if value not in choices:
            raise PydanticKnownError("literal_error", {"expected": choices.listed})
        return value

    return BeforeValidator(check)


class Frozen(BaseModel):
    """A value: frozen, strictly typed, and unknown keys are mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
