"""`[[data.sources]]` in run files: what may be said, what changes with a stage, which commits are read."""

import json
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi

from dipaco_swarm.errors import RunFileError
from dipaco_swarm.operator.check.pace import Crowd
from dipaco_swarm.operator.check.report import examine
from dipaco_swarm.peer.reading import is_read_beside
from dipaco_swarm.run.checking import problems_of
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.growth import changes_between, refused
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.pinning import pinned

RUN = """
name = "mixed"
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
sequence_length = 32
DATA
[router]
prefix_tokens = 8
[[stages]]
router = "single"
rounds = 3
"""
HUB = """
[[data.sources]]
source = "huggingface"
path = "allenai/c4"
config = "en"
weight = 0.7
[[data.sources]]
source = "python"
weight = 0.3
"""
ONE = 'source = "huggingface"\npath = "allenai/c4"\nconfig = "en"'
LATER = """
[[stages]]
router = "single"
rounds = 3
[[stages.from_here.data.sources]]
source = "huggingface"
path = "other/set"
weight = 0.9
[[stages.from_here.data.sources]]
source = "python"
weight = 0.1
"""
COMMIT = {"allenai/c4": "a" * 40, "other/set": "b" * 40}


def run_of(data: str, more: str = "") -> RunConfig:
    return parse_run_file(RUN.replace("DATA", data) + more)


def test_what_was_said_of_one_source_is_said_as_before() -> None:
    before = {"source", "path", "config", "split", "column", "max_documents"}
    common = {"reading", "sequence_length", "holdout", "routing_sample"}
    assert set(run_of(ONE).data.model_dump(mode="json")) == before | common
    said = run_of(ONE + '\nshares = "tokens"').data.model_dump(mode="json")
    assert set(said) == before | common | {"shares"}
    again = RunConfig.model_validate_json(run_of(HUB).model_dump_json())
    assert again == run_of(HUB)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("", "source is required: python, text"),
        (HUB.replace("weight = 0.3", ""), "each of several"),
        (f'path = "a"\n{HUB}', r"path: each of the \[\[data.sources\]\] has its own"),
        (HUB.replace("weight = 0.7", 'weight = 0.7\nholdout = 0.1'), r"sources\[0\].holdout: this key is not known"),
        (HUB.replace('path = "allenai/c4"', ""), r'data.sources\[0\]: source="huggingface" needs path'),
        ('source = "python"\nweight = 1.0', "data.weight: this key is not known"),
        ('source = "python"\ntemplate = "{a}"', "have no fields"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(data: str, says: str) -> None:
    with pytest.raises(RunFileError, match=says):
        run_of(data)


def test_all_mistakes_of_sources_are_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    document = json.loads(run_of(ONE).model_dump_json())
    document["data"] = {
        "sequence_length": 32,
        "sources": [
            {"source": "text", "path": str(tmp_path / "a.txt"), "weight": 0.0},
            {"source": "text", "path": str(tmp_path / "*.md"), "weight": 1.0, "colum": "a"},
            {"source": "jsonl", "path": str(tmp_path / "*.jsonl"), "weight": 1.0},
        ],
    }
    _, problems = problems_of(deepcopy(document))
    assert [problem.key for problem in problems] == ["data.sources[0].weight", "data.sources[1].colum"]
    document["data"]["sources"][0]["weight"] = 1.0
    del document["data"]["sources"][1]["colum"]
    _, problems = problems_of(document)
    assert [problem.key for problem in problems] == ["data.sources[1].path", "data.sources[2].path"]


def test_a_stage_may_have_other_sources() -> None:
    mixed = run_of(HUB, LATER)
    assert [part.path for part in mixed.at(0).data.parts] == ["allenai/c4", None]
    assert [part.path for part in mixed.at(1).data.parts] == ["other/set", None]
    assert mixed.at(1).data.sequence_length == 32
    assert [part.path for part in run_of(ONE, LATER).at(1).data.parts] == ["other/set", None]
    single = '\n[[stages]]\nrouter = "single"\nrounds = 3\n[stages.from_here.data]\nsource = "python"\n'
    assert run_of(HUB, single).at(1).data.source == "python"
    assert run_of(HUB, single).at(1).data.sources == ()
    with pytest.raises(RunFileError, match=r"from_here: .*weight"):
        run_of(HUB, LATER.replace("weight = 0.9", ""))


def test_another_path_does_not_keep_the_revision_of_the_one_before() -> None:
    later = '\n[[stages]]\nrouter = "single"\nrounds = 3\n[stages.from_here.data]\npath = "other/set"\n'
    config = run_of(f'{ONE}\nrevision = "main"', later)
    assert (config.at(0).data.revision, config.at(1).data.revision) == ("main", None)


def test_the_sources_of_a_stage_that_has_begun_stay() -> None:
    before, after = run_of(HUB), run_of(HUB.replace("0.7", "0.6"))
    assert [change.key for change in changes_between(before, after)] == ["data.sources"]
    (problem,) = refused(before, after, 0)
    assert "[stages.from_here.data]" in problem.what
    assert not refused(before, run_of(HUB, LATER), 0)


# ------------------------------------------------------------------------------------------------------------ commits


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub that knows COMMIT; what it was asked."""
    names: list[str] = []

    def dataset_info(self: HfApi, repo_id: str, **settings: Any) -> SimpleNamespace:
        names.append(repo_id)
        return SimpleNamespace(sha=COMMIT[repo_id])

    monkeypatch.setattr(HfApi, "dataset_info", dataset_info)
    return names


def test_the_manifest_has_the_commits_that_were_read(asked: list[str]) -> None:
    config = run_of(HUB, LATER)
    read = pinned(config)
    assert [part.revision for part in read.at(0).data.parts] == ["a" * 40, None]
    assert [part.revision for part in read.at(1).data.parts] == ["b" * 40, None]
    assert sorted(asked) == ["allenai/c4", "other/set"]
    asked.clear()
    assert pinned(config, read) == read, "a restarted node goes on with what it has published"
    assert not changes_between(read, pinned(config, read))
    assert not asked
    assert pinned(run_of(ONE)).data.revision == "a" * 40
    named = run_of(f'{ONE}\nrevision = "{"c" * 40}"')
    assert pinned(named) == named
    began_without = run_of(ONE)
    assert pinned(run_of(ONE), began_without) == began_without


def test_a_branch_that_moved_is_another_text(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_of(f'{ONE}\nrevision = "main"')
    read = pinned(config)
    monkeypatch.setitem(COMMIT, "allenai/c4", "d" * 40)
    assert [change.key for change in changes_between(read, pinned(config, read))] == ["data.revision"]


def test_a_hub_that_does_not_answer_pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = run_of(HUB, LATER)
    assert pinned(config) == config
    published = pinned(run_of(f'{ONE}\nrevision = "{"a" * 40}"'))
    assert pinned(run_of(f'{ONE}\nrevision = "main"'), published) == published, "it was read as that when it answered"


# -------------------------------------------------------------------------------------------------- looked at, and read


def files(folder: Path) -> str:
    """Two sources, of which one is small; the second lacks what its template names."""
    (folder / "a.txt").write_text("".join(f"line {i} of a text that is long enough\n" for i in range(4000)))
    rows = ({"title": f"Title {i}", "body": "words of a body " * 8} for i in range(20))
    (folder / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"""
[[data.sources]]
source = "text"
path = "{folder}/a.txt"
weight = 1
[[data.sources]]
source = "jsonl"
path = "{folder}/b.jsonl"
template = "{{title}} {{body}}"
weight = 1
"""


def test_check_looks_at_each_source_and_says_what_weights_come_to(tmp_path: Path) -> None:
    config = run_of(files(tmp_path))
    report = examine(config, Crowd(4, 20.0, None), 40)
    assert report.ok, report.problems
    assert report.documents is not None
    text, rows = report.documents.sources
    assert (text.documents, rows.documents) == (5, 20)
    assert (text.wanted, text.epochs, rows.epochs) == (0.5, 1.0, 4.0)
    assert rows.reached == pytest.approx(0.09, abs=0.03)
    (note,) = [note for note in report.notes if "data.sources[1]" in note]
    assert "is read 4 times and then left out" in note

    broken = files(tmp_path).replace("{title}", "{headline}")
    report = examine(run_of(broken), Crowd(4, 20.0, None), 40)
    assert [problem.key for problem in report.problems] == ["data.sources[1]"]
    assert 'no field "headline"' in report.problems[0].what


def test_what_is_large_or_far_away_is_read_beside_training(tmp_path: Path) -> None:
    here = files(tmp_path)
    assert not is_read_beside(run_of(here))
    assert is_read_beside(run_of(HUB))
    with open(tmp_path / "a.txt", "a") as large:
        large.truncate(65 << 20)
    assert is_read_beside(run_of(here))
    assert not is_read_beside(run_of(here.replace("weight", "max_documents = 5\nweight", 1)), Reach(tmp_path))


def test_what_takes_long_to_route_is_read_beside_training(tmp_path: Path) -> None:
    """60 MB at 150 million parameters were an hour of features before the first step."""
    here = run_of(files(tmp_path))
    with open(tmp_path / "a.txt", "a") as middling:
        middling.truncate(60 << 20)
    assert not is_read_beside(here)  # in a stage with one path
    assert not is_read_beside(here, routed_with=50_000)
    assert is_read_beside(here, routed_with=150_000_000)
