"""Who is out for good: reducers that signed two averages of the same pieces, each with its proof, so that nobody has to
believe us either; and those of whose wrong averages we have convinced ourselves. Whom we have met among them stays so
in a file of the home folder.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import msgpack

from dipaco_swarm.errors import HomeError, RemoteDataError
from dipaco_swarm.files import keep_if_possible, set_aside
from dipaco_swarm.swarm.checks import Convicted
from dipaco_swarm.swarm.framing import decode, encode
from dipaco_swarm.swarm.proofs import Proof

log = logging.getLogger(__name__)

MOST = 1024
"""Names; about 400 bytes each."""


def bans_file(home: Path, run: str) -> Path:
    """`run`: its fingerprint."""
    return home / f"bans-{run[:16]}.msgpack"


class Bans:
    """The names and their proofs; whoever was found last is the last one.

    Never raises: a file that cannot be used is set aside, and said to be. Nothing is in it before `open`.
    """

    def __init__(self, file: Path | None = None) -> None:
        """`file`: None where nothing is kept."""
        self._file = file
        self._proofs: dict[str, Proof | Convicted] = {}
        self._is_proven: Callable[[Proof], bool] = lambda proof: False
        self.is_heard: Callable[[str], bool] = lambda name: True
        """Whether a name has contributed, or is to be heard."""
        self._seated: dict[str, None] = {}
        """Who was on a roster with us."""
        self.met: Callable[[str], bool] = lambda name: True
        """Whether it has contributed: such names stay where there are too many."""

    def open(self, is_proven: Callable[[Proof], bool]) -> None:
        """Read what is kept. `is_proven`: whether a proof shows what it says."""
        self._is_proven = is_proven
        kept = _read(self._file) if self._file is not None else []
        self._proofs = {ban.reducer: ban for ban in kept if isinstance(ban, Convicted) or is_proven(ban)}

    def __contains__(self, name: str) -> bool:
        return name in self._proofs

    def names(self) -> tuple[str, ...]:
        return tuple(self._proofs)

    def all(self) -> tuple[Proof | Convicted, ...]:
        """Each name and why it is out."""
        return tuple(self._proofs.values())

    def proof_of(self, name: str) -> Proof | None:
        """Why a name is out, where it can be shown in one message."""
        proof = self._proofs.get(name)
        return proof if isinstance(proof, Proof) else None

    def seat(self, names: Iterable[str]) -> None:
        """These are in a round with us."""
        self._seated = dict.fromkeys([*self._seated, *names][-MOST:])

    def matters(self, name: str) -> bool:
        """Whether a name was ever met here, or is to be heard: anybody can make up others, and prove much of them."""
        return name in self._seated or self.is_heard(name)

    def convict(self, convicted: Convicted) -> None:
        """Ban a name that we have convicted ourselves."""
        if convicted.reducer not in self._proofs:
            self._add(convicted)

    def take(self, proof: Proof) -> bool:
        """Ban whom it convicts, if it matters to us; whether it convicts anybody."""
        if not self._is_proven(proof):
            return False
        if proof.reducer not in self._proofs and self.matters(proof.reducer):
            self._add(proof)
        return True

    def _add(self, ban: Proof | Convicted) -> None:
        proofs = {**self._proofs, ban.reducer: ban}
        while len(proofs) > MOST:
            del proofs[next((name for name in proofs if not self.met(name)), next(iter(proofs)))]
        self._proofs = proofs
        # a stranger would come back with another name; and who makes up names and proofs would have us write all day
        if self._file is not None and (ban.reducer in self._seated or self.met(ban.reducer)):
            keep_if_possible(self._file, bytes(msgpack.packb([encode(p) for p in self._proofs.values()])))


def _read(file: Path) -> list[Proof | Convicted]:
    try:
        bodies = msgpack.unpackb(file.read_bytes(), max_array_len=MOST)
        read = [decode(file.name, body) for body in bodies if isinstance(body, bytes)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, msgpack.exceptions.UnpackException, RemoteDataError) as error:
        log.warning("%s cannot be used (%s): whom this peer has banned it hears again", file, error)
        with contextlib.suppress(HomeError):
            log.warning("what was in it is in %s now", set_aside(file))
        return []
    return [ban for ban in read if isinstance(ban, Proof | Convicted)]
