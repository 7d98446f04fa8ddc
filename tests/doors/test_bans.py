"""Who is banned, as the operator reads it: by their word, or by what the node has seen, with the proof."""

import hashlib
import json
from functools import partial
from pathlib import Path

from nacl.signing import VerifyKey
from typer.testing import CliRunner, Result

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.cli.bootstrap import app
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.register import Register
from dipaco_swarm.run.signature import sign_manifest
from dipaco_swarm.swarm.bans import Bans, bans_file
from dipaco_swarm.swarm.checks import Convicted
from dipaco_swarm.swarm.libp2p.identity import Identity, is_signed_by, load_identity, public_key
from dipaco_swarm.swarm.proofs import Proof
from dipaco_swarm.swarm.round.seals import Subject, is_proven
from tests.doors.test_going_back import STAGE
from tests.doors.test_manifest import FINGERPRINT, GOOD, OPERATOR

SPAMMER = "12D3KooWHmZ7sYfVX5tCz1eLQkq3R8bPw6uJd4aNcG2xT9vBsmKp"
WRONG = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


def a_home(home: Path, register: Register | None = None) -> Path:
    """What a node that serves a run has on its disk."""
    peers = None
    if register is not None:
        peers = hashlib.sha256(register.canonical_bytes()).hexdigest()
        (home / "blobs").mkdir(parents=True)
        (home / "blobs" / peers).write_bytes(register.canonical_bytes())
    manifest = Manifest(revision=1, config=parse_run_file(GOOD), tokenizer="a" * 64, stages=(STAGE,), peers=peers)
    kept = OperatorHome(home)
    kept.keep_manifest(sign_manifest(manifest, OPERATOR))
    kept.keep_address(str(RunAddress("run", FINGERPRINT, (f"/ip4/127.0.0.1/tcp/4001/p2p/{WRONG}",))))
    return home


def two_averages(liar: Identity, run: str = FINGERPRINT) -> Proof:
    about = Subject(run, 0, ModuleId(1, 0), 12, b"r" * 32)
    digests = b"a" * 32, b"b" * 32
    one, other = (liar.sign(about.statement(1, digest)) for digest in digests)
    return Proof(
        reducer=liar.peer,
        stage=0,
        module="L1M0",
        version=12,
        roster=b"r" * 32,
        generation=1,
        digests=digests,
        signatures=(one, other),
    )


def bans_of(home: Path) -> Bans:
    bans = Bans(bans_file(home, FINGERPRINT))
    bans.open(partial(is_proven, run=FINGERPRINT, is_signed_by=is_signed_by))
    return bans


def listed(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["bans", *map(str, arguments)])


def test_everybody_who_is_out_is_listed_with_who_says_so_and_why(tmp_path: Path) -> None:
    home, liar = a_home(tmp_path / "home", Register().with_banned(SPAMMER, "sends noise")), load_identity(tmp_path)
    bans = bans_of(home)
    assert bans.take(two_averages(liar))
    bans.convict(Convicted(reducer=WRONG, stage=0, module="L0M0", version=6))
    said = listed(home).output
    assert SPAMMER in said
    assert [line.split(None, 2)[2] for line in said.splitlines() if "this node" not in line][1:] == ["sends noise"]
    assert "signed two averages of L1M0 v13, stage 0: both signatures are its own" in said
    assert "made a wrong average of L0M0 v7, stage 0: this node has made it anew" in said


def test_a_proof_can_be_checked_without_this_program(tmp_path: Path) -> None:
    home, liar = a_home(tmp_path / "home"), load_identity(tmp_path)
    assert bans_of(home).take(two_averages(liar))
    (banned,) = json.loads(listed(home, "--json").output)
    assert (banned["name"], banned["module"], banned["version"]) == (liar.peer, "L1M0", 13)
    assert len({each["signed"] for each in banned["proof"]}) == 2
    key = public_key(banned["name"])
    assert key is not None
    for each in banned["proof"]:
        VerifyKey(bytes(key)).verify(bytes.fromhex(each["signed"]), bytes.fromhex(each["signature"]))


def test_what_proves_nothing_bans_nobody(tmp_path: Path) -> None:
    home, liar = a_home(tmp_path / "home"), load_identity(tmp_path)
    assert not bans_of(home).take(two_averages(liar, run="of another run"))
    assert listed(home).output == "nobody is banned, by you or by this node\n"
    assert json.loads(listed(home, "--json").output) == []


def test_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    said = listed(tmp_path)
    assert said.exit_code != 0
    assert str(tmp_path) in said.output.replace("\n", "")


def test_whom_the_node_has_banned_by_itself_no_order_lets_in_again(tmp_path: Path) -> None:
    home, liar = a_home(tmp_path / "home"), load_identity(tmp_path)
    assert bans_of(home).take(two_averages(liar))
    run_file = tmp_path / "run.toml"
    run_file.write_text(GOOD)
    for order in ("forgive", "admit"):
        said = CliRunner().invoke(app, [order, str(run_file), liar.peer, "--home", str(home)]).output
        assert "as it signed two averages of L1M0 v13" in said
        assert str(bans_file(home, FINGERPRINT)) in said.replace("\n", "")
        assert "but" not in CliRunner().invoke(app, [order, str(run_file), SPAMMER, "--home", str(home)]).output
