"""A directory that shows nobody any more: who is there is asked of those we know, and it is said."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm import witnesses
from dipaco_swarm.swarm.greetings import AskMembers, MembersAre, SaidOfMember
from dipaco_swarm.swarm.interface import Announcement, PeerName
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.records import encode_announcement
from dipaco_swarm.swarm.transport import Record, Records
from tests.hub import until

from .test_contract import MODULE, announcement, group

Make = Callable[[int], Sequence[NetworkedSwarm]]


class Empty:
    """`transport.Records` of a peer whose directory was taken from it."""

    async def store(self, key: str, payload: bytes, lifetime: float) -> bool:
        return True

    async def read(self, key: str, *, thorough: bool = True) -> dict[PeerName, Record]:
        return {}


class Without:
    """Where the records of one peer are missed."""

    def __init__(self, records: Records, missed: str) -> None:
        self._records, self._missed = records, missed

    async def store(self, key: str, payload: bytes, lifetime: float) -> bool:
        return await self._records.store(key, payload, lifetime)

    async def read(self, key: str, *, thorough: bool = True) -> dict[PeerName, Record]:
        found = await self._records.read(key, thorough=thorough)
        return {peer: record for peer, record in found.items() if peer != self._missed}


def others(swarm: NetworkedSwarm) -> set[str]:
    swarm.look_up(0, [MODULE], timeout=10)
    return {str(said.peer) for said in swarm.members(0, MODULE) if said.trains} - {swarm.peer}


@pytest.fixture
def swarms(make_local_swarms: Make) -> Sequence[NetworkedSwarm]:
    """The operator's node, and three who train a module together."""
    made = make_local_swarms(4)
    names = [swarm.peer for swarm in made[1:]]
    for swarm in made:
        swarm._vouching.circle.meet(names)
    weights = group(0.25, 0.25, 0.25, 0.25)
    made[0].announce([announcement(made[0], None)])
    for path, swarm in enumerate(made[1:]):
        swarm.announce([announcement(swarm, path)], [weights])
    for swarm in made:
        until(lambda s=swarm: others(s) == {*names} - {s.peer})  # type: ignore[misc]
    return made


def forget(swarm: NetworkedSwarm, *, all_of_it: bool = False) -> None:
    """Nothing of what it has heard counts any more, as after a lifetime. `all_of_it`: as in another life."""

    async def in_the_loop() -> None:
        swarm._directory._heard.clear()
        if all_of_it:
            swarm._directory._lately._heard.clear()
            swarm._directory._readings.clear()
            swarm._directory.on_read.__self__._left.clear()  # type: ignore[attr-defined]

    swarm._portal.run(in_the_loop())


def test_who_sees_nobody_any_more_asks_those_it_knows_and_says_so_once(
    swarms: Sequence[NetworkedSwarm], caplog: pytest.LogCaptureFixture
) -> None:
    blind, friends = swarms[1], {swarm.peer for swarm in swarms[2:]}
    blind._transport.records = Empty()  # type: ignore[misc]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            forget(blind)
            until(lambda: others(blind) == friends)
    lines = [line for line in caplog.messages if "nobody of L0M0" in line]
    assert len(lines) == 1
    assert "where 2 others were" in lines[0]
    assert "2 were found" in lines[0]


def test_the_operators_node_says_it_to_who_comes_back_and_knows_names_alone(swarms: Sequence[NetworkedSwarm]) -> None:
    blind, friends = swarms[1], {swarm.peer for swarm in swarms[2:]}
    blind._vouching.circle._names = dict.fromkeys(["somebody-who-is-gone"])
    blind._transport.records = Empty()  # type: ignore[misc]
    forget(blind, all_of_it=True)
    until(lambda: others(blind) == friends)


def test_a_friend_says_that_it_is_there_and_who_else_is(swarms: Sequence[NetworkedSwarm]) -> None:
    blind, friend = swarms[1], swarms[2]
    for swarm in (swarms[0], swarms[3]):
        swarm._store.on_asked_members = lambda asked: MembersAre(members=())
    blind._vouching.circle._names = dict.fromkeys([friend.peer])
    blind._transport.records = Empty()  # type: ignore[misc]
    forget(blind, all_of_it=True)
    until(lambda: others(blind) == {swarm.peer for swarm in swarms[2:]})


def test_what_was_heard_of_others_is_not_passed_on(swarms: Sequence[NetworkedSwarm]) -> None:
    blind, told = swarms[1], swarms[2]
    ghost = Announcement(PeerName("ghost"), 0, MODULE, announcement(told, 1).path, 0, announcement(told, 1).digest)
    told._directory.heard_of(ghost)
    assert "ghost" in {said.peer for said in told.members(0, MODULE)}
    blind._transport.records = Empty()  # type: ignore[misc]
    forget(blind)
    until(lambda: others(blind) == {told.peer, swarms[3].peer})
    assert "ghost" not in others(blind)


def test_what_a_peer_says_itself_counts_before_what_others_say_of_it(swarms: Sequence[NetworkedSwarm]) -> None:
    us, other = swarms[1], swarms[2]
    said = announcement(other, 1, version=7)
    assert not us._directory.heard_of(said)
    assert {one.version for one in us.members(0, MODULE)} == {0}
    assert not us._directory.heard_of(announcement(us, 0, version=7))
    assert len(us.members(0, MODULE)) == 4


def test_a_newcomer_asks_the_operators_node_for_its_state_where_only_newcomers_are_shown(
    make_local_swarms: Make,
) -> None:
    """They have come together, and nobody of those that hold records now has heard the node's last word."""
    root, early, late = make_local_swarms(3)
    early.announce([announcement(early, 0)], [group(1.0)])
    until(lambda: others(late) == {early.peer})
    forget(late, all_of_it=True)
    late._transport.records = Without(late._transport.records, root.peer)  # type: ignore[misc]
    root.announce([announcement(root, None, version=3)])
    others(late)  # once
    kept, ours = Claim.of(announcement(root, None, version=3)), Claim.of(announcement(late, 0))
    assert kept in {Claim.of(said) for said in late.members(0, MODULE)}
    assert late.believed(0, MODULE, ours, [kept]) == [kept]


def test_nobody_speaks_for_the_operators_node(make_local_swarms: Make) -> None:
    """Nor for whom we know: what others say of a state is nobody's word but theirs."""
    root, stranger, newcomer = make_local_swarms(3)
    names = [PeerName(root.peer), PeerName("friend")]
    newcomer._vouching.circle.meet(["friend", stranger.peer])
    lies = [replace(announcement(stranger, 0, version=1000), peer=name) for name in names]
    told = tuple(SaidOfMember(peer=lie.peer, said=encode_announcement(lie, ())) for lie in lies)
    stranger._store.on_asked_members = lambda asked: MembersAre(members=told)
    until(lambda: others(newcomer) == {"friend"})
    newcomer._vouching.circle._names = dict.fromkeys(["friend"])
    assert root.peer not in {said.peer for said in newcomer.members(0, MODULE)}
    assert not newcomer.believed(0, MODULE, Claim.of(announcement(newcomer, 0)), [Claim.of(lies[0])])


def test_what_is_malformed_is_left_out(make_local_swarms: Make) -> None:
    root, newcomer = make_local_swarms(2)
    told = MembersAre(members=(SaidOfMember(peer="anybody", said=b"\xc0"),))
    asked: list[AskMembers] = []

    def answer(message: AskMembers) -> MembersAre:
        asked.append(message)
        return told

    root._store.on_asked_members = answer
    until(lambda: not others(newcomer) and len(asked) > 1)
    assert not newcomer.members(0, MODULE)


def test_a_crowd_of_names_does_not_hide_the_operators_node(make_local_swarms: Make) -> None:
    root, newcomer, *crowd = make_local_swarms(5)
    newcomer._directory.max_members = 2
    for path, swarm in enumerate(crowd):
        swarm.announce([announcement(swarm, path)], [group(1.0)])
    until(lambda: len(others(newcomer)) == 2)
    root.announce([announcement(root, None, version=3)])
    until(lambda: bool(others(newcomer)) and root.peer in {said.peer for said in newcomer.members(0, MODULE)})
    assert len(newcomer.members(0, MODULE)) == 3


def test_nor_whom_we_know(make_local_swarms: Make) -> None:
    _, node, friend, *crowd = make_local_swarms(6)
    node._directory.max_members = 3
    node._vouching.circle.meet([friend.peer])
    for path, swarm in enumerate(crowd):
        swarm.announce([announcement(swarm, path)], [group(1.0)])
    until(lambda: others(node) == {swarm.peer for swarm in crowd})
    friend.announce([announcement(friend, 0)], [group(1.0)])
    until(lambda: friend.peer in others(node))
    assert len(node.members(0, MODULE)) == 3


def test_who_was_always_alone_asks_three_times(make_local_swarms: Make) -> None:
    root, lonely = make_local_swarms(2)
    asked: list[str] = []
    answer = root._store.on_asked_members

    def note(message: AskMembers) -> MembersAre:
        asked.append(message.module)
        return answer(message)

    root._store.on_asked_members = note
    lonely.announce([announcement(lonely, 0)], [group(1.0)])
    until(lambda: bool(asked))
    for _ in range(5):
        assert not others(lonely)
    assert asked == 3 * [str(MODULE)], "the operator's node holds nothing of it, and may be starting"


def test_no_more_members_are_written_down_than_are_named(
    swarms: Sequence[NetworkedSwarm], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, written = swarms[1], []

    def write(said: Announcement, addresses: Sequence[str]) -> bytes:
        written.append(said.peer)
        return encode_announcement(said, addresses)

    monkeypatch.setattr(witnesses, "MAX_MEMBERS_NAMED", 2)
    monkeypatch.setattr(witnesses, "encode_announcement", write)
    answer = told._store.on_asked_members(AskMembers(stage=0, module=str(MODULE)))
    assert [member.peer for member in answer.members] == written
    assert len(written) == 2
    assert written[0] == told.peer
