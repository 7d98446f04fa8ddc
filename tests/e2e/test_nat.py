"""Peers behind home routers: real processes in a laboratory of network namespaces, with routers that let nobody in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.chaos.lab import Host, Lab, Link
from dipaco_swarm.events.training import Round
from dipaco_swarm.events.volunteer import NotDialable

from .conftest import Commands, made_with, write_run_file

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(580)]

ANYWHERE = "/ip4/0.0.0.0/tcp/0"
PATIENCE = 150.0
"""For what takes some seconds on an idle machine."""


@pytest.fixture
def lab() -> Iterator[Lab]:
    missing = Lab.missing()
    if missing is not None:
        pytest.skip(missing)
    with Lab() as lab:
        yield lab


def bootstrap(commands: Commands, host: Host, run_file: Path) -> str:
    home = commands.folder / "bootstrap"
    places: list[str | Path] = ["--home", home, "--listen", ANYWHERE, "--screen", "plain"]
    commands.start("bootstrap", "bootstrap", "serve", run_file, *places, on=host)
    commands.until((home / "address.txt").exists, "no run address", PATIENCE, "bootstrap")
    return (home / "address.txt").read_text().strip()


def peer(commands: Commands, label: str, host: Host, address: str) -> None:
    commands.start(
        label, "peer", "--run", address, "--path", "0", "--home", commands.folder / label, "--threads", "1",
        "--cache", commands.folder / "cache", "--listen", ANYWHERE, "--screen", "plain", on=host,
    )  # fmt: skip


def until_agreed(commands: Commands, label: str, others: int) -> None:
    commands.until_reported(label, Round, where=made_with(others, "L0M0", "L1M0"), seconds=PATIENCE)


def test_peers_behind_two_routers_train_together_and_with_one_that_can_be_dialled(
    commands: Commands, lab: Lab, tmp_path: Path
) -> None:
    server, one, other, open_home = (
        lab.host("server"),
        lab.host("one", Link(nat=True)),
        lab.host("other", Link(nat=True)),
        lab.host("open"),
    )
    run_file = write_run_file(tmp_path / "RUN.toml", min_peers=2, inner_steps=30, warmup=10_000)
    address = bootstrap(commands, server, run_file)
    peer(commands, "one", one, address)
    peer(commands, "other", other, address)
    for label in ("one", "other"):
        until_agreed(commands, label, 1)
        assert commands.reported(label, NotDialable)
    relayed = server.counters().bytes_out
    assert relayed > 4 * 2 * 100_000, "the only way between them is through the bootstrap node"

    peer(commands, "open", open_home, address)
    for label in ("one", "other", "open"):
        until_agreed(commands, label, 2)
    assert not commands.reported("open", NotDialable)
    commands.stops_on_ctrl_c("one", "other", "open")
