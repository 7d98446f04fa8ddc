"""What peers do wrong ends in one place, in few lines, and costs nobody else anything."""

import asyncio
import logging

import pytest

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.border import (
    LINES,
    LINES_A_PEER,
    MAX_STREAMS_A_PEER,
    MAX_STREAMS_A_SITE,
    MAX_STREAMS_OF_STRANGERS,
    SHUNNED_AFTER,
    WINDOW_SECONDS,
    Border,
)
from tests.clocks import HandClock


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def break_it(border: Border, peer: str, times: int = 1) -> None:
    for _ in range(times):
        with border.guard(peer, "ignored it"):
            raise RemoteDataError(peer, "sends nonsense")


@pytest.mark.parametrize("error", [RemoteDataError("p", "x"), EOFError(), ConnectionError(), TimeoutError()])
def test_what_others_do_is_no_mistake_of_ours(error: Exception) -> None:
    border = Border(HandClock())
    with border.guard("peer", "ignored it"):
        raise error
    assert border.bugs == 0


@pytest.mark.parametrize("error", [ValueError("x\x1b[2J"), ExceptionGroup("of a round", [KeyError(3)]), MemoryError()])
def test_a_mistake_of_ours_ends_at_the_border_and_is_counted(
    error: Exception, caplog: pytest.LogCaptureFixture, mistakes: list[str]
) -> None:
    border = Border(HandClock())
    with caplog.at_level(logging.DEBUG):
        with border.guard("peer", "ignored it"):
            raise error
        assert asyncio.run(border.guarded("peer", fails(error), "kept")) == "kept"
    assert border.bugs == len(mistakes) == 2
    assert all(type(error).__name__ in line and line.isprintable() for line in mistakes)
    assert error in [record.exc_info[1] for record in caplog.records if record.exc_info]
    mistakes.clear()


async def fails(error: Exception) -> str:
    raise error


def test_work_is_cancelled_through_the_border() -> None:
    border = Border(HandClock())
    with pytest.raises(asyncio.CancelledError), border.guard("peer", "ignored it"):
        raise asyncio.CancelledError


def test_one_peer_gets_few_lines_and_all_together_not_many_more(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    border = Border(clock)
    break_it(border, "loud", 1000)
    assert len(lines(caplog)) == LINES_A_PEER
    for i in range(1000):
        break_it(border, f"peer-{i}")
    assert len(lines(caplog)) == LINES
    clock.now += WINDOW_SECONDS
    break_it(border, "loud")
    assert len(lines(caplog)) == LINES + 2
    assert f"{2000 - LINES} more" in lines(caplog)[-2]
    assert "1001 peers" in lines(caplog)[-2]


def test_who_sends_nothing_but_nonsense_is_not_heard_for_a_minute() -> None:
    clock = HandClock()
    border = Border(clock)
    heard: list[str] = []

    async def listen() -> None:
        heard.append("listened")
        raise RemoteDataError("bad", "sends nonsense")

    for _ in range(3 * SHUNNED_AFTER):
        asyncio.run(border.hear("bad", listen))
    assert len(heard) == SHUNNED_AFTER
    assert not border.shuns("good")
    clock.now += WINDOW_SECONDS
    asyncio.run(border.hear("bad", listen))
    assert len(heard) == SHUNNED_AFTER + 1


def test_one_peer_has_only_so_many_streams() -> None:
    border = Border(HandClock())

    async def visit() -> int:
        leave, heard = asyncio.Event(), 0

        async def listen() -> None:
            nonlocal heard
            heard += 1
            await leave.wait()

        visits = [asyncio.create_task(border.hear("many", listen)) for _ in range(2 * MAX_STREAMS_A_PEER)]
        visits.append(asyncio.create_task(border.hear("other", listen)))
        await asyncio.sleep(0)
        leave.set()
        await asyncio.gather(*visits)
        await border.hear("many", listen)
        return heard

    assert asyncio.run(visit()) == MAX_STREAMS_A_PEER + 2


def heard(border: Border, visitors: list[tuple[str, str]]) -> list[str]:
    """Which of these (peer, address) are heard, all at once."""

    async def visit() -> list[str]:
        leave, found = asyncio.Event(), list[str]()

        async def listen(peer: str) -> None:
            found.append(peer)
            await leave.wait()

        visits = [asyncio.create_task(border.hear(who, lambda w=who: listen(w), at)) for who, at in visitors]  # type: ignore[misc]
        await asyncio.sleep(0)
        leave.set()
        await asyncio.gather(*visits)
        return found

    return asyncio.run(visit())


def test_names_of_one_machine_have_as_many_streams_as_one_and_members_find_room() -> None:
    border = Border(HandClock())
    border.is_strange = lambda peer: peer.startswith("made-up")
    crowd = [(f"made-up-{n}", f"/ip4/11.0.0.{n % 250}/tcp/{n}") for n in range(3 * MAX_STREAMS_A_SITE)]
    others = [("made-up-else", "/ip4/11.0.1.1/tcp/1"), ("member", "/ip4/11.0.0.7/tcp/1"), ("made-up-local", "")]
    for _ in range(2):  # whoever has left is forgotten
        found = heard(border, [*crowd, *others])
        assert found == [*(who for who, _ in crowd[:MAX_STREAMS_A_SITE]), *(who for who, _ in others)]


def test_strangers_from_everywhere_leave_room_for_members() -> None:
    border = Border(HandClock())
    border.is_strange = lambda peer: peer.startswith("made-up")
    crowd = [(f"made-up-{n}", f"/ip4/11.{n % 200}.{n // 200}.1/tcp/1") for n in range(MAX_STREAMS_OF_STRANGERS + 99)]
    found = heard(border, [*crowd, ("member", "/ip4/11.0.0.1/tcp/1")])
    assert len(found) == MAX_STREAMS_OF_STRANGERS + 1
    assert found[-1] == "member"
