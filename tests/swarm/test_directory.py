"""Who counts as there, when clocks jump: announcements by a clock that nobody sets."""

import asyncio
import gc
import time
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest

from dipaco_swarm import clock
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.swarm import libp2p, records
from dipaco_swarm.swarm.interface import Announcement, PeerName
from dipaco_swarm.swarm.libp2p import LIFETIME_SECONDS, Directory

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


def said_by(peer: str) -> bytes:
    said = Announcement(PeerName(peer), 0, MODULE, PathIndex(0), 1, "a" * 64)
    packed = msgpack.packb(records.encode_announcement(said, ()).model_dump(), use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def test_clocks_that_jump_make_nobody_dead_and_keep_nobody_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    steady, wall = 1000.0, 5_000_000.0
    found: dict[str, tuple[bytes, float]] = {}

    async def read(dht: object, key: str) -> dict[str, tuple[bytes, float]]:
        return dict(found)

    monkeypatch.setattr(clock, "seconds", lambda: steady)
    monkeypatch.setattr(libp2p.time, "time", lambda: wall)
    monkeypatch.setattr(records, "read", read)
    directory = Directory(Node(Identity("us")), "run")  # type: ignore[arg-type]

    def there() -> list[str]:
        asyncio.run(directory.listen(0, MODULE))
        return [said.peer for said in directory.members(0, MODULE)]

    found = {"one": (said_by("one"), wall + LIFETIME_SECONDS), "two": (said_by("two"), wall + LIFETIME_SECONDS)}
    assert there() == ["one", "two"]

    wall += 7200  # our clock is set forward: both have spoken a moment ago
    assert there() == ["one", "two"]

    steady += 20  # one of them repeats what it says, by its own clock
    found["one"] = (said_by("one"), found["one"][1] + 20)
    assert there() == ["one", "two"]
    steady += 15
    assert there() == ["one"]  # two was last heard of 35 s ago, whatever its record says

    wall -= 10 * 7200  # set back by hours: the dead one's record looks as if it lived for hours
    assert there() == ["one"]
    steady += LIFETIME_SECONDS
    assert there() == []
    found = {}
    assert there() == []
    assert time is libp2p.time


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
