"""A live run whose corpus is split by path: peers that come later read the files of their path alone."""

import pytest

from dipaco_swarm.events.joining import NotPrepared
from dipaco_swarm.events.operator import RunExtended, StageOpened
from dipaco_swarm.events.volunteer import ShardReady
from dipaco_swarm.operator.sharding import Sharding
from tests.hub import until

from .test_growing import changed
from .world import FOUR_PATHS, SINGLE, MakeWorld

pytestmark = pytest.mark.timeout(400)


def test_a_newcomer_reads_the_files_of_its_path_and_says_when_there_are_none(make_world: MakeWorld) -> None:
    world = make_world(f"{SINGLE}rounds = 1\n{FOUR_PATHS}", pacing="paced", documents=400)
    operator = world.operator()
    routing, _ = world.peer("routing", 0)
    operator.until(StageOpened, stage=1)
    until(lambda: world.manifest().stage.index == 1)  # it is said before it is on the disk
    until(lambda: len(routing.reported(ShardReady)) == 2)  # of both stages; what is changed now is for its next one
    blobs = world.folder / "bootstrap" / "blobs"
    index = Sharding(world.manifest(), lambda digest: (blobs / digest).read_bytes(), world.folder / "shards").work(
        lambda so_far: None
    )
    world.extend(changed(world.config, data={"prepared": "shards"}))
    operator.until(RunExtended, changes=("data.prepared = 'shards'",))
    newcomer, leave = world.peer("newcomer", 1)
    newcomer.until(ShardReady)
    (shard,) = newcomer.reported(ShardReady)
    assert shard.tokens <= index.paths[1].characters, "a path's texts alone, and a token is a character at least"
    assert not newcomer.said(NotPrepared)
    leave()
    (world.folder / "shards" / "shards.json").unlink()
    other, _ = world.peer("other", 2)
    other.until(NotPrepared)
    other.until(ShardReady)
    assert not routing.said(NotPrepared)
    world.break_off()
