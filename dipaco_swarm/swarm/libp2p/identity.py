"""Who we are: an Ed25519 key on disk, in the form that the libp2p daemon reads.

A libp2p peer id of an Ed25519 key *contains* the public key, so whoever knows a peer's name can check its signatures.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from dipaco_swarm.errors import HomeError, NodeError
from dipaco_swarm.files import make_folder, replace_whole
from dipaco_swarm.swarm.interface import PeerName

# libp2p's PrivateKey message: field 1 (key type) = 1 (Ed25519), field 2 (data) = 64 bytes, private then public
_KEY_FILE_PREFIX = bytes([0x08, 0x01, 0x12, 0x40])
# identity multihash (0x00, 36 bytes) of libp2p's PublicKey message: type 1, then 32 bytes
_PEER_ID_PREFIX = bytes([0x00, 0x24, 0x08, 0x01, 0x12, 0x20])


@dataclass(frozen=True)
class Identity:
    """A private key and the peer name that follows from it."""

    key: Ed25519PrivateKey
    path: Path

    @property
    def peer(self) -> PeerName:
        return peer_name(self.key.public_key())

    def sign(self, message: bytes) -> bytes:
        return self.key.sign(message)


def peer_name(key: Ed25519PublicKey) -> PeerName:
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return PeerName(base58.b58encode(_PEER_ID_PREFIX + raw).decode())


@lru_cache(maxsize=4096)
def public_key(peer: str) -> Ed25519PublicKey | None:
    """The key inside a peer name; None when the name is not that of an Ed25519 key."""
    try:
        raw = base58.b58decode(peer)
    except ValueError:
        return None
    if len(raw) != 38 or not raw.startswith(_PEER_ID_PREFIX):
        return None
    return Ed25519PublicKey.from_public_bytes(raw[len(_PEER_ID_PREFIX) :])


def is_signed_by(peer: str, message: bytes, signature: bytes) -> bool:
    key = public_key(peer)
    if key is None:
        return False
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def load_identity(home: Path) -> Identity:
    """The identity of this home folder, made on first use. Raises HomeError or NodeError."""
    path = home / "identity.key"
    try:
        make_folder(home, durable=True)
        if not path.exists():
            key = Ed25519PrivateKey.generate()
            private = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
            public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
            replace_whole(path, _KEY_FILE_PREFIX + private + public, durable=True, private=True)
        data = path.read_bytes()
    except OSError as error:
        raise HomeError(
            f"the home folder {home} cannot be used: {error.strerror or error}; "
            "choose another with --home, or make it writable"
        ) from None
    if len(data) != 68 or not data.startswith(_KEY_FILE_PREFIX):
        raise NodeError(
            f"{path} is not an identity made by dipaco-swarm (it has {len(data)} bytes); move it away and a new one is "
            "made, under which the swarm sees you as a new peer"
        )
    return Identity(Ed25519PrivateKey.from_private_bytes(data[4:36]), path)
