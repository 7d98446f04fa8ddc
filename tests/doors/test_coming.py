"""What a manifest says between two stages, and what peers answer: what is refused."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from dipaco_swarm.operator.standby import files_of
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.manifest import Closing, Manifest, Stage
from dipaco_swarm.run.signature import open_manifest, sign_manifest
from dipaco_swarm.training.scoring import SHARES, ReadyStatement, ScoreStatement, in_hexadecimal, pieces_of
from tests.doors.test_manifest import FINGERPRINT, GOOD, OPERATOR

PARAMS = {"L0M0": "a" * 64, "L1M0": "b" * 64}
ENDS = {"L0M0": 4, "L1M0": 5}
FIRST = Stage(index=0, table=((0, 0),), path_weights=(1.0,), router=None, seeds=PARAMS, rounds=3)
GRID = ((0, 0), (0, 1), (1, 0), (1, 1))
SECOND = Stage(
    index=1,
    table=GRID,
    path_weights=(0.25,) * 4,
    router="c" * 64,
    seeds={module: "a" * 64 for module in ("L0M0", "L0M1", "L1M0", "L1M1")},
)


def manifest(pacing: str = "paced", **update: Any) -> Manifest:
    config = parse_run_file(f'{GOOD}[rounds]\npacing = "{pacing}"\n')
    return Manifest(revision=3, config=config, tokenizer="d" * 64, stages=(FIRST,), **update)


def test_a_paced_stage_ends_when_the_operator_says_at_which_versions() -> None:
    assert manifest().last_versions == {}
    assert manifest(closing=Closing(params=PARAMS)).last_versions == {}
    assert manifest(closing=Closing(params=PARAMS, ends=ENDS), coming=SECOND).last_versions == ENDS
    assert manifest("synchronous").last_versions == {"L0M0": 3, "L1M0": 3}


def test_the_last_stage_ends_with_its_rounds() -> None:
    last = manifest().model_copy(update={"stages": (FIRST, SECOND.model_copy(update={"rounds": 7}))})
    assert last.last_versions == dict.fromkeys(SECOND.modules, 7)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a module less": ({"closing": {"params": {"L0M0": "a" * 64}}}, "parameters of each module"),
    "a module more": ({"closing": {"params": PARAMS | {"L7M0": "a" * 64}}}, "parameters of each module"),
    "not a digest": ({"closing": {"params": PARAMS | {"L0M0": "a"}}}, "params"),
    "an end for one": ({"closing": {"params": PARAMS, "ends": {"L0M0": 4}}}, "last version of each"),
    "an end below zero": ({"closing": {"params": PARAMS, "ends": ENDS | {"L0M0": -1}}}, "ends"),
    "half an end": ({"closing": {"params": PARAMS, "ends": ENDS | {"L0M0": 1.5}}}, "ends"),
    "a key more": ({"closing": {"params": PARAMS, "begins": {}}}, "begins"),
    "it comes out of nothing": ({"coming": SECOND.model_dump(mode="json")}, "is not closing"),
    "it comes too soon": (
        {"closing": {"params": PARAMS}, "coming": SECOND.model_dump(mode="json") | {"index": 2}},
        "cannot come",
    ),
    "a stage that cannot be": (
        {"closing": {"params": PARAMS}, "coming": SECOND.model_dump(mode="json") | {"path_weights": [1.0]}},
        "path weights",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_manifest_of_a_closing_stage_fits_itself(case: str) -> None:
    fields, why = BAD[case]
    with pytest.raises(ValidationError, match=why):
        Manifest.model_validate_json(json.dumps(manifest().model_dump(mode="json") | fields))


def test_a_manifest_of_a_closing_stage_is_read_as_it_was_signed() -> None:
    closing = manifest(closing=Closing(params=PARAMS, ends=ENDS), coming=SECOND)
    assert open_manifest(sign_manifest(closing, OPERATOR), FINGERPRINT) == closing


def test_a_standby_has_what_peers_need_for_the_stage_that_comes() -> None:
    coming = manifest(closing=Closing(params={module: "e" * 64 for module in PARAMS}), coming=SECOND)
    assert {"c" * 64, "e" * 64} <= set(files_of(coming))


@pytest.mark.parametrize(
    "said",
    [
        {"path": -1},
        {"path": "0"},
        {"scores": "b"},
        {"shares": ""},
        {"shares": "f" * 17},
        {"shares": "F" * 16},
        {"shares": "g" * 16},
        {"more": 1},
    ],
)
def test_statements_about_scores_are_looked_at(said: dict[str, object]) -> None:
    good = {"path": 0, "scores": "b" * 64, "shares": "0" * 15 + "5"}
    assert ScoreStatement.model_validate(good).scored == {0, 2}
    with pytest.raises(ValidationError):
        ScoreStatement.model_validate(good | said)


@pytest.mark.parametrize("said", [{"path": -1}, {"path": "0"}, {"ready": 1}, {"ready": "yes"}, {"more": 1}])
def test_statements_about_readiness_are_looked_at(said: dict[str, object]) -> None:
    good = {"path": 3, "ready": True}
    assert ReadyStatement.model_validate(good).to_bytes() == b'{"path": 3, "ready": true}'
    with pytest.raises(ValidationError):
        ReadyStatement.model_validate(good | said)


@pytest.mark.parametrize("pieces", [1, 6, 63, 64, 1000])
def test_the_shares_are_the_sample_each_piece_once(pieces: int) -> None:
    assert [piece for share in range(SHARES) for piece in pieces_of(share, pieces)] == list(range(pieces))
    said = ScoreStatement(path=0, scores="b" * 64, shares=in_hexadecimal(range(SHARES)))
    assert said.scored == set(range(SHARES))
    assert len(said.to_bytes()) < 512
