"""The arrangements of a round, for all inputs: who leads, in which order, who reduces what, who is in it."""

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.swarm.round.codecs.codec import BLOCK
from dipaco_swarm.swarm.round.reduction import (
    MAX_PIECE,
    leader_order,
    mask_of,
    piece_bounds,
    piece_owners,
    piece_parameters,
    present_in,
    reducer_shares,
    roster_order,
)
from dipaco_swarm.swarm.wire import RosterEntry

names = st.text("123456789ABCDEFGHJKLMNPQRSTUVWXYZ", min_size=1, max_size=6)
shuffles = st.randoms(use_true_random=False)


@st.composite
def rosters(draw: st.DrawFn) -> list[RosterEntry]:
    peers = draw(st.lists(names, min_size=1, max_size=12, unique=True))
    paths = draw(st.lists(st.integers(0, 5), min_size=len(peers), max_size=len(peers)))
    return [
        RosterEntry(peer=peer, path=path, tokens=1, norm=1.0, scale=1.0, reduces=True, nonce=bytes(16))
        for peer, path in zip(peers, paths, strict=True)
    ]


@given(rosters(), shuffles)
def test_a_roster_has_one_order_however_its_members_came(members: list[RosterEntry], random: Random) -> None:
    roster = roster_order(members)
    random.shuffle(members)
    assert roster_order(members) == roster
    assert [member.path for member in roster] == sorted(member.path for member in members)
    assert sorted(member.peer for member in roster) == sorted(member.peer for member in members)


@given(st.lists(names, min_size=1, max_size=12, unique=True), st.integers(0, 99), shuffles)
def test_whoever_is_lost_moves_nobody_else_in_the_order_of_leaders(
    peers: list[str], version: int, random: Random
) -> None:
    order = leader_order(0, ModuleId(1, 2), version, peers)
    lost = random.choice(peers)
    random.shuffle(peers)
    peers.remove(lost)
    order.remove(lost)
    assert leader_order(0, ModuleId(1, 2), version, peers) == order


@given(st.integers(1, 10**8), st.integers(1, 256))
def test_pieces_cover_a_vector_once(parameters: int, reducers: int) -> None:
    size = piece_parameters(parameters, reducers)
    assert size % BLOCK == 0
    assert 0 < size <= MAX_PIECE
    pieces = -(-parameters // size)
    bounds = [piece_bounds(piece, size, parameters) for piece in range(pieces)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == parameters
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    assert all(start < stop for start, stop in bounds)


speeds = st.just(0.0) | st.floats(1e3, 1e9)
uplinks = st.dictionaries(st.integers(0, 63), speeds, min_size=1, max_size=32)


@given(uplinks, st.integers(0, 32))
def test_shares_of_reducers_are_a_whole(uplinks: dict[int, float], others: int) -> None:
    shares = reducer_shares(uplinks, len(uplinks) + others)
    assert set(shares) == set(uplinks)
    assert all(0 <= share <= 1 + 1e-9 for share in shares.values())
    assert math.fsum(shares.values()) == pytest.approx(1)
    known = sorted((i for i in uplinks if uplinks[i] > 0), key=lambda i: uplinks[i])
    assert all(shares[a] <= shares[b] + 1e-9 for a, b in pairwise(known))  # faster: never less


@given(uplinks, st.integers(0, 32), st.integers(1, 400))
def test_every_piece_has_one_owner_and_owners_have_their_share(
    uplinks: dict[int, float], others: int, pieces: int
) -> None:
    shares = reducer_shares(uplinks, len(uplinks) + others)
    owners = piece_owners(pieces * BLOCK, BLOCK, shares)
    assert len(owners) == pieces
    for reducer, share in shares.items():
        assert owners.count(reducer) < share * pieces + 1 + 1e-6
    if not math.isclose(max(shares.values()), 1):
        assert all(shares[owner] > 0 for owner in owners)


@given(st.sets(st.integers(0, 1023), min_size=1), st.integers(0, 8))
def test_a_mask_says_who_is_present(present: set[int], others: int) -> None:
    mask = mask_of(sorted(present))
    assert present_in(mask, max(present) + 1 + others) == tuple(sorted(present))
    with pytest.raises(ValueError, match="does not fit a roster"):
        present_in(mask, max(present))


@given(st.binary(max_size=16), st.integers(1, 100))
def test_any_mask_names_members_or_is_refused(mask: bytes, members: int) -> None:
    try:
        present = present_in(mask, members)
    except ValueError:
        return
    assert present
    assert max(present) < members
    assert mask.rstrip(b"\0") == mask_of(present)
