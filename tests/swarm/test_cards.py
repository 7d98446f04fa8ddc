"""What a peer says of itself for people: bounded, printable, and with one of its modules alone."""

from dataclasses import replace

import msgpack
import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.cli.words import nickname_choice
from dipaco_swarm.errors import RemoteDataError, UsageError
from dipaco_swarm.swarm import records
from dipaco_swarm.swarm.announcing import standing
from dipaco_swarm.swarm.cards import MAX_NICKNAME, Card
from dipaco_swarm.swarm.interface import Announcement, PeerName

MODULE = ModuleId(0, 1)
SAID = Announcement(PeerName("us"), 2, MODULE, PathIndex(3), 4, "a" * 64, card=Card("attic <b>laptop</b>", 0.967))


def over_the_wire(said: Announcement) -> Announcement:
    return records.decode_announcement("us", records.encode_announcement(said, ()), 2, MODULE)[0]


def test_a_card_comes_as_it_was_said() -> None:
    assert over_the_wire(SAID).card == Card("attic <b>laptop</b>", 0.97)
    assert over_the_wire(replace(SAID, card=Card())).card == Card()
    assert over_the_wire(replace(SAID, card=Card("x", 1.7))).card == Card("x", 1.0)


def test_the_longest_name_is_still_a_small_record() -> None:
    longest = replace(SAID, card=Card("\U0001f600" * MAX_NICKNAME, 1.0))
    assert len(records.encode_announcement(longest, ())) - len(records.encode_announcement(SAID, ())) < 120
    assert over_the_wire(longest) == longest


@pytest.mark.parametrize(
    "name",
    ["x" * 33, "two\nlines", "\x1b[31mred", "\u202eright to left", "\u200binvisible", " blanks ", "\x00", "tab\there"],
)
def test_a_name_that_could_spoil_a_screen_is_refused_of_others(name: str) -> None:
    values = msgpack.unpackb(records.encode_announcement(SAID, ()))
    values[values.index(SAID.card.nickname)] = name
    with pytest.raises(RemoteDataError, match="something malformed about L0M1"):
        records.decode_announcement("us", msgpack.packb(values), 2, MODULE)


@pytest.mark.parametrize("name", ["x" * 33, "two\nlines", "\x1b[31mred", "\u202eevil"])
def test_a_name_that_others_would_refuse_is_an_error_at_once(name: str) -> None:
    with pytest.raises(UsageError, match=r"--name .* at most 32 characters, all of them printable"):
        nickname_choice(name)


def test_a_name_is_composed_and_without_blanks_around_it() -> None:
    assert nickname_choice("  Zo\u0065\u0308 ") == "Zoë"
    assert nickname_choice("") == ""


def test_the_share_of_the_time_is_no_news_and_a_name_is() -> None:
    assert standing(SAID) == standing(replace(SAID, card=Card("attic <b>laptop</b>", 0.5)))
    assert standing(SAID) != standing(replace(SAID, card=Card("another")))
