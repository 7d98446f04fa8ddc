"""Averages of rounds as values: encoded, packed into blobs, kept, and followed from one state to the next."""

from dataclasses import replace

import pytest
import torch

from dipaco_swarm.algorithm.outer import OuterStep, nesterov_step, rescale
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.weight_decay import part_taken
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.outer_step import follow_averages
from dipaco_swarm.swarm.encoded_average import MAX_CHAIN, Span
from dipaco_swarm.swarm.framing import LENGTH, encode
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from dipaco_swarm.swarm.states.averages import AverageBlob, KeptAverages, pack, unpack
from dipaco_swarm.swarm.wire import AverageHeader
from tests.averages import OUTER, PARAMETERS, average_of, chain_from, noise, state_of

MODULE, OTHER = ModuleId(0, 0), ModuleId(1, 0)
BASE = state_of(1)
SPANS = (Span(0, 65_536, 2.0, 0.25), Span(65_536, PARAMETERS, 1.6, 0.125))
PLACES = ((1000, 0.0), (100_000, 2.0), (PARAMETERS - 7, 1.0))


# ------------------------------------------------------------------------------------------------------- the outer step


def test_a_followed_average_is_the_outer_step_of_what_was_decoded() -> None:
    average = average_of(BASE, 9, spans=SPANS)
    codec, size = codec_of("int8"), average.piece_parameters
    parts = [noise(9)[start : start + size] for start in range(0, PARAMETERS, size)]
    decoded = torch.cat([codec.decode(codec.encode(part), len(part)) for part in parts])
    gradient = torch.cat([rescale(decoded[span.start : span.stop], span.effective_paths) for span in SPANS])
    params, momentum = nesterov_step(BASE.params, BASE.momentum, gradient, OuterStep(0.7, 0.6))
    state = follow_averages(OUTER, BASE, [average])
    assert state is not None
    assert (state.version, state.work) == (5, 107)
    assert torch.equal(state.params, params)
    assert torch.equal(state.momentum, momentum)


def test_weight_decay_is_put_on_an_average_where_weights_decay() -> None:
    average = average_of(BASE, 9, "fp32", SPANS)
    share = torch.zeros(PARAMETERS)
    for start, stop, each in ((1000, 65_536, 0.5), (65_536, 100_000, 0.25), (100_000, PARAMETERS - 7, 0.125)):
        share[start:stop] = part_taken(each)
    with_decay = average.mean + share * BASE.params
    gradient = torch.cat([rescale(with_decay[span.start : span.stop], span.effective_paths) for span in SPANS])
    params, _ = nesterov_step(BASE.params, BASE.momentum, gradient, OuterStep(0.7, 0.6))
    state = follow_averages(OUTER, BASE, [average], places=PLACES)
    assert state is not None
    assert torch.equal(state.params, params)
    assert torch.equal(average.mean, average_of(BASE, 9, "fp32").mean), "what came over the wire is as it was"


def test_averages_are_followed_one_after_the_other() -> None:
    chain = chain_from(BASE, 3)
    last = follow_averages(OUTER, BASE, [average for average, _ in chain])
    assert last is not None
    assert last.digest == chain[-1][1].digest
    assert follow_averages(OUTER, BASE, []) is BASE


def test_the_ramp_of_the_learning_rate_counts_from_the_version() -> None:
    young = replace(BASE, version=0)
    early = follow_averages(OUTER, young, [average_of(young, 9)])
    late = follow_averages(OUTER, BASE, [average_of(BASE, 9)])
    assert early is not None
    assert late is not None
    assert not torch.equal(early.params, late.params)


def test_averages_of_a_fork_lead_nowhere() -> None:
    (first, _), (second, _) = chain_from(BASE, 2)
    fork = state_of(5)
    assert follow_averages(OUTER, fork, [first, second]) is None
    assert follow_averages(OUTER, BASE, [second]) is None
    assert follow_averages(OUTER, BASE, [first, average_of(BASE, 3)]) is None


def test_a_wrong_average_leads_to_another_state() -> None:
    (average, right), *_ = chain_from(BASE, 1)
    pieces = [*average.pieces[:-1], average_of(BASE, 9).pieces[-1]]
    for wrong in (replace(average, pieces=pieces), replace(average, spans=SPANS), replace(average, work=8)):
        state = follow_averages(OUTER, BASE, [wrong])
        assert state is not None
        assert state.digest != right.digest


# --------------------------------------------------------------------------------------------------------------- blobs


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8"])
def test_a_blob_has_all_of_an_average(codec: str) -> None:
    average = average_of(BASE, 9, codec, SPANS)
    blob = pack(average, "f" * 64)
    assert (blob.base, blob.to, blob.packed.size) == (BASE.digest, "f" * 64, len(blob.data))
    back = unpack("peer", blob.data, PARAMETERS)
    assert torch.equal(back.mean, average.mean)
    assert [bytes(piece) for piece in back.pieces] == [bytes(piece) for piece in average.pieces]
    assert (back.base, back.spans, back.work, back.codec) == (average.base, SPANS, 7, codec)
    assert pack(back, "f" * 64).packed == blob.packed


def test_an_int8_average_is_less_than_an_eighth_of_a_state() -> None:
    assert 9.4 < BASE.num_bytes / pack(average_of(BASE, 9), "f" * 64).packed.size < 9.9


SIZES = tuple(map(len, average_of(BASE, 9).pieces))


def _blob(**changed: object) -> bytes:
    """An average whose header has these fields instead."""
    average = average_of(BASE, 9)
    data = pack(average, "f" * 64).data
    (length,) = LENGTH.unpack_from(data)
    header = AverageHeader(
        base=average.base,
        work=average.work,
        parameters=PARAMETERS,
        codec="int8",
        piece_parameters=average.piece_parameters,
        sizes=SIZES,
        spans=((PARAMETERS, 2.0, 0.0),),
    )
    said = encode(header.model_copy(update=changed))
    return LENGTH.pack(len(said)) + said + data[LENGTH.size + length :]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        LENGTH.pack(1 << 31) + bytes(100),
        LENGTH.pack(100) + bytes(99),
        LENGTH.pack(100) + bytes(100),
        _blob()[:-1],
        _blob() + b"\x00",
        _blob(codec="none"),
        _blob(codec="fp32"),
        _blob(sizes=SIZES[:-1]),
        _blob(sizes=(*SIZES, 0)),
        _blob(sizes=(SIZES[0] + 1, SIZES[1] - 1, *SIZES[2:])),
        _blob()[:-200] + bytes(200),
        _blob(parameters=PARAMETERS + 1),
        _blob(piece_parameters=1),
        _blob(piece_parameters=1500),
        _blob(base="x"),
        _blob(work=-1),
        _blob(spans=()),
        _blob(spans=((PARAMETERS - 1, 2.0, 0.0),)),
        _blob(spans=((0, 2.0, 0.0), (PARAMETERS, 2.0, 0.0))),
        _blob(spans=((9, 2.0, 0.0), (5, 2.0, 0.0), (PARAMETERS, 2.0, 0.0))),
        _blob(spans=((PARAMETERS, 0.0, 0.0),)),
        _blob(spans=((PARAMETERS, float("nan"), 0.0),)),
    ],
)
def test_what_is_no_average_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteDataError, match="peer"):
        unpack("peer", data, PARAMETERS)


def test_a_right_one_is_not_refused() -> None:
    assert unpack("peer", _blob(), PARAMETERS).parameters == PARAMETERS


# ---------------------------------------------------------------------------------------------------------------- kept


def blobs_from(length: int, codec: str = "int8") -> list[AverageBlob]:
    return [pack(average, state.digest) for average, state in chain_from(BASE, length, codec)]


def kept(blobs: list[AverageBlob]) -> KeptAverages:
    averages = KeptAverages()
    for blob in blobs:
        averages.hold(0, MODULE, blob, PARAMETERS)
    return averages


def test_a_chain_leads_from_one_state_to_another() -> None:
    blobs = blobs_from(4)
    averages = kept(blobs)
    packed = [blob.packed for blob in blobs]
    assert averages.chain(0, MODULE, [BASE.digest], blobs[-1].to) == tuple(packed)
    assert averages.chain(0, MODULE, [blobs[0].to], blobs[2].to) == tuple(packed[1:3])
    assert averages.chain(0, MODULE, [BASE.digest, blobs[1].to], blobs[2].to) == (packed[2],)
    assert averages.chain(0, MODULE, [blobs[2].to], blobs[0].to) == ()
    assert averages.chain(0, MODULE, ["0" * 64], blobs[0].to) == ()
    assert averages.chain(0, MODULE, [BASE.digest], BASE.digest) == ()
    assert averages.chain(0, OTHER, [BASE.digest], blobs[0].to) == ()
    assert averages.chain(1, MODULE, [BASE.digest], blobs[0].to) == ()


def test_a_circle_of_averages_has_an_end() -> None:
    one, two = blobs_from(2)
    averages = kept([one, replace(two, to=one.base)])
    assert averages.chain(0, MODULE, ["0" * 64], one.to) == ()


def test_only_the_last_few_are_kept() -> None:
    blobs = blobs_from(MAX_CHAIN + 2)
    averages = kept(blobs)
    assert [averages.get(blob.packed.digest) is not None for blob in blobs] == [False, False] + [True] * MAX_CHAIN


def test_no_more_bytes_than_those_of_a_state_are_kept() -> None:
    blobs = blobs_from(3, "fp32")
    averages = kept(blobs)
    assert [averages.get(blob.packed.digest) is not None for blob in blobs] == [False, False, True]


def test_held_twice_is_kept_once() -> None:
    blobs = blobs_from(2)
    averages = kept([*blobs, *blobs, *blobs[:1] * MAX_CHAIN])
    assert averages.chain(0, MODULE, [BASE.digest], blobs[-1].to) == tuple(blob.packed for blob in blobs)


def test_what_is_released_is_gone() -> None:
    blobs = blobs_from(1)
    averages = kept(blobs)
    averages.release(0, MODULE)
    assert averages.get(blobs[0].packed.digest) is None
    assert averages.chain(0, MODULE, [BASE.digest], blobs[0].to) == ()
