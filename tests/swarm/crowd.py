"""A crowd of libp2p peers of one program: each a connection of its own name, that says nothing but that it is there."""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from dipaco_swarm.swarm.libp2p.reachability import _PROOF, _SELECT

YAMUX = b"\x13/multistream/1.0.0\n\x0d/yamux/1.0.0\n"
FRAME = struct.Struct(">BBHII")
"""Version, type, flags, stream, length: of yamux."""
DATA, WINDOW, PING = 0, 1, 2
BEGINS, ANSWERS = 1, 2
SECONDS = 20.0


def _octets(value: bytes) -> bytes:
    return b"\x04" + bytes([len(value)]) + value


def _credentials(file: Path) -> ssl.SSLContext:
    """A new name, and the certificate by which libp2p's TLS proves it."""
    name, key = Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())
    public = b"\x08\x01\x12\x20" + name.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    own = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    proof = _octets(public) + _octets(name.sign(b"libp2p-tls-handshake:" + own))
    subject, now = x509.Name([x509.NameAttribute(NameOID.SERIAL_NUMBER, "1")]), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.UnrecognizedExtension(_PROOF, b"\x30" + bytes([len(proof)]) + proof), critical=True)
        .sign(key, SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(certificate.public_bytes(Encoding.PEM) + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["libp2p"])
    context.load_cert_chain(file)
    return context


async def _live(port: int, credentials: ssl.SSLContext, there: asyncio.Semaphore) -> None:
    """Be connected, with a stream on which a protocol is never chosen, until it ends."""
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_SELECT)
        await reader.readexactly(len(_SELECT))
        await writer.start_tls(credentials, server_hostname="any")
        writer.write(YAMUX)
        await reader.readexactly(len(YAMUX))
    writer.write(FRAME.pack(0, WINDOW, BEGINS, 1, 0))
    there.release()
    with contextlib.closing(writer):
        while True:
            _, kind, flags, _, length = FRAME.unpack(await reader.readexactly(FRAME.size))
            if kind == DATA:
                await reader.readexactly(length)
            elif kind == PING and flags & BEGINS:
                writer.write(FRAME.pack(0, PING, ANSWERS, 0, length))


@contextlib.asynccontextmanager
async def crowd(port: int, size: int, folder: Path) -> AsyncIterator[None]:
    """So many of them, at the node of this machine that listens there; all have come when the block begins."""
    there = asyncio.Semaphore(0)
    credentials = [_credentials(folder / "credentials.pem") for _ in range(size)]
    each = [asyncio.create_task(_live(port, one, there)) for one in credentials]
    try:
        async with asyncio.timeout(SECONDS):
            for _ in range(size):
                await there.acquire()
        yield
    finally:
        for task in each:
            task.cancel()
        ended = await asyncio.gather(*each, return_exceptions=True)
        assert all(isinstance(how, asyncio.CancelledError | EOFError | ConnectionError) for how in ended), ended
