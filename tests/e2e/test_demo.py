"""The demo, tiny: the whole story in seconds. Who is ahead after twenty steps says nothing, so nobody asks."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dipaco_swarm.demo.processes import ProcessFailedError, Troupe
from dipaco_swarm.demo.story import run_demo
from dipaco_swarm.errors import UsageError

TINY = """
name = "tiny-demo"
min_peers = 4
[model]
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 64
[[levels]]
blocks = [0]
embedding = true
[[levels]]
blocks = [1]
head = true
[tokenizer]
vocab_size = 512
[data]
source = "python"
max_documents = 120
sequence_length = 64
holdout = 0.2
routing_sample = 0.2
[inner]
learning_rate = 3e-3
embedding_learning_rate_ratio = 30
head_learning_rate_ratio = 6
warmup_steps = 5
schedule_steps = 30
batch_sequences = 2
[rounds]
pacing = "synchronous"
inner_steps = 10
[[stages]]
router = "single"
rounds = 1
[[stages]]
router = "product-k-means"
modules = [2, 2]
rounds = 2
"""


@pytest.mark.swarm
@pytest.mark.timeout(500)
def test_the_whole_story_leaves_everything_in_its_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = run_demo(out, TINY)
    for name in ("run.toml", "report.md", "report.json", "curves.png", "model/model.safetensors", "logs/peer-3.log"):
        assert (out / name).stat().st_size > 0, name
    report = json.loads((out / "report.json").read_text())
    assert code == (0 if report["ratio"] < 1 else 1)
    assert report["export"]["largest_difference_of_logits"] <= 1e-4
    assert {name: score["tokens"] for name, score in report["swarm"].items()} == {
        name: score["tokens"] for name, score in report["dense"].items()
    }
    assert report["agreement"] == {"shared": 2 * 1 + 4 * 2, "same": 2 * 1 + 4 * 2}  # modules x rounds, by stage
    assert report["tokens"] == {"dense": 30 * 128, "swarm": 4 * 30 * 128}
    # an earlier demo is replaced, whatever became of it
    assert (out / ".dipaco-demo").exists()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="not the folder of an earlier demo"):
        run_demo(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.swarm
def test_ctrl_c_ends_every_process_in_five_seconds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = "from dipaco_swarm.cli.swarm import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "demo", "--out", str(out)], stdout=subprocess.DEVNULL
    ) as demo:
        log = out / "logs" / "bootstrap.log"
        deadline = time.monotonic() + 90
        while not log.exists():
            assert time.monotonic() < deadline, "the demo never started its bootstrap node"
            time.sleep(0.1)
        time.sleep(1.0)
        demo.send_signal(signal.SIGINT)
        # its own end included; a crowded machine is given its time
        assert demo.wait(timeout=(5 + 3) * max(1.0, os.getloadavg()[0])) == 130
    assert not _processes_that_mention(str(out))


def test_a_process_that_fails_is_quoted(tmp_path: Path) -> None:
    with Troupe(tmp_path) as troupe:
        process = troupe.start("odd", "dipaco_swarm.no_such_room", [])
        process.handle.wait(timeout=20)
        with pytest.raises(ProcessFailedError, match=r"(?s)odd ended with status 1.*No module"):
            troupe.check()


def _processes_that_mention(text: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if text in command and int(folder.name) != os.getpid():
            found.append(command)
    return found
