"""What members of a roster say of others."""

from collections.abc import Collection

from dipaco_swarm.swarm.round.roster import laggards_of_most
from dipaco_swarm.swarm.wire import RosterEntry

GROUP = frozenset({"anna", "bert", "cora", "dirk", "late"})


def entry(peer: str, laggards: Collection[str]) -> RosterEntry:
    return RosterEntry(
        peer=peer, path=0, tokens=1, norm=1.0, laggards=tuple(laggards), scale=1.0, reduces=True, nonce=bytes(16)
    )


def said(**of: Collection[str]) -> frozenset[str]:
    return laggards_of_most([entry(peer, laggards) for peer, laggards in of.items()], GROUP)


def test_who_has_kept_most_of_the_group_waiting_is_late_for_all() -> None:
    assert said(anna=["late"], bert=["late"], cora=["late"], dirk=[]) == {"late"}
    assert said(anna=["late"], bert=["late"], cora=["late"]) == {"late"}, "it need not be there, nor the fourth"
    assert not said(anna=["late"], bert=["late"], cora=[], dirk=[]), "a half is not most"


def test_two_who_say_so_to_a_third_alone_are_not_believed() -> None:
    assert not said(anna=["cora", "dirk"], bert=["cora", "dirk"], cora=[])


def test_nobody_speaks_twice_nor_of_itself_nor_where_it_is_a_stranger() -> None:
    assert not said(anna=["late"] * 9, late=["late"], zora=["late"], yoko=["late"])
