"""Routing anew every W tokens: from a run file with [rerouting] to evaluation and text, with real models."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.client import visits as use
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.dashboard.drawing import draw
from dipaco_swarm.dashboard.screens import NoScreen
from dipaco_swarm.errors import CheckpointError, UsageError
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.operator import NoWindowRouter, RunFinished, TrainingWindowRouter
from dipaco_swarm.machine.stopping import Stopped, Stopping
from dipaco_swarm.operator.home import OperatorHome, load_operator_key
from dipaco_swarm.operator.operator import Operator
from dipaco_swarm.operator.training_workshop import TrainingWorkshop
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import fingerprint_of, sign_manifest
from dipaco_swarm.simulate import simulate
from dipaco_swarm.swarm.states.blobs import BlobStore
from tests.hub import BOOTSTRAP, Hub

from .conftest import write_run_file

pytestmark = pytest.mark.timeout(300)

REROUTING = """
[rerouting]
window = 8
steps = 20
learning_rate = 3e-3
batch_sequences = 8
max_documents = 100
"""


class Listening(NoScreen):
    """Keeps what is said, and calls somebody about it."""

    def __init__(self, call: Callable[[Event], None] = lambda event: None) -> None:
        self.said: list[Event] = []
        self._call = call

    def event(self, event: Event) -> None:
        self.said.append(event)
        self._call(event)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The homes of a simulated run that was trained to its end, window router and all."""
    folder = tmp_path_factory.mktemp("run")
    run_file = write_run_file(folder / "RUN.toml", min_peers=2)
    screen = Listening()
    threads = torch.get_num_threads()
    simulate(parse_run_file(run_file.read_text() + REROUTING), folder, {"ada": 0, "ben": 3}, screen=screen)
    assert screen.said.index(TrainingWindowRouter(4)) < screen.said.index(RunFinished())
    yield folder
    torch.set_num_threads(threads)


def manifest_at(home: Path) -> Manifest:
    manifest = OperatorHome(home).manifest(fingerprint_of(load_operator_key(home).public_key()))
    assert manifest is not None
    return manifest


# --------------------------------------------------------------------------------------------------------- using a run


def test_rerouted_evaluation_scores_the_same_targets(homes: Path) -> None:
    once = use.evaluate(homes / "bootstrap", None)
    rerouted = use.evaluate(homes / "bootstrap", None, window=8)
    assert rerouted.tokens == once.tokens > 1000
    assert (once.window, rerouted.window) == (None, 8)
    windows, documents = (sum(path.documents for path in e.paths) for e in (rerouted, once))
    assert once.tokens / 8 <= windows < once.tokens / 8 + documents  # only the last window of a document may be short
    assert rerouted.loss != once.loss
    assert all(path.documents <= path.tokens <= 8 * path.documents for path in rerouted.paths)
    console = Console(width=150)
    with console.capture() as drawn:
        console.print(draw(rerouted))
    assert "routed anew every 8 tokens" in drawn.get()


def test_a_window_longer_than_any_text_is_routing_once(homes: Path) -> None:
    once, rerouted = use.evaluate(homes / "bootstrap", None), use.evaluate(homes / "bootstrap", None, window=1000)
    assert replace(rerouted, window=None) == once


def text(home: Path, prompt: str, window: int | None, tokens: int = 24) -> str:
    return "".join(use.generate(home, prompt, tokens=tokens, temperature=0, top_k=0, seed=0, window=window))


def test_generated_text_follows_the_window_router(homes: Path) -> None:
    """Against the same by hand, without any cache."""
    home, prompt = homes / "bootstrap", "def read_lines(path):"
    with open_run(home) as run:
        tokenizer, router, model = run.routing().tokenizer, run.window_router(), run.model()
        ids = tokenizer.encode(prompt).ids
        before = len(ids)
        path = int(run.routing().paths(torch.tensor([ids]).numpy())[0])
        for i in range(24):
            if i and i % 4 == 0:
                path = router.choose(ids)
            with torch.no_grad():
                logits = run.load(model, PathIndex(path))(input_ids=torch.tensor([ids])).logits[0, -1]
            ids.append(int(logits.argmax()))
        assert tokenizer.decode(ids[before:]) == text(home, prompt, 4)
    assert text(home, prompt, 24) == text(home, prompt, None)


def test_a_long_prompt_is_read_by_the_window_router_from_the_start(homes: Path) -> None:
    home, prompt = homes / "bootstrap", "import os\n" * 12
    with open_run(home) as run:
        ids = run.routing().tokenizer.encode(prompt).ids
        assert run.manifest.config.router.prefix_tokens < len(ids) < 64
        network = run.load(run.model(), run.window_router().choose(ids))
        with torch.no_grad():
            likeliest = int(network(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        assert run.routing().tokenizer.decode([likeliest]) == text(home, prompt, 4, tokens=1)


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_of_no_tokens_is_refused(homes: Path, window: int) -> None:
    with pytest.raises(UsageError, match=f"--reroute {window} is no number of tokens"):
        use.evaluate(homes / "bootstrap", None, window=window)
    with pytest.raises(UsageError, match=f"--reroute {window} is no number of tokens"):
        text(homes / "bootstrap", "x", window)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"config": "without"}, r"its run file has no \[rerouting\]; leave out --reroute"),
        ({"finished": False}, "it is trained when the last stage is done"),
        ({}, "its training failed"),
    ],
)
def test_a_run_without_a_window_router_says_why(homes: Path, change: dict[str, object], reason: str) -> None:
    with open_run(homes / "bootstrap") as run:
        if "config" in change:
            change = {"config": run.manifest.config.model_copy(update={"rerouting": None})}
        without = run.manifest.model_copy(update={"window_router": None, **change})
        with pytest.raises(UsageError, match=reason):
            replace(run, manifest=without).window_router()


def test_a_home_without_the_other_paths_says_so(homes: Path, tmp_path: Path) -> None:
    """What a peer's home has: its own path, and no window router."""
    shutil.copytree(homes / "ben", tmp_path / "ben")
    shutil.copy(homes / "bootstrap" / "manifest.json", tmp_path / "ben")
    with pytest.raises(CheckpointError, match=r"use --run"):
        use.evaluate(tmp_path / "ben", None, window=8)


# --------------------------------------------------------------------------------------------------- the bootstrap node


def before_the_end(homes: Path, home: Path, **rerouting: object) -> Manifest:
    """A copy of the bootstrap home as it was when the last stage was done but nothing more; its manifest."""
    shutil.copytree(homes / "bootstrap", home)
    done = manifest_at(home)
    assert done.config.rerouting is not None
    config = done.config.model_copy(update={"rerouting": done.config.rerouting.model_copy(update=rerouting)})
    earlier = done.model_copy(update={"finished": False, "window_router": None, "config": config})
    OperatorHome(home).keep_manifest(sign_manifest(earlier, load_operator_key(home)))
    return earlier


def operate(home: Path, screen: Listening, stop: Stopping) -> Manifest:
    """A bootstrap node on this home until it is done; the manifest it leaves."""
    config, key, kept = manifest_at(home).config, load_operator_key(home), OperatorHome(home)
    with Hub(config.name, fingerprint_of(key.public_key())) as hub, suppress(Stopped):
        swarm = hub.swarm(BOOTSTRAP, BlobStore(home / "blobs"))
        stop.tell(swarm.interrupt)
        operator = Operator(config, key, swarm, kept, screen, stop, "address", TrainingWorkshop(config))
        operator.run(until_finished=True)
    return manifest_at(home)


def test_the_same_modules_give_the_same_window_router_after_a_restart(homes: Path, tmp_path: Path) -> None:
    before_the_end(homes, tmp_path / "again")
    finished = operate(tmp_path / "again", Listening(), Stopping())
    assert finished.window_router == manifest_at(homes / "bootstrap").window_router is not None


def test_ctrl_c_in_the_middle_of_training_it_ends_the_node_and_not_the_run(homes: Path, tmp_path: Path) -> None:
    stop = Stopping()
    stopped_at: list[float] = []

    def end() -> None:
        stopped_at.append(time.monotonic())
        stop.request()

    def ask(event: Event) -> None:
        if isinstance(event, TrainingWindowRouter):
            threading.Timer(1.0, end).start()

    before_the_end(homes, tmp_path / "stopped", steps=1_000_000)
    left = operate(tmp_path / "stopped", Listening(ask), stop)
    assert time.monotonic() - stopped_at[0] < 5
    assert (left.finished, left.window_router) == (False, None)


def test_a_window_router_that_cannot_be_trained_does_not_hold_up_the_end_of_the_run(
    homes: Path, tmp_path: Path
) -> None:
    before_the_end(homes, tmp_path / "wild", learning_rate=1e30)
    screen = Listening()
    left = operate(tmp_path / "wild", screen, Stopping())
    assert (left.finished, left.window_router) == (True, None)
    (why,) = [event for event in screen.said if isinstance(event, NoWindowRouter)]
    assert "1e+30" in why.error
