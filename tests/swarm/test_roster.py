"""What members of a roster say of others."""

from collections.abc import Callable, Collection, Mapping

import pytest

from dipaco_swarm.algorithm.doubts import MAX_DOUBTS
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.fields import MAX_MEMBERS, MAX_PIECES
from dipaco_swarm.swarm.framing import MAX_MESSAGE_BYTES, encode
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.round.codecs.codec import BLOCK
from dipaco_swarm.swarm.round.reduction import mask_of
from dipaco_swarm.swarm.round.roster import at_most_half, laggards_of_most, make_roster, our_index
from dipaco_swarm.swarm.wire import MAX_LAGGARDS, Join, Named, Roster

GROUP = frozenset({"anna", "bert", "cora", "dirk", "late"})
CLIP = 3.0
PATHS = ModuleGroup(0, ModuleId(0, 0), {PathIndex(0): 1.0}, "robust")


def join(laggards: Collection[str] = (), doubts: Collection[str] = (), parameters: int = 1000) -> Join:
    return Join(
        stage=0,
        module="L0M0",
        version=1,
        digest="0" * 64,
        work=1,
        path=0,
        tokens=1 << 40,
        norm=1.5,
        laggards=tuple(laggards),
        doubts=tuple(doubts),
        parameters=parameters,
        reduces=True,
        nonce=bytes(range(16)),
        patience=1.0,
    )


def roster(joins: Mapping[str, Join]) -> Roster:
    return make_roster(joins, CLIP)


def said(**of: Collection[str]) -> frozenset[str]:
    return laggards_of_most(roster({peer: join(laggards) for peer, laggards in of.items()}), GROUP, GROUP)


def test_who_has_kept_most_of_the_group_waiting_is_late_for_all() -> None:
    assert said(anna=["late"], bert=["late"], cora=["late"], dirk=[]) == {"late"}
    assert said(anna=["late"], bert=["late"], cora=["late"]) == {"late"}, "it need not be there, nor the fourth"
    assert not said(anna=["late"], bert=["late"], cora=[], dirk=[]), "a half is not most"


def test_two_who_say_so_to_a_third_alone_are_not_believed() -> None:
    assert not said(anna=["cora", "dirk"], bert=["cora", "dirk"], cora=[])


def test_nobody_speaks_twice_nor_of_itself_nor_where_it_is_a_stranger() -> None:
    assert not said(anna=["late"] * 9, late=["late"], zora=["late"], yoko=["late"])


def test_what_a_leader_says_that_others_have_said_counts_where_they_have_signed_for_it() -> None:
    made = roster({peer: join(["late"]) for peer in ("anna", "bert", "cora", "dirk")})
    assert laggards_of_most(made, GROUP, {"anna", "bert", "cora"}) == {"late"}
    assert not laggards_of_most(made, GROUP, {"anna", "bert"})


def test_more_than_half_are_waited_for() -> None:
    assert at_most_half({"a", "b", "c"}, {"a", "b", "x", "y"}) == {"a", "b"}
    assert not at_most_half({"a", "b", "x"}, {"a", "b", "x", "y"})


def name(i: int) -> str:
    return f"12D3KooW{i:044d}"


@pytest.mark.parametrize("is_common", [True, False], ids=["of each other", "of strangers"])
def test_a_roster_of_as_many_as_there_may_be_who_name_all_whom_they_may_fits_a_message(is_common: bool) -> None:
    # each names others than all the rest do: the longest that a roster can be
    joins = {
        name(i): join(
            [name(i + 7 * k if is_common else MAX_MEMBERS + MAX_LAGGARDS * i + k) for k in range(MAX_LAGGARDS)],
            [name((i + 11 * k) % MAX_MEMBERS) for k in range(MAX_DOUBTS)],
            parameters=MAX_PIECES * BLOCK,
        )
        for i in range(MAX_MEMBERS)
    }
    made = roster(joins)
    assert len(made.members) == len(made.doubts) == len(made.laggards) == MAX_MEMBERS
    whole = made.model_copy(update={"owners": (MAX_MEMBERS - 1,) * MAX_PIECES})
    assert len(encode(whole)) < MAX_MESSAGE_BYTES
    for peer in (name(0), name(MAX_MEMBERS - 1)):
        assert our_index(made, joins[peer], peer, PATHS, CLIP, "leader") >= 0


def test_few_names_are_few_bytes() -> None:
    joins = {name(i): join([name(0), name(1)], [name(0)]) for i in range(256)}
    quiet = {peer: join() for peer in joins}
    assert len(encode(roster(joins))) - len(encode(roster(quiet))) < 512


JOINS = {"anna": join(["late"], ["bert", "gone"]), "bert": join(["cora", "late"]), "cora": join()}


def test_our_word_is_in_the_roster() -> None:
    made = roster(JOINS)
    assert [(each.peer, each.by) for each in made.doubts] == [("bert", b"\1")], "of who is there"
    assert [(each.peer, each.by) for each in made.laggards] == [("late", b"\3"), ("cora", b"\2")]
    for peer in JOINS:
        assert made.members[our_index(made, JOINS[peer], peer, PATHS, CLIP, "leader")].peer == peer


@pytest.mark.parametrize(
    "bend",
    [
        lambda made: {"laggards": made.laggards[1:]},
        lambda made: {"doubts": ()},
        lambda made: {"laggards": (*made.laggards, Named(peer="bert", by=b"\1"))},
        lambda made: {"doubts": (Named(peer="bert", by=b"\3"), Named(peer="cora", by=b"\1"))},
        lambda made: {"laggards": (*made.laggards, made.laggards[0])},
        lambda made: {"doubts": (*made.doubts, Named(peer="cora", by=mask_of([3])))},
        lambda made: {"doubts": (*made.doubts, Named(peer="cora", by=b"\0"))},
        lambda made: {"round_id": bytes(16)},
        lambda made: {"laggards": (*made.laggards, *(Named(peer=name(i), by=b"\6") for i in range(23)))},
    ],
    ids=[
        "leaves a laggard out",
        "a doubt",
        "adds a laggard",
        "a doubt",
        "twice",
        "by nobody",
        "by none",
        "names it as it likes",
        "too many",
    ],
)
def test_a_leader_that_bends_our_word_is_not_followed(bend: Callable[[Roster], dict[str, object]]) -> None:
    made = roster(JOINS)
    with pytest.raises(RemoteDataError, match=r"leader.*does not follow from what its members said"):
        our_index(made.model_copy(update=bend(made)), JOINS["anna"], "anna", PATHS, CLIP, "leader")
