"""Whether others can dial us, and how fast we send: over real daemons."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hivemind.p2p import PeerID

from dipaco_swarm.algorithm.state import ModuleState, vector_to_bytes
from dipaco_swarm.errors import NodeError
from dipaco_swarm.run.signature import sign_manifest
from dipaco_swarm.swarm.addresses import is_relayed
from dipaco_swarm.swarm.greetings import Welcome
from dipaco_swarm.swarm.interface import Agreed
from dipaco_swarm.swarm.libp2p import protobuf, relay
from dipaco_swarm.swarm.libp2p import reachability as reach
from dipaco_swarm.swarm.libp2p.connections import UNREACHED
from dipaco_swarm.swarm.libp2p.identity import load_identity
from dipaco_swarm.swarm.libp2p.node import Node
from dipaco_swarm.swarm.libp2p.opening import open_swarm
from dipaco_swarm.swarm.libp2p.outside import look_from_outside
from dipaco_swarm.swarm.libp2p.rate_limit import RateLimit
from dipaco_swarm.swarm.libp2p.settings import NodeSettings
from dipaco_swarm.swarm.libp2p.starting import open_node
from dipaco_swarm.swarm.libp2p.visibility import places
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.round import showing
from dipaco_swarm.swarm.transport import Stream
from dipaco_swarm.swarm.wire import NotHere
from tests.doors.test_manifest import manifest
from tests.hub import until

from .test_contract import MODULE, gather, group, part, reduce_together

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
FINDS_OUT = NodeSettings(LOOPBACK, reachable=None)

MakeSwarms = Callable[[int], list[NetworkedSwarm]]


@contextlib.asynccontextmanager
async def bootstrap_and_peer(folder: Path, settings: NodeSettings) -> AsyncIterator[tuple[Node, Node]]:
    async with open_node(load_identity(folder / "bootstrap"), (), NodeSettings(LOOPBACK)) as first:
        bootstraps = await first.addresses()
        async with open_node(load_identity(folder / "peer"), bootstraps, settings) as second:
            yield first, second


# ------------------------------------------------------------------------------------------------------- reachability


@pytest.mark.swarm
def test_a_peer_beside_the_bootstrap_node_can_be_dialled_and_learns_where_it_is_seen(tmp_path: Path) -> None:
    async def check() -> None:
        async with bootstrap_and_peer(tmp_path, FINDS_OUT) as (first, second):
            assert second.reachable
            (bootstrap,) = await first.addresses()
            (place,) = await second.addresses()
            (port,) = reach.ports_of([place])
            said = await second.ask(bootstrap, [port])
            assert said is not None
            assert (said.seen_at, said.reached) == ("/ip4/127.0.0.1", (port,))
            assert abs(said.time - time.time()) < 5
            assert said.version == reach.our_version()

    asyncio.run(check())


@pytest.mark.swarm
def test_only_the_peer_itself_counts_as_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "KNOCK_SECONDS", 0.5)

    async def check() -> None:
        async with bootstrap_and_peer(tmp_path, FINDS_OUT) as (first, second):
            (bootstrap,) = await first.addresses()
            with socket.create_server(("127.0.0.1", 0)) as somebody_else:
                others = [somebody_else.getsockname()[1], *reach.ports_of([bootstrap])]
                said = await second.ask(bootstrap, others)
            assert said is not None
            assert said.reached == ()

    asyncio.run(check())


@pytest.mark.swarm
def test_who_cannot_be_dialled_says_so_and_is_corrected_when_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = False

    async def is_there(*_: object) -> bool:
        return found

    monkeypatch.setattr(reach, "is_there", is_there)

    async def check() -> None:
        nonlocal found
        async with bootstrap_and_peer(tmp_path, FINDS_OUT) as (first, second):
            assert not second.reachable
            assert any(map(is_relayed, await second.addresses()))
            bootstraps = await first.addresses()
            found = True
            await second.look(bootstraps)
            assert second.reachable
            assert not any(map(is_relayed, await second.addresses()))
            found = False
            await second.look(bootstraps)
            assert second.reachable, "one knock that nobody heard is not a closed door"
            await second.look(bootstraps)
            assert not second.reachable
            await second.greet(bootstraps[0], anyway=False)
            assert any(map(is_relayed, await second.addresses()))

    asyncio.run(check())


@pytest.mark.swarm
def test_who_cannot_be_dialled_is_reached_through_the_bootstrap_node_also_when_that_comes_back(tmp_path: Path) -> None:
    async def is_reached(peer: Node, by: Node) -> bool:
        by.remember(peer.peer, await peer.addresses(), reachable=False)
        with contextlib.suppress(*UNREACHED):
            await by.p2p._client.disconnect(PeerID.from_base58(peer.peer))
        try:
            async with by.dial(peer.peer, "test/1/ask") as stream:
                await stream.send(NotHere())
                return isinstance(await stream.receive(), NotHere)
        except ConnectionError:
            return False

    async def answer(stream: Stream) -> None:
        await stream.send(await stream.receive())

    async def check() -> None:
        lead, settings = load_identity(tmp_path / "bootstrap"), NodeSettings(LOOPBACK)
        async with contextlib.AsyncExitStack() as opened:
            first = await opened.enter_async_context(open_node(lead, (), settings))
            bootstraps = await first.addresses()
            hidden, other = [
                await opened.enter_async_context(open_node(load_identity(tmp_path / name), bootstraps, chosen))
                for name, chosen in (("hidden", NodeSettings(LOOPBACK, reachable=False)), ("other", FINDS_OUT))
            ]
            await hidden.serve("test/1/ask", answer)
            assert await hidden.addresses() == (f"{bootstraps[0]}/p2p-circuit/p2p/{hidden.peer}",)
            assert await is_reached(hidden, other)
            first.daemon.kill()
            await first.daemon.ended.wait()
            assert not await is_reached(hidden, other)
            await hidden.greet(bootstraps[0], anyway=False)
            assert await hidden.addresses() == (), "there is no way to it now"
            again = settings.settled(bootstraps)
            await opened.enter_async_context(open_node(lead, (), again))
            async with asyncio.timeout(60):  # libp2p does not dial again at once where nobody was
                while not await is_reached(hidden, other):
                    await hidden.greet(bootstraps[0], anyway=False)
                    await asyncio.sleep(0.5)

    asyncio.run(check())


def test_a_node_knocks_only_so_often_and_forgets_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    service = reach.ReachabilityService()
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    served = sum(service._has_time_for("/ip4/11.0.0.1", 4) for _ in range(100))
    assert served * 4 == reach.KNOCKS_PER_MINUTE
    assert service._has_time_for("/ip4/11.0.0.2", 4)
    now += 60
    assert service._has_time_for("/ip4/11.0.0.1", 4)


def test_no_site_takes_all_knocks_that_go_on_at_once() -> None:
    service = reach.ReachabilityService()
    service._going_on["one site"] = reach.KNOCKS_A_SITE - 1
    assert not service._has_time_for("one site", 2)
    assert service._has_time_for("one site", 1)
    assert service._has_time_for("another", 2)
    service._going_on["many others"] = reach.MAX_KNOCKS - reach.KNOCKS_A_SITE
    assert not service._has_time_for("another", 2)


def test_a_relay_has_no_place_that_could_be_knocked_at() -> None:
    relayed = "/ip4/11.0.0.1/tcp/4001/p2p/12D3Koo/p2p-circuit"
    assert reach.host_of(relayed) is None
    assert reach.host_of("/ip4/11.0.0.1/tcp/4001") == "/ip4/11.0.0.1"
    assert reach.ports_of([relayed, "/ip6/::1/tcp/7", "/ip4/1.2.3.4/tcp/7/p2p/x"]) == (7,)


def test_each_bootstrap_node_is_one_relay_by_its_address_from_elsewhere() -> None:
    places = ["/ip4/127.0.0.1/tcp/1/p2p/a", "/ip4/11.0.0.1/tcp/1/p2p/a", "/ip4/127.0.0.1/tcp/2/p2p/b"]
    assert relay.one_each(places) == ["/ip4/11.0.0.1/tcp/1/p2p/a", "/ip4/127.0.0.1/tcp/2/p2p/b"]


@pytest.mark.swarm
def test_a_node_that_would_relay_next_to_nothing_starts_its_daemon_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int | None] = []
    ask = relay.reserve

    async def reserve(daemon: str, peer: str) -> int | None:
        told.append(await ask(daemon, peer) if told else 1 << 17)
        return told[-1]

    monkeypatch.setattr(relay, "reserve", reserve)

    async def check() -> None:
        async with open_node(load_identity(tmp_path), (), NodeSettings("/ip4/0.0.0.0/tcp/0")):
            assert len(told) >= 2
            assert told[-1] == relay.DATA_LIMIT

    asyncio.run(check())


def test_what_a_relay_says_is_read_with_care() -> None:
    limit = bytes([0x08, 0x84, 0x07, 0x10, 0x80, 0x80, 0x08])
    assert protobuf.fields(limit) == {1: 900, 2: 1 << 17}
    assert protobuf.fields(b"\x08\x02\x22" + bytes([len(limit)]) + limit) == {1: 2, 4: limit}
    for broken in (b"\x08", b"\x08\x80", b"\x22\x05ab", b"\x0d\x01\x02\x03\x04"):
        with pytest.raises(ValueError, match="message"):
            protobuf.fields(broken)


def test_who_says_yes_is_told_its_address_and_nothing_is_tried() -> None:
    said = Welcome(seen_at="/ip4/11.0.0.9", reached=None, time=0.0, version="1")
    assert places([said, said], lambda _: (4002,)) == ("/ip4/11.0.0.9/tcp/4002",)


@pytest.mark.swarm
def test_the_doctor_is_told_how_this_machine_looks_from_outside(make_libp2p_swarms: MakeSwarms) -> None:
    (bootstrap,) = make_libp2p_swarms(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(NodeError, match="cannot be used"):
            look_from_outside(bootstrap.address, f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}")
        port = taken.getsockname()[1]
    seen = look_from_outside(bootstrap.address, f"/ip4/127.0.0.1/tcp/{port}")
    assert seen is not None
    assert (seen.seen_at, seen.port, seen.version) == ("127.0.0.1", port, seen.our_version)
    assert abs(seen.clock_ahead) < 5
    assert seen.bytes_up is not None
    assert seen.bytes_up > 1e5
    assert seen.path is None  # there is no manifest yet


@pytest.mark.swarm
def test_the_doctor_is_told_how_large_a_path_of_the_run_is(
    make_libp2p_swarms: MakeSwarms, operator_key: Ed25519PrivateKey
) -> None:
    (bootstrap,) = make_libp2p_swarms(1)
    levels = enumerate((1_000, 300_000))
    seeds = {f"L{level}M0": bootstrap.put_blob(vector_to_bytes(torch.zeros(size))) for level, size in levels}
    run = manifest()
    of_run = run.model_copy(update={"stages": (run.stage.model_copy(update={"seeds": seeds}),)})
    bootstrap.publish_manifest(sign_manifest(of_run, operator_key))
    seen = look_from_outside(bootstrap.address, LOOPBACK)
    assert seen is not None
    assert seen.path is not None
    assert seen.path.parameters == 301_000
    assert seen.path.round_bytes == pytest.approx(2 * 301_000, rel=0.05)  # int8, and its scales


# ---------------------------------------------------------------------------------------------------------- bandwidth


def test_streams_share_the_budget_in_turns() -> None:
    async def check() -> None:
        rate_limit = RateLimit(4e6)
        sent = [0, 0, 0]
        began = time.monotonic()

        async def send(stream: int) -> None:
            while time.monotonic() - began < 0.6:
                await rate_limit.take(rate_limit.step(1 << 18))
                sent[stream] += rate_limit.step(1 << 18)

        await asyncio.gather(*(send(stream) for stream in range(3)))
        assert max(sent) - min(sent) <= 2 * rate_limit.step(1 << 18)
        assert sum(sent) <= 4e6 * (time.monotonic() - began + 0.2)

    asyncio.run(check())


@pytest.mark.swarm
def test_a_capped_member_keeps_to_its_bandwidth_and_its_round_commits(
    make_libp2p_swarms: MakeSwarms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showing, "CHECKED", 0.0)  # its bytes are counted here, and a piece would be some
    rate = 4e6
    (first,) = make_libp2p_swarms(1)
    with open_swarm(first.address, tmp_path / "capped", NodeSettings(LOOPBACK, bandwidth=rate)) as capped:
        state = ModuleState.seed(torch.zeros(1_000_000))
        capped.hold(0, MODULE, state)
        swarms = [first, capped]
        weights = group(0.5, 0.5)
        gather(swarms, {MODULE: weights}, range(2))
        for swarm in swarms:
            swarm.configure_rounds("fp32", 4.0)
        parts = [[part(i, torch.full((1_000_000,), float(i + 1)), weights)] for i in range(2)]
        began, before = time.monotonic(), capped.traffic().sent
        outcomes = reduce_together(swarms, parts)
        seconds, sent = time.monotonic() - began, capped.traffic().sent - before
        for outcome in outcomes:
            agreed = outcome[MODULE]
            assert isinstance(agreed, Agreed), agreed
            assert len(agreed.contributors) == 2
        assert sent == 4_000_064  # half of a module out as a contribution, half as averages, and their seal
        assert 0.85 * sent / rate < seconds, f"{sent} bytes took {seconds:.2f} s"

        def is_sent(whole: int) -> bool:
            return capped.traffic().sent == whole

        rates: list[float] = []
        while len(rates) < 3 and not (rates and 0.85 < rates[-1] < 1.15):  # a busy machine may be slower than the cap
            began, whole = time.monotonic(), capped.traffic().sent + 8_000_000
            assert first.fetch_state(0, MODULE, state.digest, timeout=60) is not None
            seconds = time.monotonic() - began
            until(partial(is_sent, whole))  # the last piece may arrive before it is counted
            rates.append(8_000_000 / seconds / rate)
        assert 0.85 < max(rates) < 1.15, f"times the bandwidth: {rates}"
