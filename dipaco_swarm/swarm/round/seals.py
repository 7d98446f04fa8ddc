"""What reducers sign, and what follows when averages differ: somebody is named, with a proof that everybody can check.

A reducer seals the pieces that it made in one generation of a round: it signs their digest, once. A member is ready
when it holds every piece and its seal; what it says then follows from the roster and the seals. So where two members
are not ready with the same, either one of them says something else than it holds, or a reducer has signed two averages.

Nobody who is honest signs twice: a seal is about one roster, in which there is a number that the reducer has drawn for
this round; and who has pieces keeps them to the end of it, or is gone.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import msgpack

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.swarm.checks import SignedInput
from dipaco_swarm.swarm.framing import encode
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.proofs import MAX_PROOFS, Proof, Seal
from dipaco_swarm.swarm.round.codecs.codec import Buffer
from dipaco_swarm.swarm.wire import Roster

Made = tuple[int, int]
"""A reducer, as its index in the roster, and the generation in which it was given pieces."""
IsSignedBy = Callable[[str, bytes, bytes], bool]
"""Peer, message, signature -> whether it is that peer's."""


@dataclass(frozen=True)
class Subject:
    """What the seals of a round are about."""

    run: str
    stage: int
    module: ModuleId
    version: int
    roster: bytes
    """SHA-256 of it."""

    @classmethod
    def of(cls, run: str, stage: int, module: ModuleId, version: int, roster: Roster) -> "Subject":
        return cls(run, stage, module, version, hashlib.sha256(encode(roster)).digest())

    @property
    def key(self) -> tuple[int, ModuleId, int]:
        """Stage, module and version."""
        return self.stage, self.module, self.version

    def statement(self, generation: int, digest: bytes) -> bytes:
        """What a reducer signs. `digest`: of its pieces of that generation."""
        return self._statement("seal", generation, digest)

    def input(self, generation: int, piece: int, digest: bytes) -> bytes:
        """What a member signs with each contribution. `digest`: of its bytes."""
        return self._statement("input", generation, piece, digest)

    def inputs(self, generation: int, piece: int, digest: bytes) -> bytes:
        """What a reducer signs when it is asked from what it has made a piece. `digest`: see `digest_of_inputs`."""
        return self._statement("inputs", generation, piece, digest)

    def _statement(self, kind: str, *what: int | bytes) -> bytes:
        about = self.run, self.stage, str(self.module), self.version, self.roster
        return bytes(msgpack.packb([f"dipaco/1/{kind}", *about, *what]))


def digest_of_piece(mask: bytes, data: Buffer) -> bytes:
    """Of one piece of an average, and who is in it."""
    digest = hashlib.sha256(len(mask).to_bytes(4, "little") + mask)
    digest.update(data)
    return digest.digest()


def digest_of_rules(group: ModuleGroup, codec: str, parameters: int) -> bytes:
    """Of all that an average follows from besides the roster: who goes by other rules is no liar. `parameters`: of the
    module, from which the length of its last piece follows."""
    weights = sorted((int(path), float(weight)) for path, weight in group.path_weights.items())
    return hashlib.sha256(msgpack.packb([group.averaging, group.round_tokens, codec, parameters, weights])).digest()


def digest_of_inputs(inputs: Iterable[SignedInput], rules: bytes) -> bytes:
    """Of what a piece was made from, in the order of the roster. `rules`: digest of those that it was made by."""
    whole = hashlib.sha256(rules)
    for said in inputs:
        whole.update(said.member.to_bytes(4, "little") + said.digest + said.signature)
    return whole.digest()


def digest_of_pieces(pieces: Mapping[int, bytes]) -> bytes:
    """Of what one reducer made in one generation. `pieces`: index -> digest."""
    whole = hashlib.sha256()
    for piece, digest in sorted(pieces.items()):
        whole.update(piece.to_bytes(4, "little") + digest)
    return whole.digest()


def digest_of_average(roster: bytes, digests: Mapping[Made, bytes]) -> bytes:
    """What a member is ready with. `roster`: SHA-256. `digests`: what the seals are about."""
    whole = hashlib.sha256(roster)
    for (reducer, generation), digest in sorted(digests.items()):
        whole.update(reducer.to_bytes(4, "little") + generation.to_bytes(4, "little") + digest)
    return whole.digest()


def is_proven(proof: Proof, run: str, is_signed_by: IsSignedBy) -> bool:
    """Whether a proof shows what it says."""
    about = Subject(run, proof.stage, ModuleId.parse(proof.module), proof.version, proof.roster)
    one, other = proof.digests
    return one != other and all(
        is_signed_by(proof.reducer, about.statement(proof.generation, digest), signature)
        for digest, signature in zip(proof.digests, proof.signatures, strict=True)
    )


@dataclass(frozen=True)
class Findings:
    """Who is to blame for averages that differ."""

    proofs: tuple[Proof, ...] = ()
    """Of reducers that have signed two of them."""
    liars: frozenset[int] = frozenset()
    """Members, by index, that do not show what they say they hold."""


def compare(
    about: Subject,
    roster: Roster,
    made: Collection[Made],
    shown: Mapping[int, Collection[Seal]],
    ready: Mapping[int, bytes],
    is_signed_by: IsSignedBy,
) -> Findings:
    """Who is to blame, from the seals that members show.

    `made`: what there is to be sealed. `shown`: member -> its seals. `ready`: member -> the digest that it said it is
    ready with. Only what differs has its signature checked.
    """
    seals = {member: {(s.reducer, s.generation): s for s in own} for member, own in shown.items()}
    proofs, forgers = list[Proof](), set[int]()
    for reducer, generation in sorted(made):
        said = {member: own[reducer, generation] for member, own in seals.items() if (reducer, generation) in own}
        if len({seal.digest for seal in said.values()}) < 2:
            continue
        peer = roster.members[reducer].peer
        signed: dict[bytes, Seal] = {}
        for member, seal in sorted(said.items()):
            if is_signed_by(peer, about.statement(generation, seal.digest), seal.signature):
                signed.setdefault(seal.digest, seal)
            else:
                forgers.add(member)
        if len(signed) > 1 and len(proofs) < MAX_PROOFS:
            proofs.append(_proof(about, peer, generation, list(signed.values())))
    liars = {
        member
        for member, digest in ready.items()
        if seals.get(member, {}).keys() != set(made)
        or digest_of_average(about.roster, {key: seal.digest for key, seal in seals[member].items()}) != digest
    }
    return Findings(tuple(proofs), frozenset(liars | (forgers & ready.keys())))


def _proof(about: Subject, peer: str, generation: int, seals: Iterable[Seal]) -> Proof:
    one, other, *_ = seals
    return Proof(
        reducer=peer,
        stage=about.stage,
        module=str(about.module),
        version=about.version,
        roster=about.roster,
        generation=generation,
        digests=(one.digest, other.digest),
        signatures=(one.signature, other.signature),
    )
