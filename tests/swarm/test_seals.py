"""What reducers sign: who is to blame for averages that differ, and that nobody honest can be."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.bans import MOST, Bans
from dipaco_swarm.swarm.fields import MAX_INDEX
from dipaco_swarm.swarm.framing import decode, encode
from dipaco_swarm.swarm.libp2p.identity import is_signed_by, peer_name
from dipaco_swarm.swarm.proofs import Proof, Seal, SealsAre
from dipaco_swarm.swarm.round.seals import (
    Findings,
    Made,
    Subject,
    compare,
    digest_of_average,
    digest_of_pieces,
    is_proven,
)
from dipaco_swarm.swarm.wire import Roster, RosterEntry

RUN = "a" * 32
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in range(1, 5)]
NAMES = [peer_name(key.public_key()) for key in KEYS]
ROSTER = Roster(
    round_id=bytes(16),
    members=tuple(
        RosterEntry(peer=name, path=i, tokens=1, norm=1.0, scale=1.0, reduces=True, nonce=bytes([i]) * 16)
        for i, name in enumerate(NAMES)
    ),
    piece_parameters=1 << 16,
    owners=(0, 1, 2, 3),
)
ABOUT = Subject.of(RUN, 0, ModuleId(1, 2), 7, ROSTER)
MADE: frozenset[Made] = frozenset((reducer, 0) for reducer in range(4))


def piece(what: int) -> bytes:
    return hashlib.sha256(bytes([what])).digest()


def seal(reducer: int, digest: bytes, *, by: int | None = None, about: Subject = ABOUT, generation: int = 0) -> Seal:
    signature = KEYS[reducer if by is None else by].sign(about.statement(generation, digest))
    return Seal(reducer=reducer, generation=generation, digest=digest, signature=signature)


HONEST = tuple(seal(reducer, piece(reducer)) for reducer in range(4))


def ready(seals: tuple[Seal, ...]) -> bytes:
    return digest_of_average(ABOUT.roster, {(s.reducer, s.generation): s.digest for s in seals})


def found(shown: Mapping[int, tuple[Seal, ...]], said: Mapping[int, bytes]) -> Findings:
    return compare(ABOUT, ROSTER, MADE, shown, said, is_signed_by)


def test_a_reducer_that_signed_two_averages_is_convicted_and_nobody_else() -> None:
    other = (HONEST[0], seal(1, piece(99)), *HONEST[2:])
    shown = {0: HONEST, 1: HONEST, 2: other, 3: HONEST}
    findings = found(shown, {i: ready(seals) for i, seals in shown.items()})
    assert not findings.liars
    (proof,) = findings.proofs
    assert proof.reducer == NAMES[1]
    assert is_proven(proof, RUN, is_signed_by)
    assert len(encode(proof)) < 500


@pytest.mark.parametrize(
    ("shows", "says"),
    [
        (HONEST, piece(1)),  # another digest than that of what it shows
        ((), ready(HONEST)),  # nothing
        (HONEST[:3], ready(HONEST[:3])),  # a part
        ((*HONEST[:3], seal(3, piece(99), by=2)), ready((*HONEST[:3], seal(3, piece(99), by=2)))),  # forged
    ],
)
def test_a_member_that_does_not_show_what_it_says_is_a_liar(shows: tuple[Seal, ...], says: bytes) -> None:
    said = {i: ready(HONEST) for i in range(3)}
    findings = found({0: HONEST, 1: HONEST, 2: HONEST, 3: shows}, {**said, 3: says})
    assert findings == Findings(liars=frozenset({3}))


@given(st.data())
def test_whatever_one_member_shows_convicts_no_honest_reducer(data: st.DataObject) -> None:
    """It may sign in its own name, and repeat what was signed in another round, generation, or to somebody else."""
    elsewhere = Subject.of(RUN, 0, ModuleId(1, 2), 8, ROSTER)
    signed = [*HONEST, seal(1, piece(9), about=elsewhere), seal(1, piece(9), generation=1), seal(3, piece(9))]
    shows = tuple(
        data.draw(st.sampled_from(signed)).model_copy(update={"reducer": reducer, "generation": 0})
        for reducer in range(4)
    )
    findings = found({0: HONEST, 1: HONEST, 2: HONEST, 3: shows}, {i: ready(HONEST) for i in range(3)})
    assert {proof.reducer for proof in findings.proofs} <= {NAMES[3]}
    assert not findings.liars & {0, 1, 2}


def proof(**changed: object) -> Proof:
    (one,) = found({0: HONEST, 1: (HONEST[0], seal(1, piece(99)), *HONEST[2:])}, {}).proofs
    return one.model_copy(update=changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"reducer": NAMES[0]},
        {"version": 8},
        {"module": "L0M0"},
        {"roster": piece(0)},
        {"generation": 1},
        {"digests": (piece(1), piece(1)), "signatures": (HONEST[1].signature, HONEST[1].signature)},
        {"digests": (piece(1), piece(2))},
    ],
)
def test_what_is_no_proof_bans_nobody(changed: dict[str, object]) -> None:
    bans = Bans()
    bans.open(lambda proof: is_proven(proof, RUN, is_signed_by))
    assert not bans.take(proof(**changed))
    assert not bans.names()
    assert not is_proven(proof(), "b" * 32, is_signed_by), "of another run"


def test_bans_are_kept_with_their_proofs_and_checked_again(tmp_path: Path) -> None:
    file = tmp_path / "home" / "bans.msgpack"
    bans = Bans(file)
    bans.open(lambda proof: is_proven(proof, RUN, is_signed_by))
    assert bans.take(proof())
    assert bans.take(proof()), "it convicts, though that is no news"
    again = Bans(file)
    again.open(lambda proof: is_proven(proof, RUN, is_signed_by))
    assert again.names() == (NAMES[1],)
    assert again.proof_of(NAMES[1]) == proof()
    again.open(lambda proof: False)
    assert not again.names(), "a file is believed no more than a stranger"
    file.write_bytes(b"\x91\xc4\x03abc")
    again.open(lambda proof: True)
    assert not again.names()


def test_only_so_many_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "bans.msgpack"
    bans = Bans(file)
    bans.open(lambda proof: True)
    for i in range(MOST + 5):
        bans.take(proof(reducer=f"name {i}"))
    assert len(bans.names()) == MOST
    assert "name 0" not in bans
    assert file.stat().st_size < 600 * MOST


def test_names_that_nobody_has_met_push_nobody_out() -> None:
    """Anybody makes up a thousand names in a tenth of a second, and proves of each that it has signed two averages."""
    bans = Bans()
    bans.open(lambda proof: True)
    met, heard = {"culprit"}, {f"name {i}" for i in range(MOST + 5)}
    bans.met, bans.is_heard = met.__contains__, lambda name: name in met | heard
    assert bans.take(proof(reducer="culprit"))
    assert bans.take(proof(reducer="somebody"))
    assert bans.names() == ("culprit",), "it comes back under another name at no cost"
    for name in sorted(heard):
        bans.take(proof(reducer=name))
    assert "culprit" in bans
    assert len(bans.names()) == MOST


def test_the_digest_of_pieces_is_about_which_they_are() -> None:
    assert digest_of_pieces({0: piece(0), 1: piece(1)}) == digest_of_pieces({1: piece(1), 0: piece(0)})
    assert digest_of_pieces({0: piece(0), 1: piece(1)}) != digest_of_pieces({0: piece(1), 1: piece(0)})
    assert digest_of_pieces({0: piece(0)}) != digest_of_pieces({1: piece(0)})


def test_all_seals_of_a_version_at_sixteen_members_are_short() -> None:
    seals = tuple(
        Seal(reducer=member, generation=MAX_INDEX, digest=bytes([member]) * 32, signature=bytes([member]) * 64)
        for member in range(16)
    )
    said = encode(SealsAre(seals=seals))
    assert decode("peer", said) == SealsAre(seals=seals)
    assert len(said) < 2000


@pytest.mark.parametrize(
    "said", [(), (0, 0, bytes(32)), (0, 0, bytes(32), bytes(64), 0), (-1, 0, bytes(32), bytes(64))]
)
def test_a_seal_is_four_values(said: tuple[object, ...]) -> None:
    with pytest.raises(RemoteDataError, match="malformed"):
        decode("peer", msgpack.packb({"kind": "seals", "seals": [said]}))
