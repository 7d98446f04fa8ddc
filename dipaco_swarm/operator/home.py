"""What a bootstrap node has on its disk: the operator's key, the newest manifest, and the modules that it keeps."""

from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import AddressError, HomeError
from dipaco_swarm.files import make_folder, read_private, remove, replace_whole, set_aside, write_whole
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.orders import Order, leave, left
from dipaco_swarm.run.signature import open_manifest, signer_of
from dipaco_swarm.training.bank import load_state, module_file, save_state


def load_operator_key(home: Path) -> Ed25519PrivateKey:
    """The operator's signing key, made on first use. Raises HomeError when the folder cannot be used."""
    return _load_key(home, "operator.key")


def load_standby_key(home: Path) -> Ed25519PrivateKey:
    """The same of a standby."""
    return _load_key(home, "standby.key")


def _load_key(home: Path, name: str) -> Ed25519PrivateKey:
    path = home / name
    try:
        make_folder(home, durable=True)
        if not path.exists():
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
        try:
            return open_manifest((self._folder / "manifest.json").read_bytes(), fingerprint)
        except FileNotFoundError:
            return None

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
        """As it was published last; None before the first."""
        try:
            return (self._folder / "manifest.json").read_bytes()
        except FileNotFoundError:
            return None

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
        try:
            return open_manifest(signed := (self._folder / "manifest.json").read_bytes(), signer_of(signed))
        except FileNotFoundError:
            return None

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
        """Digests of the codes that may still be used."""
        try:
            return (self._folder / "invitations.txt").read_text(encoding="utf-8").split()
        except (FileNotFoundError, UnicodeDecodeError):
            return []

    def keep_invitations(self, digests: Sequence[str]) -> None:
        content = "".join(f"{digest}\n" for digest in digests).encode()
        replace_whole(self._folder / "invitations.txt", content, durable=True, private=True)

    def state(self, stage: int, module: ModuleId) -> ModuleState | None:
        return load_state(self._file(stage, module))

    def keep_state(self, stage: int, module: ModuleId, state: ModuleState) -> None:
        save_state(self._file(stage, module), state)

    def set_aside(self, stage: int, module: ModuleId) -> Path:
        return set_aside(self._file(stage, module))

    def _file(self, stage: int, module: ModuleId) -> Path:
        return module_file(self._folder, stage, module)
