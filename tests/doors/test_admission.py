"""The operator's orders, the register and invitations, as values and files."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dipaco_swarm.cli.bootstrap import app
from dipaco_swarm.errors import AddressError, HomeError, ManifestError
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.orders import Admit, Ban, Forgive, Invite, Order, Withdraw, left
from dipaco_swarm.run.register import Register, digest_of, new_code

NAME = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
SOMEBODY = "12D3KooWHmZ7sYfVX5tCz1eLQkq3R8bPw6uJd4aNcG2xT9vBsmKp"
ADDRESS = f"dipaco:small:{'a' * 32}@/ip4/127.0.0.1/tcp/4001/p2p/{NAME}"


def test_a_register_is_a_value_and_reads_back() -> None:
    register = Register().with_admitted("b").with_admitted("a").with_banned("c", "sends noise")
    assert Register.read(register.canonical_bytes()) == register
    assert register.admitted == ("a", "b")
    assert register.admits("a", invited_only=True)
    assert not register.admits("d", invited_only=True)
    assert register.admits("d", invited_only=False)
    assert not register.admits("c", invited_only=False)
    assert not register.with_banned("a", "").admits("a", invited_only=True)
    assert not register.with_banned("a", "").forgiven("a").admits("a", invited_only=True)
    assert register.with_admitted("c").admits("c", invited_only=True)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"admitted": 3}', b'{"admitted": ["\\u001b[2J"]}', b'{"format": 2}'])
def test_a_register_that_is_none_says_so(data: bytes) -> None:
    with pytest.raises(ManifestError, match="register of peers cannot be read"):
        Register.read(data)


def test_an_address_carries_an_invitation() -> None:
    code = new_code()
    address = RunAddress.parse(ADDRESS).with_invitation(code)
    assert RunAddress.parse(str(address)) == address
    assert code not in repr(address)
    assert RunAddress.parse(ADDRESS).invitation is None
    with pytest.raises(AddressError, match="invitation"):
        RunAddress.parse(f"{ADDRESS}#guess")


def test_orders_are_files_in_their_order(tmp_path: Path) -> None:
    home = OperatorHome(tmp_path)
    with pytest.raises(HomeError, match="there is no run"):
        home.order(Admit(name="a"))
    (tmp_path / "manifest.json").write_bytes(b"")
    given: list[Order] = [
        Invite(digests=(digest_of(new_code()),)),
        Admit(name="a"),
        Ban(name="b", why="noise"),
        Forgive(name="b"),
    ]
    for order in given:
        home.order(order)
    (tmp_path / "orders" / "00.json").write_text("{}")  # somebody else's; passed over
    assert [order for _, order in home.orders()] == given
    assert left(tmp_path / "nowhere") == []


def test_the_commands_leave_orders_and_print_addresses(tmp_path: Path) -> None:
    run_file, home = tmp_path / "run.toml", tmp_path / "home"
    runner = CliRunner()
    assert runner.invoke(app, ["init", str(run_file)]).exit_code == 0
    there = [str(run_file), "--home", str(home)]
    assert runner.invoke(app, ["invite", *there]).exit_code != 0  # it has never been served
    home.mkdir()
    (home / "manifest.json").write_bytes(b"")
    (home / "address.txt").write_text(f"{ADDRESS}\n")
    invited = runner.invoke(app, ["invite", *there, "--count", "2"])
    assert invited.exit_code == 0, invited.output
    codes = [RunAddress.parse(line).invitation for line in invited.output.split()]
    assert runner.invoke(app, ["admit", *there[:1], SOMEBODY, *there[1:]]).exit_code == 0
    assert runner.invoke(app, ["ban", *there[:1], SOMEBODY, *there[1:], "--why", "noise"]).exit_code == 0
    assert runner.invoke(app, ["forgive", *there[:1], SOMEBODY, *there[1:]]).exit_code == 0
    wrong = runner.invoke(app, ["ban", *there[:1], "me", *there[1:]])
    assert wrong.exit_code != 0
    refused = runner.invoke(app, ["ban", *there[:1], NAME, *there[1:]])
    assert refused.exit_code == 2
    assert "is a bootstrap node of this run" in refused.output
    assert [order for _, order in OperatorHome(home).orders()] == [
        Invite(digests=tuple(digest_of(code) for code in codes if code is not None)),
        Admit(name=SOMEBODY),
        Ban(name=SOMEBODY, why="noise"),
        Forgive(name=SOMEBODY),
    ]


def test_invitations_are_taken_back_by_address_or_all_at_once(tmp_path: Path) -> None:
    run_file, home, runner = tmp_path / "run.toml", tmp_path / "home", CliRunner()
    assert runner.invoke(app, ["init", str(run_file)]).exit_code == 0
    home.mkdir()
    (home / "manifest.json").write_bytes(b"")
    (home / "address.txt").write_text(f"{ADDRESS}\n")
    code, there = new_code(), [str(run_file), "--home", str(home)]
    for bad in ([], [f"{ADDRESS}#{code}", "--all"], [ADDRESS]):
        assert runner.invoke(app, ["withdraw", *there[:1], *bad, *there[1:]]).exit_code == 2
    assert runner.invoke(app, ["withdraw", *there[:1], f"{ADDRESS}#{code}", *there[1:]]).exit_code == 0
    assert runner.invoke(app, ["withdraw", *there, "--all"]).exit_code == 0
    said = [order for _, order in OperatorHome(home).orders()]
    assert said == [Withdraw(digests=(digest_of(code),)), Withdraw()]


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
def test_what_root_orders_can_be_read_by_the_service_s_own_user(tmp_path: Path) -> None:
    home, service = tmp_path / "home", 12345
    home.mkdir()
    (home / "manifest.json").write_bytes(b"")
    os.chown(home, service, service)
    OperatorHome(home).order(Ban(name=SOMEBODY, why="noise"))
    (left_there,) = (home / "orders").iterdir()
    (somebody_s := tmp_path / "shadow").write_text("")
    (home / "orders" / "link.json").symlink_to(somebody_s)
    OperatorHome(home).order(Forgive(name=SOMEBODY))
    assert somebody_s.stat().st_uid == 0
    assert {path.stat().st_uid for path in (home / "orders", left_there)} == {service}
    assert left_there.stat().st_mode & 0o077 == 0
