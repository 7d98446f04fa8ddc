"""Who counts as there, when clocks jump: announcements by a clock that nobody sets."""

import asyncio
import gc

import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.swarm import records
from dipaco_swarm.swarm.interface import Announcement, PeerName, Role
from dipaco_swarm.swarm.libp2p import opening
from dipaco_swarm.swarm.transport import Record
from tests.clocks import HandClock

from .directories import TIMING, directory_over

MODULE = ModuleId(0, 0)


def said_by(peer: str, catching_up: bool = False, stage: int = 0) -> bytes:
    said = Announcement(PeerName(peer), stage, MODULE, PathIndex(0), 1, "a" * 64, catching_up=catching_up)
    return records.encode_announcement(said, ())


class Written:
    """`transport.Records` that a test writes itself."""

    def __init__(self) -> None:
        self.found: dict[PeerName, Record] = {}

    async def store(self, key: str, payload: bytes, lifetime: float) -> bool:
        raise AssertionError("nothing is said here")

    async def read(self, key: str, *, thorough: bool = True) -> dict[PeerName, Record]:
        return dict(self.found)


class World:
    """What a directory finds in the DHT, and what its clocks say."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.records = Written()
        self.directory = directory_over(self.records, self.clock)

    def says(self, peer: str, later: float = 0.0, catching_up: bool = False) -> None:
        """Its record, written `later` than its last one, by its own clock."""
        first = Record(b"", self.clock.wall() + TIMING.lifetime)
        before = self.records.found.get(PeerName(peer), first)
        self.records.found[PeerName(peer)] = Record(said_by(peer, catching_up), before.expiration + later)

    def there(self) -> dict[str, bool]:
        """Who is there, and whether awake."""
        asyncio.run(self.directory.listen(0, MODULE))
        return {said.peer: said.awake for said in self.directory.members(0, MODULE)}


def test_clocks_that_jump_make_nobody_dead_and_keep_nobody_alive() -> None:
    world = World()
    for peer in ("one", "two"):
        world.says(peer)
    assert [*world.there()] == ["one", "two"]

    world.clock.at_the_wall += 7200  # our clock is set forward: both have spoken a moment ago
    assert [*world.there()] == ["one", "two"]

    world.clock.now += 20
    world.says("one", later=20)
    assert [*world.there()] == ["one", "two"]
    world.clock.now += TIMING.lifetime - 15
    assert [*world.there()] == ["one"]  # two was last heard of a lifetime ago, whatever its record says

    world.clock.at_the_wall -= 10 * 7200  # set back by hours: the dead one's record looks as if it lived for hours
    assert [*world.there()] == ["one"]
    world.clock.now += TIMING.lifetime
    assert not world.there()
    world.records.found = {}
    assert not world.there()


@pytest.mark.parametrize(("pause", "patience"), [(2, 15), (5, 15), (8, 24)])
def test_whose_word_does_not_come_any_more_sleeps(pause: float, patience: float) -> None:
    """... by the pace at which it came over its line."""
    world = World()
    world.says("one")
    assert world.there() == {"one": True}
    for _ in range(4):
        world.clock.now += pause
        world.says("one", later=5)
        assert world.there() == {"one": True}
    world.clock.now += patience - 0.1
    assert world.there() == {"one": True}
    world.clock.now += 0.2
    assert world.there() == {"one": False}
    world.says("one", later=5)
    assert world.there() == {"one": True}


def test_who_fetches_a_state_on_a_full_line_is_not_forgotten_so_soon() -> None:
    world = World()
    for peer in ("one", "two"):
        world.says(peer, catching_up=peer == "two")
    world.clock.at_the_wall += 10  # the first word of them was ten seconds on its way
    assert [*world.there()] == ["one", "two"]
    world.clock.now += TIMING.lifetime - 9
    assert [*world.there()] == ["two"]
    world.clock.now += TIMING.busy_lifetime - TIMING.lifetime - 2
    assert [*world.there()] == ["two"]
    world.clock.now += 2
    assert not world.there()


def test_a_task_of_the_network_library_that_fails_shows_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def pinged_too_early() -> None:
        raise AttributeError("'DHTProtocol' object has no attribute 'node_info'")

    async def start() -> None:
        asyncio.get_running_loop().set_exception_handler(opening._note_stray_error)
        task = asyncio.create_task(pinged_too_early())
        await asyncio.wait({task})
        del task
        gc.collect()

    with caplog.at_level("DEBUG"):
        asyncio.run(start())
    assert [record.levelname for record in caplog.records if "background" in record.message] == ["DEBUG"]
    assert all(record.levelname == "DEBUG" for record in caplog.records)


def test_stages_that_are_over_are_forgotten() -> None:
    world = World()
    one = PeerName("one")
    for stage in range(50):
        for _ in range(10):
            world.clock.now += TIMING.lifetime
            world.clock.at_the_wall += TIMING.lifetime
            world.records.found = {one: Record(said_by(one, stage=stage), world.clock.wall() + TIMING.lifetime)}
            asyncio.run(world.directory.listen(stage, MODULE))
            world.directory.forget()
        assert world.directory.members(stage, MODULE)
        assert world.directory.peers() == [one]
    assert len(world.directory._heard) <= 4
    assert len(world.directory._lately._heard) <= 4


def test_who_held_a_module_a_moment_ago_and_says_over_a_stream_that_it_trains_it_is_believed() -> None:
    world = World()
    one = PeerName("one")
    held = Announcement(one, 0, MODULE, None, 1, "a" * 64, moves=True, role=Role.HOLDS)
    record = Record(records.encode_announcement(held, ()), world.clock.wall() + TIMING.lifetime)
    world.records.found = {one: record}
    asyncio.run(world.directory.listen(0, MODULE))
    world.directory.heard_directly(Announcement(one, 0, MODULE, PathIndex(3), 2, "b" * 64, work=7))
    (said,) = world.directory.members(0, MODULE)
    assert (said.role, said.path, said.version, said.digest, said.work) == (Role.TRAINS, 3, 2, "b" * 64, 7)
