"""Work that is done once for everybody: offered, asked for, and withdrawn; over each transport."""

from dipaco_swarm.swarm.interface import Swarm
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.parts import AskPart
from dipaco_swarm.swarm.sharing import MAX_OFFER_BYTES, MAX_STATEMENT_BYTES, Offer, _packed, _unpacked
from dipaco_swarm.swarm.traffic import Purpose
from tests.hub import Hub, until

from .conftest import MakeSwarms

TOPIC = "routes/0/abc/7"


def parts(name: str) -> bytes | None:
    return {"one": b"x" * 700_000, "none-of-it": b""}.get(name)


def offers(swarm: Swarm, topic: str = TOPIC) -> dict[str, bytes]:
    return {str(peer): said for peer, said in swarm.sharing.offers(topic, timeout=20).items()}


def test_a_part_is_found_by_its_topic_and_comes_from_who_offers_it(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(3)
    one, other, third = (swarm.sharing for swarm in swarms)
    one.serve(TOPIC, parts)
    one.offer(TOPIC, b"has one")
    until(lambda: offers(swarms[1]) == {swarms[0].peer: b"has one"})
    assert offers(swarms[0]) == {}, "our own offer is none to us"
    asked = other.ask(swarms[0].peer, TOPIC, "one", timeout=20, limit=700_000)
    assert asked == b"x" * 700_000
    assert swarms[1].traffic().received_for[Purpose.READING] == 700_000
    assert swarms[0].traffic().sent_for[Purpose.READING] == 700_000
    assert other.ask(swarms[0].peer, TOPIC, "none-of-it", timeout=20, limit=9) == b""
    assert other.ask(swarms[0].peer, TOPIC, "two", timeout=20, limit=9) is None
    assert other.ask(swarms[0].peer, "routes/1/abc/7", "one", timeout=20, limit=10**6) is None
    assert other.ask(swarms[0].peer, TOPIC, "one", timeout=20, limit=699_999) is None, "more than was wanted"
    assert third.ask(swarms[1].peer, TOPIC, "one", timeout=20, limit=10**6) is None, "from who offers nothing"
    one.offer(TOPIC, b"has two")
    until(lambda: offers(swarms[2]) == {swarms[0].peer: b"has two"})
    one.offer(TOPIC, None)
    until(lambda: offers(swarms[2]) == {})
    one.serve(TOPIC, None)
    assert other.ask(swarms[0].peer, TOPIC, "one", timeout=20, limit=10**6) is None


def test_what_is_no_offer_is_passed_over() -> None:
    with Hub() as hub:
        strangers: list[NetworkedSwarm] = [hub.swarm(f"stranger-{i}") for i in range(4)]
        honest, reader = hub.swarm("honest"), hub.swarm("reader")
        garbage = (b"", b"\x92\x90", _packed([], b"x" * (MAX_OFFER_BYTES + 1)), _packed(["/dns/evil"], b"said"))
        for stranger, statement in zip(strangers, garbage, strict=True):
            stranger.publish(TOPIC, statement)
        honest.sharing.offer(TOPIC, b"said")
        until(lambda: len(reader.statements(TOPIC, timeout=5)) == 5)
        assert offers(reader) == {"honest": b"said"}
        honest.sharing.interrupt()
        assert offers(honest) == {}
        assert honest.sharing.ask("reader", TOPIC, "one", timeout=5, limit=9) is None


def test_the_longest_offer_and_its_addresses_fit_into_a_statement() -> None:
    relayed = "/ip4/203.0.113.17/tcp/31337/p2p/12D3KooWHmZ7sYfVX5tCz1eLQkq3R8bPw6uJd4aNcG2xT9vBsmKp/p2p-circuit"
    said = bytes(MAX_OFFER_BYTES)
    assert len(_packed([relayed], said)) <= MAX_STATEMENT_BYTES
    found = _unpacked(_packed([relayed], said))
    assert found == Offer(places=(relayed,), said=said)
    AskPart(topic="routes/2147483647/" + "f" * 16 + "/31", name="65535.1000000.4095")
