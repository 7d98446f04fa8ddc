"""What travels on a stream between two peers: the messages. How their bytes are made and read: `framing.py`.

Every kind is a frozen, strictly typed value; the ranges of its numbers, and how long its texts may be, are in
`fields.py`. To add a kind is to write its class here; those about blame are in `proofs.py`, what a newcomer and a
bootstrap node say to each other in `greetings.py`, and how parts of common work are asked for in `parts.py`.
"""

from typing import Annotated, Literal

from pydantic import Field

from dipaco_swarm.algorithm.doubts import MAX_DOUBTS
from dipaco_swarm.algorithm.state import HASH_BYTES, num_pieces
from dipaco_swarm.swarm.encoded_average import MAX_CHAIN
from dipaco_swarm.swarm.fields import (
    MAX_BASES,
    MAX_CLAIMS,
    MAX_MEMBERS,
    MAX_NAMES,
    MAX_PIECES,
    MAX_STATE_PARAMETERS,
    Digest,
    Hash,
    Index,
    Mask,
    Message,
    ModuleName,
    Nonce,
    Norm,
    Parameters,
    Peer,
    Reason,
    RoundId,
    Scale,
    Seconds,
    Share,
    Size,
    Speed,
    Tokens,
    Version,
    Weight,
    Word,
    Work,
)
from dipaco_swarm.swarm.proofs import MAX_PROOFS, Proof
from dipaco_swarm.swarm.round.codecs.codec import BLOCK

MAX_SPANS = 1 << 14
"""Parts of an average with other members in them."""
Doubts = Annotated[tuple[Peer, ...], Field(max_length=MAX_DOUBTS)]
"""Whose contributions have done harm, as the member finds that says it (`algorithm/doubts.py`)."""

MAX_MANIFEST_BYTES = 1 << 20

MAX_LAGGARDS = 16
Laggards = Annotated[tuple[Peer, ...], Field(max_length=MAX_LAGGARDS)]
"""Who has kept rounds of the member waiting lately that says so."""


# rounds: a member and the leader -------------------------------------------------------------------------------------


class Join(Message):
    """Member -> leader: count me in."""

    kind: Literal["join"] = "join"
    stage: Index
    module: ModuleName
    version: Version
    digest: Digest
    """Of the state that the outer gradient starts from; a round has one."""
    work: Work
    """Behind that state."""
    path: Index
    tokens: Tokens
    norm: Norm
    """Length of the whole outer gradient; reducers hold us to it."""
    decay: Share = 0.0
    """Amount of weight decay that is not in the outer gradient (`algorithm/weight_decay.py`)."""
    doubts: Doubts = ()
    laggards: Laggards = ()
    parameters: Parameters
    reduces: bool
    nonce: Nonce
    """In the roster as well: so what a member signs about a round cannot be about another one."""
    uplink: Speed = 0.0
    """Bytes a second that its line takes; 0: not known yet."""
    patience: Seconds
    """Seconds this member is willing to wait for others who are alive but not there yet."""


class Refuse(Message):
    """Leader -> member: not this time, or not with me. The rest is where the group stands, where that is known."""

    kind: Literal["refuse"] = "refuse"
    reason: Reason
    version: Version
    digest: Digest | None = None
    work: Work = 0
    holder: Peer | None = None
    """Who says that it is there."""
    leader: Peer | None = None
    """Somebody who comes before us and gathers the same round: join there."""


class RosterEntry(Message):
    """A member as the roster has it: what it said when it joined, and what follows from that for all alike."""

    peer: Peer
    path: Index
    tokens: Tokens
    norm: Norm
    decay: Share = 0.0
    scale: Scale
    """Norm clipping: what this contribution is multiplied with."""
    reduces: bool
    nonce: Nonce
    awaited: bool = True
    """False: it has kept others waiting lately. It reduces nothing, and counts where it is in time."""


class Named(Message):
    """Somebody whom members of a roster name in their Joins. Once, however many they are: a roster goes to all."""

    peer: Peer
    by: Mask
    """Who names it."""


class Roster(Message):
    """Leader -> members: who takes part, in which order, and who reduces which piece. Its id follows from these."""

    kind: Literal["roster"] = "roster"
    round_id: RoundId
    members: tuple[RosterEntry, ...] = Field(min_length=1, max_length=MAX_MEMBERS)
    piece_parameters: Parameters
    owners: tuple[Index, ...] = Field(min_length=1, max_length=MAX_PIECES)
    """For each piece of the vector, the index in `members` of its reducer."""
    doubts: tuple[Named, ...] = Field(default=(), max_length=MAX_MEMBERS)
    """Of the members, who is doubted."""
    laggards: tuple[Named, ...] = Field(default=(), max_length=MAX_MEMBERS)
    """Here or not. Where these are all that there may be, others that are named less often are not among them."""


class Reassign(Message):
    """Leader -> members: these members are gone; their pieces have new owners, in a new generation."""

    kind: Literal["reassign"] = "reassign"
    gone: tuple[Peer, ...] = Field(max_length=MAX_MEMBERS)
    late: tuple[Peer, ...] = Field(default=(), max_length=MAX_MEMBERS)
    """Of those, who has kept the others waiting."""
    apart: tuple[Peer, ...] = Field(default=(), max_length=MAX_MEMBERS)
    """Who may be to blame as well: a complaint about one of those is theirs alone."""
    generation: Index = Field(gt=0)
    pieces: tuple[tuple[Index, Index], ...] = Field(max_length=MAX_PIECES)
    """Each a piece, and the index in `members` of its new owner."""


class Ready(Message):
    """Member -> leader: I hold every piece of the average, and the seals of their reducers."""

    kind: Literal["ready"] = "ready"
    generation: Index
    digest: Hash
    """Over the roster and what the seals say."""


class Commit(Message):
    """Leader -> members: everybody who is alive holds the same bytes; take the outer step."""

    kind: Literal["commit"] = "commit"
    round_id: RoundId
    generation: Index
    digest: Hash


class Abort(Message):
    """Leader -> members: this round is off; nothing changes. Or, to one of them: it is off for you."""

    kind: Literal["abort"] = "abort"
    reason: Reason
    others_go_on: bool = False
    """They may commit with our contribution."""
    proofs: tuple[Proof, ...] = Field(default=(), max_length=MAX_PROOFS)
    """Who is to blame; the round is made again at once, without them."""


class Alive(Message):
    """Either way on a quiet control stream, a few times a second. Members of a round add whom they still wait for."""

    kind: Literal["alive"] = "alive"
    awaits_contributions: Mask = b""
    """To the pieces that we reduce."""
    awaits_averages: Mask = b""
    moved: Size = 0
    """Bytes of pieces received in this round so far."""


class AskOutcome(Message):
    """Member -> member, when the leader is lost: did you commit this round?"""

    kind: Literal["ask-outcome"] = "ask-outcome"
    round_id: RoundId


class OutcomeIs(Message):
    """The answer: what we committed, or None. Then we never will, unless we still hear the leader."""

    kind: Literal["outcome"] = "outcome"
    commit: Commit | None
    undecided: bool = False
    """We are in that round, and hear the leader."""


# a contributor and a reducer -----------------------------------------------------------------------------------------


class Exchange(Message):
    """Contributor -> reducer: pieces follow; send me the averages of yours on this stream."""

    kind: Literal["exchange"] = "exchange"
    round_id: RoundId


# states, blobs, and who is where -------------------------------------------------------------------------------------


class Where(Message):
    """Are you there, and where do you stand with this module? The round that goes on from this state is gathering."""

    kind: Literal["where"] = "where"
    stage: Index
    module: ModuleName
    version: Version
    digest: Digest
    work: Work
    path: Index | None = None
    """That the asking peer trains; None: it only leads."""
    for_strangers: bool = False
    """Nobody has joined yet of whom the asking peer knows that it has ever contributed."""


class Here(Message):
    """The answer: where we stand, and whom we have joined."""

    kind: Literal["here"] = "here"
    version: Version | None
    """Of the state that we have; None: we neither train this module in this stage nor hold it."""
    digest: Digest | None = None
    work: Work = 0
    path: Index | None = None
    """That we train; None: we do not come to rounds of this module."""
    follows: Peer | None = None
    """The leader that we have joined for this round; ourselves if we lead it."""


class SaidState(Message):
    """A state, as its peers announce it."""

    version: Version
    digest: Digest
    work: Work = 0


class AskHad(Message):
    """Have you had these states of a module? Asked before a claim is believed."""

    kind: Literal["ask-had"] = "ask-had"
    stage: Index
    module: ModuleName
    states: tuple[SaidState, ...] = Field(min_length=1, max_length=MAX_CLAIMS)


class HadAre(Message):
    """Whether we have had them, one after the other."""

    kind: Literal["had"] = "had"
    had: tuple[bool, ...] = Field(max_length=MAX_CLAIMS)
    begun: bool = False  # whether we have had a version after the one that the stage begins with
    makers: tuple[Peer, ...] = Field(default=(), max_length=MAX_NAMES)
    """Who has contributed to the first of them that we know this of."""
    known: tuple[Peer, ...] = Field(default=(), max_length=MAX_NAMES)
    """Said by a bootstrap node: who is there of those who have made states of this run."""
    known_elsewhere: bool = False  # the same: whether any of those has trained any module lately


class AskState(Message):
    """Do you have this state? More may be asked on the same stream: AskPiece, as often as wanted."""

    kind: Literal["ask-state"] = "ask-state"
    stage: Index
    module: ModuleName
    digest: Digest


class StateIs(Message):
    """Yes; and the digests of its pieces, which make up the digest that was asked for."""

    kind: Literal["state"] = "state"
    version: Version
    parameters: Parameters
    work: Work
    hashes: Annotated[bytes, Field(max_length=HASH_BYTES * num_pieces(MAX_STATE_PARAMETERS))]
    """32 bytes for each piece of the parameters, then for each of the momentum."""


class AskPiece(Message):
    """Send the bytes of this piece of the state; they follow without another word, in the order of asking."""

    kind: Literal["ask-piece"] = "ask-piece"
    piece: int = Field(ge=0, lt=num_pieces(MAX_STATE_PARAMETERS))


class AskAverages(Message):
    """Do you have the averages that lead from one of these states to that one? Each is a blob then (AskBlob)."""

    kind: Literal["ask-averages"] = "ask-averages"
    stage: Index
    module: ModuleName
    bases: tuple[Digest, ...] = Field(min_length=1, max_length=MAX_BASES)
    to: Digest


class PackedAverage(Message):
    """The average of one round: the SHA-256 and the size of a blob that begins with an AverageHeader."""

    digest: Digest
    size: int = Field(gt=0, lt=8 * MAX_STATE_PARAMETERS)


class AveragesAre(Message):
    """Yes: these, each from the state that the one before leads to."""

    kind: Literal["averages"] = "averages"
    averages: tuple[PackedAverage, ...] = Field(min_length=1, max_length=MAX_CHAIN)


class AverageHeader(Message):
    """How the blob of an average begins, behind its 4-byte length; the encoded pieces follow in their order."""

    kind: Literal["average"] = "average"
    base: Digest
    """Of the state that its outer gradients start from."""
    work: Work
    """What the next version has more of it."""
    parameters: Parameters
    codec: Word
    piece_parameters: int = Field(ge=BLOCK, le=MAX_STATE_PARAMETERS)
    sizes: tuple[Size, ...] = Field(min_length=1, max_length=MAX_PIECES)
    """Bytes of each piece."""
    spans: tuple[tuple[Parameters, Weight, Share], ...] = Field(min_length=1, max_length=MAX_SPANS)
    """The parameter before which each ends, the effective number of paths in it, and its amount of weight decay."""


class AskBlob(Message):
    """Send this blob, from this byte on."""

    kind: Literal["ask-blob"] = "ask-blob"
    digest: Digest
    offset: Size = 0


class BlobFollows(Message):
    """Yes; `size` is that of the whole blob, and its bytes follow from the offset that was asked for."""

    kind: Literal["blob"] = "blob"
    size: Size


class Holding(Message):
    """I train no more, and have this state: whoever wants it may come. There is no answer."""

    kind: Literal["holding"] = "holding"
    stage: Index
    module: ModuleName
    version: Version
    digest: Digest
    work: Work


class AskManifest(Message):
    """Send the newest manifest that you have, unless it is the one that I have."""

    kind: Literal["ask-manifest"] = "ask-manifest"
    have: Hash | None
    """Its SHA-256."""


class ManifestIs(Message):
    """The manifest as the operator signed it; None: we have none, or the same."""

    kind: Literal["manifest"] = "manifest"
    signed: Annotated[bytes, Field(max_length=MAX_MANIFEST_BYTES)] | None
    same: bool = False


class NotHere(Message):
    """We do not have what was asked for."""

    kind: Literal["not-here"] = "not-here"
