"""libp2p's own messages: framed as the daemon frames them; keys and names as libp2p makes them."""

from pathlib import Path

import base58
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.wrappers_pb2 import BytesValue

from dipaco_swarm.errors import NodeError
from dipaco_swarm.swarm.libp2p.identity import load_identity, peer_name, public_key
from dipaco_swarm.swarm.libp2p.protobuf import framed

PRIVATE = bytes(range(32))


def test_a_frame_is_the_length_in_sevens_of_bits_and_then_the_message() -> None:
    assert framed(BytesValue(value=b"ab")) == b"\x04\x0a\x02ab"
    long = framed(BytesValue(value=bytes(300)))
    assert long[:2] == bytes([0x80 | (303 & 0x7F), 303 >> 7])  # 303 = 300 and three bytes before them
    assert len(long) == 2 + 303
    assert framed(BytesValue()) == b"\x00"


def test_a_key_file_is_the_one_that_libp2p_reads(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.from_private_bytes(PRIVATE)
    public = key.public_key().public_bytes_raw()
    file = tmp_path / "identity.key"
    file.touch(mode=0o600)
    file.write_bytes(bytes([0x08, 0x01, 0x12, 0x40]) + PRIVATE + public)  # type 1, Ed25519; 64 bytes
    identity = load_identity(tmp_path)
    assert identity.key.private_bytes_raw() == PRIVATE
    load_identity(tmp_path / "new")
    made = (tmp_path / "new" / "identity.key").read_bytes()
    assert (made[:4], len(made)) == (file.read_bytes()[:4], 68)
    for other in (b"", b"\x08\x01", b"\x08\x01\x12\x02ab", b"\x08\x00\x12\x40" + PRIVATE + public, b"\xff" * 68):
        file.write_bytes(other)
        with pytest.raises(NodeError, match=f"it has {len(other)} bytes.*move it away"):
            load_identity(tmp_path)


def test_a_peer_name_is_the_key_in_libp2p_s_way_and_in_no_other() -> None:
    key = Ed25519PrivateKey.from_private_bytes(PRIVATE).public_key()
    raw = bytes([0x00, 0x24, 0x08, 0x01, 0x12, 0x20]) + key.public_bytes_raw()  # identity hash of 36 bytes
    assert peer_name(key) == base58.b58encode(raw).decode()
    found = public_key(peer_name(key))
    assert found is not None
    assert bytes(found) == key.public_bytes_raw()
    for other in (raw[6:], raw + b"\x00", raw[:-1], b"\x12" + raw[1:], b""):
        assert public_key(base58.b58encode(other).decode()) is None
    assert public_key("0OIl") is None  # no letters of base 58
