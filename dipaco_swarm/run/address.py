"""The run address: the run's name, the fingerprint of the operator's public key, and where to knock.

The fingerprint is what makes a manifest trustworthy.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import base58

from dipaco_swarm.errors import AddressError
from dipaco_swarm.run.problems import shortened


@dataclass(frozen=True)
class RunAddress:
    """The one string a volunteer is given: `dipaco:NAME:FINGERPRINT@MULTIADDR[,MULTIADDR...][#INVITATION]`."""

    name: str
    fingerprint: str
    bootstraps: tuple[str, ...]
    invitation: str | None = field(default=None, repr=False)
    """A code that admits one peer, once. Whoever reads it may use it."""

    def __str__(self) -> str:
        invitation = f"#{self.invitation}" if self.invitation else ""
        return f"dipaco:{self.name}:{self.fingerprint}@{','.join(self.bootstraps)}{invitation}"

    @classmethod
    def parse(cls, text: str) -> "RunAddress":
        """Read a run address. Raises AddressError that says which part is wrong."""
        text = "".join(text.split())  # an address that was copied from a narrow window has line breaks in it
        match = re.fullmatch(r"dipaco:([^:@]*):([^:@]*)@(.*)", text)
        if match is None:
            raise AddressError(
                f"{shortened(text)} is not a run address; it looks like "
                "dipaco:NAME:FINGERPRINT@/ip4/1.2.3.4/tcp/4001/p2p/..., and `dipaco-bootstrap serve` prints it"
            )
        name, fingerprint, rest = match.groups()
        places, _, invitation = rest.partition("#")
        if not re.fullmatch(r"([a-z2-7]{24})?", invitation):
            raise AddressError(
                f"the run address ends in the invitation {shortened(invitation)}, which is not 24 letters and "
                "digits; copy the whole address again"
            )
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", name):
            raise AddressError(
                f"the run address has the name {name!r}; names are lower-case letters, digits and dashes"
            )
        if not re.fullmatch(r"[a-z2-7]{32}", fingerprint):
            raise AddressError(
                f"the run address has the fingerprint {fingerprint!r}, which is not 32 letters and digits"
            )
        bootstraps = tuple(place for place in places.split(",") if place)
        for place in bootstraps:
            if not re.fullmatch(r"/[a-z0-9]+(/[^/,]+)+/p2p/[1-9A-HJ-NP-Za-km-z]+", place):
                raise AddressError(f"{place!r} in the run address is not a multiaddr that ends in /p2p/PEER")
            if not _is_whole(peer := place.rpartition("/")[2]):
                raise AddressError(
                    f"the run address is cut off, or a letter is wrong: {peer!r} is no whole name of a peer; copy the "
                    "whole address again"
                )
        if not bootstraps:
            raise AddressError("the run address names no bootstrap node after the @")
        return cls(name, fingerprint, bootstraps, invitation or None)

    @property
    def nobody_knows_it(self) -> str:
        """What to tell a person when bootstrap nodes answer and none of them has the run's manifest."""
        return (
            f"there is no run {self.name} with the fingerprint {self.fingerprint} at {', '.join(self.bootstraps)}; "
            "check the run address with the operator, and if the node has just been started, try again in a minute"
        )

    def has_other_name(self, name: str) -> str | None:
        """What to tell a person where the run is called otherwise; None: it is not."""
        if name == self.name:
            return None
        return f"the run address says {self.name!r}, and the run is called {name!r}; copy the whole address again"

    def with_invitation(self, code: str) -> "RunAddress":
        return replace(self, invitation=code)

    def with_bootstraps(self, bootstraps: Sequence[str]) -> "RunAddress":
        return replace(self, bootstraps=tuple(bootstraps))


def _is_whole(name: str) -> bool:
    """Whether it is as long as a peer's name says of itself: libp2p writes a hash, or a short key, with its length."""
    try:
        data: bytes = base58.b58decode(name)
    except ValueError:
        return False
    return len(data) > 2 and len(data) == 2 + data[1]
