"""Errors that a person can act on.

    SwarmError                 the command line prints it as one line and exits with 2
    |-- RunFileError           RUN.toml is wrong: names the field and the value
    |-- ManifestError          what the operator published cannot be trusted or does not fit
    |-- AddressError           the run address is malformed
    |-- UnreachableError       nobody answered: bootstrap nodes or holders
    |-- NodeError              our own node cannot start: port, daemon, identity file
    |-- HomeError              the home folder cannot be used
    |-- DataError              the documents cannot be read, or none belong to the path
    |-- TrainingError          inner training cannot go on: a loss that is not finite, too little memory
    |-- CheckpointError        a checkpoint belongs to another run, or another program wrote it
    |   `-- DamagedError       a file of ours is torn or altered
    |-- NotWholeError          a synchronous run was made without somebody at times; exits with 3
    `-- UsageError             arguments that do not fit the run (a path out of range)

    RemoteDataError            another peer sent something that breaks the protocol. Raised only at the wire, names the
                               peer, ends as a logged line; it is *not* a SwarmError because no person here caused it.

Anything else is a bug of ours and shows its traceback. What is ordinary (a peer left, a round failed) is a value.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path


class SwarmError(Exception):
    """What happened, with the values, why, and what to do next, in one message."""


class RunFileError(SwarmError):
    """The operator's run file is malformed or impossible."""


class ManifestError(SwarmError):
    """A manifest is unsigned, signed by somebody else, or does not fit its own parts."""


class AddressError(SwarmError):
    """A run address cannot be read."""


class UnreachableError(SwarmError):
    """Nobody answered in time."""


class NodeError(SwarmError):
    """The network node of this machine cannot start."""


class HomeError(SwarmError):
    """The home folder cannot be read or written."""


class DataError(SwarmError):
    """The run's documents cannot be read, or there are none for this path."""


class TrainingError(SwarmError):
    """Inner training cannot go on."""


class CheckpointError(SwarmError):
    """A checkpoint is truncated, altered, or belongs to another run."""


class DamagedError(CheckpointError):
    """A file of ours does not hold what was written; whoever can do without sets it aside."""


class NotWholeError(SwarmError):
    """Some rounds of a synchronous run were made without somebody: its result is not that of one process."""


class UsageError(SwarmError):
    """What was asked does not fit the run."""


def cannot_write(what: str, folder: Path, error: Exception) -> HomeError:
    """`what` could not be written to `folder`, with what to do; in the middle of training it is a line and no end."""
    home = os.path.expanduser("~")
    place = f"~{str(folder).removeprefix(home)}" if str(folder).startswith(f"{home}/") else str(folder)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT) or "(os error 28)" in str(error):  # the second from Rust
        return HomeError(f"the disk of {place} is full: make room there for {what}")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return HomeError(
        f"{what} cannot be written to {place}: {reason}; make room there, or choose another folder with --home"
    )


def nobody_answers(bootstraps: Sequence[str], detail: str) -> UnreachableError:
    """None of the bootstrap nodes at these addresses can be reached; `detail`: what was heard of the first."""
    return UnreachableError(
        f"no bootstrap node answers at {', '.join(bootstraps)} ({detail}); check the run address and your connection, "
        "or ask the operator whether the node is up"
    )


class NotAdmittedError(UsageError):
    """The operator has not admitted this peer, or has banned it: nobody listens to it."""


class RemoteDataError(Exception):
    """A peer sent bytes that break the protocol. The reason may quote what it sent, and is made printable."""

    def __init__(self, peer: str, reason: str) -> None:
        reason = printable(reason)
        super().__init__(f"peer {printable(peer[-8:])}: {reason}")
        self.peer = peer
        self.reason = reason


SHOWN_CHARACTERS = 200
OBEYED = {code: "?" for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))} | {
    ord("\n"): "\n",
    ord("\t"): "\t",
    ord("\r"): "",
}
"""Control characters, which a terminal obeys, and those that turn the direction of writing; what becomes of them."""


def printable(text: str) -> str:
    """A text of others as it may be shown: no control characters, which a terminal would obey, and short."""
    shown = "".join(char if char.isprintable() else "?" for char in text[:SHOWN_CHARACTERS])
    return shown if len(text) <= SHOWN_CHARACTERS else f"{shown}…"


def in_short(error: Exception) -> str:
    """What a library, or a mistake, has raised, as it may be shown: its kind and what it says."""
    return printable(f"{type(error).__name__}: {error}")


def tamed(text: str) -> str:
    """A text of any length, or a piece of one, as a terminal may write it: nothing in it is obeyed but ends of lines.

    What only some scripts need (joiners, wide blanks) stays as it is.
    """
    return text.translate(OBEYED)
