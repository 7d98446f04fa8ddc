"""A codec, averaging rule, pacing, router and data source that only this file knows, each added by one call."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dipaco_swarm.algorithm.averaging.rule import Averaging, Counted, Member, PieceAverage, coefficients
from dipaco_swarm.algorithm.pacing.pacing import GroupView, Pacing
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable, grid
from dipaco_swarm.algorithm.routers.router import (
    Arrays,
    Floats,
    Indices,
    Router,
    RouterKind,
    Sample,
    kind_of,
    router_from_bytes,
    router_to_bytes,
)
from dipaco_swarm.algorithm.state import vector_bytes
from dipaco_swarm.errors import RunFileError
from dipaco_swarm.operator.home import OperatorHome, load_operator_key
from dipaco_swarm.run.config import DataConfig, RouterConfig
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.signature import fingerprint_of
from dipaco_swarm.simulate import simulate
from dipaco_swarm.strategies import (
    AVERAGING,
    CODECS,
    PACING,
    ROUTERS,
    SOURCES,
    AveragingChoice,
    CodecChoice,
    PacingChoice,
    RouterChoice,
    SourceChoice,
)
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup
from dipaco_swarm.swarm.round.codecs.codec import Buffer, Codec
from dipaco_swarm.swarm.round.reduction import piece_average
from dipaco_swarm.swarm.wire import RosterEntry
from dipaco_swarm.training.documents import Document, read_documents
from tests.hub import Hub, hear

# --------------------------------------------------------------------------------------------------------- the toys


class HalfPrecision(Codec):
    """2 bytes a parameter, IEEE half precision."""

    name = "toy-fp16"
    lengthens = 1 + 2**-10

    def most_bytes(self, count: int) -> int:
        return 2 * count

    def _encode(self, vector: Tensor) -> Sequence[memoryview]:
        return [vector_bytes(vector.to(torch.float16))]

    def _decode(self, data: Buffer, count: int) -> Tensor:
        return torch.frombuffer(data, dtype=torch.float16).to(torch.float32)


class WithoutTheLongest(Averaging):
    """The mean of all but the longest contribution: as whole vectors, whatever a piece of them is like."""

    name = "toy-trimmed"

    def prepare(self, members: Sequence[Member], round_tokens: float) -> PieceAverage:
        longest = max(range(len(members)), key=lambda i: members[i].norm)

        def average(contributions: Mapping[int, Tensor]) -> Counted:
            counted = sorted(set(contributions) - {longest}) or sorted(contributions)
            weights = coefficients(counted, members, round_tokens)
            mean = torch.stack([contributions[i] * w for i, w in zip(counted, weights, strict=True)]).sum(0)
            return Counted(mean, counted)

        return average


class ByFirstNumber(Router):
    """Documents in order of the first number of their feature, in equal parts."""

    def __init__(self, borders: Floats) -> None:
        self._borders = borders

    @property
    def num_paths(self) -> int:
        return len(self._borders) + 1

    def route_top(self, features: Floats, n: int) -> Indices:
        nearest = np.searchsorted(self._borders, features[:, 0])
        return (nearest[:, None] + np.arange(n)) % self.num_paths

    def arrays(self) -> Arrays:
        return {"borders": self._borders}


class Quantiles(RouterKind):
    name = "toy-quantiles"

    def fit(self, sample: Sample, table: PathTable, config: RouterConfig, seed: int) -> ByFirstNumber:
        shares = np.arange(1, table.num_paths) / table.num_paths
        return ByFirstNumber(np.quantile(sample.features[:, 0], shares).astype(np.float32))

    def load(self, arrays: Arrays) -> ByFirstNumber:
        return ByFirstNumber(arrays["borders"])


class Eager(Pacing):
    """Due as soon as anybody has something."""

    name = "toy-eager"
    ends_early = True

    def is_due(self, view: GroupView) -> bool:
        return view.gathering or view.tokens > 0

    def patience(self, training_seconds: float) -> float:
        return 5.0


def count_upwards(data: DataConfig, base: Path | None) -> Iterator[Document]:
    """Sums, some of them right."""
    for i in range(400):
        yield Document("".join(f"{n} and {i % 7} are {n + i % 7}. " for n in range(i, i + 40)), "sums")


TOYS = (
    (CODECS, CodecChoice("toy-fp16", HalfPrecision(), bytes_on_the_way=2.0)),
    (AVERAGING, AveragingChoice("toy-trimmed", WithoutTheLongest())),
    (PACING, PacingChoice("toy-eager", Eager())),
    (ROUTERS, RouterChoice("toy-quantiles", Quantiles())),
    (SOURCES, SourceChoice("toy-sums", count_upwards, needs_path=False)),
)


@pytest.fixture(autouse=True)
def toys() -> Iterator[None]:
    for choices, choice in TOYS:
        choices.register(choice)  # type: ignore[arg-type]  # a tuple of pairs forgets which belongs to which
    yield
    for choices, choice in TOYS:
        choices.remove(choice.name)


RUN_FILE = """
name = "toys"
min_peers = 2

[model]
hidden_size = 16
intermediate_size = 16
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 32

[[levels]]
blocks = [0]
embedding = true

[[levels]]
blocks = [1]
head = true

[tokenizer]
vocab_size = 300

[data]
source = "toy-sums"
sequence_length = 32
routing_sample = 0.2

[inner]
warmup_steps = 1
batch_sequences = 2

[outer]
averaging = "toy-trimmed"

[rounds]
pacing = "toy-eager"
inner_steps = 2

[wire]
codec = "toy-fp16"

[router]
prefix_tokens = 8

[[stages]]
router = "toy-quantiles"
modules = [1, 2]
rounds = 2
"""

# --------------------------------------------------------------------------------------------------------- the tests


def test_a_codec_is_agreed_with(hub: Hub) -> None:
    module = ModuleId(0, 0)
    group = ModuleGroup(0, module, {PathIndex(0): 0.5, PathIndex(1): 0.5})
    gradients = [torch.randn(200_000, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    swarms = [hub.swarm(name) for name in ("ada", "ben")]
    for path, swarm in enumerate(swarms):
        swarm.configure_rounds("toy-fp16", 4.0)
        swarm.announce([Announcement(swarm.peer, 0, module, PathIndex(path), 0, "0" * 64)], [group])
    hear(swarms, 0, [module])
    with ThreadPoolExecutor(2) as pool:
        parts = [Contribution(group, PathIndex(path), 0, gradients[path], 1, "0" * 64) for path in range(2)]
        calls = [pool.submit(s.all_reduce, [p], patience=20) for s, p in zip(swarms, parts, strict=True)]
    means = []
    for call in calls:
        outcome = call.result()[module]
        assert isinstance(outcome, Agreed), outcome
        means.append(outcome.mean)
    assert torch.equal(means[0], means[1])
    exact = (gradients[0] + gradients[1]) / 2
    assert 0 < float((means[0] - exact).abs().max()) < 4e-3  # half precision, and no other


def test_an_averaging_rule_knows_whole_contributions() -> None:
    group = ModuleGroup(0, ModuleId(0, 0), {PathIndex(i): 1 / 3 for i in range(3)}, "toy-trimmed")
    roster = [
        RosterEntry(peer=f"Qm{i}", path=i, tokens=1, norm=norm, scale=1.0, reduces=True, nonce=bytes(16))
        for i, norm in enumerate([1.0, 9.0, 2.0])
    ]
    average = piece_average(roster, (), group)
    # the longest as a whole is left out of this piece, where it is the shortest
    piece = {0: torch.tensor([1.0]), 1: torch.tensor([0.1]), 2: torch.tensor([2.0])}
    assert torch.equal(average(piece).average, torch.tensor([1.5]))
    assert torch.equal(average({1: torch.tensor([3.0])}).average, torch.tensor([3.0]))


def test_a_router_is_published_and_read_again() -> None:
    kind, features = kind_of("toy-quantiles"), np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
    router = kind.fit(Sample(features), grid([3]), RouterConfig(), seed=0)
    again = router_from_bytes(router_to_bytes(kind, router), num_paths=3)
    assert isinstance(again, ByFirstNumber)
    assert (again.route(features) == router.route(features)).all()
    assert np.bincount(again.route(features)).tolist() == [30, 30, 30]


def test_a_source_is_read() -> None:
    documents = list(read_documents(DataConfig(source="toy-sums", max_documents=5)))
    assert len(documents) == 5
    assert documents[0].domain == "sums"


def test_a_run_file_knows_them_all_and_lists_them_where_a_name_is_wrong() -> None:
    config = parse_run_file(RUN_FILE)
    assert (config.wire.codec, config.outer.averaging) == ("toy-fp16", "toy-trimmed")
    assert (config.stages[0].router, config.data.source) == ("toy-quantiles", "toy-sums")
    for good, key in (
        ("toy-fp16", "wire.codec"),
        ("toy-trimmed", "outer.averaging"),
        ("toy-eager", "rounds.pacing"),
        ("toy-quantiles", r"stages\[0\].router"),
        ("toy-sums", "data.source"),
    ):
        with pytest.raises(RunFileError, match=rf"{key}: input should be .* or '{good}' \(got 'toy-nothing'\)"):
            parse_run_file(RUN_FILE.replace(good, "toy-nothing"))


def test_a_whole_run_is_made_with_them(tmp_path: Path) -> None:
    config = parse_run_file(RUN_FILE)
    states = simulate(config, tmp_path, {"ada": 0, "ben": 1})
    assert {str(module): state.version for module, state in states.items()} == {"L0M0": 2, "L1M0": 2, "L1M1": 2}
    home = tmp_path / "bootstrap"
    manifest = OperatorHome(home).manifest(fingerprint_of(load_operator_key(home).public_key()))
    assert manifest is not None
    assert manifest.stage.router is not None
    blob = (home / "blobs" / manifest.stage.router).read_bytes()
    assert isinstance(router_from_bytes(blob, 2), ByFirstNumber)


def test_every_line_has_its_code() -> None:
    for choices in (CODECS, AVERAGING, PACING, ROUTERS, SOURCES):
        for name in choices:
            code = choices.load(name)
            assert getattr(code, "name", name) == name
            assert code is not None or name == "single"


def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match=r"there is a wire\.codec 'int8' already"):
        CODECS.register(CodecChoice("int8", HalfPrecision()))
