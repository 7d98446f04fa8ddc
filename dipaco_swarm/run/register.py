"""Who may take part in a run: names that its operator has admitted, and names that it has banned.

The manifest names the register by its digest, so it is signed with it; it is fetched as a blob, and counts while the
bootstrap node is down.
"""

import base64
import hashlib
import json
import secrets
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from dipaco_swarm.errors import ManifestError
from dipaco_swarm.run.values import Frozen

MAX_NAMES = 10_000
"""In either list."""
MAX_REGISTER_BYTES = 4 << 20
MAX_INVITATIONS = 10_000
"""That nobody has used yet."""
CODE_BYTES = 15
"""Of an invitation: 24 letters and digits."""

Name = Annotated[str, StringConstraints(pattern=r"^[\w-]{1,80}$")]
"""A peer's, as libp2p writes it; its own screen says it."""
Why = Annotated[str, Field(max_length=200)]


class Register(Frozen):
    """A value; every change is a new one, in a new revision of the manifest."""

    format: Literal[1] = 1
    admitted: tuple[Name, ...] = Field(default=(), max_length=MAX_NAMES)
    """Sorted. In a run with `[admission] kind = "open"` it means nothing."""
    banned: dict[Name, Why] = Field(default_factory=dict, max_length=MAX_NAMES)
    """Name -> why, as the operator says it to everybody."""

    def admits(self, name: str, *, invited_only: bool) -> bool:
        return name not in self.banned and (not invited_only or name in self.admitted)

    def with_admitted(self, name: str) -> "Register":
        """Admitted, and not banned any more."""
        banned = {other: why for other, why in self.banned.items() if other != name}
        return Register(admitted=tuple(sorted({*self.admitted, name})), banned=banned)

    def with_banned(self, name: str, why: str) -> "Register":
        admitted = tuple(other for other in self.admitted if other != name)
        return Register(admitted=admitted, banned={**self.banned, name: why})

    def forgiven(self, name: str) -> "Register":
        """Not banned any more; in a run of invited peers, not admitted either."""
        return Register(admitted=self.admitted, banned={n: why for n, why in self.banned.items() if n != name})

    def canonical_bytes(self) -> bytes:
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def read(cls, data: bytes) -> "Register":
        """The register in a blob. Raises ManifestError when it is none."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ManifestError(
                f"the run's register of peers cannot be read ({where}: {first['msg']}); its operator runs a newer "
                "program, or the file is damaged there"
            ) from None


def new_code() -> str:
    """Of an invitation: letters and digits that nobody guesses; it goes behind a run address."""
    return base64.b32encode(secrets.token_bytes(CODE_BYTES)).decode().lower()


def digest_of(code: str) -> str:
    """What the operator's node keeps of an invitation, and compares."""
    return hashlib.sha256(code.encode()).hexdigest()
