"""Anchors as files, and the commands that list them and go back to one."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from typer.testing import CliRunner

from dipaco_swarm.algorithm.generations import restored
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.cli.bootstrap import app
from dipaco_swarm.errors import DamagedError, HomeError
from dipaco_swarm.operator import anchors as anchors_file
from dipaco_swarm.operator.anchors import Anchor, Anchors, Losses
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.run.config import AnchorsConfig
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.manifest import Manifest, Restored, Stage
from dipaco_swarm.run.orders import Rollback
from dipaco_swarm.run.signature import sign_manifest
from tests.doors.test_manifest import GOOD, OPERATOR

ONE, TWO = ModuleId(0, 0), ModuleId(1, 0)
RULES = AnchorsConfig(every=10, keep=3)
SEEDS = {"L0M0": "a" * 64, "L1M0": "b" * 64}
STAGE = Stage(index=0, table=((0, 0),), path_weights=(1.0,), router=None, seeds=SEEDS, rounds=3)


def states_at(version: int, other: int | None = None) -> dict[ModuleId, ModuleState]:
    def state(at: int) -> ModuleState:
        return ModuleState(at, torch.full((4,), float(at)), torch.zeros(4), 100 * at)

    return {ONE: state(version), TWO: state(version if other is None else other)}


def losses() -> Losses:
    return 3.25, None


class Node:
    """What a bootstrap node does with anchors."""

    def __init__(self, home: Path, stage: Stage = STAGE) -> None:
        self.home, self.stage, self.anchors = OperatorHome(home), stage, Anchors(home)

    def at(self, states: dict[ModuleId, ModuleState], rules: AnchorsConfig = RULES) -> Anchor | None:
        for module, state in states.items():
            if state.version:
                self.home.keep_state(self.stage.index, module, state)
        return self.anchors.look(self.stage, states, rules, 1e9 + states[ONE].version, losses)

    def go_back(self, stage: Stage) -> None:
        self.stage = stage


def gone_back(version: int, generation: int = 1) -> Stage:
    back = Restored(generation=generation, version=version, digest="c" * 64)
    return STAGE.model_copy(update={"restored": {"L0M0": back, "L1M0": back}})


def test_an_anchor_is_made_every_so_many_versions_and_has_the_states_of_then(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.at(states_at(0)) is None
    assert node.at(states_at(9)) is None
    made = node.at(then := states_at(10, 8))
    assert made is not None
    assert (made.number, made.versions, made.loss, made.held_out) == (1, (8, 10), 3.25, None)
    assert node.at(states_at(15)) is None
    for module, state in then.items():
        assert node.anchors.state(made, module).digest == state.digest
    assert Anchors(tmp_path).all() == node.anchors.all() == [made]


def test_an_anchor_takes_no_disk_until_the_next_version(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.at(states_at(10))
    kept, there = (tmp_path / at / "modules" / "stage-0-L0M0.safetensors" for at in ("", "anchors/000001"))
    assert os.path.samefile(kept, there)
    node.at(states_at(11))
    assert not os.path.samefile(kept, there)


def test_a_disk_without_second_names_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(one: Path, other: Path) -> None:
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(os, "link", no_link)
    node = Node(tmp_path)
    made = node.at(then := states_at(10))
    assert made is not None
    assert node.anchors.state(made, ONE).digest == then[ONE].digest


def test_a_module_that_nobody_has_trained_is_in_an_anchor_as_well(tmp_path: Path) -> None:
    node = Node(tmp_path)
    made = node.at(then := states_at(10, 0))
    assert made is not None
    assert node.anchors.state(made, TWO).digest == then[TWO].digest


def test_anchors_are_thinned_out_and_those_of_an_earlier_stage_go(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for version in range(0, 220, 10):
        node.at(states_at(version))
    assert [anchor.versions[0] for anchor in node.anchors.all()] == [160, 200, 210]
    assert sorted(file.name for file in (tmp_path / "anchors").iterdir()) == ["000016", "000020", "000021"]
    node.stage = STAGE.model_copy(update={"index": 1})
    node.at(states_at(3))
    assert len(node.anchors.all()) == 3
    node.at(states_at(10))
    assert [(anchor.number, anchor.stage) for anchor in Anchors(tmp_path).all()] == [(22, 1)]


def test_the_anchor_that_was_gone_back_to_stays_and_the_newest_that_was_taken_back(tmp_path: Path) -> None:
    """If the harm comes again, one goes back to the same place; and going back may have been the mistake."""
    node = Node(tmp_path)
    for version in range(0, 220, 10):
        node.at(states_at(version))
    node.go_back(gone_back(160))
    for version in range(170, 400, 10):
        node.at({module: restored(state, 1) for module, state in states_at(version).items()})
    there = [anchor.number for anchor in node.anchors.all()]
    assert there[:2] == [16, 21]
    assert len(there) == 2 + RULES.keep
    assert all(anchor.is_on(node.stage.generations) for anchor in node.anchors.all()[2:])
    assert [anchor.number for anchor in Anchors(tmp_path).all()] == there


def test_none_are_kept_where_the_run_file_says_so(tmp_path: Path) -> None:
    assert Node(tmp_path).at(states_at(50), AnchorsConfig(keep=0)) is None
    assert not (tmp_path / "anchors").exists()


def test_after_going_back_anchors_are_made_as_before(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for version in (10, 20, 30):
        node.at(states_at(version))
    node.stage = gone_back(10)
    back = {module: restored(state, 1) for module, state in states_at(10).items()}
    assert node.at(back) is None
    made = node.at({module: restored(state, 1) for module, state in states_at(20).items()})
    assert made is not None
    generations = {"L0M0": 1, "L1M0": 1}
    assert [anchor.is_on(generations) for anchor in node.anchors.all()] == [False, False, True]


def test_an_anchor_that_is_damaged_or_lost_says_so(tmp_path: Path) -> None:
    node = Node(tmp_path)
    made = node.at(states_at(10))
    assert made is not None
    file = tmp_path / "anchors" / "000001" / "modules" / "stage-0-L0M0.safetensors"
    file.unlink()
    with pytest.raises(DamagedError, match="go back to another one"):
        node.anchors.state(made, ONE)
    node.home.keep_state(0, ONE, states_at(12)[ONE])
    os.link(tmp_path / "modules" / file.name, file)
    with pytest.raises(DamagedError, match="is not what anchor 1 had"):
        node.anchors.state(made, ONE)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("number", 0), ("stage", -1), ("made", "now"), ("made", float("nan")), ("modules", {}), ("loss", "3"),
        ("modules", {"L0": {}}), ("held_out", float("inf")), ("who", "me"),
        *(("modules", {"L0M0": {"version": 1, "digest": "a" * 64, "tokens": 1, "generation": 0, key: value}})
          for key, value in (("version", -1), ("digest", "a"), ("tokens", -1), ("generation", -1), ("x", 1))),
    ],
)  # fmt: skip
def test_what_is_no_anchor_is_passed_over(tmp_path: Path, key: str, value: Any) -> None:
    node = Node(tmp_path)
    node.at(states_at(10))
    file = tmp_path / "anchors" / "000001" / "anchor.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    assert Anchors(tmp_path).all() == []


def test_a_full_disk_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **more: object) -> None:
        raise HomeError("the disk is full")

    node = Node(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(anchors_file, "write_whole", full)
        with pytest.raises(HomeError):
            node.at(states_at(10))
    assert list((tmp_path / "anchors").iterdir()) == []
    assert node.at(states_at(10)) is not None


@pytest.mark.parametrize(
    ("key", "value"), [("generation", 0), ("generation", 256), ("version", -1), ("digest", "short"), ("more", 1)]
)
def test_a_restored_module_of_a_manifest_is_checked(key: str, value: Any) -> None:
    good = {"generation": 1, "version": 3, "digest": "a" * 64}
    Restored.model_validate(good)
    with pytest.raises(ValidationError, match=key):
        Restored.model_validate({**good, key: value})


def test_only_modules_of_the_table_can_be_restored() -> None:
    back = Restored(generation=1, version=1, digest="a" * 64)
    with pytest.raises(ValidationError, match="L5M5 is no module"):
        Stage.model_validate({**STAGE.model_dump(), "restored": {"L5M5": back}})


@pytest.mark.parametrize(("key", "value"), [("anchor", 0), ("modules", ("",)), ("modules", ("L0M1; rm",)), ("to", 1)])
def test_a_bad_order_is_none(key: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=key):
        Rollback.model_validate({"anchor": 1, key: value})


@pytest.fixture
def served(tmp_path: Path) -> tuple[Path, Path, Node]:
    """A run file, the folder of a node that has served it, with two anchors, and that node."""
    run_file, home = tmp_path / "run.toml", tmp_path / "home"
    run_file.write_text(GOOD)
    node = Node(home)
    for version in (10, 20):
        node.at(states_at(version))
    manifest = Manifest(revision=3, config=parse_run_file(GOOD), tokenizer="d" * 64, stages=(STAGE,))
    node.home.keep_manifest(sign_manifest(manifest, OPERATOR))
    return run_file, home, node


def test_the_anchors_are_listed_by_run_file_and_by_folder(served: tuple[Path, Path, Node]) -> None:
    run_file, home, _ = served
    by_folder = CliRunner().invoke(app, ["anchors", str(home)])
    by_file = CliRunner().invoke(app, ["anchors", str(run_file), "--home", str(home)])
    assert by_folder.exit_code == by_file.exit_code == 0, by_folder.output
    assert by_folder.output == by_file.output
    head, first, second = by_folder.output.splitlines()
    assert head.split() == ["anchor", "made", "stage", "versions", "tokens", "loss", "held", "out"]
    assert first.split()[0] == "1"
    assert first.split()[3:] == ["0", "10", "1,000", "3.250", "-"]
    assert second.split()[4] == "20"


def test_the_list_says_what_was_taken_back_and_json_says_all(served: tuple[Path, Path, Node]) -> None:
    _, home, node = served
    manifest = Manifest(revision=4, config=parse_run_file(GOOD), tokenizer="d" * 64, stages=(gone_back(10),))
    node.home.keep_manifest(sign_manifest(manifest, OPERATOR))
    assert CliRunner().invoke(app, ["anchors", str(home)]).output.count("taken back") == 2
    said = json.loads(CliRunner().invoke(app, ["anchors", str(home), "--json"]).output)
    assert [(anchor["number"], anchor["modules"]["L0M0"]["version"]) for anchor in said] == [(1, 10), (2, 20)]
    assert all("taken back" in anchor["note"] for anchor in said)


def test_a_run_without_anchors_says_when_there_will_be_some(served: tuple[Path, Path, Node], tmp_path: Path) -> None:
    _, home, _ = served
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_bytes((home / "manifest.json").read_bytes())
    assert "one every 20 versions" in CliRunner().invoke(app, ["anchors", str(tmp_path / "other")]).output
    nowhere = CliRunner().invoke(app, ["anchors", str(tmp_path)])
    assert nowhere.exit_code != 0
    assert "there is no run in" in nowhere.output


def test_rollback_leaves_an_order(served: tuple[Path, Path, Node]) -> None:
    run_file, home, node = served
    there = ["rollback", str(run_file), "--home", str(home), "--to", "1"]
    whole = CliRunner().invoke(app, there)
    assert whole.exit_code == 0, whole.output
    assert "L0M0: back to version 10" in whole.output
    assert "L1M0: back to version 10" in whole.output
    one = CliRunner().invoke(app, [*there, "--module", "L1M0"])
    assert "L0M0" not in one.output
    assert [order for _, order in node.home.orders()] == [Rollback(anchor=1), Rollback(anchor=1, modules=("L1M0",))]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--to", "7"], "it is not there"),
        (["--to", "1", "--module", "L3M0"], "there is no module L3M0"),
        (["--to", "1", "--module", "all"], "is not the name of a module"),
        (["--to", "0"], "greater than or equal to 1"),
        (["--to", "one"], "valid integer"),
        ([], "Missing option"),
    ],
)
def test_rollback_refuses_what_cannot_be(served: tuple[Path, Path, Node], more: list[str], says: str) -> None:
    run_file, home, node = served
    said = CliRunner().invoke(app, ["rollback", str(run_file), "--home", str(home), *more])
    assert said.exit_code != 0
    assert says in " ".join(said.output.replace("│", " ").split())
    assert not node.home.orders()


def test_an_anchor_of_another_stage_cannot_be_gone_back_to(served: tuple[Path, Path, Node]) -> None:
    run_file, home, node = served
    second = STAGE.model_copy(update={"index": 1})
    manifest = Manifest(revision=4, config=parse_run_file(GOOD), tokenizer="d" * 64, stages=(STAGE, second))
    node.home.keep_manifest(sign_manifest(manifest, OPERATOR))
    said = CliRunner().invoke(app, ["rollback", str(run_file), "--home", str(home), "--to", "1"])
    assert said.exit_code != 0
    assert "of stage 0" in said.output
    worn = Manifest(revision=5, config=parse_run_file(GOOD), tokenizer="d" * 64, stages=(gone_back(10, 255),))
    node.home.keep_manifest(sign_manifest(worn, OPERATOR))
    said = CliRunner().invoke(app, ["rollback", str(run_file), "--home", str(home), "--to", "1"])
    assert "gone back 255 times" in " ".join(said.output.split())
