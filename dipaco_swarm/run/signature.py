"""Who speaks for a run: the manifest is signed with the operator's key, and the run address carries its fingerprint."""

import base64
import hashlib
import json
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import ValidationError

from dipaco_swarm.errors import ManifestError
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.problems import explain


def fingerprint_of(key: Ed25519PublicKey) -> str:
    """The first 160 bits of the SHA-256 of a public key, in base 32: what a run address carries."""
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return base64.b32encode(hashlib.sha256(raw).digest()[:20]).decode().lower()


@dataclass(frozen=True)
class Deputy:
    """Who signs for the operator: a key of its own, and the operator's signature under it."""

    key: Ed25519PrivateKey
    operator: str
    """The operator's public key, in hexadecimal."""
    delegation: str
    """The operator's signature, in hexadecimal."""


Signer = Ed25519PrivateKey | Deputy
"""Who can speak for a run: its operator, or a deputy of the operator's."""


def public_hex(key: Ed25519PrivateKey) -> str:
    """The public key that belongs to a private one, in hexadecimal."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def delegation_to(key: str, operator: Ed25519PrivateKey) -> str:
    """The operator's signature under another public key: whoever has that one may sign manifests. In hexadecimal."""
    return operator.sign(_delegation(fingerprint_of(operator.public_key()), key)).hex()


def fingerprint_of_signer(signer: Signer) -> str:
    """Of the operator's public key, whoever signs."""
    if isinstance(signer, Deputy):
        return fingerprint_of(Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer.operator)))
    return fingerprint_of(signer.public_key())


def sign_manifest(manifest: Manifest, signer: Signer) -> bytes:
    """The manifest as it is published: JSON of the operator's public key, signature, and the canonical bytes.

    Of a deputy also its key, and the operator's signature under it.
    """
    body = manifest.canonical_bytes()
    if isinstance(signer, Deputy):
        envelope = {"public_key": signer.operator, "deputy": public_hex(signer.key), "delegation": signer.delegation}
        signature = signer.key.sign(body)
    else:
        envelope, signature = {"public_key": public_hex(signer)}, signer.sign(body)
    return json.dumps({**envelope, "signature": signature.hex(), "manifest": body.decode()}).encode()


def _delegation(fingerprint: str, key: str) -> bytes:
    return f"dipaco deputy of {fingerprint}: {key}".encode()


def open_manifest(signed: bytes, fingerprint: str) -> Manifest:
    """Check a published manifest against the fingerprint of the run address; raises ManifestError."""
    try:
        envelope = json.loads(signed)
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(envelope["public_key"]))
        signature, body = bytes.fromhex(envelope["signature"]), envelope["manifest"].encode()
        deputy = envelope.get("deputy")
        signed_by = key if deputy is None else Ed25519PublicKey.from_public_bytes(bytes.fromhex(deputy))
        delegation = b"" if deputy is None else bytes.fromhex(envelope["delegation"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # RecursionError: brackets without end
        raise ManifestError(
            "the manifest is not a signed manifest; it was damaged or made by another program"
        ) from None
    if fingerprint_of(key) != fingerprint:
        raise ManifestError(
            f"the manifest is signed by {fingerprint_of(key)}, but the run address names {fingerprint}; "
            "check the address with the operator of the run"
        )
    try:
        if deputy is not None:
            key.verify(delegation, _delegation(fingerprint, deputy))
        signed_by.verify(signature, body)
    except InvalidSignature:
        raise ManifestError(
            "the manifest was altered after the operator signed it; ask another bootstrap node"
        ) from None
    try:
        return Manifest.model_validate_json(body)
    except ValidationError as error:
        raise ManifestError(
            f"the manifest does not fit this version of dipaco-swarm ({explain(error)}); update, or ask the operator"
        ) from None


def signer_of(signed: bytes) -> str:
    """The fingerprint of the operator of a manifest, for files of our own; raises ManifestError."""
    return fingerprint_of(Ed25519PublicKey.from_public_bytes(bytes.fromhex(keys_in(signed)[0])))


def keys_in(signed: bytes) -> tuple[str, str]:
    """The operator's public key in a manifest, and that of whoever signed it: the same, or a deputy's.

    Nothing is checked; for manifests that were, and files of our own. Raises ManifestError when there are none.
    """
    try:
        envelope = json.loads(signed)
        operator = envelope["public_key"]
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(operator))
        return operator, envelope.get("deputy") or operator
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ManifestError(
            "the manifest is not a signed manifest; it was damaged or made by another program"
        ) from None
