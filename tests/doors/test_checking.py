"""`dipaco-bootstrap check`: every key of a run file has a bad value here, and each is found, in a second."""

import json
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from dipaco_swarm.cli.bootstrap import app
from dipaco_swarm.run.checking import problems_in, problems_of, sections_in
from dipaco_swarm.run.config import RunConfig
from tests.training.checkpoints import save_checkpoint

GOOD: dict[str, Any] = {
    "name": "small",
    "model": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    "levels": [{"blocks": [0], "embedding": True}, {"blocks": [1], "head": True}],
    "data": {"source": "python"},
    "early_stopping": {},
    "rerouting": {},
    "stages": [
        {"router": "single", "rounds": 3, "plateau": {"rounds": 2}},
        {"router": "k-means", "modules": [2, 2], "rounds": 4},
    ],
}


@dataclass(frozen=True)
class Bad:
    """A value that a key cannot have."""

    value: Any
    says: str
    """Part of what is said."""
    key: str | None = None
    """The key that is named; None: the one with the value."""


BAD: dict[str, Bad] = {
    "name": Bad("My Run", "My Run"),
    "min_peers": Bad(0, "greater than or equal to 1"),
    "seed": Bad(-1, "greater than or equal to 0"),
    "about": Bad("a model", "this is a section"),
    "about.description": Bad(7, "valid string"),
    "about.license": Bad("Apache 2.0", "pattern"),
    "about.languages": Bad("en", "array"),
    "about.datasets": Bad([""], "at least 1 character", "about.datasets[0]"),
    "model": Bad("llama", "this is a section"),
    "model.from": Bad("./nowhere", "num_attention_heads, num_hidden_layers: the checkpoint says it", "model"),
    "model.revision": Bad("main", "for models that start `from` a checkpoint", "model"),
    "model.vocab_size": Bad(300, "for models that start `from` a checkpoint", "model"),
    "model.model_type": Bad("lama", '"lama" is not known'),
    "model.hidden_size": Bad(0, "greater than 0"),
    "model.intermediate_size": Bad("32", "valid integer"),
    "model.num_hidden_layers": Bad(-2, "greater than 0"),
    "model.num_attention_heads": Bad(3, "not a multiple", "model"),
    "model.num_key_value_heads": Bad(0, "greater than 0"),
    "model.max_position_embeddings": Bad(8, "longer than model.max_position_embeddings=8", "as a whole"),
    "model.tie_word_embeddings": Bad(True, "one level must have embedding", "as a whole"),
    "model.extra": Bad("head_dim", "object"),
    "levels": Bad([], "at least 1"),
    "levels.blocks": Bad([0, 0], "twice: [0]", "as a whole"),
    "levels.embedding": Bad("yes", "valid boolean", "levels[0].embedding"),
    "levels.head": Bad(True, "now 2 have", "as a whole"),
    "tokenizer": Bad(3, "this is a section"),
    "tokenizer.path": Bad("nowhere", "no tokenizer.json at nowhere"),
    "tokenizer.vocab_size": Bad(100, "greater than or equal to 300"),
    "data": Bad([], "this is a section"),
    "data.source": Bad("csv", "'python', 'text'"),
    "data.path": Bad(7, "valid string"),
    "data.config": Bad(7, "valid string"),
    "data.split": Bad(["train"], "valid string"),
    "data.column": Bad(1, "valid string"),
    "data.max_documents": Bad(0, "greater than 0"),
    "data.revision": Bad("main", 'source="python" has none', "data"),
    "data.template": Bad("{title}", "have no fields", "data"),
    "data.domain": Bad("", "at least 1 character"),
    "data.sources": Bad([{"source": "python", "weight": 1.0}], 'source="python" and [[data.sources]]', "data"),
    "data.sources.source": Bad("mixture", "a part of a mixture is one source", "data.sources[0]"),
    "data.sources.path": Bad(7, "valid string", "data.sources[0].path"),
    "data.sources.config": Bad(7, "valid string", "data.sources[0].config"),
    "data.sources.revision": Bad(7, "valid string", "data.sources[0].revision"),
    "data.sources.split": Bad(7, "valid string", "data.sources[0].split"),
    "data.sources.column": Bad(7, "valid string", "data.sources[0].column"),
    "data.sources.template": Bad("{title}", "have no fields", "data.sources[0]"),
    "data.sources.domain": Bad("", "at least 1 character", "data.sources[0].domain"),
    "data.sources.max_documents": Bad(0, "greater than 0", "data.sources[0].max_documents"),
    "data.sources.weight": Bad(0.0, "greater than 0", "data.sources[0].weight"),
    "data.sources.epochs": Bad(0, "greater than or equal to 1", "data.sources[0].epochs"),
    "data.prepared": Bad("", "at least 1 character"),
    "data.reading": Bad("later", "'auto', 'whole' or 'beside'"),
    "data.shares": Bad("documents", "'routes', 'tokens' or 'nothing'"),
    "data.sequence_length": Bad(8, "greater than or equal to 16"),
    "data.holdout": Bad(0.5, "less than 0.5"),
    "data.routing_sample": Bad(0.0, "greater than 0"),
    "inner": Bad(1, "this is a section"),
    "inner.learning_rate": Bad(0.0, "greater than 0"),
    "inner.embedding_learning_rate_ratio": Bad(-1.0, "greater than 0"),
    "inner.head_learning_rate_ratio": Bad(0.0, "greater than 0"),
    "inner.beta1": Bad(1.0, "less than 1"),
    "inner.beta2": Bad(1.5, "less than 1"),
    "inner.weight_decay": Bad(-0.1, "greater than or equal to 0"),
    "inner.gradient_clip": Bad(0.0, "greater than 0"),
    "inner.warmup_steps": Bad(-1, "greater than or equal to 0"),
    "inner.schedule_steps": Bad(0, "greater than 0"),
    "inner.final_learning_rate_ratio": Bad(2.0, "less than or equal to 1"),
    "inner.batch_sequences": Bad(1.5, "valid integer"),
    "outer": Bad(1, "this is a section"),
    "outer.learning_rate": Bad(0.0, "greater than 0"),
    "outer.momentum": Bad(1.0, "less than 1"),
    "outer.rescale": Bad("no", "valid boolean"),
    "outer.averaging": Bad("radial", "set rescale = false", "outer"),
    "outer.ramp_rounds": Bad(-1, "greater than or equal to 0"),
    "rounds": Bad(150, "this is a section"),
    "rounds.pacing": Bad("fast", "'synchronous' or 'paced'"),
    "rounds.inner_steps": Bad(0, "greater than 0"),
    "rounds.overlap": Bad("yes", "valid boolean"),
    "rounds.overlap_steps": Bad(5, 'needs pacing="synchronous"', "rounds"),
    "wire": Bad("int8", "this is a section"),
    "wire.codec": Bad("fp8", "'int4' or 'e3m0'"),
    "limits": Bad(4, "this is a section"),
    "limits.norm_clip": Bad(0.5, "greater than"),
    "limits.max_members": Bad(0, "greater than 0"),
    "admission": Bad("open", "this is a section"),
    "admission.kind": Bad("closed", "'open' or 'invited'"),
    "router": Bad("k-means", "this is a section"),
    "anchors": Bad(3, "this is a section"),
    "anchors.every": Bad(0, "greater than 0"),
    "anchors.keep": Bad(17, "less than or equal to 16"),
    "router.prefix_tokens": Bad(0, "greater than or equal to 1"),
    "router.max_documents": Bad(1, "greater than 1"),
    "router.components": Bad(0, "greater than or equal to 1"),
    "router.min_share": Bad(1.0, "less than 1"),
    "early_stopping": Bad(True, "this is a section"),
    "early_stopping.share": Bad(0.0, "greater than 0"),
    "early_stopping.max_sequences": Bad(0, "greater than 0"),
    "early_stopping.every": Bad(0, "greater than 0"),
    "rerouting": Bad(True, "this is a section"),
    "rerouting.window": Bad(0, "greater than or equal to 1"),
    "rerouting.steps": Bad(0, "greater than or equal to 1"),
    "rerouting.learning_rate": Bad(0.0, "greater than 0"),
    "rerouting.batch_sequences": Bad(0, "greater than or equal to 1"),
    "rerouting.max_documents": Bad(0, "greater than or equal to 1"),
    "stages": Bad([], "at least 1"),
    "stages.router": Bad("singel", "'single', 'k-means'", "stages[0].router"),
    "stages.modules": Bad([2, 2], "leave out modules and paths", "stages[0]"),
    "stages.paths": Bad([[0, 0]], "leave out modules and paths", "stages[0]"),
    "stages.parents": Bad({"L0M9": "M0"}, "match pattern", "stages[0].parents.L0M9"),
    "stages.plateau": Bad(3, "this is a section", "stages[0].plateau"),
    "stages.plateau.rounds": Bad(0, "greater than 0", "stages[0].plateau.rounds"),
    "stages.plateau.gain": Bad(-1.0, "greater than or equal to 0", "stages[0].plateau.gain"),
    "stages.overlap": Bad(2, "has 1 path", "as a whole"),
    "stages.rounds": Bad(0, "greater than 0", "stages[0].rounds"),
    "stages.tokens": Bad(5, "give one of them", "stages[0]"),
    "stages.from_here": Bad({"inner": {"learning_rate": 0.0}}, "from_here: learning_rate", "as a whole"),
}  # fmt: skip


def keys_of(model: type[BaseModel], before: str = "") -> Iterator[str]:
    """Every key of the run file, written `stages.rounds`."""
    for name, field in model.model_fields.items():
        name = field.alias or name
        yield before + name
        for section in sections_in(field.annotation):
            yield from keys_of(section, f"{before}{name}.")


KEYS = list(keys_of(RunConfig))


def with_value(key: str, value: Any) -> dict[str, Any]:
    """A good run file, but for one key; in a list, of its first element."""
    document: Any = deepcopy(GOOD)
    if key.startswith("data.sources."):
        document["data"] = {"sources": [{"source": "python", "weight": 1.0}]}
    section = document
    *sections, name = key.split(".")
    for part in sections:
        section = section.setdefault(part, {})
        section = section[0] if isinstance(section, list) else section
    section[name] = value
    assert isinstance(document, dict)
    return document


def test_the_good_one_is_good() -> None:
    config, problems = problems_of(deepcopy(GOOD))
    assert config is not None
    assert not problems


def test_every_key_of_the_run_file_has_a_bad_value_here() -> None:
    assert sorted(BAD) == sorted(KEYS), "a new key needs a line in BAD, with a value that `check` refuses"


@pytest.mark.parametrize("key", KEYS)
def test_a_bad_value_is_found_with_its_key_within_a_second(key: str) -> None:
    bad = BAD[key]
    document = with_value(key, bad.value)
    started = time.process_time()
    _, problems = problems_of(document)
    assert time.process_time() - started < 1
    assert [problem.key for problem in problems] == [bad.key or key]
    assert bad.says in problems[0].what


def test_all_mistakes_are_found_at_once() -> None:
    document = with_value("model.hidden_size", 0)
    document["inner"] = {"learning_rat": 1.0, "beta1": 2.0}
    document["wire"] = {"codec": "fp8"}
    document["stages"][1]["modules"] = [2, "all"]
    document["min_pers"] = 3
    _, problems = problems_of(document)
    assert {problem.key for problem in problems} == {
        "model.hidden_size", "inner.learning_rat", "inner.beta1", "wire.codec", "stages[1].modules[1]", "min_pers",
    }  # fmt: skip
    said = {problem.key: problem.what for problem in problems}
    assert "did you mean learning_rate?" in said["inner.learning_rat"]
    assert "did you mean min_peers?" in said["min_pers"]


def test_mistakes_of_several_sections_together_are_found_behind_those_of_one() -> None:
    document = with_value("inner.beta1", 2.0)
    document["levels"][0]["blocks"] = [0, 1]
    _, problems = problems_of(document)
    assert [problem.key for problem in problems] == ["inner.beta1", "as a whole"]
    assert "twice: [1]" in problems[1].what


def test_files_that_are_not_there_are_found(tmp_path: Path) -> None:
    document = with_value("data.source", "text")
    document["data"]["path"] = str(tmp_path / "*.txt")
    _, problems = problems_of(deepcopy(document))
    assert [problem.key for problem in problems] == ["data.path"]
    (tmp_path / "a.txt").write_text("here")
    assert not problems_of(document)[1]


def test_a_checkpoint_that_is_not_there_is_found(tmp_path: Path) -> None:
    document = with_value("model", {"from": str(tmp_path / "nowhere")})
    _, problems = problems_of(deepcopy(document))
    assert [problem.key for problem in problems] == ["model.from"]
    assert "there is no folder" in problems[0].what
    (tmp_path / "nowhere").mkdir()
    assert not problems_of(document)[1]


TEXT = """
name = "small"
[model]
hidden_size = 16
intermediate_size = 32
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
vocab_size = 300
[data]
source = "text"
path = "PLACE/*.txt"
sequence_length = 64
[inner]
batch_sequences = 4
[rounds]
inner_steps = 10
[[stages]]
router = "single"
rounds = 3
[[stages]]
router = "k-means"
modules = [2, 2]
rounds = 4
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    for number in range(40):
        words = ("red green blue " if number % 2 else "one two three four ") * 60
        (tmp_path / f"{number}.txt").write_text(f"{number} {words}")
    file = tmp_path / "run.toml"
    file.write_text(TEXT.replace("PLACE", tmp_path.as_posix()))
    return file


def test_a_good_run_file_is_reported_for_programs(run_file: Path) -> None:
    arguments = ["check", str(run_file), "--json", "--peers", "8", "--uplink", "20", "--tokens-per-second", "100"]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.output)
    assert found["ok"] is True
    assert found["sizes"]["path"] == sum(found["sizes"]["levels"])
    assert found["sizes"]["stages"][1]["parameters"] == 2 * found["sizes"]["path"]
    # 10 steps of 4 x 64 tokens at 100 tokens a second: 25.6 s for one peer, 3.2 s for eight
    assert found["rounds"][0]["training"] == pytest.approx(3.2)
    assert found["rounds"][1]["training"] == pytest.approx(12.8)
    assert found["rounds"][0]["members"] == 8
    assert found["rounds"][1]["members"] == 4
    sent = 2 * 7 / 8 * 0.83 * found["sizes"]["path"]
    assert found["rounds"][0]["sends"] == round(sent)
    assert found["rounds"][0]["exchange"] == pytest.approx(sent * 8 / (20e6 * 0.85))
    assert found["documents"]["documents"] == 40
    assert found["documents"]["routed"][0]["smallest"] > 0


def test_a_good_run_file_is_reported_for_people(run_file: Path) -> None:
    ended = CliRunner().invoke(app, ["check", str(run_file)])
    assert ended.exit_code == 0, ended.output
    assert "nothing wrong found" in ended.output
    assert "k-means: 4 paths, 4 modules" in " ".join(ended.output.split())


def test_a_run_from_a_checkpoint_is_reported_with_its_sizes(run_file: Path, tmp_path: Path) -> None:
    network = save_checkpoint(tmp_path / "model")
    text = run_file.read_text().replace("[tokenizer]\nvocab_size = 300\n", "").replace("[0]", "[0, 1]")
    described = text[text.index("hidden_size") : text.index("[[levels]]")]
    text = text.replace(described, f'from = "{tmp_path / "model"}"\n').replace("blocks = [1]", "blocks = [2, 3]")
    run_file.write_text(text)
    ended = CliRunner().invoke(app, ["check", str(run_file), "--json"])
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.output)
    assert found["sizes"]["path"] == sum(parameter.numel() for parameter in network.parameters())
    assert not [note for note in found["notes"] if "learning_rate_ratio" in note]
    run_file.write_text(text.replace("[inner]\n", "[inner]\nembedding_learning_rate_ratio = 30.0\n"))
    ended = CliRunner().invoke(app, ["check", str(run_file), "--json"])
    (note,) = [note for note in json.loads(ended.output)["notes"] if "learning_rate_ratio" in note]
    assert "embedding_learning_rate_ratio = 30: for small models" in note
    run_file.write_text(text.replace("blocks = [2, 3]", "blocks = [2]"))
    ended = CliRunner().invoke(app, ["check", str(run_file), "--json"])
    assert ended.exit_code == 2
    assert "no level has [3]" in json.loads(ended.output)["problems"][0]["what"]


def test_documents_that_are_of_no_use_are_a_mistake(run_file: Path) -> None:
    for number in range(40):
        (run_file.parent / f"{number}.txt").write_text("short")
    ended = CliRunner().invoke(app, ["check", str(run_file), "--json"])
    assert ended.exit_code == 2
    assert json.loads(ended.output)["problems"][0]["key"] == "data"


def test_what_is_wrong_is_one_line_a_key(run_file: Path) -> None:
    run_file.write_text(
        run_file.read_text().replace("inner_steps = 10", "inner_steps = 0").replace("rounds = 3", "round = 3")
    )
    ended = CliRunner().invoke(app, ["check", str(run_file)])
    assert ended.exit_code == 2
    assert "rounds.inner_steps: input should be greater than 0 (got 0)" in ended.output
    assert (
        "stages[0].round: this key is not known; check its spelling and section; did you mean rounds?" in ended.output
    )
    assert "2 mistakes" in ended.output


def test_text_that_is_no_toml_is_refused() -> None:
    from dipaco_swarm.errors import RunFileError

    with pytest.raises(RunFileError, match="not valid TOML"):
        problems_in("name small")
