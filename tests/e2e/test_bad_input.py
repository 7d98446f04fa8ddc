"""What people get wrong: each is one clear line on stderr and exit code 2, through the real commands.

A row of `CASES` is what was typed, where, and what the line must say. All rows run beside one bootstrap node, three at
a time, from when the first test asks: most of their time goes into imports.
"""

import random
import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.events.operator import Serving
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.file import read_run_file
from dipaco_swarm.swarm.libp2p.identity import load_identity
from dipaco_swarm.training import checkpoint
from dipaco_swarm.training.checkpoint import Checkpoint
from dipaco_swarm.training.documents import split_of
from dipaco_swarm.training.inner import InnerState
from tests.programs import run

from .conftest import LOOPBACK, Commands, write_run_file

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(180)]

Argument = str | Path


@dataclass(frozen=True)
class World:
    """One bootstrap node that is up, and folders that are wrong in various ways."""

    folder: Path
    address: RunAddress
    taken: str
    """An address to listen on that another program has."""
    foreign_path: int
    """A path that gets nothing of the documents in `foreign/`."""

    def peer(
        self, path: int | str = 0, *, home: str = "peer", run: RunAddress | None = None, root: str | None = "."
    ) -> list[Argument]:
        address, place = str(run or self.address), self.folder / home
        read: list[Argument] = [] if root is None else ["--data-root", root]
        return ["--run", address, "--path", str(path), "--home", place, "--listen", LOOPBACK, "--rounds", "1", *read]

    def serve(self, run_file: str = "RUN.toml", *, home: str = "node") -> list[Argument]:
        return ["serve", self.folder / run_file, "--home", self.folder / home, "--listen", LOOPBACK]

    @property
    def node(self) -> Path:
        return self.folder / "bootstrap"


@dataclass(frozen=True)
class Case:
    program: str
    typed: Callable[[World], list[Argument]]
    says: tuple[str, ...]
    cwd: str = "."


NOT_A_FOLDER = "RUN.toml/home"
SYSTEM = Path("/sys/dipaco")  # a folder in which even root cannot make one

CASES = {
    # first, as the peer asks for a minute: the node might be about to publish the run
    "a wrong fingerprint": Case(
        "peer",
        lambda w: w.peer(home="p7", run=RunAddress("small", "a" * 32, w.address.bootstraps)),
        ("no run small", "fingerprint " + "a" * 32, "check the run address"),
    ),
    # the run file
    "a wrong type": Case("bootstrap", lambda w: w.serve("type.toml"), ("model.hidden_size", "'wide'")),
    "an unknown key": Case("bootstrap", lambda w: w.serve("key.toml"), ("inner.learning_rat", "not known")),
    "a gap in the path table": Case("bootstrap", lambda w: w.serve("gap.toml"), ("stages[0]", "has no module 1")),
    "levels that do not add up": Case("bootstrap", lambda w: w.serve("levels.toml"), ("no level has [1]", "2 blocks")),
    "no run file": Case("bootstrap", lambda w: w.serve("none.toml"), ("there is no run file", "init")),
    "another run file": Case(
        "bootstrap", lambda w: w.serve("other.toml", home="kept"), ("goes by another run file", "extend")
    ),
    # the run address
    "a cut address": Case("peer", lambda w: ["--run", "dipaco:small"], ("is not a run address",)),
    "a wrong fingerprint, looking": Case(
        "swarm",
        lambda w: ["status", "--run", str(RunAddress("small", "a" * 32, w.address.bootstraps))],
        ("no run small", "fingerprint " + "a" * 32, "check the run address"),
    ),
    "a node that is down": Case(
        "peer",
        lambda w: w.peer(home="p8", run=w.address.with_bootstraps([f"/ip4/127.0.0.1/tcp/9/p2p/{nobody(w)}"])),
        ("no bootstrap node answers", "/tcp/9/", "check the run address"),
    ),
    "another node there": Case(
        "peer",
        lambda w: w.peer(home="p9", run=w.address.with_bootstraps([f"{place(w)}/p2p/{nobody(w)}"])),
        ("no bootstrap node answers", "check the run address"),
    ),
    "a path out of range": Case("peer", lambda w: w.peer(7), ("path 7 does not exist", "paths 0 to 3", "auto")),
    # documents
    "no file": Case("peer", lambda w: w.peer(home="p1"), ("no file matches", "texts/*.txt"), cwd="empty"),
    "files that were not offered": Case(
        "peer",
        lambda w: w.peer(home="p12", root=None),
        ("reads files of your machine", "texts/*.txt", "--data-root DIR"),
    ),
    "short files": Case("peer", lambda w: w.peer(home="p2"), ("none of 1 documents", "longer"), cwd="short"),
    "other paths' documents": Case(
        "peer", lambda w: w.peer(w.foreign_path, home="p3"), ("has no documents", "--path auto"), cwd="foreign"
    ),
    "no file to serve": Case("bootstrap", lambda w: w.serve(home="n1"), ("no file matches",), cwd="empty"),
    "short files to serve": Case(
        "bootstrap", lambda w: w.serve(home="n2"), ("routing document", "longer"), cwd="short"
    ),
    "short files, after a warm-up": Case(
        "bootstrap", lambda w: w.serve("warm.toml", home="n3"), ("routing document", "longer"), cwd="short"
    ),
    # the home folder
    "a home below a file": Case("peer", lambda w: w.peer(home=NOT_A_FOLDER), ("RUN.toml/home", "Not a directory")),
    "a home below a file, serving": Case("bootstrap", lambda w: w.serve(home=NOT_A_FOLDER), ("Not a directory",)),
    "a home of the system": Case("peer", lambda w: [*w.peer()[:4], "--home", SYSTEM], (str(SYSTEM), "--home")),
    "a cache below a file": Case(
        "peer", lambda w: [*w.peer(home="p4"), "--cache", w.folder / NOT_A_FOLDER], ("RUN.toml/home", "Not a directory")
    ),
    "no room for blobs": Case("peer", lambda w: w.peer(home="blobless"), ("blobs", "cannot be")),
    "another run's checkpoint": Case("peer", lambda w: w.peer(home="reused"), ("another-run", "another --home")),
    # this machine
    "a taken port": Case("peer", lambda w: [*w.peer(home="p5"), "--listen", w.taken], ("cannot be used", "--listen")),
    "a taken port, serving": Case(
        "bootstrap", lambda w: [*w.serve(home="n4"), "--listen", w.taken], ("cannot be used", "--listen")
    ),
    "no CUDA device": Case("peer", lambda w: [*w.peer(home="p6"), "--device", "cuda"], ("--device cpu",)),
    # using a run
    "a home that is none": Case("swarm", lambda w: ["eval", "--home", w.folder], ("is not the home folder",)),
    "no home at all": Case(
        "swarm", lambda w: ["generate", "x", "--home", w.folder / "no"], ("is not the home folder",)
    ),
    "an empty prompt": Case("swarm", lambda w: ["generate", "", "--home", w.node], ("the prompt is empty",)),
    "a full folder": Case(
        "swarm",
        lambda w: ["export", "--home", w.node, "--path", "0", "--out", w.node],
        ("not an empty folder", "nothing is overwritten"),
    ),
    "no such path to export": Case(
        "swarm", lambda w: ["export", "--home", w.node, "--path", "4", "--out", w.folder / "out"], ("paths 0 to 3",)
    ),
    "no documents to score": Case(
        "swarm", lambda w: ["eval", "--home", w.node, "--data", "none/*.txt"], ("no file matches", "none/*.txt")
    ),
}
if torch.cuda.is_available():
    del CASES["no CUDA device"]


def nobody(world: World) -> str:
    """A peer name that nobody has."""
    return load_identity(world.folder / "nobody").peer


def place(world: World) -> str:
    return world.address.bootstraps[0].partition("/p2p/")[0]


# ------------------------------------------------------------------------------------------------------------ the world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    _write_texts(folder)
    _write_run_files(folder)
    commands = Commands(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        try:
            address = RunAddress.parse(commands.bootstrap(folder / "RUN.toml", cwd=folder))
            commands.until_reported("bootstrap", Serving)
            _write_homes(folder)
            port = taken.getsockname()[1]
            yield World(folder, address, f"/ip4/127.0.0.1/tcp/{port}", _foreign_path(folder))
        finally:
            commands.end()


def _write_texts(folder: Path) -> None:
    words = random.Random(0)
    for name in ("texts", "empty", "short/texts", "foreign/texts"):
        (folder / name).mkdir(parents=True)
    for i in range(60):
        letters = "aeioulmn" if i % 2 else "xyzkqwrt"
        text = " ".join("".join(words.choices(letters, k=4)) for _ in range(200))
        (folder / "texts" / f"{i}.txt").write_text(text)
    (folder / "short" / "texts" / "0.txt").write_text("too short")


def _write_run_files(folder: Path) -> None:
    good = write_run_file(folder / "RUN.toml", min_peers=1).read_text()
    good = good.replace('source = "python"\nmax_documents = 300', 'source = "text"\npath = "texts/*.txt"')
    warm = good
    good = good.replace('[[stages]]\nrouter = "single"\nrounds = 2\n', "")
    assert good != warm
    assert "[2, 2]" in good
    run_files = {
        "RUN": good,
        "warm": warm,
        "type": good.replace("hidden_size = 32", 'hidden_size = "wide"'),
        "key": good.replace("learning_rate", "learning_rat"),
        "gap": good.replace("modules = [2, 2]", "paths = [[0, 0], [2, 1]]").replace("product-k-means", "k-means"),
        "levels": good.replace("blocks = [1]", "blocks = []"),
        "other": good.replace("warmup_steps = 5", "warmup_steps = 6"),
    }
    for name, text in run_files.items():
        (folder / f"{name}.toml").write_text(text)


def _write_homes(folder: Path) -> None:
    """Homes that were used before, and are not fit for this."""
    modules = [ModuleId(0, 0), ModuleId(1, 0)]
    state = ModuleState.seed(torch.zeros(8))
    states, local = dict.fromkeys(modules, state), dict.fromkeys(modules, state.params)
    reused = Checkpoint(
        f"another-run:{'b' * 32}", 0, PathIndex(0), states, local, dict.fromkeys(modules, 0), InnerState(5), 5
    )
    checkpoint.save(folder / "reused" / "checkpoints" / "stage-0-path-0.safetensors", reused)
    (folder / "blobless").mkdir()
    (folder / "blobless" / "blobs").touch()
    (folder / "kept").mkdir()
    for name in ("operator.key", "manifest.json"):
        shutil.copy2(folder / "bootstrap" / name, folder / "kept" / name)  # a key stays secret


def _foreign_path(folder: Path) -> int:
    """Write a document of one piece, and name a path that it is not routed to."""
    data = read_run_file(folder / "RUN.toml").data
    texts = (" ".join(f"foreign {number} words" for _ in range(12)) for number in range(1000))
    text = next(text for text in texts if split_of(text, data) == "train")
    (folder / "foreign" / "texts" / "0.txt").write_text(text)
    with open_run(folder / "bootstrap") as run:
        routing = run.routing()
        ids = routing.tokenizer.encode(text).ids
        assert len(ids) > 32
        pieces = [ids[start : start + 64] for start in range(0, len(ids), 64)]
        homes = routing.paths(torch.tensor([piece[:32] for piece in pieces if len(piece) > 32]).numpy())
    return min(set(range(4)) - set(homes.tolist()))


# ------------------------------------------------------------------------------------------------------------ the tests


@pytest.fixture(scope="module")
def ended(world: World) -> Iterator[dict[str, Future[CompletedProcess[str]]]]:
    """What came of every case, as it comes; a case that takes longer than two minutes fails."""

    def play(case: Case) -> CompletedProcess[str]:
        place = world.folder / case.cwd
        return run(case.program, case.typed(world), cwd=place, timeout=120)

    with ThreadPoolExecutor(3) as pool:
        yield {name: pool.submit(play, case) for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_one_line(name: str, ended: dict[str, Future[CompletedProcess[str]]]) -> None:
    case, done = CASES[name], ended[name].result()
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    for words in case.says:
        assert words in done.stderr
    assert "Traceback" not in done.stdout
