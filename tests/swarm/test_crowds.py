"""Names that one machine makes up by the dozen: how many of them are let in, by the address that they come from."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import pytest

from dipaco_swarm.swarm import border
from dipaco_swarm.swarm.interface import Swarm
from dipaco_swarm.swarm.local import LocalNetwork, LocalTransport
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.round.gathering import NEWCOMERS_OF_A_SITE
from dipaco_swarm.swarm.states.store import store_protocol
from dipaco_swarm.swarm.wire import Alive, AskManifest, Join, ManifestIs, Refuse

from .test_contract import MODULE, announcement, digest_of, group

HERE, ELSEWHERE = "/ip4/11.0.0.1/tcp/1", "/ip4/11.0.1.1/tcp/1"


@pytest.fixture
def leader(make_local_swarms: Callable[[int], Sequence[NetworkedSwarm]]) -> NetworkedSwarm:
    """One that trains, and has made rounds with `friend`."""
    swarm, _ = make_local_swarms(2)
    swarm.configure_rounds("fp32", 4.0)
    swarm.announce([announcement(swarm, 0)], [group(0.5, 0.5)])
    swarm._vouching.circle.meet(["friend"])
    return swarm


def join(version: int = 0) -> Join:
    return Join(
        stage=0,
        module=str(MODULE),
        version=version,
        digest=digest_of(version),
        work=version,
        path=1,
        tokens=1,
        norm=1.0,
        parameters=100,
        reduces=True,
        nonce=bytes(16),
        patience=60.0,
    )


def answers(leader: NetworkedSwarm, joining: Sequence[tuple[str, str, Join]]) -> list[str | None]:
    """What each of these (name, address, what it says) is told, all there at once; None: it is let in."""
    network: LocalNetwork = leader._transport._network  # type: ignore[attr-defined]
    protocol = f"dipaco/1/{leader._address.fingerprint}/round"

    async def come() -> list[str | None]:
        found: list[str | None] = []
        async with contextlib.AsyncExitStack() as streams:
            for name, place, said in joining:
                transport = LocalTransport(network, name)
                transport.place = place
                stream = await streams.enter_async_context(transport.dial(leader.peer, protocol))
                await stream.send(said)
                answer = await asyncio.wait_for(stream.receive(), 10)
                assert isinstance(answer, Alive | Refuse)
                found.append(answer.reason if isinstance(answer, Refuse) else None)
        return found

    return leader._portal.run(come())


def test_of_ten_names_of_one_machine_eight_are_in_a_round_and_others_find_their_place(leader: NetworkedSwarm) -> None:
    names = [(f"made-up-{n}", HERE, join()) for n in range(NEWCOMERS_OF_A_SITE + 2)]
    again = names[0]
    found = answers(leader, [*names, ("newcomer", ELSEWHERE, join()), ("friend", HERE, join()), again])
    full = "too many peers at once; trying the next round"
    assert found == [*([None] * NEWCOMERS_OF_A_SITE), full, full, None, None, None]


def test_where_nobody_is_known_yet_all_are_let_in(leader: NetworkedSwarm) -> None:
    leader._vouching.circle._names.clear()
    assert answers(leader, [(f"first-{n}", HERE, join()) for n in range(20)]) == [None] * 20


def test_strangers_open_no_round_of_a_state_that_nobody_has_confirmed(leader: NetworkedSwarm) -> None:
    unconfirmed = "nobody has confirmed the state that this peer goes on from"
    many = [(f"made-up-{n}", f"/ip4/11.0.{n}.1/tcp/1", join(n)) for n in range(4)]
    assert answers(leader, [*many, ("friend", HERE, join(7))]) == [None, unconfirmed, unconfirmed, unconfirmed, None]


def test_no_more_rounds_are_led_than_there_is_room_for(leader: NetworkedSwarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dipaco_swarm.swarm.round.leader.MAX_GATHERINGS", 2)
    leader._vouching.circle.meet(friends := ["friend", "another", "a-third"])
    found = answers(leader, [(name, HERE, join(n)) for n, name in enumerate(friends)])
    assert found == [None, None, "too many peers at once; trying the next round"]


@pytest.mark.swarm
def test_libp2p_says_where_a_stream_comes_from(
    make_libp2p_swarms: Callable[[int], list[NetworkedSwarm]], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, friend, stranger = make_libp2p_swarms(3)
    for known in (friend.peer, "somebody"):
        host._vouching.circle.meet([known])
    monkeypatch.setattr(border, "MAX_STREAMS_A_SITE", 0)  # of 127.0.0.0/24

    def is_heard(swarm: Swarm) -> bool:
        assert isinstance(swarm, NetworkedSwarm)
        protocol = store_protocol(swarm._address.fingerprint)

        async def ask() -> bool:
            async with swarm._transport.dial(host.peer, protocol) as stream:
                await stream.send(AskManifest(have=None))
                with contextlib.suppress(EOFError, ConnectionError):
                    return isinstance(await asyncio.wait_for(stream.receive(), 10), ManifestIs)
                return False

        return swarm._portal.run(ask())

    assert is_heard(friend)
    assert not is_heard(stranger)
    monkeypatch.setattr(border, "MAX_STREAMS_A_SITE", 1)
    assert is_heard(stranger)
