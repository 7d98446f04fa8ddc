"""Who counts as there, when clocks jump: announcements by a clock that nobody sets."""

import asyncio
import gc
import time
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.machine import clock
from dipaco_swarm.swarm import networked as libp2p
from dipaco_swarm.swarm import records
from dipaco_swarm.swarm.interface import Announcement, PeerName
from dipaco_swarm.swarm.networked import BUSY_LIFETIME_SECONDS, LIFETIME_SECONDS, Directory

MODULE = ModuleId(0, 0)


@dataclass
class Node:
    """Just enough of one: what stands in the DHT, and a name."""

    identity: Any = None
    dht: Any = None

    reachable = True

    def remember(self, peer: str, addresses: object, *, reachable: bool) -> None:
        """Not needed here."""


@dataclass
class Identity:
    peer: str


def said_by(peer: str, catching_up: bool = False) -> bytes:
    said = Announcement(PeerName(peer), 0, MODULE, PathIndex(0), 1, "a" * 64, catching_up=catching_up)
    packed = msgpack.packb(records.encode_announcement(said, ()).model_dump(), use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


class World:
    """What a directory finds in the DHT, and what its clocks say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steady, self.wall = 1000.0, 5_000_000.0
        self.found: dict[str, tuple[bytes, float]] = {}

        async def read(dht: object, key: str) -> dict[str, tuple[bytes, float]]:
            return dict(self.found)

        monkeypatch.setattr(clock, "seconds", lambda: self.steady)
        monkeypatch.setattr(time, "time", lambda: self.wall)
        monkeypatch.setattr(records, "read", read)
        self._directory = Directory(Node(Identity("us")), "run")  # type: ignore[arg-type]

    def says(self, peer: str, later: float = 0.0, catching_up: bool = False) -> None:
        """Its record, written `later` than its last one, by its own clock."""
        _, before = self.found.get(peer, (b"", self.wall + LIFETIME_SECONDS))
        self.found[peer] = said_by(peer, catching_up), before + later

    def there(self) -> dict[str, bool]:
        """Who is there, and whether awake."""
        asyncio.run(self._directory.listen(0, MODULE))
        return {said.peer: said.awake for said in self._directory.members(0, MODULE)}


def test_clocks_that_jump_make_nobody_dead_and_keep_nobody_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for peer in ("one", "two"):
        world.says(peer)
    assert [*world.there()] == ["one", "two"]

    world.wall += 7200  # our clock is set forward: both have spoken a moment ago
    assert [*world.there()] == ["one", "two"]

    world.steady += 20
    world.says("one", later=20)
    assert [*world.there()] == ["one", "two"]
    world.steady += 15
    assert [*world.there()] == ["one"]  # two was last heard of 35 s ago, whatever its record says

    world.wall -= 10 * 7200  # set back by hours: the dead one's record looks as if it lived for hours
    assert [*world.there()] == ["one"]
    world.steady += LIFETIME_SECONDS
    assert not world.there()
    world.found = {}
    assert not world.there()


@pytest.mark.parametrize(("pause", "patience"), [(2, 15), (5, 15), (8, 24)])
def test_whose_word_does_not_come_any_more_sleeps(
    pause: float, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """... by the pace at which it came over its line."""
    world = World(monkeypatch)
    world.says("one")
    assert world.there() == {"one": True}
    for _ in range(4):
        world.steady += pause
        world.says("one", later=5)
        assert world.there() == {"one": True}
    world.steady += patience - 0.1
    assert world.there() == {"one": True}
    world.steady += 0.2
    assert world.there() == {"one": False}
    world.says("one", later=5)
    assert world.there() == {"one": True}


def test_who_fetches_a_state_on_a_full_line_is_not_forgotten_so_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for peer in ("one", "two"):
        world.says(peer, catching_up=peer == "two")
    world.wall += 10  # the first word of them was ten seconds on its way
    assert [*world.there()] == ["one", "two"]
    world.steady += LIFETIME_SECONDS - 9
    assert [*world.there()] == ["two"]
    world.steady += BUSY_LIFETIME_SECONDS - LIFETIME_SECONDS - 2
    assert [*world.there()] == ["two"]
    world.steady += 2
    assert not world.there()


def test_a_task_of_the_network_library_that_fails_shows_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def pinged_too_early() -> None:
        raise AttributeError("'DHTProtocol' object has no attribute 'node_info'")

    async def start() -> None:
        asyncio.get_running_loop().set_exception_handler(libp2p._note_stray_error)
        task = asyncio.create_task(pinged_too_early())
        await asyncio.wait({task})
        del task
        gc.collect()

    with caplog.at_level("DEBUG"):
        asyncio.run(start())
    assert [record.levelname for record in caplog.records if "background" in record.message] == ["DEBUG"]
    assert all(record.levelname == "DEBUG" for record in caplog.records)
