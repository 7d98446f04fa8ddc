"""What every codec promises, tried on vectors that people would not think of."""

import math

import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dipaco_swarm.strategies import CODECS
from dipaco_swarm.swarm.fields import MAX_NORM
from dipaco_swarm.swarm.round.codecs.codec import BLOCK, Codec, codec_of
from dipaco_swarm.swarm.round.codecs.packing import packed, unpacked
from dipaco_swarm.swarm.round.reduction import NORM_TOLERANCE, claimed_norm, is_acceptable, length_of
from dipaco_swarm.swarm.wire import RosterEntry

ALL = [codec_of(name) for name in CODECS]
BITS = {"fp32": 32, "bf16": 16, "int8": 8 + 32 / 1024, "int4": 4.25, "e3m0": 4.25}
"""Of a number, in a vector of whole blocks, before they are packed."""
SHARED = {"fp32": 1, "bf16": 1, "int8": 1024, "int4": 64, "e3m0": 64}
"""So many numbers have one scale."""
LOSS = {"fp32": 0.0, "bf16": 2**-8, "int8": 0.5 / 80, "int4": (1 + 1 / 17) / 14, "e3m0": (1 + 1 / 17) / 4}
"""The largest error of a number, in parts of the largest number that it shares a scale with."""

every_codec = pytest.mark.parametrize("codec", ALL, ids=lambda codec: str(codec.name))
lengths = st.sampled_from([1, 2, 7, 63, 64, 65, 129, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
scales = st.sampled_from([1e-37, 1e-12, 1e-5, 1.0, 1e5, 1e9])
numbers = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


@st.composite
def patterns(draw: st.DrawFn) -> Tensor:
    """A few drawn numbers over and over, and now and then a long one, which makes coarse levels for the others."""
    few = torch.tensor(draw(st.lists(numbers, min_size=1, max_size=12)), dtype=torch.float32)
    count = draw(lengths)
    vector = few.repeat(-(-count // len(few)))[:count].clone()
    vector[:: draw(st.sampled_from([64, BLOCK]))] *= draw(st.sampled_from([1.0, 7.0, 36.0, 80.0]))
    return vector


@st.composite
def samples(draw: st.DrawFn) -> Tensor:
    """Normal, heavy tails (Student's t with 1 and 3 degrees of freedom), one spike, zeros; tiny to huge."""
    count, generator = draw(lengths), torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    normal = torch.randn(count, generator=generator)
    kind = draw(st.sampled_from(["normal", "t1", "t3", "spike", "zeros"]))
    if kind in ("t1", "t3"):
        freedom = int(kind[1])
        normal /= torch.randn((freedom, count), generator=generator).square().mean(0).sqrt().clamp(min=1e-4)
    elif kind == "spike":
        normal[draw(st.integers(0, count - 1))] = draw(st.sampled_from([-1e6, 30.0, 1e4]))
    elif kind == "zeros":
        normal *= torch.rand(count, generator=generator) < draw(st.sampled_from([0.0, 0.01, 0.5]))
    return normal * draw(scales)


@st.composite
def worst(draw: st.DrawFn) -> Tensor:
    """Blocks of one long number, and others just above the middle between two levels: all of them are rounded up."""
    count = draw(lengths)
    middle = draw(st.sampled_from([0.5, 1.5, 2.5, 3.5, 4.5]) | st.sampled_from([0.75 * 2.0**-k for k in range(7)]))
    vector = torch.full((count,), middle * (1 + 1e-5))
    largest = draw(st.sampled_from([1.0, 7.0, 80.0]))
    # a scale is rounded most where it is just above or below the middle between two of four digits
    vector[:: draw(st.sampled_from([64, BLOCK]))] = largest * draw(st.sampled_from([1.0, 1 + 2**-4 + 1e-6, 1.0624]))
    return vector * draw(scales)


vectors = patterns() | samples() | worst()


@every_codec
@given(vector=vectors)
def test_a_vector_comes_back_within_the_codecs_error(codec: Codec, vector: Tensor) -> None:
    data = codec.encode(vector)
    assert len(data) <= codec.most_bytes(len(vector))
    assert bytes(data) == bytes(codec.encode(vector.clone()))
    decoded = codec.decode(data, len(vector))
    assert decoded.dtype == torch.float32
    assert decoded.shape == vector.shape
    for start in range(0, len(vector), SHARED[codec.name]):
        block = slice(start, start + SHARED[codec.name])
        largest = float(vector[block].abs().max())
        error = float((decoded[block] - vector[block]).abs().max())
        assert error <= LOSS[codec.name] * largest * (1 + 1e-5) + 1e-38


@given(vector=vectors)
def test_e3m0_is_off_by_a_third_of_a_number_or_by_nearly_nothing(vector: Tensor) -> None:
    codec = codec_of("e3m0")
    error = (codec.decode(codec.encode(vector), len(vector)) - vector).abs()
    for start in range(0, len(vector), 64):
        block = slice(start, start + 64)
        largest = float(vector[block].abs().max())
        allowed = (vector[block].abs() / 3).clamp(min=largest * (1 + 1 / 17) * 2**-7) * (1 + 1e-5) + 1e-38
        assert bool((error[block] <= allowed).all())


def plain(codec: Codec, vector: Tensor) -> memoryview:
    """The codec's bytes before they are packed."""
    data, size = codec.encode(vector), codec.most_bytes(len(vector))
    return data if len(data) == size else memoryview(unpacked(data, size) or b"")


@every_codec
@given(count=st.integers(1, 5000))
def test_the_size_is_known_from_the_number_of_values(codec: Codec, count: int) -> None:
    blocks = -(-count // SHARED[codec.name])
    assert len(plain(codec, torch.ones(count))) == codec.most_bytes(count)
    assert codec.most_bytes(BLOCK * count) == BITS[codec.name] / 8 * BLOCK * count
    assert codec.most_bytes(count) <= BITS[codec.name] / 8 * blocks * SHARED[codec.name]


@every_codec
@given(vector=vectors)
def test_a_vector_that_is_cut_has_the_same_numbers(codec: Codec, vector: Tensor) -> None:
    whole = codec.decode(codec.encode(vector), len(vector))
    parts = [vector[start : start + BLOCK] for start in range(0, len(vector), BLOCK)]
    assert torch.equal(whole, torch.cat([codec.decode(codec.encode(part), len(part)) for part in parts]))


@pytest.mark.parametrize("name", ["fp32", "bf16", "int4", "e3m0"])  # int8 has scales with as many digits as numbers
@given(vector=vectors)
def test_what_was_decoded_once_loses_nothing_more(name: str, vector: Tensor) -> None:
    codec = codec_of(name)
    vector = torch.where(vector.abs() < 1e-36, 0.0, vector)  # below it a seventh of a number has fewer digits
    once = codec.decode(codec.encode(vector), len(vector))
    assert torch.equal(codec.decode(codec.encode(once), len(once)), once)


# ------------------------------------------------------------------------------------------------------- its length


@every_codec
@given(vector=vectors, left_over=st.none() | st.floats(-1, 1, width=32))
def test_nobody_honest_is_longer_than_it_said(codec: Codec, vector: Tensor, left_over: float | None) -> None:
    added = None if left_over is None else torch.full_like(vector, left_over)
    sent = vector if added is None else vector + added
    arrived = [
        codec.decode(codec.encode(part), len(part))
        for part in (sent[i : i + BLOCK] for i in range(0, len(sent), BLOCK))
    ]
    together = math.hypot(*(length_of(part) for part in arrived))
    assert is_acceptable(together, member_with(claimed_norm(codec, vector, added)))


def member_with(norm: float) -> RosterEntry:
    return RosterEntry(peer="Qm", path=0, tokens=1, norm=norm, scale=1.0, reduces=True, nonce=bytes(16))


@pytest.mark.parametrize(
    ("name", "largest", "others", "at_least"),
    [
        ("int8", 80.0, 2.5001, 1.1042),
        ("int4", 7.0, 0.5001, 1.315),
        ("int4", 7 * (1 + 2**-4 + 1e-6), 0.5001 * (1 + 2**-3), 1.3723),  # the scale is rounded up as far as it can be
        ("e3m0", 1.0, 0.7501, 1.3250),
        ("e3m0", 1 + 2**-4 + 1e-6, 0.7501 * (1 + 2**-3), 1.3271),
    ],
)
def test_a_codecs_bound_is_reached_where_it_says(name: str, largest: float, others: float, at_least: float) -> None:
    codec = codec_of(name)
    vector = torch.full((BLOCK,), others)
    vector[:: SHARED[name]] = largest
    ratio = length_of(codec.decode(codec.encode(vector), BLOCK)) / length_of(vector)
    assert at_least < ratio < codec.lengthens


def test_a_norm_that_is_claimed_has_no_rounding_of_long_sums() -> None:
    gradient = torch.full((1,), 0.37).expand(20_000_000)  # summed at once in fp32, this is 3 % too short
    claimed = claimed_norm(codec_of("fp32"), gradient, None)
    assert claimed == pytest.approx(0.37 * math.sqrt(len(gradient)), rel=(NORM_TOLERANCE - 1) / 2)


# --------------------------------------------------------------------------------------------- what no peer may send


@every_codec
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [5, 2 * BLOCK - 1, 2 * BLOCK])
def test_what_is_not_finite_shows_in_what_is_decoded(codec: Codec, bad: float, place: int) -> None:
    vector = torch.ones(2 * BLOCK + 1)
    vector[place] = bad
    assert not math.isfinite(length_of(codec.decode(codec.encode(vector), len(vector))))


@pytest.mark.parametrize("name", ["int8", "int4", "e3m0"])
@given(vector=vectors, bad=st.sampled_from([math.nan, math.inf, -math.inf]), data=st.data())
def test_a_scale_that_is_not_finite_is_no_length_that_anybody_claims(
    name: str, vector: Tensor, bad: float, data: st.DataObject
) -> None:
    codec = codec_of(name)
    encoded = plain(codec, vector)
    blocks = -(-len(vector) // SHARED[name])
    at = data.draw(st.integers(0, blocks - 1))
    if name == "int8":
        torch.frombuffer(encoded, dtype=torch.float32, count=blocks)[at] = bad
    else:
        encoded[at], encoded[blocks + at] = bytes(
            torch.tensor([bad], dtype=torch.bfloat16).view(torch.uint8).flip(0).tolist()
        )
    length = length_of(codec.decode(encoded, len(vector)))
    assert not math.isfinite(length)
    assert not is_acceptable(length, member_with(MAX_NORM))


@every_codec
@given(count=st.integers(1, 200), data=st.data())
def test_any_bytes_of_the_right_size_are_numbers(codec: Codec, count: int, data: st.DataObject) -> None:
    size = codec.most_bytes(count)
    decoded = codec.decode(bytearray(data.draw(st.binary(min_size=size, max_size=size))), count)
    assert (decoded.shape, decoded.dtype) == ((count,), torch.float32)


@every_codec
@given(count=st.integers(1, 200), other=st.integers(0, 1000))
def test_bytes_of_another_size_are_refused(codec: Codec, count: int, other: int) -> None:
    size = codec.most_bytes(count)
    data = bytes(other + (other >= size))
    with pytest.raises(ValueError, match=f"^{len(data)} bytes are not {count} parameters in {codec.name}$"):
        codec.decode(data, count)


ONLY = {"fp32": 1.0, "bf16": 0.69, "int8": 0.84, "int4": 0.85, "e3m0": 0.85}
"""Of the unpacked bytes of normal numbers: there are 10.6 bits of news in 16, 6.6 in 8 and 3.4 in 4."""


@every_codec
def test_what_travels_is_what_is_new_in_it(codec: Codec) -> None:
    vector = 1e-3 * torch.randn(256 * BLOCK, generator=torch.Generator().manual_seed(0))
    share = len(codec.encode(vector)) / codec.most_bytes(len(vector))
    assert ONLY[codec.name] - 0.02 < share <= ONLY[codec.name]


@given(parts=st.lists(st.binary(max_size=300), min_size=1, max_size=3), often=st.integers(1, 50))
def test_what_is_packed_comes_back(parts: list[bytes], often: int) -> None:
    whole = b"".join(part * often for part in parts)
    data = packed([memoryview(part * often) for part in parts])
    assert bytes(data if len(data) == len(whole) else unpacked(data, len(whole)) or b"") == whole


@every_codec
@given(data=st.binary(max_size=1000) | st.binary(max_size=1000).map(lambda some: b"\x28\xb5\x2f\xfd" + some))
def test_bytes_that_were_not_packed_are_refused_or_numbers(codec: Codec, data: bytes) -> None:
    try:
        decoded = codec.decode(bytearray(data), 900)
    except ValueError:
        return
    assert (decoded.shape, decoded.dtype) == ((900,), torch.float32)


@pytest.mark.parametrize("codec", ALL[1:], ids=lambda codec: str(codec.name))
def test_a_bomb_is_not_unpacked(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    # a gigabyte of zeros in 32 kB, where a piece has 2 kB at most
    zeros, frames = bytes(1 << 20), []
    for compressor, size in (
        (zstandard.ZstdCompressor(), 1 << 30),
        (zstandard.ZstdCompressor(write_content_size=False), -1),
    ):
        frame = compressor.compressobj(size=size)
        frames.append(b"".join([*(frame.compress(zeros) for _ in range(1 << 10)), frame.flush()]))
    said, unsaid = frames
    monkeypatch.setattr(zstandard, "ZstdDecompressor", None)  # would be an error
    for bomb in (said, unsaid, said[:1000], unsaid[:1000]):
        with pytest.raises(ValueError, match="bytes are not 1000 parameters"):
            codec.decode(bomb, 1000)


@pytest.mark.parametrize("more", [-1, 1])
def test_what_does_not_keep_its_word_about_its_length_is_refused(more: int) -> None:
    codec, count = codec_of("int8"), 4 * BLOCK
    size = codec.most_bytes(count)
    longer = zstandard.ZstdCompressor().compress(bytes(size + more))
    honest = zstandard.ZstdCompressor().compress(bytes(size))
    header = zstandard.frame_header_size(longer)
    liar = honest[: zstandard.frame_header_size(honest)] + longer[header:]
    assert zstandard.frame_content_size(liar) == size
    for data in (liar, honest + b"\0", honest[:-1]):
        with pytest.raises(ValueError, match="bytes are not 4096 parameters in int8"):
            codec.check(data, count)


def test_an_unknown_codec_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no wire.codec 'fp64'; choose 'fp32', 'bf16', 'int8', 'int4' or 'e3m0'"):
        codec_of("fp64")
