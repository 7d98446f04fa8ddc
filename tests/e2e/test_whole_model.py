"""The whole routed model in one folder: what its own loader says is what the run says."""

import importlib.util
import json
import re
from collections.abc import Iterator
from io import StringIO
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.client import harness
from dipaco_swarm.client import visits as use
from dipaco_swarm.client.exporting import Wanted, export, export_all, export_whole
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.dashboard.views import BootstrapView, ModuleStatus, SwarmStatus
from dipaco_swarm.errors import UsageError
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.pushing import NotPushed, Pushed
from dipaco_swarm.operator import pushing as pushing_module
from dipaco_swarm.operator.pushing import PushingScreen
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.settings import Push
from dipaco_swarm.simulate import simulate
from dipaco_swarm.training.evaluation import evaluate_routed
from dipaco_swarm.training.tokenizer import prompt_ids
from tests.hub import until
from tests.model_hub import model_hub

from .conftest import write_run_file
from .world import Events

pytestmark = pytest.mark.timeout(300)

MORE = """
[about]
description = "A model of *this* test."
license = "apache-2.0"
languages = ["en", "code"]
datasets = ["python/itself"]
[rerouting]
window = 8
steps = 10
batch_sequences = 8
max_documents = 100
[early_stopping]
share = 0.1
"""
PROMPTS = ("def main(", "Permission is hereby granted", "#include <stdio.h>\nint", "x")
SHORT = 12


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a bootstrap node whose run is finished, with two of its four paths trained."""
    folder = tmp_path_factory.mktemp("whole")
    text = write_run_file(folder / "RUN.toml", min_peers=2, inner_steps=4, rounds=2, warmup=2).read_text()
    about, more = MORE.split("[rerouting]")
    text = text.replace("[model]", about + "[model]") + "[rerouting]" + more
    simulate(parse_run_file(text), folder, {"ada": 0, "ben": 3})
    return folder / "bootstrap"


@pytest.fixture(scope="module")
def folder(home: Path) -> Path:
    out = home.parent / "model"
    assert export_whole(home, out, Wanted(measured=True)) == 4
    return out


@pytest.fixture(scope="module")
def run(home: Path) -> Iterator[TrainedRun]:
    with open_run(home) as run:
        yield run


def test_a_node_pushes_what_it_keeps_and_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command that people use, in a process of its own; after a restart what was pushed is not pushed again."""
    screen, push = Events(), Push.parse("me/model", 2)
    monkeypatch.setenv("HF_TOKEN", "hf_of_this_test")

    def shows(pushing: PushingScreen, version: int, event: type[Event]) -> bool:
        pushing.show(at(version))
        return screen.said(event)

    def at(version: int) -> BootstrapView:
        status = SwarmStatus("small", 1, 2, False, 1, 1, (), (ModuleStatus("L0M0", version, 1, 1, 1),))
        return BootstrapView("dipaco:...", "keeping modules", status)

    with model_hub() as (hub, place):
        monkeypatch.setenv("HF_ENDPOINT", place)
        pushing = PushingScreen(screen, home, push)
        until(lambda: shows(pushing, 1, Pushed) or screen.said(NotPushed), 120)
        assert not screen.reported(NotPushed)
        assert hub.made == ["model"]
        assert {"dipaco_model.py", "README.md"} <= hub.files.keys()
        again = PushingScreen(screen, home, push)
        again.show(at(2))
        assert again._work is None, "one version later"
        monkeypatch.setattr(pushing_module, "EXPORT", "import sys; sys.exit('first line\\nthe hub is away')")
        until(lambda: shows(again, 3, NotPushed), 60)
    assert screen.reported(NotPushed) == [NotPushed("me/model", 1, 3, "the hub is away")]
    assert screen.reported(Pushed) == [Pushed("me/model", 1, 1)]


def loader_of(folder: Path) -> ModuleType:
    """The file in the folder, not the one of this package."""
    spec = importlib.util.spec_from_file_location("loader_of_a_folder", folder / "dipaco_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return loader_of(folder).RoutedModel.from_pretrained(str(folder))


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 0.8, "top_k": 40, "seed": 3}, {"top_k": 0}])
@pytest.mark.parametrize("window", [None, 4])
def test_the_loader_writes_what_generate_writes(
    home: Path, model: Any, how: dict[str, Any], window: int | None
) -> None:
    settings: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "seed": 0, **how}
    for prompt in PROMPTS:
        ours = "".join(use.generate(home, prompt, tokens=SHORT, window=window, **settings))
        theirs = model.generate(prompt, SHORT, window=window, **settings)
        assert theirs.removeprefix(prompt).startswith(ours)  # a character whose bytes are not all there is not shown
        assert len(theirs.removeprefix(prompt)) - len(ours) <= 1


def test_it_is_the_same_tokens(run: TrainedRun, model: Any) -> None:
    loader = loader_of(model.folder)
    network_of = run.model()
    for prompt in PROMPTS:
        ids = prompt_ids(run.routing().tokenizer, prompt)
        assert model.encode(prompt) == ids
        path = PathIndex(int(run.routing().paths(np.array([ids[:32]]))[0]))
        assert model.route(ids) == path
        expected = islice(loader.tokens_after(run.load(network_of, path), ids, lambda x: int(x.argmax()), None), 30)
        assert list(islice(model.tokens(ids, loader.drawing(0, None, 0)), 30))[:30] == list(expected)[:30]


def test_every_held_out_piece_has_its_path_and_the_perplexity_is_the_runs(run: TrainedRun, model: Any) -> None:
    pieces = use.held_out(run)
    prefix = run.manifest.config.router.prefix_tokens
    paths = run.routing().paths(pieces.tokens[:, :prefix])
    assert [model.route(piece.tolist()) for piece in pieces.tokens[:, :prefix]] == paths.tolist()
    network = run.model()
    expected = evaluate_routed(pieces, paths, lambda path: run.load(network, path), prefix).total
    total = 0.0
    for ids, length in zip(pieces.tokens.tolist(), pieces.lengths.tolist(), strict=True):
        total += float(model.log_likelihoods(ids[:length])[prefix - 1 :].sum(dtype=torch.float64))
    assert total == pytest.approx(expected.log_likelihood, rel=1e-6)


def test_no_module_is_there_twice(run: TrainedRun, folder: Path) -> None:
    layout = json.loads((folder / "dipaco.json").read_text())
    assert {file.name for file in (folder / "modules").iterdir()} == {
        f"{module}.safetensors" for module in run.table.modules
    }
    assert len({tuple(row) for row in layout["paths"]}) == 4
    held = sum(tensor.numel() for file in (folder / "modules").iterdir() for tensor in load_file(file).values())
    assert held == sum(len(run.state_of(module).params) for module in run.table.modules)
    assert all(file.stat().st_mode & 0o777 == 0o644 for file in folder.rglob("*") if file.is_file())


def test_the_card_says_what_is_known(run: TrainedRun, folder: Path) -> None:
    card = (folder / "README.md").read_text()
    for words in (
        "license: apache-2.0",
        "- en\n- code",
        "- python/itself",
        "A model of *this* test.",
        "type: perplexity",
    ):
        assert words in card
    for module in run.table.modules:
        assert run.state_of(module).digest in card
    assert "from dipaco_model import RoutedModel" in card


def test_half_the_bytes_and_the_same_paths(home: Path, folder: Path, run: TrainedRun) -> None:
    out = home.parent / "half"
    export_whole(home, out, Wanted(dtype="bf16"))
    tensors = load_file(out / "modules" / "L0M0.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    half = loader_of(out).RoutedModel.from_pretrained(str(out))
    pieces = use.held_out(run).tokens[:20, :32]
    assert [half.route(piece.tolist()) for piece in pieces] == run.routing().paths(pieces).tolist()


def test_the_best_of_each_path_is_exported_with_the_modules_of_the_others(home: Path, run: TrainedRun) -> None:
    told: list[str] = []
    out = home.parent / "best"
    export_whole(home, out, Wanted(best=True), told.append)
    best = loader_of(out).RoutedModel.from_pretrained(str(out))
    with open_run(home, best=True) as served:
        network, ids = served.model(), torch.arange(40)[None]
        for path in range(4):
            with torch.inference_mode():
                expected = served.load(network, PathIndex(path))(input_ids=ids).logits
                assert torch.equal(best.path(path)(input_ids=ids).logits, expected)
    assert len(told) == 1
    assert "no early-stopping snapshot of path 1, 2 can be had" in told[0]


def test_each_path_is_an_ordinary_folder(home: Path, run: TrainedRun) -> None:
    out = home.parent / "each"
    assert export_all(home, out) == 4
    export(home, 2, home.parent / "two", Wanted(measured=True))
    ids, network = torch.arange(40)[None], run.model()
    with torch.inference_mode():
        for folder, path in ((out / "path-1", 1), (home.parent / "two", 2)):
            theirs = AutoModelForCausalLM.from_pretrained(folder)
            assert torch.equal(theirs(input_ids=ids).logits, run.load(network, PathIndex(path))(input_ids=ids).logits)
    card = (home.parent / "two" / "README.md").read_text()
    assert "Path 2 of 4 of the DiPaCo run `small`" in card
    assert "license: apache-2.0" in card


# ------------------------------------------------------------------------------------------------ lm-evaluation-harness


@pytest.fixture(scope="module")
def tasks(home: Path) -> list[str]:
    """Two tasks of this machine's text: how likely files are, and which of two lines comes next."""
    folder = home.parent / "tasks"
    folder.mkdir()
    texts = [Path(module.__file__ or "").read_text()[:900] for module in (importlib.util, json, pytest)]
    lines = [text.splitlines() for text in texts]
    questions = [{"q": "\n".join(some[:4]), "a": some[4:6], "right": 0} for some in lines]
    for name, rows in (("files", [{"text": text} for text in texts]), ("lines", questions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = "dataset_path: json\ntest_split: test\ndataset_kwargs:\n  data_files:\n    test: {file}\n"
    (folder / "files.yaml").write_text(
        "task: files_here\n" + common.format(file=folder / "files.jsonl") + "output_type: loglikelihood_rolling\n"
        "doc_to_text: ''\ndoc_to_target: '{{text}}'\nmetric_list:\n  - metric: byte_perplexity\n"
    )
    (folder / "lines.yaml").write_text(
        "task: lines_here\n" + common.format(file=folder / "lines.jsonl") + "output_type: multiple_choice\n"
        "doc_to_text: '{{q}}'\ndoc_to_choice: '{{a}}'\ndoc_to_target: '{{right}}'\nmetric_list:\n  - metric: acc\n"
    )
    return [str(folder / "files.yaml"), str(folder / "lines.yaml")]


def test_the_harness_says_of_the_run_what_the_paths_say(home: Path, run: TrainedRun, tasks: list[str]) -> None:
    found = harness.run_tasks(home, tasks, None, None)
    rows = [json.loads(line) for line in Path(tasks[0]).with_suffix(".jsonl").read_text().splitlines()]
    reader, total, size = harness.RunReader(run), 0.0, 0
    for text in (row["text"] for row in rows):
        ids = [reader.end_of_text, *reader.encode(text)]
        network = reader.path(reader.route(ids[1:33]))
        with torch.inference_mode():
            for start in range(0, len(ids) - 1, 64):  # each token once, after as many as there are positions at most
                end = min(start + 64, len(ids) - 1)
                first = max(0, end - 64)
                scores = network(input_ids=torch.tensor([ids[first:end]])).logits[0].log_softmax(-1)
                targets = torch.tensor(ids[first + 1 : end + 1])
                total += float(scores.gather(1, targets[:, None])[start - first :].sum())
        size += len(text.encode())
    assert found.results["files_here"]["byte_perplexity,none"] == pytest.approx(np.exp(-total / size), rel=1e-5)
    assert 0 <= float(found.results["lines_here"]["acc,none"]) <= 1


def test_the_harness_says_the_same_of_the_exported_folder(home: Path, folder: Path, tasks: list[str]) -> None:
    ours = harness.run_tasks(home, tasks, None, None)
    theirs = harness.evaluate_tasks(harness.DipacoLM(folder=str(folder)), tasks, None)
    for task, metrics in ours.results.items():
        for name, value in metrics.items():
            assert theirs[task][name] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value)


def test_one_path_can_be_asked_alone(home: Path, tasks: list[str]) -> None:
    alone = [harness.run_tasks(home, tasks[:1], path, 2) for path in (0, 3)]
    first, second = (found.results["files_here"]["byte_perplexity,none"] for found in alone)
    assert first != second
    assert alone[1].who == "path 3 alone"
    drawn = Console(width=100, file=StringIO())
    drawn.print(alone[1])
    assert "byte_perplexity" in drawn.file.getvalue()  # type: ignore[attr-defined]


def test_an_answer_does_not_choose_the_path(run: TrainedRun) -> None:
    model = harness.DipacoLM(reader=harness.RunReader(run))
    asked = model._encode_pair("def main(", " argv: list[str]) -> int:")
    [(likelihood, _)] = model._loglikelihood_tokens([(None, *asked)])
    path = harness.DipacoLM(reader=harness.RunReader(run), path=model._reader.route(asked[0]))
    assert path._loglikelihood_tokens([(None, *asked)])[0][0] == likelihood
    each = [model._encode_pair(text, " and so on") for text in ("import os", "Permission is", "x = 3\ny = 4")]
    together = model._loglikelihood_tokens([(None, *pair) for pair in each])
    one_by_one = [model._loglikelihood_tokens([(None, *pair)])[0] for pair in each]
    assert [a for a, _ in together] == pytest.approx([b for b, _ in one_by_one], rel=1e-5)


def test_the_harness_has_text_written_as_generate_does(home: Path, run: TrainedRun) -> None:
    model = harness.DipacoLM(reader=harness.RunReader(run))
    ours = "".join(use.generate(home, "def main(", tokens=20, temperature=0.0, top_k=0, seed=0))
    asked = SimpleNamespace(args=("def main(", {"until": [], "max_gen_toks": 20}))
    [theirs] = model.generate_until([asked])
    assert theirs.startswith(ours)
    stop = ours[5:7]
    [stopped] = model.generate_until([SimpleNamespace(args=("def main(", {"until": stop, "max_gen_toks": 20}))])
    assert stopped == ours.split(stop)[0]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["no_such_task"], "has no no_such_task"),
        (["nowhere.yaml"], "nowhere.yaml cannot be read"),
        ([str(Path(__file__).with_name("__init__.py")) + ".yaml"], "cannot be read"),
    ],
)
def test_a_task_that_there_is_not_is_named(home: Path, names: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        harness.run_tasks(home, names, None, None)


def test_a_window_that_the_model_has_no_router_for_is_refused(folder: Path, tmp_path: Path) -> None:
    layout = json.loads((folder / "dipaco.json").read_text()) | {"window_router": None}
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "dipaco.json").unlink()
    (tmp_path / "dipaco.json").write_text(json.dumps(layout))
    model = loader_of(folder).RoutedModel(tmp_path)
    with pytest.raises(ValueError, match="without a window router"):
        model.generate("x", 2, window=4)
