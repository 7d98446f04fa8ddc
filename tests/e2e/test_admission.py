"""Who may take part: invitations, admitting by name, bans; the real programs in one process."""

import json
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from typer.testing import CliRunner

from dipaco_swarm.cli.bootstrap import app
from dipaco_swarm.errors import UsageError
from dipaco_swarm.events.admission import InvitationsWithdrawn, PeerAdmitted, PeerBanned, RegisterFull
from dipaco_swarm.events.operator import Serving
from dipaco_swarm.events.training import Round
from dipaco_swarm.operator import admissions
from dipaco_swarm.peer import admittance
from dipaco_swarm.run.orders import Admit, Ban, Forgive, Invite, Order, Withdraw
from dipaco_swarm.run.register import digest_of, new_code
from tests.hub import until

from .world import FOUR_PATHS, Events, MakeWorld, World

INVITED = f'[admission]\nkind = "invited"\n\n{FOUR_PATHS}'


def error_of(world: World) -> BaseException | None:
    """Of the program that was started last, once it has ended."""
    last: Future[None] = world.started[-1]
    return last.exception(60)


def order(world: World, what: Order) -> None:
    """Order it, and wait until the node has done it."""
    world.kept.order(what)
    until(lambda: not world.kept.orders())


def two_in_an_open_run(make_world: MakeWorld) -> tuple[World, Events, Events, Callable[[], None]]:
    """The world, its operator, and ada, with how she leaves: she has made rounds with ben, who may be shut out."""
    world = make_world(FOUR_PATHS)
    operator = world.operator()
    operator.until(Serving)
    ada, leave = world.peer("ada", 0)
    ben, _ = world.peer("ben", 0, may_fail=True)
    ben.until(Round, round=2)
    return world, operator, ada, leave


def test_a_run_of_invited_peers_takes_an_invitation_once_and_nobody_else(make_world: MakeWorld) -> None:
    world = make_world(INVITED)
    operator = world.operator()
    operator.until(Serving)
    world.peer("uninvited", 0, may_fail=True)
    error = error_of(world)
    assert isinstance(error, UsageError)
    assert "takes invited peers only" in str(error)
    assert "uninvited" in str(error), "its name, for the operator to admit"

    code = new_code()
    order(world, Invite(digests=(digest_of(code),)))
    invited, leave = world.peer("invited", 0, invitation=code)
    invited.until(Round, round=2)
    assert operator.said(PeerAdmitted, peer="invited", invited=True)
    assert world.kept.invitations() == []
    assert world.kept.orders() == []
    leave()
    again, leave = world.peer("invited", 0)  # it is known by its name from now on
    again.until(Round, round=1)
    leave()

    world.peer("thief", 1, invitation=code, may_fail=True)
    error = error_of(world)
    assert isinstance(error, UsageError)
    assert "does not take the invitation" in str(error)

    codes = [new_code() for _ in range(3)]
    order(world, Invite(digests=tuple(map(digest_of, codes))))
    order(world, Withdraw(digests=(digest_of(codes[0]),)))
    assert world.kept.invitations() == [digest_of(code) for code in codes[1:]]
    world.peer("late", 1, invitation=codes[0], may_fail=True)
    assert "does not take the invitation" in str(error_of(world))
    order(world, Withdraw())
    assert world.kept.invitations() == []
    assert operator.until(InvitationsWithdrawn, times=2).number == 2
    listed = CliRunner().invoke(app, ["admitted", str(world.kept.folder), "--json"])
    assert json.loads(listed.output) == {"kind": "invited", "admitted": ["invited"], "unused_invitations": 0}


def test_a_peer_is_admitted_by_name_banned_and_forgiven(make_world: MakeWorld) -> None:
    world = make_world(INVITED)
    operator = world.operator()
    operator.until(Serving)
    order(world, Admit(name="ada"))
    operator.until(PeerAdmitted, peer="ada", invited=False)
    ada, _ = world.peer("ada", 0, may_fail=True)
    ada.until(Round, round=1)
    order(world, Ban(name="ada", why="sends noise"))
    operator.until(PeerBanned, peer="ada", why="sends noise")
    error = error_of(world)
    assert isinstance(error, UsageError)
    assert "has banned this peer, ada: sends noise" in str(error)
    order(world, Forgive(name="ada"))
    world.peer("ada", 0, may_fail=True)
    error = error_of(world)  # not banned any more, and not admitted yet
    assert isinstance(error, UsageError)
    order(world, Admit(name="ada"))
    operator.until(PeerAdmitted, times=2, peer="ada", invited=False)
    ada, leave = world.peer("ada", 0)
    ada.until(Round, round=1)
    leave()


def test_a_full_register_takes_nobody_more_and_says_so(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admissions, "MAX_NAMES", 1)
    world = make_world(INVITED)
    operator = world.operator()
    operator.until(Serving)
    for name in ("ada", "ben"):
        order(world, Admit(name=name))
        order(world, Ban(name=f"not-{name}"))
    assert [said.peer for said in operator.reported(RegisterFull)] == ["ben", "not-ben"]
    order(world, Forgive(name="not-ada"))
    order(world, Ban(name="ada"))
    order(world, Admit(name="ben"))
    operator.until(PeerAdmitted, peer="ben", invited=False)


def test_a_run_that_is_closed_to_who_is_not_invited_is_so_at_once_and_opened_again_as_well(
    make_world: MakeWorld,
) -> None:
    world, _, ada, leave = two_in_an_open_run(make_world)
    order(world, Admit(name="ada"))
    config = world.config
    closed = config.model_copy(update={"admission": config.admission.model_copy(update={"kind": "invited"})})
    world.extend(closed)
    error = error_of(world)
    assert isinstance(error, UsageError)
    assert "takes invited peers only from now on" in str(error)
    until(lambda: not world.kept.orders())
    before = len(ada.reported(Round))
    ada.until(Round, times=before + 2)

    world.extend(config)
    until(lambda: not world.kept.orders())
    alone = len(ada.reported(Round))
    ben, leave_ben = world.peer("ben", 0)
    ben.until(Round, round=2)

    def together() -> bool:
        later = ada.reported(Round)[alone:]
        return any(commit.peers == 2 for over in later for module, commit in over.modules.items() if module == "L0M0")

    until(together, 60.0)
    for each in (leave_ben, leave):
        each()


def test_whom_the_operator_has_banned_nobody_listens_to(make_world: MakeWorld) -> None:
    world, operator, ada, leave = two_in_an_open_run(make_world)
    order(world, Ban(name="ben"))
    operator.until(PeerBanned, peer="ben")
    assert isinstance(error_of(world), UsageError)
    before = len(ada.reported(Round))
    ada.until(Round, times=before + 2)
    leave()


def test_an_invitation_that_nobody_answers_is_said_to_be_tried_later(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admittance, "ADMITTED_SECONDS", 1.0)
    world = make_world(INVITED)
    world.operator().until(Serving)
    code = new_code()
    order(world, Invite(digests=(digest_of(code),)))
    monkeypatch.setattr("dipaco_swarm.swarm.door.Door.show", lambda *_, **__: None)
    world.peer("ada", 0, invitation=code, may_fail=True)
    error = error_of(world)
    assert isinstance(error, UsageError)
    assert "try again later with the same run address" in str(error)
