"""Who speaks for a run: the manifest is signed with the operator's key, and the run address carries its fingerprint."""

import base64
import hashlib
import json

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


def sign_manifest(manifest: Manifest, key: Ed25519PrivateKey) -> bytes:
    """The manifest as it is published: JSON of public key, signature, and the canonical bytes."""
    body = manifest.canonical_bytes()
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    envelope = {"public_key": public.hex(), "signature": key.sign(body).hex(), "manifest": body.decode()}
    return json.dumps(envelope).encode()


def open_manifest(signed: bytes, fingerprint: str) -> Manifest:
    """Check a published manifest against the fingerprint of the run address; raises ManifestError."""
    try:
        envelope = json.loads(signed)
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(envelope["public_key"]))
        signature, body = bytes.fromhex(envelope["signature"]), envelope["manifest"].encode()
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
        key.verify(signature, body)
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
    """The fingerprint of whoever signed a manifest, for files of our own; raises ManifestError."""
    try:
        return fingerprint_of(Ed25519PublicKey.from_public_bytes(bytes.fromhex(json.loads(signed)["public_key"])))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ManifestError(
            "the manifest is not a signed manifest; it was damaged or made by another program"
        ) from None
