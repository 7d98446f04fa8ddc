"""How often a peer says and reads the same: the less often, the longer nothing has changed."""

import asyncio
from dataclasses import replace

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.swarm import records
from dipaco_swarm.swarm.directory import READ_BYTES_A_SECOND, STRANGERS_SHARE
from dipaco_swarm.swarm.interface import Announcement, PeerName, Role
from dipaco_swarm.swarm.transport import Record
from tests.clocks import HandClock

from .directories import TIMING, directory_over

MODULE = ModuleId(0, 0)
SAID = Announcement(PeerName("us"), 0, MODULE, PathIndex(0), 1, "a" * 64)


class Written:
    """`transport.Records` that notes what is asked of them."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.reads = 0
        self.takes = True
        self.found: dict[PeerName, Record] = {}

    async def store(self, key: str, payload: bytes, lifetime: float) -> bool:
        self.stored += [payload] if self.takes else []
        return self.takes

    async def read(self, key: str, *, thorough: bool = True) -> dict[PeerName, Record]:
        self.reads += 1
        return dict(self.found)


class World:
    """A directory whose loop is turned by hand, once a heartbeat."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.records = Written()
        self.directory = directory_over(self.records, self.clock)
        self.directory.say([SAID])

    def heartbeats(self, count: int) -> tuple[int, int]:
        """How often it wrote and read in so many."""
        before = len(self.records.stored), self.records.reads

        async def turn() -> None:
            self.directory._announcing.news.clear()
            await self.directory._announcing.tell(())
            await self.directory._listen(0, MODULE)

        for _ in range(count):
            asyncio.run(turn())
            self.clock.now += TIMING.heartbeat
            self.clock.at_the_wall += TIMING.heartbeat
        return len(self.records.stored) - before[0], self.records.reads - before[1]

    def others(self, *peers: str) -> None:
        """Whose records are there, written just now."""
        expiration = self.clock.wall() + TIMING.lifetime
        for peer in peers:
            said = replace(SAID, peer=PeerName(peer))
            self.records.found[said.peer] = Record(records.encode_announcement(said, ()), expiration)


def test_what_stays_the_same_is_said_and_read_less_and_less_often_and_news_at_once() -> None:
    world = World()
    assert world.heartbeats(10) == (10, 10)
    world.heartbeats(30)
    assert world.heartbeats(30) == (10, 10)

    world.directory.say([replace(SAID, tokens=5000, loss=3.0, tokens_per_second=7.0)])  # nothing that cannot wait
    assert not world.directory._announcing.news.is_set()
    world.directory.say([replace(SAID, version=2)])
    assert world.directory._announcing.news.is_set()
    assert world.heartbeats(10)[0] == 10

    world.heartbeats(40)
    world.directory.heard_directly(replace(SAID, peer=PeerName("a neighbour"), version=3))
    world.heartbeats(3)
    assert world.heartbeats(10)[1] == 10  # who has heard of something over a stream reads what else there is

    world.heartbeats(40)
    world.others("another")
    while not any(
        said.peer == "another" for said in world.directory.members(0, MODULE)
    ):  # who comes is seen as soon as a calm group is read
        assert world.heartbeats(1)[1] <= 1
    assert world.heartbeats(9)[1] == 9


def test_who_only_holds_a_module_says_so_and_reads_about_it_seldom_and_is_taken_for_awake() -> None:
    resting, other = World(), World()
    holds = replace(SAID, path=None, role=Role.HOLDS)
    resting.directory.say([holds])
    said, read = resting.heartbeats(60)
    assert said == 20  # an announcement lives for three of these
    assert read == 10
    assert resting.directory.members(0, MODULE)

    resting.directory.say([replace(holds, version=2)])
    assert resting.heartbeats(1)[0] == 1  # but news is told at once

    for beat in range(30):  # another one hears it every third heartbeat
        if beat % 3 == 0:
            expiration = other.clock.wall() + TIMING.lifetime
            heard = replace(holds, peer=PeerName("resting"))
            other.records.found[heard.peer] = Record(records.encode_announcement(heard, ()), expiration)
        other.heartbeats(1)
        assert [said.awake for said in other.directory.members(0, MODULE) if said.peer == "resting"] == [True]


def test_a_glance_reads_what_was_not_read_a_heartbeat_ago() -> None:
    world = World()
    world.heartbeats(1)
    before = world.records.reads
    asyncio.run(world.directory.glance(0, MODULE))
    assert world.records.reads == before + 1  # a heartbeat has passed
    asyncio.run(world.directory.glance(0, MODULE))
    assert world.records.reads == before + 1


def test_what_nobody_took_is_said_again_with_the_next_heartbeat() -> None:
    world = World()
    world.heartbeats(60)
    world.records.takes = False
    world.directory.say([replace(SAID, version=2)])
    assert world.heartbeats(5)[0] == 0
    world.records.takes = True
    assert world.heartbeats(1)[0] == 1


def test_what_is_not_said_any_more_is_taken_back_once() -> None:
    world = World()
    world.heartbeats(1)
    world.directory.say([])
    world.heartbeats(3)
    assert [records.is_goodbye(payload) for payload in world.records.stored] == [False, True]


def test_a_large_group_is_read_by_its_size_and_nobody_in_it_is_forgotten_or_sleeps_meanwhile() -> None:
    world = World()
    crowd = [f"peer {number}" for number in range(250)]
    world.others(*crowd)
    size = sum(len(record.payload) + records.OVERHEAD_BYTES for record in world.records.found.values())
    pause = size / READ_BYTES_A_SECOND
    assert pause > 2 * TIMING.lifetime  # they would expire if they were not expected to be heard of so seldom
    world.heartbeats(1)
    reads = 0
    for _ in range(200):
        world.others(*crowd)  # they say it again and again
        reads += world.heartbeats(1)[1]
        there = [said for said in world.directory.members(0, MODULE) if said.peer != "us"]
        assert len(there) == len(crowd)
        assert all(said.awake for said in there)
    assert reads == 200 * TIMING.heartbeat // pause


def test_names_that_anybody_can_make_up_do_not_keep_members_from_hearing_each_other() -> None:
    """Fifty of them in a group of two: it is read as often as without them."""
    world = World()
    world.directory.knows = lambda peer: peer == "a friend"
    world.others("a friend", *(f"nobody {number}" for number in range(50)))
    size = sum(len(record.payload) + records.OVERHEAD_BYTES for record in world.records.found.values())
    assert size / READ_BYTES_A_SECOND > 2 * TIMING.heartbeat
    assert size * STRANGERS_SHARE / READ_BYTES_A_SECOND < TIMING.heartbeat
    assert world.heartbeats(4)[1] == 4
