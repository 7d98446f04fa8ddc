"""Documents that are read beside training, by a process of its own."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil
import pytest

from dipaco_swarm.algorithm.paths import PathIndex, grid
from dipaco_swarm.errors import DataError
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.joining import OwnDocuments
from dipaco_swarm.events.reading import FirstSequences, ReaderRestarted
from dipaco_swarm.events.volunteer import ShardReady, StageBegan
from dipaco_swarm.peer import reading
from dipaco_swarm.peer.reading import ReadingRoom, is_read_beside, open_stream
from dipaco_swarm.peer.workbench import Preparation
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.training.inner import TrainingSettings
from dipaco_swarm.training.reading.reader import NICE
from dipaco_swarm.training.reading.stream import Stream
from dipaco_swarm.training.tokenizer import train_tokenizer
from tests.hub import until

from .conftest import RUN_FILE
from .world import SINGLE, MakeWorld

P0 = PathIndex(0)
SECONDS = 100.0
"""For what takes some seconds on an idle machine: a reader imports torch."""
pytestmark = pytest.mark.timeout(300)


def test_a_run_of_two_stages_is_read_beside_training(make_world: MakeWorld) -> None:
    stages = SINGLE + 'rounds = 2\n\n[[stages]]\nrouter = "k-means"\nmodules = [1, 2]\nrounds = 2\n'
    early = "[early_stopping]\nshare = 0.2\nevery = 1\n\n"
    world = make_world(stages, pacing="paced", reading="beside", documents=400, more=early)
    world.operator()
    peers = [world.peer(f"peer-{path}", path)[0] for path in range(2)]
    for screen in peers:
        screen.until(FirstSequences, 2, seconds=SECONDS)
    world.end()
    for screen in peers:
        assert [event.stage for event in screen.reported(StageBegan)] == [0, 1]
        assert len(screen.reported(FirstSequences)) == 2
        assert not screen.said(ShardReady)
    assert readers() == []
    streams = (world.folder / "cache" / "streams").glob("*/*")
    assert sorted(stream.name[:15] for stream in streams) == [f"stage-1-path-{path}-" for path in range(2)]


@pytest.mark.parametrize("reading", ["whole", "beside"])
def test_a_volunteer_trains_on_documents_of_its_own_which_stay_in_its_home(
    make_world: MakeWorld, tmp_path: Path, reading: str
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "diary.txt").write_text("".join(f"day {i} of the diary, and it rains\n" for i in range(2000)))
    world = make_world(SINGLE + "rounds = 2\n", pacing="paced", reading=reading, documents=400)
    world.operator()
    owner, _ = world.peer("owner", 0, own=mine)
    world.end()
    (told,) = owner.reported(OwnDocuments)
    assert (told.files, told.share) == (1, 0.4)
    assert list((world.folder / "owner" / "own").glob("*/0.bin"))
    assert [folder.parent.name for folder in world.folder.glob("*/own")] == ["owner"]


# ---------------------------------------------------------------------------------------------------------- one stream


def config_of(folder: Path, **changes: str) -> RunConfig:
    text = RUN_FILE.format(
        min_peers=1, pacing="paced", inner_steps=5, overlap="", codec="fp32", warmup=2, rounds=2, documents=300
    )
    where = f'source = "jsonl"\npath = "{folder}/*.jsonl"'
    text = text.replace('source = "python"\nmax_documents = 300', where)
    for before, after in changes.items():
        text = text.replace(f"{before} = ", f"{after}\n# {before} = ")
    return parse_run_file(text)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of two files with three thousand documents."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in "ab":
        rows = ({"text": f"{name}{i} " + f"word{i % 7} another{i % 11} " * 40} for i in range(1500))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def stream_of(config: RunConfig, home: Path, tell: list[Event]) -> Stream:
    tokenizer = train_tokenizer([f"word{i} another{i} a{i}" for i in range(100)], 400)
    blobs = {hashlib.sha256(tokenizer).hexdigest(): tokenizer}
    digest = next(iter(blobs))
    seeds = dict.fromkeys(("L0M0", "L1M0"), digest)
    stage = Stage(index=0, table=grid([1, 1]).rows, path_weights=(1.0,), router=None, seeds=seeds)
    manifest = Manifest(revision=0, config=config, tokenizer=digest, stages=(stage,))
    wanted = Preparation(manifest, P0, "peer", blobs.__getitem__, tell.append)
    stream = open_stream(wanted, ReadingRoom(home, TrainingSettings(threads=1), 10**9))
    try:
        stream.await_first(lambda: False)
    except DataError:
        stream.close()
        raise
    return stream


def readers() -> list[psutil.Process]:
    """The processes that read for this one."""
    children = psutil.Process().children()
    return [child for child in children if "dipaco_swarm.training.reading.reader" in " ".join(child.cmdline())]


def take(batches: Iterator[object], count: int) -> list[object]:
    return [batch.tolist() for batch in islice((b for b in batches if b is not None), count)]  # type: ignore[attr-defined]


def test_a_reader_that_is_killed_is_started_again_and_goes_on_as_if_nothing_was(corpus: Path, tmp_path: Path) -> None:
    calm = stream_of(config_of(corpus), tmp_path / "calm", [])
    whole = take(calm.batches(4, 1), 700)
    calm.close()
    told: list[Event] = []
    stream = stream_of(config_of(corpus), tmp_path / "killed", told)
    batches = stream.batches(4, 1)
    first = take(batches, 40)
    (reader,) = readers()
    os.kill(reader.pid, signal.SIGKILL)
    assert first + take(batches, 660) == whole
    assert told.count(ReaderRestarted(str(-signal.SIGKILL))) == 1
    stream.close()
    assert readers() == []
    again = stream_of(config_of(corpus), tmp_path / "killed", told)
    assert take(again.batches(4, 1, 300), 50) == whole[300:350]
    again.close()
    assert len([event for event in told if isinstance(event, FirstSequences)]) == 1


def test_a_reader_gives_way_to_training_once_its_first_sequences_are_there(corpus: Path, tmp_path: Path) -> None:
    stream = stream_of(config_of(corpus), tmp_path / "home", [])
    (reader,) = readers()
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    until(lambda: reader.nice() == min(19, ours + NICE), SECONDS)
    stream.close()


def test_a_reader_ends_when_its_peer_was_killed(corpus: Path, tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from tests.e2e.test_reading import config_of, readers, stream_of\n"
        "stream = stream_of(config_of(Path(sys.argv[1])), Path(sys.argv[2]), [])\n"
        "print(readers()[0].pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    peer = subprocess.Popen(
        [sys.executable, "-c", program, str(corpus), str(tmp_path / "home")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert peer.stdout is not None
    reader = psutil.Process(int(peer.stdout.readline()))
    peer.kill()
    peer.communicate()
    assert psutil.wait_procs([reader], timeout=60)[1] == []


def test_what_is_wrong_with_the_documents_is_said_in_the_words_of_the_source(corpus: Path, tmp_path: Path) -> None:
    config = config_of(corpus, sequence_length='column = "body"\nsequence_length = 64')
    with pytest.raises(DataError, match=r'there is no column "body" .*can be one of \[\'text\'\]'):
        stream_of(config, tmp_path / "home", [])


def test_large_files_of_paced_runs_are_read_beside_training(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paced = config_of(corpus)
    assert not is_read_beside(paced)
    monkeypatch.setattr(reading, "SMALL_BYTES", 100_000)
    assert is_read_beside(paced)
    rounds = paced.rounds.model_copy(update={"pacing": "synchronous", "overlap": None})
    assert not is_read_beside(paced.model_copy(update={"rounds": rounds}))

    def with_data(**changes: object) -> RunConfig:
        return paced.model_copy(update={"data": paced.data.model_copy(update=changes)})

    assert not is_read_beside(with_data(reading="whole"))
    assert not is_read_beside(with_data(max_documents=10))
    assert is_read_beside(with_data(reading="beside", max_documents=10))
    assert not is_read_beside(with_data(source="python", path=None))
    assert is_read_beside(with_data(source="huggingface", path="somebody/texts"))
