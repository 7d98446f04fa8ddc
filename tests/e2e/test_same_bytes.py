"""Promise 1: the swarm computes what one machine would, bit for bit, through stages, routers, shared and
path-specific modules, and overlapping shards."""

from pathlib import Path

import pytest

from benchmarks.chaos.crew import MAKE
from dipaco_swarm.algorithm.paths import ModuleId, grid
from dipaco_swarm.events.training import Round
from dipaco_swarm.events.volunteer import Scored
from dipaco_swarm.run.file import read_run_file
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest, signer_of
from dipaco_swarm.simulate import final_states, simulate
from dipaco_swarm.swarm.libp2p.identity import load_identity
from tests.long import cases
from tests.patience import PATIENCE

from .conftest import Commands, write_run_file

pytestmark = pytest.mark.swarm


def read_manifest(file: Path) -> Manifest:
    signed = file.read_bytes()
    return open_manifest(signed, signer_of(signed))


@pytest.mark.timeout(500)
@pytest.mark.parametrize("how", cases("0 fp32", long=["3 fp32", "0 int8", "3 int8", "0 int4", "3 int4"]))
def test_four_peers_over_libp2p_end_on_the_bytes_of_the_run_in_memory(
    commands: Commands, tmp_path: Path, how: str
) -> None:
    """`how`: overlap steps and codec."""
    overlap_steps, codec = how.split()
    run_file = write_run_file(tmp_path / "RUN.toml", rounds=3, codec=codec)
    text = run_file.read_text().replace("modules = [2, 2]", 'modules = ["path", 2, 2]')
    text = text.replace("blocks = [0]\nembedding = true", "embedding = true\n\n[[levels]]\nblocks = [0]")
    text = text.replace("[rounds]", f"[rounds]\noverlap_steps = {overlap_steps}")
    text += '\n[[stages]]\nrouter = "discriminative"\noverlap = 2\nrounds = 2\n'
    run_file.write_text(text + "\n[rerouting]\nwindow = 16\nsteps = 10\nbatch_sequences = 8\n")
    names = [load_identity(tmp_path / f"peer-{path}").peer for path in range(4)]
    address = commands.bootstrap(run_file, "--until-finished")
    peers = [commands.peer(f"peer-{path}", address, path, "--until-finished") for path in range(4)]
    simulated = tmp_path / "simulated"
    who = {name: path for path, name in enumerate(names)}
    one_process = MAKE.Process(target=simulate, args=(read_run_file(run_file), simulated, who))
    one_process.start()
    one_process.join(400)
    assert one_process.exitcode == 0
    for path, peer in enumerate(peers):
        assert peer.wait(120 * PATIENCE) == 0, commands.log(f"peer-{path}")
    assert commands.running["bootstrap"].wait(60 * PATIENCE) == 0, commands.log("bootstrap")

    four = grid([1, 2, 2], frozenset({0}))  # every path has an embedding of its own
    for stage, table in ((0, grid([1, 1, 1])), (1, four), (2, four)):
        over_libp2p = final_states(tmp_path / "bootstrap", stage, table)
        in_memory = final_states(simulated / "bootstrap", stage, table)
        assert set(over_libp2p) == set(in_memory) == set(table.modules)
        for module in table.modules:
            ours, theirs = over_libp2p[module], in_memory[module]
            assert ours.version == theirs.version == (2, 3, 2)[stage]
            assert bytes(ours.params.numpy()) == bytes(theirs.params.numpy()), module
            assert bytes(ours.momentum.numpy()) == bytes(theirs.momentum.numpy()), module
            assert ours.digest == theirs.digest
            assert float(ours.momentum.abs().sum()) > 0  # something was learned at all
    # and from the same modules the same window router was trained
    manifests = [read_manifest(home / "bootstrap" / "manifest.json") for home in (tmp_path, simulated)]
    assert manifests[0].window_router == manifests[1].window_router is not None
    # every round of what is shared was shared by everybody: nobody went on alone, unnoticed
    for path in range(4):
        made = [entry for over in commands.reported(f"peer-{path}", Round) for entry in over.modules.items()]
        assert all(commit.peers > 1 for module, commit in made if not module.startswith("L0"))
        for shared, members in ((ModuleId(0, path), 1), (ModuleId(1, path // 2), 2)):
            assert any((name, commit.version, commit.peers) == (str(shared), 3, members) for name, commit in made)
        # and the discriminative router of the last stage was learned from what the peers scored
        assert commands.reported(f"peer-{path}", Scored, path=path)
    assert "ignored peer" not in commands.log("bootstrap")
