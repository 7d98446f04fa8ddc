"""What is believed of claims takes no longer the more of them there are, or hardly."""

from collections.abc import Callable, Sequence

import pytest

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm.directory import Directory
from dipaco_swarm.swarm.interface import Announcement
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.vouching import _makers, _said
from dipaco_swarm.swarm.wire import AskHad, HadAre
from tests.hub import Hub, hear, until

from .test_contract import MODULE, announcement, group

OURS = Claim(0, "0" * 64)
Make = Callable[[int], Sequence[NetworkedSwarm]]


def test_who_announces_what_is_gathered_once_for_all_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub() as hub:
        one, other = hub.swarm("one"), hub.swarm("other")
        one._vouching.circle.meet(["other"])
        other.announce([announcement(other, 0, version=7)], [group(1.0)])
        hear([one], 0, [MODULE])
        (said,) = (said for said in other.members(0, MODULE) if said.peer == "other")
        heard, gathered = Directory.heard_ourselves, []

        def count(self: Directory, stage: int, module: ModuleId) -> Sequence[Announcement]:
            if self is one._directory:
                gathered.append(module)
            return heard(self, stage, module)

        hear([one, other], 0, [MODULE])
        one._vouching._portal.soon = lambda *_: None  # type: ignore[method-assign]  # nobody is asked about the others
        monkeypatch.setattr(Directory, "heard_ourselves", count)
        claims = [Claim(8, f"{i:064x}", 9) for i in range(200)]
        found = one._vouching.believed(0, MODULE, OURS, [*claims, Claim.of(said)])
        assert found == [Claim.of(said)]
        assert len(gathered) <= 2  # its own loop reads as well


def test_who_takes_what_a_friend_announces_asks_who_has_contributed_to_it(make_local_swarms: Make) -> None:
    """The operator's node would else know nobody but the first whom it met."""
    node, friend, other, stranger = make_local_swarms(4)
    base, state = announcement(friend, 0, version=1), announcement(friend, 0, version=2)
    node._vouching.circle.meet([friend.peer])
    for path, swarm in enumerate((friend, other, stranger)):
        swarm.announce([announcement(swarm, path, version=2)], [group(1.0, 1.0, 1.0)])
    hear([node, friend, other, stranger], 0, [MODULE])
    for swarm in (friend, other):
        swarm._vouching.had.note_contributors(0, MODULE, base.digest, [friend.peer, other.peer, "who-has-left"])
        swarm._vouching.had.note_step(0, MODULE, base.digest, state.digest)
        swarm._vouching.had.note(0, MODULE, Claim.of(state))
    assert node.believed(0, MODULE, OURS, [Claim.of(state)]), "a friend announces it"
    node._portal.soon(node._vouching.took, 0, MODULE, Claim.of(state))
    until(lambda: other.peer in node._vouching.circle)
    assert stranger.peer not in node._vouching.circle
    assert "who-has-left" not in node._vouching.circle, "nobody can say now whether there is such a peer"


def test_who_knows_nobody_is_told_by_the_operators_node_whom_it_knows(make_local_swarms: Make) -> None:
    """And takes some for strangers then. It is one itself to them, either way: it has made no version."""
    root, member, other, newcomer = make_local_swarms(4)
    root._vouching.circle.meet([member.peer])
    for path, swarm in enumerate((member, other, newcomer)):
        swarm.announce([announcement(swarm, path, version=2)], [group(0.5, 0.5, 0.5)])
    hear([root, member, other, newcomer], 0, [MODULE])
    known = {said.peer: said.known for said in newcomer.members(0, MODULE)}
    assert known == {member.peer: True, other.peer: True, newcomer.peer: False}, "who knows nobody takes all alike"
    newcomer._portal.soon(newcomer._vouching.took, 0, MODULE, Claim.of(announcement(member, 0, version=2)))
    until(lambda: member.peer in newcomer._vouching.circle)
    known = {said.peer: said.known for said in newcomer.members(0, MODULE)}
    assert known == {member.peer: True, other.peer: False, newcomer.peer: False}


def test_where_no_friend_can_tell_who_has_made_a_state_the_operators_node_says_whom_it_knows(
    make_local_swarms: Make,
) -> None:
    """Two pairs, strangers to each other, would take each other's versions, and make the next ones apart for ever."""
    root, ours, friend, other = make_local_swarms(4)
    root._vouching.circle.meet([friend.peer, other.peer])
    ours._vouching.circle.meet([friend.peer])
    for path, swarm in enumerate((ours, friend, other)):
        swarm.announce([announcement(swarm, path, version=2)], [group(0.3, 0.3, 0.4)])
    hear([root, ours, friend, other], 0, [MODULE])
    ours._portal.soon(ours._vouching.took, 0, MODULE, Claim.of(announcement(other, 0, version=2)))
    until(lambda: other.peer in ours._vouching.circle)


@pytest.mark.parametrize("now", ["trains", "pauses", "has moved"])
def test_who_has_left_a_module_for_another_and_holds_it_does_not_stand_for_its_members(
    make_local_swarms: Make, now: str
) -> None:
    """Where it has had a state its word counts; of later ones it can tell nothing, and a stranger may train them."""
    node, friend, stranger = make_local_swarms(3)
    node._vouching.circle.meet([friend.peer])
    elsewhere = ModuleId(0, 1)
    ours = [announcement(friend, 0 if now == "trains" else None, version=1)]
    friend.announce([*ours, *([announcement(friend, 2, module=elsewhere)] if now == "has moved" else [])])
    stranger.announce([announcement(stranger, 1, version=2)], [group(0.5, 0.5)])
    for swarm, version in ((friend, 1), (stranger, 2)):
        swarm._vouching.had.note(0, MODULE, Claim.of(announcement(swarm, 0, version=version)))
    hear([node, friend, stranger], 0, [MODULE, elsewhere])
    claims = [Claim.of(announcement(stranger, 1, version=version)) for version in (1, 2)]
    ask = AskHad(stage=0, module=str(MODULE), states=tuple(map(_said, claims)))
    said = node._portal.run(node._vouching._answers(ask, node.members(0, MODULE)))
    stands = now != "has moved"
    assert said.friends == ([friend.peer] if stands else [])
    assert [answer.had for answer in said.known] == [(True, False)]
    assert [answer.had for answer in said.strangers] == ([] if stands else [(False, True)])


def test_what_strangers_have_had_for_long_is_believed_of_each_version_until_one_is_taken(
    make_local_swarms: Make,
) -> None:
    """Members that nobody knows go on while their state is fetched; the next one would wait as long again."""
    node, friend, stranger = make_local_swarms(3)
    elsewhere, vouching = ModuleId(0, 1), node._vouching
    vouching.circle.meet([friend.peer])
    friend.announce([announcement(friend, 0, module=elsewhere)])
    claims = [Claim.of(announcement(stranger, 1, version=version)) for version in (1, 2, 3)]

    def goes_on(to: Claim) -> bool:
        """Whether it is believed once the stranger is there."""
        stranger.announce([announcement(stranger, 1, version=to.version)], [group(0.5, 0.5)])
        stranger._vouching.had.note(0, MODULE, to)
        hear([node, friend, stranger], 0, [MODULE, elsewhere])
        return to in node._portal.run(vouching.check(0, MODULE, OURS, [to]))

    assert not goes_on(claims[0]), "somebody known was in the run lately"
    vouching._questions[0, MODULE].open_since = float("-inf")
    assert goes_on(claims[0])
    assert goes_on(claims[1])
    node._portal.soon(vouching.took, 0, MODULE, claims[1])
    until(lambda: vouching.had.has(0, MODULE, claims[1]))
    vouching.circle._names.pop(stranger.peer, None)
    assert not goes_on(claims[2]), "that is another question"


def test_of_who_has_contributed_most_who_can_tell_must_say_the_same() -> None:
    there = {"ann", "bob", "eve"}

    def said(*makers: str) -> HadAre:
        return HadAre(had=(True,), makers=makers)

    assert _makers([said("ann", "bob"), said(), said()], there) == ("ann", "bob")
    assert _makers([said("ann", "bob"), said("bob", "eve")], there) == ("bob",)
    assert _makers([said("ann", "bob"), said("eve"), said("ann", "bob")], there) == ("ann", "bob")
    assert _makers([said("bob", "bob", "gone")], there) == ("bob",)
    assert _makers([], there) == ()
