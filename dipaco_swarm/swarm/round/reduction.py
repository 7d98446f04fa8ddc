"""The arithmetic and the arrangements of a round, as pure functions; both swarms use these and nothing else.

who leads      a deterministic order over the members; everybody computes the same one, nobody searches
pieces         a module's vector is cut into pieces, each with one reducer
the average    contributions that arrived completely, summed in roster order, then encoded once
"""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from dipaco_swarm.algorithm.averaging.rule import Averaging, Counted, Member, PieceAverage, averaging_of, voices
from dipaco_swarm.algorithm.doubts import left_out
from dipaco_swarm.algorithm.outer import Vector, effective_paths, trained_weights
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.weight_decay import usual_amount
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.round.codecs.codec import BLOCK, Codec
from dipaco_swarm.swarm.wire import Named, RosterEntry

MIN_PIECE = 64 * BLOCK  # 256 KB of fp32: below that, messages cost more than bytes
MAX_PIECE = 256 * BLOCK  # 1 MB of fp32: above that, arithmetic leaves the cache and nothing overlaps
PIECES_PER_REDUCER = 4  # so that sending, summing and returning overlap
MOST_OF_A_REDUCER = 2.0
"""So many times an equal share one reducer has at most, however fast it says that its line is."""

NORM_TOLERANCE = 1.001  # for fp32 sums over pieces of another size; what a codec adds is `Codec.lengthens`

ROW = 1 << 12


def leader_order(stage: int, module: ModuleId, version: int, candidates: Sequence[str]) -> list[str]:
    """Who leads the round that makes `version + 1`, then who would if that peer is lost, and so on.

    Rendezvous hashing: everybody with the same candidates gets the same order, and losing one moves nobody else. Not by
    the state that a round goes on from, though no name could be drawn then that leads often: two that have made two
    states of one version meet at the leader, or go on apart. On slow lines they did.
    """

    def rank(peer: str) -> bytes:
        return hashlib.sha256(f"{stage}/{module}/{version}/{peer}".encode()).digest()

    return sorted(candidates, key=rank)


def roster_order(members: Sequence[RosterEntry]) -> tuple[RosterEntry, ...]:
    """The order in which contributions are summed: by path, then by peer."""
    return tuple(sorted(members, key=lambda member: (member.path, member.peer)))


def piece_parameters(parameters: int, reducers: int) -> int:
    """Length of a piece: several per reducer, about MIN_PIECE to MAX_PIECE numbers, a multiple of BLOCK.

    All of them alike: a short one at the end would be too short to compare contributions in.
    """
    wanted = -(-parameters // (PIECES_PER_REDUCER * reducers))
    pieces = -(-parameters // min(max(wanted, MIN_PIECE), MAX_PIECE))
    return -(-parameters // pieces // BLOCK) * BLOCK


def piece_bounds(piece: int, size: int, parameters: int) -> tuple[int, int]:
    return piece * size, min((piece + 1) * size, parameters)


def piece_owners(parameters: int, size: int, shares: Mapping[int, float]) -> tuple[int, ...]:
    """The reducer of each piece: as many as its share says, in turns, so that all have work from the first moment.

    `shares`: roster index -> part of the vector that it should reduce; they add up to 1.
    """
    given = dict.fromkeys(shares, 0)
    owners = []
    for piece in range(-(-parameters // size)):
        # whoever is furthest behind its share
        owner = max(shares, key=lambda i: (shares[i] * (piece + 1) - given[i], -i))
        given[owner] += 1
        owners.append(owner)
    return tuple(owners)


def reducer_shares(uplinks: Mapping[int, float], members: int) -> dict[int, float]:
    """What part of the vector each reducer should take, so that all are done sending at the same time.

    `uplinks`: reducer -> bytes a second of its line, 0 where that is not known; those count as the median of the known.
    Of a vector of 1, a member sends others' pieces, 1 - s, and its own averages to the others, s (members - 1), which
    is 1 + s (members - 2) in all. So a slow line reduces less, and one that needs longer for its own contribution than
    the others for everything reduces nothing. Nobody has more than MOST_OF_A_REDUCER times an equal share.
    """
    known = sorted(speed for speed in uplinks.values() if speed > 0)
    if not known or members <= 2:
        return dict.fromkeys(uplinks, 1 / len(uplinks))
    usual = known[len(known) // 2]
    speeds = {i: speed or usual for i, speed in uplinks.items()}
    most = MOST_OF_A_REDUCER / len(speeds)
    shares = dict.fromkeys(sorted(speeds), 0.0)
    below = dict(speeds)
    while below:
        rest = 1.0 - most * (len(speeds) - len(below))
        found = _equally_long(below, rest, members)
        above = [i for i, share in found.items() if share > most]
        shares |= dict.fromkeys(above, most) if above else found
        below = {i: speed for i, speed in below.items() if i not in above} if above else {}
    return shares


def _equally_long(speeds: Mapping[int, float], rest: float, members: int) -> dict[int, float]:
    """What part of the vector each reducer takes, `rest` in all, so that those who take some are done together."""
    # the time T in which they reduce it: the sum of (T speed - 1) over those where it is > 0 is rest (members - 2)
    work = rest * (members - 2)
    order = sorted(speeds, key=lambda i: (-speeds[i], i))
    total, took_part = 0.0, 0
    for i in order:
        if took_part and (work + took_part) / total * speeds[i] <= 1:
            break
        total, took_part = total + speeds[i], took_part + 1
    time = (work + took_part) / total
    return {i: max(0.0, (time * speeds[i] - 1) / (members - 2)) for i in speeds}


def piece_average(
    roster: Sequence[RosterEntry], doubts: Sequence[Named], group: ModuleGroup, rule: Averaging | None = None
) -> PieceAverage:
    """The group's averaging rule, ready for the pieces of one round: a piece's contributions -> their average.

    `rule`: instead of the group's own, the same as another machine may have it.

    Whom most others doubt (`Roster.doubts`) is left out, where the rule says so, unless nobody else has contributed.
    Raises ValueError when somebody doubts who is not there.
    """
    rule, members = rule or averaging_of(group.averaging), _members(roster, group)
    average = rule.prepare(members, group.round_tokens)
    by = {doubt.peer: present_in(doubt.by, len(roster)) for doubt in doubts}
    doubted = frozenset[int]()
    if rule.hears_doubts:
        doubted = left_out([member.peer for member in roster], by, voices(range(len(members)), members))

    def without_them(contributions: Mapping[int, Tensor]) -> Counted:
        return average({i: part for i, part in contributions.items() if i not in doubted} or contributions)

    return without_them if doubted else average


def _members(roster: Sequence[RosterEntry], group: ModuleGroup) -> list[Member]:
    return [
        Member(
            path=member.path,
            tokens=float(member.tokens),
            path_weight=group.path_weights[PathIndex(member.path)],
            norm=member.norm,
            scale=member.scale,
        )
        for member in roster
    ]


def decay_of(present: Sequence[int], members: Sequence[RosterEntry], group: ModuleGroup) -> float:
    """The amount of weight decay that an average is given in which these roster members are."""
    return usual_amount([members[i].decay for i in present], voices(present, _members(members, group)))


def effective_paths_of(present: Sequence[int], members: Sequence[RosterEntry], group: ModuleGroup) -> float:
    """The effective number of paths among these roster members."""
    paths = [members[i].path for i in present]
    weights = trained_weights(
        paths,
        [float(members[i].tokens) for i in present],
        [group.path_weights[PathIndex(members[i].path)] for i in present],
        group.round_tokens,
    )
    return effective_paths(paths, weights)


def length_of(contribution: Tensor) -> float:
    """Euclidean length; not finite when any number is not.

    Summed in short rows: a long sum in fp32 is 6e-4 off where torch has one thread, and the tolerance is 1e-3.
    """
    whole = len(contribution) // ROW * ROW
    rows = torch.linalg.vector_norm(contribution[:whole].reshape(-1, ROW), dim=1)
    rest = torch.linalg.vector_norm(contribution[whole:])
    return math.hypot(float(torch.linalg.vector_norm(rows, dtype=torch.float64)), float(rest))


def is_acceptable(length: float, member: RosterEntry) -> bool:
    """Whether what a member sent to one reducer is finite and no longer than the whole gradient it claimed."""
    return length <= member.norm * NORM_TOLERANCE + 1e-12


def claimed_norm(codec: Codec, gradient: Vector, left_over: Tensor | None) -> float:
    """How long a member says its contribution is: no shorter than what the others decode.

    `left_over`: what the codec lost last time, which is added to the gradient. Summed in pieces: the gradient and what
    was left over are never in memory as one, and over 10^8 numbers at once a sum in fp32 is off by 4 %.
    """
    lengths = []
    for start in range(0, len(gradient), MAX_PIECE):
        part = gradient[start : start + MAX_PIECE]
        lengths.append(length_of(part if left_over is None else part + left_over[start : start + MAX_PIECE]))
    return math.hypot(*lengths) * codec.lengthens


def mask_of(present: Collection[int]) -> bytes:
    """Roster indices as little-endian bits; no bytes for nobody."""
    return sum(1 << i for i in present).to_bytes((max(present, default=-8) + 8) // 8, "little")


def present_in(mask: bytes, members: int) -> tuple[int, ...]:
    """The roster indices in a mask. Raises ValueError when it is empty or names a member that does not exist."""
    bits = int.from_bytes(mask, "little")
    if bits == 0 or bits >> members:
        raise ValueError(f"the mask {mask.hex()} does not fit a roster of {members}")
    return tuple(i for i in range(members) if bits >> i & 1)
