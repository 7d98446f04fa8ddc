"""What an operator orders on the command line, for the node that serves the run: one small file each, in its home."""

import itertools
import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dipaco_swarm.errors import HomeError
from dipaco_swarm.files import give_to_owner_of, make_folder, replace_whole
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.register import MAX_INVITATIONS, Name, Why
from dipaco_swarm.run.stage import ModuleName
from dipaco_swarm.run.values import Digest, Frozen


class Invite(Frozen):
    """Take these invitations (digests of their codes)."""

    order: Literal["invite"] = "invite"
    digests: tuple[Digest, ...] = Field(min_length=1, max_length=MAX_INVITATIONS)


class Withdraw(Frozen):
    """Expect these invitations no more: of all that nobody has used, where none is named."""

    order: Literal["withdraw"] = "withdraw"
    digests: tuple[Digest, ...] = Field(default=(), max_length=MAX_INVITATIONS)


class Admit(Frozen):
    order: Literal["admit"] = "admit"
    name: Name


class Ban(Frozen):
    order: Literal["ban"] = "ban"
    name: Name
    why: Why = ""


class Forgive(Frozen):
    order: Literal["forgive"] = "forgive"
    name: Name


class Extend(Frozen):
    """Go on with this run file."""

    order: Literal["extend"] = "extend"
    config: RunConfig


class Appoint(Frozen):
    """Let a standby sign for the operator; its places become part of the run address."""

    order: Literal["appoint"] = "appoint"
    key: Digest
    places: tuple[str, ...] = Field(min_length=1, max_length=8)


class Rollback(Frozen):
    """Go back to an anchor."""

    order: Literal["rollback"] = "rollback"
    anchor: int = Field(ge=1)
    """Its number."""
    modules: tuple[ModuleName, ...] = Field(default=(), max_length=10_000)
    """Only with these; none: with all."""


Order = Invite | Withdraw | Admit | Ban | Forgive | Extend | Appoint | Rollback
_ORDERS: TypeAdapter[Order] = TypeAdapter(Annotated[Order, Field(discriminator="order")])
_count = itertools.count()


def leave(folder: Path, order: Order) -> None:
    """Put an order where the node finds it, after those that are there. Raises HomeError when that is not possible."""
    try:
        make_folder(folder, durable=True)
        newest = max((int(name) for name in _numbers(folder)), default=0)  # the clock may have been set back since
        file = folder / f"{max(time.time_ns(), newest + 1):020d}-{next(_count):04d}.json"
        replace_whole(file, order.model_dump_json().encode(), durable=True, private=True)
        give_to_owner_of(folder.parent, folder, file)
    except OSError as error:
        raise HomeError(
            f"{folder} cannot be written: {error.strerror or error}; run this as whoever runs `serve`"
        ) from None


def _numbers(folder: Path) -> list[str]:
    """By which the orders there are obeyed, one after the other."""
    return [name for file in folder.glob("*.json") if (name := file.name.split("-")[0]).isdecimal()]


def left(folder: Path) -> list[tuple[Path, Order]]:
    """The orders that are there, the oldest first; a file that is none is passed over."""
    found: list[tuple[Path, Order]] = []
    for file in sorted(folder.glob("*.json")):
        try:
            found.append((file, _ORDERS.validate_json(file.read_bytes())))
        except (OSError, ValidationError):
            continue
    return found
