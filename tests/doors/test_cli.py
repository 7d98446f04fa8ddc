"""What people type: doors, exit codes, the one line that says what went wrong."""

import contextlib
import importlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dipaco_swarm.cli import bootstrap as bootstrap_cli
from dipaco_swarm.cli import peer as peer_cli
from dipaco_swarm.cli import swarm as swarm_cli
from dipaco_swarm.cli.words import devices_choice, one_line, write_text
from dipaco_swarm.client.exporting import Wanted
from dipaco_swarm.dashboard.views import Evaluation, SwarmStatus
from dipaco_swarm.errors import UnreachableError, UsageError
from dipaco_swarm.machine.manners import Hours
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.file import read_run_file
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.settings import BootstrapSettings, PeerSettings, default_home
from dipaco_swarm.training.inference import Sampling
from tests.doors.examples_of_views import ADDRESS, evaluation, small_status

CHECKOUT = Path(__file__).parents[2]
RUNS = sorted((CHECKOUT / "bootstrap" / "runs").glob("*.toml"))

runner = CliRunner()
Install = Callable[..., None]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a stand-in for a program where the command will import it from."""

    def install(name: str, **functions: object) -> None:
        module = types.ModuleType(f"dipaco_swarm.{name}")
        module.__dict__.update(functions)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        package, _, last = module.__name__.rpartition(".")
        monkeypatch.setattr(importlib.import_module(package), last, module, raising=False)

    return install


def typed(*command: str, cwd: Path = CHECKOUT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def assert_one_line(ended: subprocess.CompletedProcess[str], *words: str) -> None:
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    assert all(word in ended.stderr for word in words)


# --------------------------------------------------------------------------------------------------------------- doors


@pytest.mark.parametrize("door", [("peer.py",), ("bootstrap",), ("bootstrap", "serve"), ("bootstrap", "init")])
def test_a_door_opens_from_a_checkout(door: tuple[str, ...]) -> None:
    ended = typed(*door, "--help")
    assert ended.returncode == 0
    assert "Usage: dipaco-" in ended.stdout


def test_a_door_opens_from_another_folder(tmp_path: Path) -> None:
    assert typed(str(CHECKOUT / "bootstrap"), "--help", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("door", ["peer", "bootstrap", "swarm"])
def test_help_loads_neither_torch_nor_hivemind(door: str) -> None:
    code = (
        f"import sys; from dipaco_swarm.cli.{door} import app\n"
        "try: app(['--help'])\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
        "sys.exit(', '.join({'torch', 'hivemind', 'transformers', 'pydantic', 'numpy'} & set(sys.modules)) or None)"
    )
    ended = typed("-c", code)
    assert ended.returncode == 0, ended.stderr


def test_help_takes_well_under_half_a_second_of_a_processor() -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert typed("peer.py", "--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.5  # 0.1 s; a processor that others use as well is slower


# ------------------------------------------------------------------------------------------------------ run files, init


def test_init_writes_a_run_file_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    result = runner.invoke(bootstrap_cli.app, ["init", str(path)])
    assert result.exit_code == 0
    assert f"dipaco-bootstrap serve {path}" in result.output
    config = read_run_file(path)
    assert config.data.source == "python"
    assert config.stages[-1].modules == (2, 2)
    assert list(tmp_path.iterdir()) == [path]


def test_init_overwrites_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("mine")
    refused = typed("bootstrap", "init", str(path))
    assert_one_line(refused, str(path), "--force")
    assert path.read_text() == "mine"
    assert runner.invoke(bootstrap_cli.app, ["init", str(path), "--force"]).exit_code == 0
    assert read_run_file(path).name == "my-run"


def test_init_into_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    assert_one_line(typed("bootstrap", "init", str(tmp_path / "none" / "run.toml")), "No such file")


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_an_example_run_file_is_read(path: Path) -> None:
    assert read_run_file(path).name == path.stem


def test_the_template_explains_every_section() -> None:
    text = (CHECKOUT / "dipaco_swarm" / "cli" / "run_template.toml").read_text(encoding="utf-8")
    blocks = [block for block in text.split("\n\n") if "[" in block and block.strip()]
    config = read_run_file(CHECKOUT / "dipaco_swarm" / "cli" / "run_template.toml")
    sections = {
        "about",
        "model",
        "levels",
        "tokenizer",
        "data",
        "inner",
        "outer",
        "rounds",
        "wire",
        "limits",
        "anchors",
        "admission",
        "router",
        "early_stopping",
        "rerouting",
        "stages",
    }
    assert sections == {name for name in type(config).model_fields if f"[{name}]" in text}
    named = [block for block in blocks if block.lstrip("# ").startswith("[") or "\n[" in block or "\n# [" in block]
    assert sum(block.startswith("#") for block in named) >= len(sections)


# ------------------------------------------------------------------------------------------------------- one red line


def test_a_malformed_run_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('name = "x"\n[model]\nhidden_size = "wide"\n')
    assert_one_line(typed("bootstrap", "serve", str(path)), "model.hidden_size", "wide")


def test_a_missing_run_file_is_one_line(tmp_path: Path) -> None:
    assert_one_line(typed("bootstrap", "serve", str(tmp_path / "run.toml")), "dipaco-bootstrap init")


def test_a_bad_address_is_one_line() -> None:
    assert_one_line(typed("peer.py", "--run", "nonsense"), "nonsense", "dipaco:NAME")


def test_a_path_that_is_no_number_is_one_line() -> None:
    assert_one_line(typed("peer.py", "--run", ADDRESS, "--path", "seven"), "--path=seven", "auto")
    assert_one_line(typed("peer.py", "--run", ADDRESS, "--answers", "9"), "--answers=9", "1 to 8")


@pytest.mark.parametrize(
    "command", [["eval"], ["generate", "once"], ["export", "--path", "0", "--out", "x"]], ids=lambda c: c[0]
)
def test_using_a_run_needs_exactly_one_source(command: list[str]) -> None:
    for both in ([], ["--run", ADDRESS, "--home", "x"]):
        result = runner.invoke(swarm_cli.app, [*command, *both])
        assert result.exit_code == 2
        assert "--run ADDRESS (the swarm) or --home DIR" in result.stderr


def test_a_failure_with_line_breaks_is_still_one_line(program: Install) -> None:
    def nobody(address: RunAddress) -> SwarmStatus:
        raise UnreachableError("nobody answered:\n  /ip4/203.0.113.7\n  try again")

    program("client.visits", status=nobody)
    result = runner.invoke(swarm_cli.app, ["status", "--run", ADDRESS])
    assert result.exit_code == 2
    assert result.stderr == "error: nobody answered: /ip4/203.0.113.7 try again\n"


def test_a_bug_keeps_its_traceback(program: Install) -> None:
    def broken(address: RunAddress) -> SwarmStatus:
        raise AssertionError("ours")

    program("client.visits", status=broken)
    result = runner.invoke(swarm_cli.app, ["status", "--run", ADDRESS])
    assert isinstance(result.exception, AssertionError)


def test_ctrl_c_is_how_a_peer_ends_and_how_status_is_broken_off(program: Install) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    program("peer.program", run_peer=interrupted)
    program("client.visits", status=interrupted)
    assert runner.invoke(peer_cli.app, ["--run", ADDRESS]).exit_code == 0
    assert runner.invoke(swarm_cli.app, ["status", "--run", ADDRESS]).exit_code == 130


# -------------------------------------------------------------------------------------------- what reaches the programs


def test_a_peer_gets_what_was_typed(program: Install, tmp_path: Path) -> None:
    got: list[PeerSettings] = []
    program("peer.program", run_peer=got.append)
    options = ["--path", "3", "--home", str(tmp_path), "--listen", "/ip4/127.0.0.1/tcp/0", "--cache", "c"]
    options += [
        "--device",
        "cpu,cpu",
        "--micro-batch",
        "2",
        "--threads",
        "1",
        "--until-finished",
        "--rounds",
        "5",
        "--screen",
        "none",
        "--reachable",
        "no",
        "--bandwidth",
        "20",
        "--cpu-share",
        "40",
        "--data-root",
        str(tmp_path),
        "--hours",
        "22-7",
        "--yield",
        "battery,cpu",
        "--normal-priority",
    ]
    assert runner.invoke(peer_cli.app, ["--run", ADDRESS, *options]).exit_code == 0
    address = RunAddress.parse(ADDRESS)
    listen = "/ip4/127.0.0.1/tcp/0"
    whole = PeerSettings(address, 3, tmp_path, Path("c"), listen, "cpu", 2, 1, True, 5, "none", "no", 2.5e6, 0.4)
    whole = replace(whole, reach=Reach(tmp_path, fenced=True), answers=4)
    assert got == [
        replace(whole, hours=Hours(time(22), time(7)), yields=frozenset({"cpu", "battery"}), helpers=("cpu",))
    ]


@pytest.mark.parametrize("wrong", ["", "gpu", "cpu:0", "cuda:x", "cpu,cuda:0", "auto,cpu", ",".join(["cpu"] * 17)])
def test_devices_that_cannot_train_together_are_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="--device="):
        devices_choice(wrong)
    assert devices_choice("cuda:0,cuda:1") == ("cuda:0", "cuda:1")


def test_a_peer_has_calm_defaults(program: Install) -> None:
    got: list[PeerSettings] = []
    program("peer.program", run_peer=got.append)
    assert runner.invoke(peer_cli.app, ["--run", ADDRESS]).exit_code == 0
    address = RunAddress.parse(ADDRESS)
    home = default_home("python-2x2", "peer")
    calm = PeerSettings(address, None, home, None, None, "auto", None, None, False, None, "plain", answers=4)
    assert got == [replace(calm, low_priority=True)]
    assert got[0].reach == Reach(None, fenced=True)


def test_a_bootstrap_node_gets_what_was_typed(program: Install) -> None:
    got: list[BootstrapSettings] = []
    program("operator.program", serve=got.append)
    announce = ["--announce", "/ip4/203.0.113.7/tcp/9", "--announce", "/dns4/boot.example.org/tcp/9"]
    assert runner.invoke(bootstrap_cli.app, ["serve", str(RUNS[0]), *announce]).exit_code == 0
    home = default_home(RUNS[0].stem, "bootstrap")
    places = ("/ip4/203.0.113.7/tcp/9", "/dns4/boot.example.org/tcp/9")
    assert got == [BootstrapSettings(RUNS[0], home, "/ip4/0.0.0.0/tcp/4001", places, False, "plain")]


def test_homes_follow_xdg_and_ignore_relative_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_home("a", "peer") == tmp_path / "dipaco" / "a" / "peer"
    monkeypatch.setenv("XDG_DATA_HOME", "here")
    assert default_home("a", "bootstrap") == Path.home() / ".local" / "share" / "dipaco" / "a" / "bootstrap"


def test_status_is_a_screen_or_json(program: Install) -> None:
    program("client.visits", status=lambda address: small_status())
    assert "3 of 4 staffed" in runner.invoke(swarm_cli.app, ["status", "--run", ADDRESS]).output
    as_json = runner.invoke(swarm_cli.app, ["status", "--run", ADDRESS, "--json"])
    assert as_json.stdout == small_status().to_json() + "\n"


def test_eval_for_programs(program: Install, tmp_path: Path) -> None:
    program("client.visits", evaluate=lambda *said, **options: evaluation())
    said = json.loads(runner.invoke(swarm_cli.app, ["eval", "--home", str(tmp_path), "--json"]).stdout)
    assert said["perplexity"] == pytest.approx(evaluation().perplexity)
    assert [path["documents"] for path in said["paths"]] == [path.documents for path in evaluation().paths]


def test_eval_hands_tasks_to_the_harness(program: Install, tmp_path: Path) -> None:
    asked: list[object] = []

    def run_tasks(*said: object, **options: object) -> types.SimpleNamespace:
        asked.append((*said, options))
        return types.SimpleNamespace(to_json=lambda: '{"a": 1}')

    program("client.harness", run_tasks=run_tasks)
    typed = ["eval", "--home", str(tmp_path), "--lm-eval", "arc_easy, piqa", "--path", "2", "--limit", "9", "--json"]
    assert runner.invoke(swarm_cli.app, typed).stdout == '{"a": 1}\n'
    assert asked == [(tmp_path, ["arc_easy", "piqa"], 2, 9, {"best": False})]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--path", "2"], "--path and --limit are for --lm-eval"),
        (["--limit", "2"], "--path and --limit are for --lm-eval"),
        (["--lm-eval", "x", "--reroute", "8"], "leave out --data and --reroute"),
        (["--lm-eval", "x", "--data", "*.txt"], "leave out --data and --reroute"),
        (["--ask-peers"], "--ask-peers asks the peers of a live run; give --run ADDRESS"),
    ],
)
def test_options_of_eval_that_do_not_go_together(more: list[str], words: str, tmp_path: Path) -> None:
    ended = runner.invoke(swarm_cli.app, ["eval", "--home", str(tmp_path), *more])
    assert ended.exit_code == 2
    assert words in " ".join(ended.output.split())


@pytest.mark.parametrize("more", [["--best"], ["--reroute", "8"], ["--lm-eval", "x"]])
def test_what_peers_are_not_asked_to_score_is_said(more: list[str]) -> None:
    ended = runner.invoke(swarm_cli.app, ["eval", "--run", ADDRESS, "--ask-peers", *more])
    assert ended.exit_code == 2
    assert f"leave out {more[0]}" in " ".join(ended.output.split())


def test_without_the_harness_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ended = runner.invoke(swarm_cli.app, ["eval", "--home", str(tmp_path), "--lm-eval", "piqa"])
    assert ended.exit_code == 2
    assert "pip install -c constraints.txt '.[lm-eval]'" in ended.output


def test_eval_generate_and_export_call_one_function_each(program: Install, tmp_path: Path) -> None:
    asked: list[object] = []

    def generate(source: object, prompt: str, **options: object) -> Iterator[str]:
        asked.append((source, prompt, options))
        return iter([" upon", " a time"])

    def evaluate(source: object, data: str, **options: object) -> Evaluation:
        asked.append((source, data, options))
        return evaluation()

    def export(*said: object) -> int:
        asked.append(said)
        return 4

    exporting = {"export": export, "export_all": export, "export_whole": export}

    class Asked:
        def text(self, prompt: str, **options: object) -> Iterator[str]:
            asked.append((prompt, options))
            return iter([" upon", " a time"])

    @contextlib.contextmanager
    def once(*said: object) -> Iterator[Asked]:
        asked.append(said)
        yield Asked()

    program("client.visits", evaluate=evaluate, generate=generate)
    program("gateway.once", once=once)
    program("client.exporting", Wanted=Wanted, **exporting)
    program("client.publishing", push=lambda folder, name: f"https://huggingface.co/{name}")
    tell = {"tell": swarm_cli._tell}
    home, address = ["--home", str(tmp_path)], RunAddress.parse(ADDRESS)
    assert "60.34" in runner.invoke(swarm_cli.app, ["eval", *home, "--data", "*.txt", "--reroute", "64"]).output
    for local in ([], ["--local"], ["--best"]):
        how = ["--run", ADDRESS, "--tokens", "2", "--seed", "7", *local]
        written = runner.invoke(swarm_cli.app, ["generate", "once", *how])
        assert written.stdout == "once upon a time\n"
    for arguments in (["--path", "3", "--best"], ["--each", "--dtype", "bf16"], ["--measure", "--push", "me/it"]):
        ended = runner.invoke(swarm_cli.app, ["export", *home, "--out", "o", *arguments])
        assert ended.exit_code == 0, ended.output
    assert "pushed to https://huggingface.co/me/it" in ended.output
    both = runner.invoke(swarm_cli.app, ["export", *home, "--out", "o", "--path", "3", "--each"])
    assert both.exit_code == 2
    assert "give one of the two" in both.output
    options = {"tokens": 2, "temperature": 0.8, "top_k": 40, "seed": 7, "window": None, **tell}
    by_peers = {"tokens": 2, "sampling": Sampling(0.8, 40), "seed": 7, "window": None}
    assert asked == [
        (tmp_path, "*.txt", {"window": 64, "best": False, **tell}),
        (address, None, swarm_cli._tell),
        ("once", by_peers),
        (address, "once", {**options, "best": False}),
        (address, "once", {**options, "best": True}),
        (tmp_path, 3, Path("o"), Wanted(best=True), swarm_cli._tell),
        (tmp_path, Path("o"), Wanted(dtype="bf16"), swarm_cli._tell),
        (tmp_path, Path("o"), Wanted(measured=True), swarm_cli._tell),
    ]


@pytest.mark.parametrize("command", [["eval"], ["generate", "once"]], ids=lambda c: c[0])
def test_routing_anew_every_no_tokens_is_one_line(command: list[str], tmp_path: Path) -> None:
    result = runner.invoke(swarm_cli.app, [*command, "--home", str(tmp_path), "--reroute", "0"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --reroute 0 is no number of tokens")


def test_the_demo_ends_with_its_own_code(program: Install) -> None:
    program("demo.story", run_demo=lambda out: 3 if out == Path("demo-out") else 0)
    assert runner.invoke(swarm_cli.app, ["demo"]).exit_code == 3


# ------------------------------------------------------------------------------------------------------------ the wheel


def test_the_wheel_holds_dipaco_swarm_alone(tmp_path: Path) -> None:
    import zipfile

    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=100, check=False, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"dipaco_swarm", "dipaco_swarm-0.1.0.dist-info"}
    assert "dipaco_swarm/cli/run_template.toml" in names
    assert "dipaco_swarm/py.typed" in names


HOSTILE = (
    "x\x1b]0;ow",
    "ned\x07\x1b[2J\r\n\ttext \x9b31m\u202e",
    "\u0645\u06cc\u200c\u062e\u3000\U0001f469\u200d\U0001f680",
)


def test_what_a_peer_writes_is_obeyed_by_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = "".join(HOSTILE).replace("\x1b[2J", "")  # that click takes out, and nothing else
    write_text("Hello ", iter(HOSTILE))
    assert capsys.readouterr().out == f"Hello {plain}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write_text("Hello ", iter(HOSTILE))
    assert capsys.readouterr().out == f"Hello x?]0;owned??[2J\n\ttext ?31m?{HOSTILE[2]}\n"


def test_what_an_error_quotes_is_obeyed_by_no_terminal() -> None:
    assert one_line("it says \x1b[2J\nor so") == "it says ?[2J or so"
