"""A run address is read as it is written, and nothing that a person may paste instead does more than explain itself."""

import base58
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco_swarm.errors import AddressError
from dipaco_swarm.run.address import RunAddress


def name_of(data: bytes) -> str:
    return base58.b58encode(data).decode()


peers = st.binary(min_size=32, max_size=32).map(lambda key: name_of(b"\x00\x24\x08\x01\x12\x20" + key)) | st.binary(
    min_size=32, max_size=32
).map(lambda digest: name_of(b"\x12\x20" + digest))
hosts = st.builds("/ip4/{}/tcp/{}".format, st.ip_addresses(v=4), st.integers(1, 65535)) | st.builds(
    "/dns4/{}/udp/{}/quic-v1".format, st.from_regex(r"[a-z0-9.-]{1,30}", fullmatch=True), st.integers(1, 65535)
)
addresses = st.builds(
    RunAddress,
    st.from_regex(r"[a-z0-9][a-z0-9-]{0,39}", fullmatch=True),
    st.text("abcdefghijklmnopqrstuvwxyz234567", min_size=32, max_size=32),
    st.lists(st.builds("{}/p2p/{}".format, hosts, peers), min_size=1, max_size=4).map(tuple),
)


@given(addresses)
def test_an_address_is_read_as_it_is_written(address: RunAddress) -> None:
    assert RunAddress.parse(str(address)) == address


@given(addresses, st.lists(st.tuples(st.integers(0, 400), st.sampled_from([" ", "\n", "\r\n  ", "\t"])), max_size=5))
def test_line_breaks_of_a_narrow_window_do_no_harm(address: RunAddress, breaks: list[tuple[int, str]]) -> None:
    text = str(address)
    for place, blank in breaks:
        text = text[:place] + blank + text[place:]
    assert RunAddress.parse(text) == address


@given(addresses, st.integers(1, 3))
def test_an_address_that_was_cut_off_says_so(address: RunAddress, letters: int) -> None:
    with pytest.raises(AddressError, match=r"is cut off|is not a"):
        RunAddress.parse(str(address)[:-letters])


@given(st.text(max_size=80) | st.builds("dipaco:{}".format, st.text(":@/,abc2-p", max_size=80)))
def test_garbage_is_answered_with_one_line(text: str) -> None:
    read: RunAddress | AddressError
    try:
        read = RunAddress.parse(text)
    except AddressError as error:
        read = error
    if isinstance(read, RunAddress):
        assert RunAddress.parse(str(read)) == read
    else:
        assert len(str(read).splitlines()) == 1


@given(addresses, st.data())
def test_a_slip_of_the_finger_is_found_or_gives_another_address(address: RunAddress, data: st.DataObject) -> None:
    text = str(address)
    place = data.draw(st.integers(0, len(text) - 1))
    slipped = text[:place] + data.draw(st.characters(codec="utf-8")) + text[place + 1 :]
    try:
        read = RunAddress.parse(slipped)
    except AddressError:
        return
    assert RunAddress.parse(str(read)) == read
