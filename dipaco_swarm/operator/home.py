"""What a bootstrap node has on its disk: the operator's key, the newest manifest, and the modules that it keeps."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import AddressError, HomeError
from dipaco_swarm.files import (
    is_made,
    make_folder,
    read_if_there,
    read_private,
    remove,
    replace_whole,
    set_aside,
    write_whole,
)
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.orders import Order, leave, left
from dipaco_swarm.run.signature import open_manifest, signer_of
from dipaco_swarm.training.bank import load_state, module_file, save_state

_DIGEST = re.compile(r"[0-9a-f]{64}")


def load_operator_key(home: Path) -> Ed25519PrivateKey:
    """The operator's signing key, made on first use. Raises HomeError when the folder cannot be used, or has a run
    whose key is gone: with a new one nobody would believe that it is still that run."""
    if not os.path.lexists(home / "operator.key") and os.path.lexists(home / "manifest.json"):
        raise HomeError(
            f"{home} has a run, and no operator.key, without which nobody believes what it says; restore that from "
            "your copy, or give a new run another --home"
        )
    return _load_key(home, "operator.key")


def load_standby_key(home: Path) -> Ed25519PrivateKey:
    """The same of a standby."""
    return _load_key(home, "standby.key")


def _load_key(home: Path, name: str) -> Ed25519PrivateKey:
    path = home / name
    try:
        make_folder(home, durable=True)
        if not is_made(path):
            secret = Ed25519PrivateKey.generate().private_bytes_raw().hex()
            replace_whole(path, secret.encode(), durable=True, private=True)
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(read_private(path).decode().strip()))
    except OSError as error:
        raise HomeError(
            f"the home folder {home} cannot be used: {error.strerror or error}; "
            "choose another with --home, or make it writable"
        ) from None
    except ValueError:
        raise HomeError(
            f"{path} is not a key; restore it from your copy. A new one would be a new run for everybody, or another "
            "standby"
        ) from None


class OperatorHome:
    """The bootstrap node's memory: manifest, run address and module states as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        return self._folder

    def manifest(self, fingerprint: str) -> Manifest | None:
        """The manifest that was published last; None before the first."""
        signed = self.signed_manifest()
        return None if signed is None else open_manifest(signed, fingerprint)

    def keep_manifest(self, signed: bytes) -> None:
        write_whole(self._folder / "manifest.json", signed, durable=True)

    def keep_address(self, address: str) -> None:
        write_whole(self._folder / "address.txt", f"{address}\n".encode(), durable=False)

    def tell_to_advance(self) -> None:
        """Have the node that serves from here end its current stage. Raises HomeError when there is no run here."""
        if not (self._folder / "manifest.json").exists():
            raise HomeError(f"there is no run in {self._folder} to advance; give the --home that `serve` was given")
        write_whole(self._folder / "advance", b"", durable=True)

    def was_told_to_advance(self) -> bool:
        """Whether somebody has said so since we were last asked."""
        return remove(self._folder / "advance")

    def signed_manifest(self) -> bytes | None:
        """As it was published last; None before the first. Raises HomeError when it cannot be read."""
        return read_if_there(self._folder / "manifest.json")

    def tell_to_take_over(self) -> None:
        """Have the standby that serves from here lead the run. Raises HomeError when there is none here."""
        if self.signed_manifest() is None:
            raise HomeError(f"there is no standby in {self._folder}; give the --home that `standby` was given")
        write_whole(self._folder / "promote", b"", durable=True)

    def was_told_to_take_over(self) -> bool:
        """Whether somebody has said so since we were last asked."""
        return remove(self._folder / "promote")

    def order(self, order: Order) -> None:
        """Have the node that serves from here do something. Raises HomeError when there is no run here."""
        if not (self._folder / "manifest.json").exists():
            raise HomeError(f"there is no run in {self._folder}; give the --home that `serve` was given")
        leave(self._folder / "orders", order)

    def manifest_of_own(self) -> Manifest | None:
        """The manifest that was published last, whoever signed it here; None before the first."""
        signed = self.signed_manifest()
        return None if signed is None else open_manifest(signed, signer_of(signed))

    def orders(self) -> list[tuple[Path, Order]]:
        """What was ordered and is not done yet, and in which files that is, the oldest first."""
        return left(self._folder / "orders")

    def address(self) -> RunAddress:
        """Of the run, as it was served last. Raises HomeError when there is none."""
        try:
            return RunAddress.parse((self._folder / "address.txt").read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, AddressError):
            raise HomeError(
                f"{self._folder} has no run address yet; start `dipaco-bootstrap serve` with this --home first"
            ) from None

    def invitations(self) -> list[str]:
        """Digests of the codes that may still be used. Raises HomeError when they cannot be read."""
        file = self._folder / "invitations.txt"
        digests = (read_if_there(file) or b"").decode(errors="replace").split()
        if not all(map(_DIGEST.fullmatch, digests)):
            raise HomeError(
                f"{file} is damaged; restore it from your copy, or remove it and invite anew: codes that nobody has "
                "used open nothing then"
            )
        return digests

    def keep_invitations(self, digests: Sequence[str]) -> None:
        content = "".join(f"{digest}\n" for digest in digests).encode()
        write_whole(self._folder / "invitations.txt", content, durable=True, private=True)

    def state(self, stage: int, module: ModuleId) -> ModuleState | None:
        return load_state(self._file(stage, module))

    def keep_state(self, stage: int, module: ModuleId, state: ModuleState) -> None:
        save_state(self._file(stage, module), state)

    def set_aside(self, stage: int, module: ModuleId) -> Path:
        return set_aside(self._file(stage, module))

    def _file(self, stage: int, module: ModuleId) -> Path:
        return module_file(self._folder, stage, module)
