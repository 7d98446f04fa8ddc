"""Whether an average is what its inputs make: who is convicted, and that nobody honest can be."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dipaco_swarm.algorithm.averaging import robust
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.strategies import AVERAGING, CODECS
from dipaco_swarm.swarm.bans import Bans
from dipaco_swarm.swarm.checks import Accusation, Convicted, SignedInput
from dipaco_swarm.swarm.framing import MAX_MESSAGE_BYTES, encode
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.libp2p.identity import is_signed_by, peer_name
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from dipaco_swarm.swarm.round.reduction import mask_of, piece_average
from dipaco_swarm.swarm.round.remaking import is_wrong
from dipaco_swarm.swarm.round.seals import Subject, digest_of_inputs, digest_of_piece, digest_of_pieces, digest_of_rules
from dipaco_swarm.swarm.wire import Roster, RosterEntry

RUN = "a" * 32
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in range(1, 5)]
NAMES = [peer_name(key.public_key()) for key in KEYS]
PARAMETERS = 3 * 8192 + 1024
PIECE = 3
"""The last one, which is short."""
START, STOP = 3 * 8192, PARAMETERS
REDUCER = 2
MODULE = ModuleId(0, 1)
ROSTER = Roster(
    round_id=bytes(16),
    members=tuple(
        RosterEntry(peer=name, path=i, tokens=100, norm=50.0, scale=1.0, reduces=True, nonce=bytes([i]) * 16)
        for i, name in enumerate(NAMES)
    ),
    piece_parameters=8192,
    owners=(0, 1, 3, REDUCER),
)
ABOUT = Subject.of(RUN, 0, MODULE, 7, ROSTER)
Shown = tuple[Accusation, memoryview, dict[int, memoryview]]


def group(averaging: str = "robust") -> ModuleGroup:
    return ModuleGroup(0, MODULE, {PathIndex(i): 0.25 for i in range(4)}, averaging, 100)


def shown(
    codec: str = "int8",
    averaging: str = "robust",
    bend: Callable[[Tensor], Tensor] = lambda average: average,
    present: tuple[int, ...] = (0, 1, 2, 3),
    lists: Callable[[list[SignedInput]], list[SignedInput]] = lambda listed: listed,
    mask: bytes | None = None,
) -> Shown:
    """What a reducer shows. `bend`: what it has made of the average. `lists`: the inputs that it signs."""
    encoder = codec_of(codec)
    random = torch.Generator().manual_seed(1)
    common = torch.randn(STOP - START, generator=random)
    vectors = {i: common + torch.randn(STOP - START, generator=random) for i in present}
    inputs = {i: memoryview(bytearray(encoder.encode(vector))) for i, vector in vectors.items()}
    decoded = {i: encoder.decode(data, STOP - START) for i, data in inputs.items()}
    counted = piece_average(ROSTER.members, ROSTER.doubts, group(averaging))(decoded)
    mask = mask_of(counted.members) if mask is None else mask
    average = memoryview(bytearray(encoder.encode(bend(counted.average))))
    pieces = ((PIECE, digest_of_piece(mask, average)),)
    listed = lists([signed_input(i, data) for i, data in inputs.items()])
    said = Accusation(
        stage=0,
        module=str(MODULE),
        version=7,
        parameters=PARAMETERS,
        roster=ROSTER,
        reducer=REDUCER,
        generation=0,
        pieces=pieces,
        seal=KEYS[REDUCER].sign(ABOUT.statement(0, digest_of_pieces(dict(pieces)))),
        piece=PIECE,
        mask=mask,
        inputs=tuple(listed),
        shown=KEYS[REDUCER].sign(
            ABOUT.inputs(0, PIECE, digest_of_inputs(listed, digest_of_rules(group(averaging), codec, PARAMETERS)))
        ),
    )
    return said, average, inputs


def signed_input(member: int, data: memoryview, by: int | None = None) -> SignedInput:
    digest = hashlib.sha256(data).digest()
    signature = KEYS[member if by is None else by].sign(ABOUT.input(0, PIECE, digest))
    return SignedInput(member=member, digest=digest, signature=signature)


def wrong(what: Shown, codec: str = "int8", averaging: str = "robust", run: str = RUN) -> bool:
    said, average, inputs = what
    return is_wrong(said, average, inputs, group(averaging), codec_of(codec), run, is_signed_by)


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("averaging", sorted(AVERAGING))
def test_an_honest_reducer_is_not_convicted_and_one_that_bends_an_average_is(codec: str, averaging: str) -> None:
    def flip_a_part(average: Tensor) -> Tensor:
        return torch.cat([average[:-100], -average[-100:]])

    assert not wrong(shown(codec, averaging), codec, averaging)
    assert not wrong(shown(codec, averaging, present=(0, 3)), codec, averaging), "who is left out is no lie"
    for bend in (torch.neg, lambda average: average * 1.5, torch.zeros_like, flip_a_part):
        assert wrong(shown(codec, averaging, bend), codec, averaging), bend


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_what_another_machine_rounds_otherwise_convicts_nobody(codec: str) -> None:
    """All weights, and the whole average, a millionth off: some levels of a codec are others then."""
    noise = torch.randn(STOP - START, generator=torch.Generator().manual_seed(2))
    assert not wrong(shown(codec, bend=lambda average: average * (1 + 1e-6 * noise) * (1 + 1e-6)), codec)


def test_what_lies_on_the_edge_of_a_bound_convicts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two who send vectors with just the cosine from which they are one: on one machine they are, on another not."""
    monkeypatch.setattr(robust, "FEW", 256)
    monkeypatch.setattr(robust, "AS_USUAL", 1.0)
    products, seen = robust.inner_products, list[Tensor]()

    def noted(contributions: Sequence[Tensor]) -> Tensor:
        seen.append(products(contributions))
        return seen[-1].clone()

    def elsewhere(contributions: Sequence[Tensor]) -> Tensor:
        found = products(contributions)
        return found + 1e-13 * (found - found.diag().diag())

    for codec in ("fp32", "int8"):
        monkeypatch.setattr(robust, "inner_products", noted)
        shown(codec)
        monkeypatch.setattr(robust, "THE_SAME", float(robust._cosines(seen[-1])[0, 1]))
        here = shown(codec)
        monkeypatch.setattr(robust, "inner_products", elsewhere)
        there = shown(codec)
        assert bytes(here[1]) != bytes(there[1])
        assert not wrong(here, codec)
        monkeypatch.setattr(robust, "inner_products", products)
        assert not wrong(there, codec)
        for bend in (torch.neg, lambda average: average * 1.5, torch.zeros_like):
            assert wrong(shown(codec, bend=bend), codec), "the edge hides no lie"


def test_a_reducer_that_says_that_others_are_in_it_than_are_is_convicted() -> None:
    assert wrong(shown(mask=bytes([0b0111])))


def test_a_reducer_cannot_explain_an_average_by_what_nobody_has_sent() -> None:
    """It makes up a contribution of somebody else's, which it has to sign as what it was sent."""
    made_up = memoryview(bytearray(codec_of("int8").encode(torch.ones(STOP - START))))

    def lists(listed: list[SignedInput]) -> list[SignedInput]:
        return [signed_input(0, made_up, by=REDUCER), *listed[1:]]

    said, average, inputs = shown(lists=lists)
    assert wrong((said, average, {**inputs, 0: made_up}))


def test_a_contribution_that_is_longer_than_its_member_said_convicts_who_has_counted_it() -> None:
    long = memoryview(bytearray(codec_of("int8").encode(torch.full((STOP - START,), 2.0))))
    said, average, inputs = shown(lists=lambda listed: [signed_input(0, long), *listed[1:]])
    assert wrong((said, average, {**inputs, 0: long}))


HONEST = shown()
OTHER = memoryview(bytearray(codec_of("int8").encode(torch.ones(STOP - START))))


@pytest.mark.parametrize(
    "changed",
    [
        {"inputs": HONEST[0].inputs[1:]},
        {"inputs": HONEST[0].inputs[::-1]},
        {"inputs": (*HONEST[0].inputs[:3], signed_input(3, OTHER))},
        {"mask": bytes([0b0111])},
        {"reducer": 1},
        {"reducer": 9},
        {"piece": 1},
        {"piece": 4},
        {"version": 8},
        {"generation": 1},
        {"parameters": PARAMETERS - 1024},
        {"parameters": PARAMETERS - 1},
        {"parameters": PARAMETERS + 1},
        {"stage": 1},
        {"module": "L0M0"},
        {"roster": ROSTER.model_copy(update={"piece_parameters": 8193})},
        {"pieces": ((PIECE, bytes(32)),)},
    ],
)
def test_what_the_reducer_has_not_signed_says_nothing_about_it(changed: Mapping[str, object]) -> None:
    said, average, inputs = HONEST
    with pytest.raises(ValueError, match=r"signed|piece"):
        wrong((said.model_copy(update=dict(changed)), average, inputs))


def test_bytes_that_it_has_not_signed_say_nothing_either() -> None:
    said, average, inputs = HONEST
    with pytest.raises(ValueError, match="signed"):
        wrong((said, OTHER, inputs))
    with pytest.raises(ValueError, match="signed"):
        wrong((said, average, {**inputs, 1: OTHER}))
    with pytest.raises(ValueError, match="signed"):
        wrong(HONEST, run="b" * 32)


def test_who_goes_by_other_rules_is_convicted_by_nobody() -> None:
    """A manifest came to one of the two before it came to the other."""
    with pytest.raises(ValueError, match="signed"):
        wrong(shown(averaging="mean"), averaging="robust")
    with pytest.raises(ValueError, match="signed"):
        wrong(shown(codec="int8"), codec="int4")


WHICH = st.integers(0, 2)
NUMBERS = {name: st.integers(0, 9) for name in ("stage", "version", "reducer", "generation", "piece")}
NUMBERS["parameters"] = st.integers(PARAMETERS - 9, PARAMETERS + 9) | st.integers(1, 2 * PARAMETERS)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_change_to_what_an_honest_reducer_has_shown_convicts_it(data: st.DataObject) -> None:
    """Whoever accuses has all that was signed in this round and in others, and may put it together as it likes."""
    others = [HONEST, shown(present=(0, 1, 2)), shown(codec="bf16")]
    said = HONEST[0]
    for name in data.draw(st.lists(st.sampled_from(["inputs", "shown", "mask", "pieces", "seal"]), max_size=3)):
        said = said.model_copy(update={name: getattr(others[data.draw(WHICH)][0], name)})
    for name in data.draw(st.lists(st.sampled_from(sorted(NUMBERS)), max_size=2)):
        said = said.model_copy(update={name: data.draw(NUMBERS[name])})
    average, inputs = others[data.draw(WHICH)][1], others[data.draw(WHICH)][2]
    try:
        found = wrong((said, average, inputs))
    except (ValueError, KeyError):
        return
    signed_both = said.inputs != HONEST[0].inputs and said.shown != HONEST[0].shown
    assert not found or signed_both, "it has signed that these are the inputs of that average"


def test_who_we_have_convicted_is_banned_in_the_next_life_too(tmp_path: Path) -> None:
    file = tmp_path / "bans.msgpack"
    bans = Bans(file)
    bans.convict(Convicted(reducer=NAMES[1], stage=0, module="L0M0", version=3))
    again = Bans(file)
    again.open(lambda proof: False)
    assert NAMES[1] in again
    assert again.proof_of(NAMES[1]) is None, "there is nothing that others could check in one message"


def test_an_accusation_of_a_large_group_is_one_message() -> None:
    said, _, _ = HONEST
    members = tuple(ROSTER.members[i % 4].model_copy(update={"peer": f"{i:052}"}) for i in range(256))
    large = said.model_copy(
        update={
            "roster": ROSTER.model_copy(update={"members": members, "owners": tuple(range(256)) * 16}),
            "pieces": tuple((i, bytes(32)) for i in range(4096)),
            "inputs": tuple(said.inputs[0].model_copy(update={"member": i}) for i in range(256)),
        }
    )
    assert len(encode(large)) < MAX_MESSAGE_BYTES
