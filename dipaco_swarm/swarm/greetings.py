"""What newcomers ask: how do I look from there, may I take part, who is there, and where."""

from typing import Annotated, Literal

from pydantic import Field

from dipaco_swarm.swarm.fields import Index, Message, ModuleName, Peer, Time, Word

MAX_PORTS = 4
MAX_BALLAST = 1 << 18
MAX_MEMBERS_NAMED = 64
MAX_PLACES = 4
MAX_SAID = 2048
Port = Annotated[int, Field(gt=0, lt=1 << 16)]


class Hello(Message):
    """How do I look from there? `ports`: where to knock at the address that you see me at, if at all."""

    kind: Literal["hello"] = "hello"
    ports: tuple[Port, ...] = Field(default=(), max_length=MAX_PORTS)
    ballast: Annotated[bytes, Field(max_length=MAX_BALLAST)] = b""
    """Means nothing: how long it takes shows how fast our line is."""


class Welcome(Message):
    """How you look from here."""

    kind: Literal["welcome"] = "welcome"
    seen_at: Word
    """/ip4/... or /ip6/...; empty when you come through a relay."""
    reached: tuple[Port, ...] | None = Field(max_length=MAX_PORTS)
    """The ports at which you can be dialled; None: was not asked, or has no time to try."""
    time: Time
    """Seconds since the epoch, by my clock."""
    version: Word
    """Of the program that I run."""


class AskPlaces(Message):
    """Where can this peer be dialled, which you have named? Or you yourself."""

    kind: Literal["ask-places"] = "ask-places"
    peer: Peer


class PlacesAre(Message):
    """There, as it says itself; none: I do not know."""

    kind: Literal["places"] = "places"
    places: tuple[Annotated[str, Field(max_length=300)], ...] = Field(max_length=MAX_PLACES)
    """Addresses without its name at the end. Who dials looks at them first."""


class ShowInvitation(Message):
    """Newcomer -> bootstrap node: I may take part, for I have this invitation."""

    kind: Literal["show-invitation"] = "show-invitation"
    code: Annotated[str, Field(pattern=r"^[a-z2-7]{24}$")]


class AdmissionIs(Message):
    """Whether it is taken; the next manifest says so to everybody."""

    kind: Literal["admission"] = "admission"
    noted: bool


class AskMembers(Message):
    """The directory does not show me who is there: who trains this module, and where do you stand with it?"""

    kind: Literal["ask-members"] = "ask-members"
    stage: Index
    module: ModuleName


class SaidOfMember(Message):
    """What a member has said of itself, by the word of another peer."""

    peer: Peer
    said: Annotated[bytes, Field(max_length=MAX_SAID)]
    """An AnnouncementRecord."""


class MembersAre(Message):
    """Those I have heard of lately."""

    kind: Literal["members"] = "members"
    members: tuple[SaidOfMember, ...] = Field(max_length=MAX_MEMBERS_NAMED)
