"""Who may take part in a run, as the bootstrap node says it: by its operator's word, or shown to be hostile."""

from dataclasses import dataclass

from dipaco_swarm.events.event import Event
from dipaco_swarm.events.words import counted


@dataclass(frozen=True)
class PeerAdmitted(Event):
    peer: str
    invited: bool

    @property
    def line(self) -> str:
        return f"admitted {self.peer}" + (", which has shown an invitation" if self.invited else "")


@dataclass(frozen=True)
class InvitationsWithdrawn(Event):
    number: int
    """That nobody had used."""

    @property
    def line(self) -> str:
        return f"took back {counted(self.number, 'invitation')}; whom others have admitted stays admitted"


@dataclass(frozen=True)
class PeerBanned(Event):
    peer: str
    why: str

    @property
    def line(self) -> str:
        return f"banned {self.peer}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True)
class PeersConvicted(Event):
    """Members have shown this node that a reducer made a wrong average, and it has made it anew."""

    peer: str
    module: str
    version: int
    """That the average is part of."""
    others: int
    """Convicted as well since the last time."""

    @property
    def line(self) -> str:
        who = f"{self.peer} and {counted(self.others, 'other')}" if self.others else self.peer
        return (
            f"{who} made wrong averages, first of {self.module} v{self.version}: members banned them; "
            "if the loss has suffered, `dipaco-bootstrap rollback`"
        )


@dataclass(frozen=True)
class PeerForgiven(Event):
    peer: str
    was_banned: bool = True

    @property
    def line(self) -> str:
        return f"{self.peer} is not banned any more" if self.was_banned else f"{self.peer} was not banned"


@dataclass(frozen=True)
class RegisterFull(Event):
    """There is no room for one more name."""

    peer: str
    most: int

    @property
    def line(self) -> str:
        return f"{self.peer} is not in the register: it has {self.most:,} names, as many as it can hold"
