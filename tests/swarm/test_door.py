"""Invitations are shown in the loop while the program looks after them in its thread."""

import threading

from dipaco_swarm.run.register import digest_of
from dipaco_swarm.swarm.door import Admission
from dipaco_swarm.swarm.greetings import ShowInvitation
from tests.hub import Hub

CODES = ("a" * 24, "b" * 24)


class Interrupted(str):
    """A digest at which somebody else comes in, once."""

    come_in: threading.Event
    is_in: threading.Event

    def __hash__(self) -> int:
        if not self.come_in.is_set():
            self.come_in.set()
            self.is_in.wait(0.5)
        return super().__hash__()


def test_an_invitation_lifts_no_ban_and_is_not_used_up_by_who_is_banned() -> None:
    with Hub() as hub:
        door = hub.swarm("bootstrap").door
        door.expect([digest_of(CODES[0])])
        door.admission = Admission(banned=frozenset({"banned"}))
        assert not door.answer("banned", ShowInvitation(code=CODES[0])).noted
        assert door.shown() == {}
        assert door.answer("another", ShowInvitation(code=CODES[0])).noted


def test_an_invitation_that_is_shown_while_the_list_is_renewed_is_not_shown_by_another() -> None:
    with Hub() as hub:
        door = hub.swarm("bootstrap").door
        first, second = (digest_of(code) for code in CODES)
        door.expect([first, second])
        last = Interrupted(second)
        last.come_in, last.is_in = threading.Event(), threading.Event()

        def show() -> None:
            last.come_in.wait()
            assert door.answer("one", ShowInvitation(code=CODES[0])).noted
            last.is_in.set()

        shows = threading.Thread(target=show)
        shows.start()
        door.expect([first, last])
        shows.join()
        assert not door.answer("another", ShowInvitation(code=CODES[0])).noted
        assert door.shown() == {first: "one"}
