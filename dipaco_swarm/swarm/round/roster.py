"""The roster of a round: one rule that a leader makes it by, and that every member checks it by."""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from dipaco_swarm.algorithm.doubts import MAX_DOUBTS
from dipaco_swarm.algorithm.outer import clip_factors
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.fields import MAX_MEMBERS
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.round.reduction import (
    MOST_OF_A_REDUCER,
    mask_of,
    piece_owners,
    piece_parameters,
    reducer_shares,
    roster_order,
)
from dipaco_swarm.swarm.wire import MAX_LAGGARDS, Join, Named, Roster, RosterEntry

MIN_SCALE = 1e-30
"""A scale is above zero, however long an outer gradient claims to be."""


class Joined(Protocol):
    """What a member said of itself that all others see: its Join has it, and so has its entry in a roster."""

    @property
    def path(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def norm(self) -> float: ...

    @property
    def decay(self) -> float: ...

    @property
    def reduces(self) -> bool: ...

    @property
    def nonce(self) -> bytes: ...


def roster_of(joins: Mapping[str, Joined], norm_clip: float, waived: Collection[str] = ()) -> tuple[RosterEntry, ...]:
    """The entries of a roster, in its order: they follow from what the members said, whoever makes them.

    `joins`: peer -> what it said. `norm_clip`: no contribution counts for longer than this times the median norm.
    `waived`: members that nobody waits for.
    """
    scales = clip_factors([join.norm for join in joins.values()], norm_clip)
    return roster_order(
        [
            RosterEntry(
                peer=peer,
                path=join.path,
                tokens=join.tokens,
                norm=join.norm,
                decay=join.decay,
                scale=max(scale, MIN_SCALE),
                reduces=join.reduces,
                nonce=join.nonce,
                awaited=peer not in waived,
            )
            for (peer, join), scale in zip(joins.items(), scales, strict=True)
        ]
    )


def round_id_of(members: Sequence[RosterEntry]) -> bytes:
    """16 bytes. Who is in it is in no other round of that name: it has drawn its nonce for this one, and a leader that
    chose the name itself could have it be that of another round."""
    said = b"".join(member.nonce + member.peer.encode() + b"\0" for member in members)
    return hashlib.sha256(b"dipaco round 1" + said).digest()[:16]


def make_roster(joins: Mapping[str, Join], norm_clip: float, waived: AbstractSet[str] = frozenset()) -> Roster:
    """The roster of a new round, with a reducer for each piece. `joins`: peer -> its Join, all of one length.

    `waived`: nobody waits for these, unless they are more than half: then it may be us who is slow.
    """
    waived = at_most_half(waived, joins.keys())
    members = roster_of(joins, norm_clip, waived)
    parameters = joins[members[0].peer].parameters
    reducers = _reducers(members)
    shares = reducer_shares({i: joins[members[i].peer].uplink for i in reducers}, len(members))
    size = piece_parameters(parameters, len(reducers))
    return Roster(
        round_id=round_id_of(members),
        members=members,
        piece_parameters=size,
        owners=piece_owners(parameters, size, shares),
        doubts=named_in([joins.keys() & joins[member.peer].doubts for member in members]),
        laggards=named_in([joins[member.peer].laggards for member in members]),
    )


def at_most_half(waived: AbstractSet[str], there: AbstractSet[str]) -> frozenset[str]:
    """Whom of some members nobody waits for: nobody, where they are more than half, as it may be us who is slow."""
    found = frozenset(waived & there)
    return found if 2 * len(found) <= len(there) else frozenset()


def named_in(words: Sequence[Collection[str]]) -> tuple[Named, ...]:
    """Whom members name and which of them do so: whom most name first, and MAX_MEMBERS at most.

    `words`: the names that each says, in the order of the roster.
    """
    by: dict[str, list[int]] = {}
    for i, names in enumerate(words):
        for peer in {*names}:
            by.setdefault(peer, []).append(i)
    first = sorted(by, key=lambda peer: (-len(by[peer]), peer))[:MAX_MEMBERS]
    return tuple(Named(peer=peer, by=mask_of(by[peer])) for peer in first)


def our_index(roster: Roster, join: Join, us: str, group: ModuleGroup, norm_clip: float, leader: str) -> int:
    """Our index in a roster that follows the rules.

    `join`: what we said to the leader. Raises RemoteDataError, which names the leader, when it bends the rules; nobody
    follows such a one.
    """
    said = {member.peer: member for member in roster.members}
    if us not in said or len(said) < len(roster.members):
        raise RemoteDataError(leader, "sends a roster without us, or with somebody twice")
    me, index = said[us], roster.members.index(said[us])
    waived = {member.peer for member in roster.members if not member.awaited}
    if not (
        (me.path, me.tokens, me.norm, me.decay, me.nonce) == (join.path, join.tokens, join.norm, join.decay, join.nonce)
        and roster.members == roster_of(said, norm_clip, waived)
        and roster.round_id == round_id_of(roster.members)
        and 2 * len(waived) <= len(said)
        and all(member.path in group.path_weights for member in roster.members)
        and roster.piece_parameters == piece_parameters(join.parameters, len(_reducers(roster.members)))
        and len(roster.owners) == -(-join.parameters // roster.piece_parameters)
        and max(roster.owners) < len(roster.members)
        and _is_shared(roster)
        and _has_our_word(roster.doubts, roster, index, said.keys() & join.doubts, MAX_DOUBTS)
        and _has_our_word(roster.laggards, roster, index, {*join.laggards}, MAX_LAGGARDS)
    ):
        raise RemoteDataError(leader, "sends a roster that does not follow from what its members said")
    return index


def laggards_of_most(roster: Roster, group: AbstractSet[str], attested: AbstractSet[str]) -> frozenset[str]:
    """Who has kept most of a group waiting lately, as those say who are in a round of it.

    Who was not in the rounds in which somebody was late would follow it, or wait for it, while the others do not. Most
    of the group, not of the round: two who say so to a third alone are not believed. `attested`: who has signed that
    it has seen this roster; what others have said in it, the leader may have made up.
    """
    voices = {m.peer: 1 << i for i, m in enumerate(roster.members) if m.peer in group & attested}
    known = sum(voices.values())
    return frozenset(
        late.peer
        for late in roster.laggards
        if 2 * (_bits(late.by) & known & ~voices.get(late.peer, 0)).bit_count() > len(group - {late.peer})
    )


def _has_our_word(found: Sequence[Named], roster: Roster, us: int, names: AbstractSet[str], most: int) -> bool:
    """Whether this has what we said, nobody twice, and no more than members can have said, each of `most` names.

    Where it is full, some of our names may not be in it.
    """
    masks = {each.peer: _bits(each.by) for each in found}
    ours = {peer for peer, mask in masks.items() if mask >> us & 1}
    return (
        len(masks) == len(found)
        and all(0 < mask < 1 << len(roster.members) for mask in masks.values())
        and sum(mask.bit_count() for mask in masks.values()) <= most * len(roster.members)
        and (ours <= names if len(found) == MAX_MEMBERS else ours == names)
    )


def _bits(mask: bytes) -> int:
    return int.from_bytes(mask, "little")


def _is_shared(roster: Roster) -> bool:
    """Whether no reducer has many more pieces than the rule gives to one, whatever it says of its line."""
    reducers = len(_reducers(roster.members))
    most = max(Counter(roster.owners).values())
    return most <= MOST_OF_A_REDUCER / reducers * len(roster.owners) + 2  # which are rounded


def _reducers(members: Sequence[RosterEntry]) -> list[int]:
    """Who shares the work, by index; where nobody can be dialled, all who are waited for, through relays."""
    awaited = [i for i, member in enumerate(members) if member.awaited]
    return [i for i in awaited if members[i].reduces] or awaited
