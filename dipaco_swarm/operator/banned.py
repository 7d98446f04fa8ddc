"""Who is out of a run, by whose word, and what shows it: from what a bootstrap node has on its disk."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.run.register import Register
from dipaco_swarm.swarm.bans import Bans, bans_file
from dipaco_swarm.swarm.checks import Convicted
from dipaco_swarm.swarm.libp2p.identity import is_signed_by
from dipaco_swarm.swarm.proofs import Proof
from dipaco_swarm.swarm.round.seals import Subject, is_proven


@dataclass(frozen=True)
class Banned:
    """Somebody who is out."""

    name: str
    by: Literal["you", "this node"]
    why: str
    found: Proof | Convicted | None = None
    """What the node has seen of it."""

    def as_values(self, run: str) -> dict[str, Any]:
        """For programs. `run`: its fingerprint."""
        values: dict[str, Any] = {"name": self.name, "by": self.by, "why": self.why}
        if self.found is not None:
            values |= {"stage": self.found.stage, "module": self.found.module, "version": self.found.version + 1}
        if isinstance(self.found, Proof):
            values["proof"] = _signed(self.found, run)
        return values


def banned_by_operator(register: Register) -> list[Banned]:
    return [Banned(name, "you", why or "-") for name, why in register.banned.items()]


def file_of_bans(home: Path, run: str) -> Path:
    """Where the node keeps whom it has banned by itself. `run`: its fingerprint."""
    return bans_file(home, run)


def banned_by_node(home: Path, run: str) -> list[Banned]:
    """Those whose proof holds, and those whose averages this node has made anew. `run`: its fingerprint."""
    bans = Bans(file_of_bans(home, run))
    bans.open(partial(is_proven, run=run, is_signed_by=is_signed_by))
    return [Banned(found.reducer, "this node", _why(found), found) for found in bans.all()]


def _why(found: Proof | Convicted) -> str:
    of = f"{found.module} v{found.version + 1}, stage {found.stage}"
    if isinstance(found, Proof):
        return f"signed two averages of {of}: both signatures are its own"
    return f"made a wrong average of {of}: this node has made it anew"


def _signed(proof: Proof, run: str) -> list[dict[str, str]]:
    """What is to be checked with the Ed25519 key that a peer's name is, without this program."""
    about = Subject(run, proof.stage, ModuleId.parse(proof.module), proof.version, proof.roster)
    return [
        {"signed": about.statement(proof.generation, digest).hex(), "signature": signature.hex()}
        for digest, signature in zip(proof.digests, proof.signatures, strict=True)
    ]
