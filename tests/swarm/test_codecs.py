"""What every codec promises, tried on vectors that people would not think of."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dipaco_swarm.strategies import CODECS
from dipaco_swarm.swarm.round.codecs.codec import BLOCK, Codec, codec_of
from dipaco_swarm.swarm.round.reduction import NORM_TOLERANCE, claimed_norm, is_acceptable, length_of
from dipaco_swarm.swarm.wire import RosterEntry

ALL = [codec_of(name) for name in CODECS]
LOSS = {"fp32": 0.0, "bf16": 2**-8, "int8": 0.5 / 127}
"""The largest error of a number, in parts of the largest number of its block."""

numbers = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


@st.composite
def vectors(draw: st.DrawFn) -> Tensor:
    """fp32 (n,): a few drawn numbers, in a pattern that fills up to three blocks."""
    few = torch.tensor(draw(st.lists(numbers, min_size=1, max_size=12)), dtype=torch.float32)
    count = draw(st.sampled_from([1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK]))
    vector = few.repeat(-(-count // len(few)))[:count].clone()
    vector[0] *= draw(st.sampled_from([1.0, 36.0, 127.0]))  # one long number makes coarse levels for the others
    return vector


@pytest.mark.parametrize("codec", ALL, ids=lambda codec: str(codec.name))
@given(vector=vectors())
def test_a_vector_comes_back_within_the_codecs_error(codec: Codec, vector: Tensor) -> None:
    data = codec.encode(vector)
    assert len(data) == codec.encoded_size(len(vector))
    assert bytes(data) == bytes(codec.encode(vector.clone()))
    decoded = codec.decode(data, len(vector))
    assert decoded.dtype == torch.float32
    for start in range(0, len(vector), BLOCK):
        block = slice(start, start + BLOCK)
        largest = float(vector[block].abs().max())
        error = float((decoded[block] - vector[block]).abs().max())
        assert error <= LOSS[codec.name] * largest * (1 + 1e-5) + 1e-30


@pytest.mark.parametrize("codec", ALL, ids=lambda codec: str(codec.name))
@given(vector=vectors())
def test_a_vector_that_is_cut_has_the_same_numbers(codec: Codec, vector: Tensor) -> None:
    whole = codec.decode(codec.encode(vector), len(vector))
    parts = [vector[start : start + BLOCK] for start in range(0, len(vector), BLOCK)]
    assert torch.equal(whole, torch.cat([codec.decode(codec.encode(part), len(part)) for part in parts]))


@pytest.mark.parametrize("codec", ALL, ids=lambda codec: str(codec.name))
@given(vector=vectors(), left_over=st.none() | st.floats(-1, 1, width=32))
def test_nobody_honest_is_longer_than_it_said(codec: Codec, vector: Tensor, left_over: float | None) -> None:
    added = None if left_over is None else torch.full_like(vector, left_over)
    sent = vector if added is None else vector + added
    member = RosterEntry(peer="Qm", path=0, tokens=1, norm=claimed_norm(codec, vector, added), scale=1.0, reduces=True)
    arrived = [
        codec.decode(codec.encode(part), len(part))
        for part in (sent[i : i + BLOCK] for i in range(0, len(sent), BLOCK))
    ]
    assert is_acceptable(math.fsum(length_of(part) ** 2 for part in arrived), member)


def test_int8_lengthens_most_where_levels_are_rounded_up_from_three_and_a_half() -> None:
    int8 = codec_of("int8")
    vector = torch.full((BLOCK,), 3.5001)
    vector[0] = 127.0
    ratio = length_of(int8.decode(int8.encode(vector), BLOCK)) / length_of(vector)
    assert 1.064 < ratio < int8.lengthens


def test_a_norm_that_is_claimed_has_no_rounding_of_long_sums() -> None:
    gradient = torch.full((1,), 0.37).expand(20_000_000)  # summed at once in fp32, this is 3 % too short
    claimed = claimed_norm(codec_of("fp32"), gradient, None)
    assert claimed == pytest.approx(0.37 * math.sqrt(len(gradient)), rel=(NORM_TOLERANCE - 1) / 2)


@pytest.mark.parametrize("codec", ALL, ids=lambda codec: str(codec.name))
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows_in_what_is_decoded(codec: Codec, bad: float) -> None:
    vector = torch.ones(2 * BLOCK)
    vector[5] = bad
    assert not math.isfinite(length_of(codec.decode(codec.encode(vector), len(vector))))


@pytest.mark.parametrize("codec", ALL, ids=lambda codec: str(codec.name))
def test_bytes_of_another_size_are_refused(codec: Codec) -> None:
    data = bytes(codec.encode(torch.ones(10)))
    with pytest.raises(ValueError, match=f"not 11 parameters in {codec.name}"):
        codec.decode(data, 11)


def test_an_unknown_codec_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no wire.codec 'fp64'; choose 'fp32', 'bf16' or 'int8'"):
        codec_of("fp64")
