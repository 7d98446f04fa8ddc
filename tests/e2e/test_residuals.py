"""A peer that is started again sends what the codec left unsent in its life before."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.events.event import Event, OfPeer
from dipaco_swarm.events.training import Round
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.operator.home import load_operator_key
from dipaco_swarm.run.file import read_run_file
from dipaco_swarm.run.signature import fingerprint_of
from dipaco_swarm.simulate import simulate
from dipaco_swarm.swarm.interface import Residual
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.training.checkpoint import load
from dipaco_swarm.training.early import run_of
from tests.long import cases

from .conftest import write_run_file

LEVELS = [ModuleId(0, 0), ModuleId(1, 0)]


class Ends(Screen):
    """Asks to stop after so many rounds of a peer."""

    def __init__(self, stop: Stopping, rounds: int) -> None:
        self._stop = stop
        self._rounds = rounds

    def show(self, view: object) -> None:
        """Nobody looks."""

    def event(self, event: Event) -> None:
        match event:
            case OfPeer(_, Round(round=self._rounds)):
                self._stop.request()


@pytest.mark.parametrize("codec", cases("int8", long=["int4", "e3m0"]))
def test_error_feedback_is_in_the_checkpoint_and_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    config = read_run_file(write_run_file(tmp_path / "RUN.toml", min_peers=1, codec=codec, warmup=6))
    config = config.model_copy(update={"stages": config.stages[:1]})
    home = tmp_path / "home"
    stop = Stopping()
    simulate(config, home, {"ada": 0}, screen=Ends(stop, 3), stop=stop)
    (file,) = (home / "ada" / "checkpoints").glob("stage-0-path-0.safetensors")
    fingerprint = fingerprint_of(load_operator_key(home / "bootstrap").public_key())
    saved = load(file, run_of(config.name, fingerprint))
    assert saved is not None
    assert sorted(saved.residuals) == LEVELS
    assert all(left.abs().max() > 0 for left in saved.residuals.values())

    resumed: list[Mapping[ModuleId, Residual]] = []
    resume = NetworkedSwarm.resume_residuals

    def resume_residuals(
        swarm: NetworkedSwarm, stage: int, path: PathIndex, residuals: Mapping[ModuleId, Residual]
    ) -> None:
        resumed.append(residuals)
        resume(swarm, stage, path, residuals)

    monkeypatch.setattr(NetworkedSwarm, "resume_residuals", resume_residuals)
    states = simulate(config, home, {"ada": 0})
    assert [state.version for state in states.values()] == [6, 6]
    (before,) = resumed
    for module in LEVELS:
        assert torch.equal(before[module].vector, saved.residuals[module])
        assert before[module].version == saved.base[module].version >= 3
