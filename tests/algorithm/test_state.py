"""The digest of a state, and the pieces that it is made of."""

import pytest
import torch

from dipaco_swarm.algorithm.state import HASH_BYTES, PIECE_BYTES, ModuleState, StateOutline, num_pieces, vector_bytes

PIECE = PIECE_BYTES // 4


def test_the_digest_of_a_state_is_the_same_on_every_machine() -> None:
    state = ModuleState(3, torch.arange(PIECE + 5, dtype=torch.float32), torch.ones(PIECE + 5))
    assert state.digest == "09747c30960813466bc1348d8ecc2d3e80fde40a1f2f587e73b039e8efe06406"


def test_every_part_of_a_state_counts() -> None:
    zeros, ones = torch.zeros(10), torch.ones(10)
    states = [
        ModuleState(1, zeros, ones),
        ModuleState(2, zeros, ones),
        ModuleState(1, ones, zeros),
        ModuleState(1, zeros, zeros),
        ModuleState(1, torch.zeros(11), torch.ones(11)),
        ModuleState(1, zeros, ones, work=1),
        ModuleState(1, torch.zeros(0), torch.zeros(0)),
    ]
    assert len({state.digest for state in states}) == len(states)
    assert ModuleState(1, zeros.clone(), ones.clone()).digest == states[0].digest


@pytest.mark.parametrize("parameters", [0, 1, PIECE, PIECE + 1, 3 * PIECE - 1])
def test_the_pieces_of_a_state_are_all_of_it(parameters: int) -> None:
    params, momentum = torch.randn(parameters), torch.randn(parameters)
    state = ModuleState(7, params, momentum)
    pieces = [state.piece(i) for i in range(num_pieces(parameters))]
    assert b"".join(pieces) == bytes(vector_bytes(params)) + bytes(vector_bytes(momentum))
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    assert len(state.outline.hashes) == HASH_BYTES * len(pieces)
    assert all(state.outline.fits(i, piece) for i, piece in enumerate(pieces))


def test_a_piece_fits_in_its_own_place_only() -> None:
    state = ModuleState(7, torch.randn(2 * PIECE), torch.randn(2 * PIECE))
    assert not state.outline.fits(1, state.piece(0))
    state.params[PIECE] += 1.0
    assert not state.outline.fits(1, state.piece(1))
    assert state.outline.fits(0, state.piece(0))


def test_a_state_that_was_checked_is_not_hashed_again() -> None:
    outline = StateOutline(7, 10, bytes(2 * HASH_BYTES))
    state = ModuleState.checked(outline, torch.zeros(10), torch.zeros(10))
    assert state.version == 7
    assert state.digest == outline.digest
