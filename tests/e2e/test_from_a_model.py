"""A run that starts from a model of the world, and one that starts from a path of that run."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import vector_from_bytes
from dipaco_swarm.cli.bootstrap import app
from dipaco_swarm.client import exporting
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.errors import RunFileError
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.simulate import simulate
from dipaco_swarm.training.modules import PathModel
from tests.training.checkpoints import save_checkpoint

pytestmark = pytest.mark.timeout(300)

RUN_FILE = """\
name = "onward"
min_peers = 2
[model]
from = "{checkpoint}"
[[levels]]
embedding = true
head = true
[[levels]]
blocks = [0, 1]
[[levels]]
blocks = [2, 3]
[data]
source = "python"
max_documents = 200
sequence_length = 48
routing_sample = 0.2
[inner]
learning_rate = 1e-3
batch_sequences = 4
warmup_steps = 1
schedule_steps = 10
[rounds]
pacing = "synchronous"
inner_steps = 2
[[stages]]
router = "product-k-means"
modules = [1, 2, 2]
rounds = {rounds}
"""
PEERS = {"ada": 0, "ben": 3}
IDS = torch.arange(32).view(2, 16) * 7


def run_file(checkpoint: Path, rounds: int = 1) -> str:
    return RUN_FILE.format(checkpoint=checkpoint, rounds=rounds)


def logits_of(model: PathModel) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model.network.eval()(input_ids=IDS).logits
    return logits


def test_all_paths_begin_as_the_checkpoint_and_a_path_can_be_the_next_checkpoint(tmp_path: Path) -> None:
    theirs = save_checkpoint(tmp_path / "model", "llama-3.2")
    config = parse_run_file(run_file(tmp_path / "model"))
    states = simulate(config, tmp_path / "first", PEERS)
    with torch.inference_mode():
        expected = theirs(input_ids=IDS).logits
    with open_run(tmp_path / "first" / "bootstrap") as run:
        stage, model = run.manifest.stage, run.model()
        assert stage.router is not None  # fitted on the checkpoint's features, with no stage before
        for path in range(4):
            for module in run.table.modules_of(path):  # type: ignore[arg-type]
                model.load(module.level, vector_from_bytes(run.fetch(stage.seeds[str(module)])))
            assert torch.equal(logits_of(model), expected)
        digests = {states[ModuleId(1, index)].digest for index in range(2)}
        assert len(digests) == 2, "trained on different documents they are no longer the same"

    (tmp_path / "model").rename(tmp_path / "gone")  # a run that goes on needs the checkpoint no more
    assert {m: s.digest for m, s in simulate(config, tmp_path / "first", PEERS).items()} == {
        module: state.digest for module, state in states.items()
    }
    with pytest.raises(RunFileError, match="there is no folder"):
        simulate(config, tmp_path / "another", PEERS)
    (tmp_path / "run.toml").write_text(run_file(Path("somebody/else")))  # said at once, and nobody is asked for it
    ended = CliRunner().invoke(app, ["extend", f"{tmp_path}/run.toml", "--home", f"{tmp_path}/first/bootstrap"])
    assert ended.exit_code == 2
    assert "cannot become 'somebody/else'" in ended.output

    exporting.export(tmp_path / "first" / "bootstrap", 3, tmp_path / "path-3")
    again = parse_run_file(run_file(tmp_path / "path-3"))
    simulate(again, tmp_path / "second", PEERS)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "path-3", dtype=torch.float32)
    with open_run(tmp_path / "second" / "bootstrap") as run, torch.inference_mode():
        model, seeds = run.model(), run.manifest.stage.seeds
        for level in range(3):
            model.load(level, vector_from_bytes(run.fetch(seeds[f"L{level}M0"])))
        assert torch.equal(logits_of(model), exported(input_ids=IDS).logits)
