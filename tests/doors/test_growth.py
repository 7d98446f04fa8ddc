"""What may change in a run that has begun: every key of the run file has a verdict, with a reason where it is no."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dipaco_swarm.cli.bootstrap import app
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.growth import changes_between, refused
from dipaco_swarm.run.lengths import RoundLengths
from tests.doors.test_checking import GOOD, KEYS

ANOTHER: dict[str, Any] = {
    "name": "other",
    "min_peers": 3,
    "seed": 7,
    "model.model_type": "mistral",
    "model.hidden_size": 32,
    "model.intermediate_size": 64,
    "model.num_attention_heads": 4,
    "model.num_key_value_heads": 1,
    "model.max_position_embeddings": 512,
    "model.extra": {"rope_theta": 5000.0},
    "tokenizer.path": "tokenizer",
    "tokenizer.vocab_size": 400,
    "data.path": "other",
    "data.config": "en",
    "data.split": "test",
    "data.column": "body",
    "data.domain": "texts",
    "data.prepared": "prepared",
    "data.max_documents": 10,
    "data.reading": "whole",
    "data.shares": "tokens",
    "data.sequence_length": 128,
    "data.holdout": 0.1,
    "data.routing_sample": 0.1,
    "inner.learning_rate": 1e-3,
    "inner.embedding_learning_rate_ratio": 2.0,
    "inner.head_learning_rate_ratio": 2.0,
    "inner.beta1": 0.8,
    "inner.beta2": 0.8,
    "inner.weight_decay": 0.0,
    "inner.gradient_clip": 2.0,
    "inner.warmup_steps": 3,
    "inner.schedule_steps": 9,
    "inner.final_learning_rate_ratio": 0.5,
    "inner.batch_sequences": 4,
    "outer.learning_rate": 0.5,
    "outer.momentum": 0.5,
    "outer.rescale": False,
    "outer.ramp_rounds": 4,
    "rounds.pacing": "synchronous",
    "rounds.inner_steps": 40,
    "rounds.overlap": False,
    "wire.codec": "int4",
    "limits.norm_clip": 8.0,
    "limits.max_members": 9,
    "anchors.every": 5,
    "anchors.keep": 0,
    "admission.kind": "invited",
    "router.prefix_tokens": 16,
    "router.max_documents": 90,
    "router.components": 8,
    "router.min_share": 0.5,
    "early_stopping.share": 0.1,
    "early_stopping.max_sequences": 9,
    "early_stopping.every": 9,
    "rerouting.window": 9,
    "rerouting.steps": 9,
    "rerouting.learning_rate": 1e-3,
    "rerouting.batch_sequences": 9,
    "rerouting.max_documents": 9,
    "about.description": "A run.",
    "about.license": "apache-2.0",
    "about.languages": ["de"],
    "about.datasets": ["other"],
    "stages.overlap": 2,
    "stages.plateau": {"rounds": 3},
    "stages.parents": {"L0M1": "L0M0"},
    "stages.rounds": 9,
    "stages.from_here": {"inner": {"learning_rate": 1e-4}},
}  # fmt: skip
"""Another good value of every key that can be changed alone."""
TOGETHER = {
    "about", "stages.plateau.rounds", "stages.plateau.gain", "model.from", "model.revision", "model.vocab_size",
    "model", "model.num_hidden_layers", "model.tie_word_embeddings", "levels", "levels.blocks", "levels.embedding",
    "levels.head", "tokenizer", "data", "data.source", "inner", "outer", "outer.averaging", "rounds",
    "rounds.overlap_steps", "wire", "limits", "anchors", "admission", "router", "early_stopping", "rerouting", "stages",
    "stages.router", "stages.modules", "stages.paths", "stages.tokens", "data.revision", "data.template",
    *(key for key in KEYS if key.startswith("data.sources")),
}  # fmt: skip
"""Keys that have sense only with others."""
MAY = {
    "about.description", "about.license", "about.languages", "about.datasets",
    "min_peers", "data.prepared", "limits.max_members", "anchors.every",
    "anchors.keep", "admission.kind", "router.max_documents", "router.components",
    "router.min_share", "rerouting.window", "rerouting.steps", "rerouting.learning_rate",
    "rerouting.batch_sequences", "rerouting.max_documents", "rounds.inner_steps", "stages.rounds", "stages.plateau",
}  # fmt: skip
"""In the stage that runs."""


def config(document: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate_json(json.dumps(document))


def with_value(key: str, value: Any) -> RunConfig:
    """A good run file with another value of one key; of the last stage, in [[stages]]."""
    document = deepcopy(GOOD)
    section: Any = document
    *sections, name = key.split(".")
    for part in sections:
        section = section.setdefault(part, {})
        section = section[-1] if isinstance(section, list) else section
    section[name] = value
    return config(document)


def test_every_key_has_a_verdict_here() -> None:
    assert sorted({*ANOTHER, *TOGETHER}) == sorted(KEYS), "a new key needs a line in ANOTHER, and perhaps in MAY"
    assert set(ANOTHER) >= MAY


@pytest.mark.parametrize("key", ANOTHER)
def test_a_key_may_change_or_is_refused_with_the_reason(key: str) -> None:
    before, after = config(deepcopy(GOOD)), with_value(key, ANOTHER[key])
    assert len(changes_between(before, after)) == 1
    said = refused(before, after, stage=1)
    if key in MAY:
        assert not said
        return
    (problem,) = said
    assert problem.key.startswith(key.replace("stages", "stages[1]"))
    assert " cannot become " in problem.what
    assert len(problem.what.partition(": ")[2]) > 20


@pytest.mark.parametrize("key", [key for key in ANOTHER if key.startswith("stages.")])
def test_a_stage_that_has_not_begun_may_be_another(key: str) -> None:
    assert not refused(config(deepcopy(GOOD)), with_value(key, ANOTHER[key]), stage=0)


def test_a_stage_that_is_over_stays_and_one_that_runs_cannot_be_taken_away() -> None:
    good = config(deepcopy(GOOD))
    shorter = good.model_copy(update={"stages": (good.stages[0].model_copy(update={"rounds": 2}), good.stages[1])})
    (problem,) = refused(good, shorter, stage=1)
    assert problem.key == "stages[0].rounds"
    assert "stage 0 is over" in problem.what
    (problem,) = refused(good, good.model_copy(update={"stages": good.stages[:1]}), stage=1)
    assert "stage 1 has begun" in problem.what


def test_rounds_of_everybody_together_keep_their_length() -> None:
    document = deepcopy(GOOD)
    document["rounds"] = {"pacing": "synchronous"}
    before = config(document)
    document["rounds"]["inner_steps"] = 40
    (problem,) = refused(before, config(document), stage=1)
    assert problem.key == "rounds.inner_steps"


def test_changes_are_said_in_few_words() -> None:
    before = config(deepcopy(GOOD))
    document = deepcopy(GOOD)
    document["stages"][1]["rounds"] = 14
    document["min_peers"] = 2
    assert [str(change) for change in changes_between(before, config(document))] == [
        "min_peers 1 -> 2",
        "stages[1].rounds 4 -> 14",
    ]


def test_a_stage_is_said_by_what_it_has() -> None:
    before = config(deepcopy(GOOD))
    document = deepcopy(GOOD)
    document["stages"].append({"router": "k-means", "modules": [2, 3], "rounds": 9})
    (added,) = changes_between(before, config(document))
    assert str(added) == "stages[2] is new: router = 'k-means', modules = [2, 3], overlap = 1, rounds = 9"
    (taken,) = changes_between(config(document), before)
    assert str(taken) == "stages[2] is left out"


def test_a_stage_changes_other_sections_from_there_on() -> None:
    document = deepcopy(GOOD)
    document["stages"][0]["from_here"] = {"inner": {"learning_rate": 1e-2, "beta1": 0.5}}
    document["stages"][1]["from_here"] = {"inner": {"learning_rate": 1e-3}, "data": {"path": "more"}}
    run = config(document)
    assert (run.at(0).inner.learning_rate, run.at(0).inner.beta1, run.at(0).data.path) == (1e-2, 0.5, None)
    assert (run.at(1).inner.learning_rate, run.at(1).inner.beta1, run.at(1).data.path) == (1e-3, 0.5, "more")


def test_rounds_have_their_length_by_version() -> None:
    lengths = RoundLengths(((0, 10),)).changed(4, 30)
    assert [lengths.at(version) for version in (0, 3, 4, 9)] == [10, 10, 30, 30]
    assert [lengths.before(version) for version in (0, 3, 4, 6)] == [0, 30, 40, 100]
    assert lengths.changed(2, 5).since == ((0, 10), (2, 5))


def test_extending_a_run_that_is_not_there_says_so(tmp_path: Path) -> None:
    from tests.doors.test_checking import TEXT

    file = tmp_path / "run.toml"
    file.write_text(TEXT.replace("PLACE", tmp_path.as_posix()))
    ended = CliRunner().invoke(app, ["extend", str(file), "--home", str(tmp_path / "home")])
    assert ended.exit_code == 2
    assert "there is no run in" in ended.output
