"""Who we are: an Ed25519 key on disk, in the form that the libp2p daemon reads.

A libp2p peer id of an Ed25519 key *contains* the public key, so whoever knows a peer's name can check its signatures.
Those are libsodium's: a round has hundreds of them, and it takes half the time of OpenSSL for each.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import base58
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from google.protobuf.message import DecodeError
from hivemind.proto.crypto_pb2 import KeyType, PrivateKey, PublicKey
from nacl.exceptions import CryptoError
from nacl.signing import SigningKey, VerifyKey

from dipaco_swarm.errors import HomeError, NodeError
from dipaco_swarm.files import is_made, make_folder, read_private, replace_whole
from dipaco_swarm.swarm.interface import PeerName

KEY_BYTES = 32
MAX_NAME = 80
"""Characters; of an Ed25519 key there are 52."""
_IDENTITY_HASH = 0
"""libp2p's multihash of a message that is short enough to be its own hash."""


@dataclass(frozen=True)
class Identity:
    """A private key and the peer name that follows from it."""

    key: Ed25519PrivateKey
    path: Path

    @cached_property
    def peer(self) -> PeerName:
        return peer_name(self.key.public_key())

    def sign(self, message: bytes) -> bytes:
        return self._signing.sign(message).signature

    @cached_property
    def _signing(self) -> SigningKey:
        return SigningKey(self.key.private_bytes_raw())


def peer_name(key: Ed25519PublicKey) -> PeerName:
    return PeerName(base58.b58encode(_peer_id(key.public_bytes_raw())).decode())


def _peer_id(key: bytes) -> bytes:
    message: bytes = PublicKey(key_type=KeyType.Ed25519, data=key).SerializeToString()
    return bytes([_IDENTITY_HASH, len(message)]) + message


def public_key(peer: str) -> VerifyKey | None:
    """The key inside a peer name; None when the name is not that of an Ed25519 key."""
    return _key_in(peer) if len(peer) <= MAX_NAME else None  # longer ones cost time, and would be remembered


@lru_cache(maxsize=4096)
def _key_in(peer: str) -> VerifyKey | None:
    try:
        raw = base58.b58decode(peer)
    except ValueError:
        return None
    key = raw[-KEY_BYTES:]
    # written in one way only: base58 reads over blanks at the end, and one key would have any number of names
    return VerifyKey(key) if raw == _peer_id(key) and base58.b58encode(raw).decode() == peer else None


def is_signed_by(peer: str, message: bytes, signature: bytes) -> bool:
    key = public_key(peer)
    if key is None:
        return False
    try:
        key.verify(message, signature)
    except CryptoError:
        return False
    return True


def load_identity(home: Path) -> Identity:
    """The identity of this home folder, made on first use. Raises HomeError or NodeError."""
    path = home / "identity.key"
    try:
        make_folder(home, durable=True)
        if not is_made(path):
            key = Ed25519PrivateKey.generate()
            private = key.private_bytes_raw()
            public = key.public_key().public_bytes_raw()
            message = PrivateKey(key_type=KeyType.Ed25519, data=private + public)
            replace_whole(path, message.SerializeToString(), durable=True, private=True)
        data = read_private(path)
    except OSError as error:
        raise HomeError(
            f"the home folder {home} cannot be used: {error.strerror or error}; "
            "choose another with --home, or make it writable"
        ) from None
    try:
        message = PrivateKey.FromString(data)
    except DecodeError:
        message = PrivateKey()
    if message.key_type != KeyType.Ed25519 or len(message.data) != 2 * KEY_BYTES:
        raise NodeError(
            f"{path} is not an identity made by dipaco-swarm (it has {len(data)} bytes); move it away and a new one is "
            "made, under which the swarm sees you as a new peer"
        )
    return Identity(Ed25519PrivateKey.from_private_bytes(message.data[:KEY_BYTES]), path)
