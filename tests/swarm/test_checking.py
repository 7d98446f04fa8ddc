"""Averages are checked after a round: who is shown what, who is believed, and what a false word costs."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.swarm.checks import AskInputs, InputsAre, NotShown
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.framing import PieceHeader
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup, PeerName, Swarm
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.round import showing
from dipaco_swarm.swarm.round.accusing import Accusing, Evidence
from dipaco_swarm.swarm.round.auditing import Auditing
from dipaco_swarm.swarm.round.exchange import PieceExchange
from dipaco_swarm.swarm.round.reducer import Input, Reducer
from dipaco_swarm.swarm.wire import NotHere

MakeSwarms = Callable[[int], Sequence[Swarm]]
MODULE = ModuleId(0, 0)
PARAMETERS = 4 << 16
"""A piece for each of four."""
GROUP = ModuleGroup(0, MODULE, {PathIndex(path): 0.25 for path in range(4)}, "robust")
DIGEST = "0" * 64


@pytest.fixture
def every_piece_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "CHECKED", 4.0)


def one_round(swarms: Sequence[Swarm]) -> list[Agreed]:
    """Which all agree on."""
    found = outcomes(swarms)
    assert all(isinstance(outcome, Agreed) for outcome in found), found
    return found


def outcomes(swarms: Sequence[Swarm]) -> list[Any]:
    """Of one round, by path."""
    for path, swarm in enumerate(swarms):
        swarm.configure_rounds("int8", 4.0)
        swarm.announce([Announcement(swarm.peer, 0, MODULE, PathIndex(path), 0, DIGEST)], [GROUP])
    until(lambda: all(seen(swarm) == len(swarms) for swarm in swarms))
    outcome_of: dict[int, Any] = {}

    def take_part(path: int) -> None:
        common = torch.randn(PARAMETERS, generator=torch.Generator().manual_seed(1))
        gradient = common + torch.randn(PARAMETERS, generator=torch.Generator().manual_seed(2 + path))
        part = Contribution(GROUP, PathIndex(path), 0, gradient, 100, DIGEST)
        outcome_of[path] = swarms[path].all_reduce([part], patience=20)[MODULE]
        gradient.zero_()  # it is the program's again: nothing that is shown later may be a view of it

    threads = [threading.Thread(target=take_part, args=[path]) for path in range(len(swarms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcome_of[path] for path in range(len(swarms))]


def seen(swarm: Swarm) -> int:
    swarm.look_up(0, [MODULE], timeout=10)
    return len(swarm.members(0, MODULE))


def until(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < deadline, "that does not happen"
        time.sleep(0.05)


def auditing(swarm: Swarm) -> Auditing:
    assert isinstance(swarm, NetworkedSwarm)
    assert swarm._rounds is not None
    return swarm._rounds._auditing


def bans(swarm: Swarm) -> set[str]:
    return set(swarm.door.bans.names())


def in_loop(swarm: Swarm, work: Any) -> Any:
    assert isinstance(swarm, NetworkedSwarm)
    return swarm._portal.run(work)


def whatever_is_judged(monkeypatch: pytest.MonkeyPatch) -> list[Evidence]:
    """By anybody, from now on."""
    judge, judged = Accusing.judge, list[Evidence]()

    async def note(self: Accusing, shown: Evidence, group: ModuleGroup) -> bool:
        judged.append(shown)
        return await judge(self, shown, group)

    monkeypatch.setattr(Accusing, "judge", note)
    return judged


async def ask(swarm: NetworkedSwarm, peer: str, question: Message) -> Message:
    async with swarm._transport.dial(peer, auditing(swarm)._protocol) as stream:
        await stream.send(question)
        return await stream.receive()


@pytest.mark.usefixtures("every_piece_is_checked")
def test_what_honest_members_have_made_is_shown_and_right(make_local_swarms: MakeSwarms) -> None:
    swarms = make_local_swarms(4)
    one_round(swarms)
    until(lambda: all(auditing(swarm).accusing.judged >= 3 for swarm in swarms))
    assert not any(bans(swarm) for swarm in swarms)
    assert not any(auditing(swarm).hidden.times() for swarm in swarms)


@pytest.mark.swarm
@pytest.mark.usefixtures("every_piece_is_checked")
def test_all_of_it_over_libp2p(make_libp2p_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch) -> None:
    one_is_wrong(make_libp2p_swarms(3), monkeypatch)


@pytest.mark.usefixtures("every_piece_is_checked")
def test_a_wrong_average_bans_its_reducer_with_all_who_were_in_the_round(
    make_local_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_is_wrong(make_local_swarms(4), monkeypatch)


def one_is_wrong(swarms: Sequence[Swarm], monkeypatch: pytest.MonkeyPatch) -> None:
    culprit = swarms[2].peer
    honest = Reducer._sum
    bent: list[int] = []

    def wrong(self: Reducer, piece: int, generation: int, arrived: Any) -> Any:
        mean_of = self._mean_of
        if self._roster.members[self._me].peer == culprit:
            bent.append(piece)
            self._mean_of = lambda given: type(mean_of(given))(-mean_of(given).average, mean_of(given).members)
        try:
            return honest(self, piece, generation, arrived)
        finally:
            self._mean_of = mean_of

    monkeypatch.setattr(Reducer, "_sum", wrong)
    one_round(swarms)
    assert bent, "nobody was wrong, which proves nothing"
    others = [swarm for swarm in swarms if swarm.peer != culprit]
    until(lambda: all(bans(swarm) == {culprit} for swarm in others))
    assert not bans(swarms[2])


def shows(accuser: Swarm, to: PeerName, shown: Evidence) -> None:
    """All that there is to an accusation."""
    pieces = [shown.average, *(data for _, data in sorted(shown.inputs.items()))]
    in_loop(accuser, auditing(accuser).accusing._say(to, shown.said, pieces))


async def accuses_and_shows_nothing(accuser: Swarm, hearer: Swarm, shown: Evidence, done: threading.Event) -> None:
    async with accuser._transport.dial(hearer.peer, auditing(hearer)._protocol) as stream:  # type: ignore[attr-defined]
        await stream.send(shown.said)
        while not done.is_set():
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("every_piece_is_checked")
def test_who_accuses_somebody_honest_bans_nobody_and_is_heard_no_more(
    make_local_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows all that the reducer has signed, and says that it is wrong."""
    swarms = make_local_swarms(4)
    evidence = whatever_is_judged(monkeypatch)
    one_round(swarms)
    until(lambda: len(evidence) >= 12)
    liar = swarms[0]
    shown = next(one for one in evidence if one.reducer == swarms[1].peer)
    shows(liar, swarms[2].peer, shown)
    until(lambda: liar.peer in auditing(swarms[2]).accusing.unheard)
    assert not any(bans(swarm) for swarm in swarms)


@pytest.mark.usefixtures("every_piece_is_checked")
def test_a_stranger_that_accuses_and_sends_nothing_more_keeps_no_member_from_being_heard(
    make_local_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom it accuses is itself, of a round that it has made up; and when its stream ends, it is heard no more."""
    judged = whatever_is_judged(monkeypatch)
    swarms = make_local_swarms(4)
    one_round(swarms[:3])
    until(lambda: len(judged) >= 6)
    hearer, member, stranger = swarms[0], swarms[1], swarms[3]
    stranger.announce([Announcement(stranger.peer, 0, MODULE, PathIndex(3), 0, DIGEST)], [GROUP])
    until(lambda: stranger.peer in {said.peer for said in hearer.members(0, MODULE)} or seen(hearer) == 0)
    hearing, shown = auditing(hearer).accusing._hearing, next(e for e in judged if e.reducer == swarms[2].peer)
    done = threading.Event()

    thread = threading.Thread(target=in_loop, args=[stranger, accuses_and_shows_nothing(stranger, hearer, shown, done)])
    thread.start()
    until(lambda: hearing[True].locked())
    before = auditing(hearer).accusing.judged
    shows(member, hearer.peer, shown)
    until(lambda: auditing(hearer).accusing.judged == before + 1)
    assert hearing[True].locked()
    done.set()
    thread.join()
    until(lambda: stranger.peer in auditing(hearer).accusing.unheard)


@pytest.mark.usefixtures("every_piece_is_checked")
def test_a_member_that_shows_nothing_keeps_no_other_from_being_heard(
    make_local_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of its streams held the place of all whom we know, one after the other, longer than an accuser waits."""
    judged = whatever_is_judged(monkeypatch)
    swarms = make_local_swarms(4)
    one_round(swarms)
    until(lambda: bool(judged))
    shown = judged[0]
    hearer, member, silent = [swarm for swarm in swarms if swarm.peer != shown.reducer]
    accusing = auditing(hearer).accusing
    until(lambda: not accusing._standing.is_strange(silent.peer))
    done = threading.Event()

    threads = [
        threading.Thread(target=in_loop, args=[silent, accuses_and_shows_nothing(silent, hearer, shown, done)])
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    until(lambda: silent.peer in accusing._turns and accusing._turns[silent.peer].locked())
    time.sleep(0.5)  # what else is judged is over
    before = accusing.judged
    shows(member, hearer.peer, shown)
    until(lambda: accusing.judged > before)
    assert accusing._turns[silent.peer].locked()
    until(lambda: silent.peer in accusing.slow)
    done.set()
    for thread in threads:
        thread.join()


@pytest.mark.usefixtures("every_piece_is_checked")
def test_who_says_that_it_is_not_shown_what_others_are_is_heard_once(make_local_swarms: MakeSwarms) -> None:
    swarms = make_local_swarms(4)
    one_round(swarms)
    round_id = next(iter(auditing(swarms[0]).showing._rounds))
    kept = auditing(swarms[0]).showing._rounds[round_id]
    piece = next(piece for piece in kept.sealed if kept.reducer(piece) == swarms[1].peer)
    in_loop(swarms[0], auditing(swarms[0]).accusing._say(swarms[2].peer, NotShown(round_id=round_id, piece=piece), ()))
    until(lambda: swarms[0].peer in auditing(swarms[2]).unheard)
    assert swarms[0].peer not in auditing(swarms[2]).accusing.unheard, "what it can prove is heard"
    assert not auditing(swarms[2]).hidden.times()


def test_many_words_against_a_reducer_that_shows_all_do_not_hide_it(
    make_local_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names on a roster cost nothing, and a reducer shows one member no more than anybody honest asks for."""
    monkeypatch.setattr(showing, "CHECKED", 0.0)
    paths = {PathIndex(path): 1 / 12 for path in range(12)}
    monkeypatch.setattr(f"{__name__}.GROUP", ModuleGroup(0, MODULE, paths, "robust"))
    swarms = make_local_swarms(12)
    one_round(swarms)
    hearer, reducer, crowd = swarms[0], swarms[1], swarms[2:]
    round_id, kept = next(iter(auditing(hearer).showing._rounds.items()))
    piece = next(piece for piece in kept.sealed if kept.reducer(piece) == reducer.peer)
    for swarm in crowd:
        word = NotShown(round_id=round_id, piece=piece)
        in_loop(swarm, auditing(swarm).accusing._say(hearer.peer, word, ()))
    until(lambda: len(auditing(hearer).unheard) == showing.MOST_WORDS)
    until(lambda: kept.doubted >= {swarm.peer for swarm in crowd})
    assert not auditing(hearer).hidden.times()
    assert auditing(reducer).showing._rounds[round_id].asked[hearer.peer] == showing.MOST_WORDS


def test_only_members_of_a_round_are_shown_what_it_was_made_from_and_not_all_of_it(
    make_local_swarms: MakeSwarms,
) -> None:
    swarms = [swarm for swarm in make_local_swarms(3) if isinstance(swarm, NetworkedSwarm)]
    one_round(swarms[:2])
    swarms[2].configure_rounds("int8", 4.0)
    round_id, kept = next(iter(auditing(swarms[0]).showing._rounds.items()))
    piece = next(iter(kept.ours))
    question = AskInputs(round_id=round_id, piece=piece)
    assert isinstance(in_loop(swarms[2], ask(swarms[2], swarms[0].peer, question)), NotHere)
    asked = 0
    while isinstance(in_loop(swarms[1], asyncio.wait_for(answer(swarms[1], swarms[0].peer, question), 10)), InputsAre):
        asked += 1
        assert asked < 20
    assert asked == showing.TRIES * (2 + showing.most_checked(len(kept.ours), 2))


async def answer(swarm: NetworkedSwarm, peer: str, question: Message) -> Message | None:
    """None: it hangs up."""
    try:
        return await ask(swarm, peer, question)
    except EOFError:
        return None


def test_what_its_member_has_not_signed_does_not_count(
    make_local_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reducer could show it to nobody."""
    swarms = make_local_swarms(3)
    culprit = swarms[1].peer
    honest = PieceExchange._signed
    sent: list[int] = []

    def unsigned(self: PieceExchange, piece: int) -> Input:
        given = honest(self, piece)
        if self._transport.peer != culprit or self.roster.members[self.average.owners[piece]].peer == culprit:
            return given
        sent.append(piece)
        return replace(given, signature=bytes(64))

    monkeypatch.setattr(PieceExchange, "_signed", unsigned)
    outcomes = one_round(swarms)
    assert sent, "nothing was sent, which proves nothing"
    assert all(outcome.left_out == (culprit,) for outcome in outcomes)


def test_pieces_of_a_round_to_come_stay_where_they_are(
    make_local_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sends everybody its whole vector, and says that it was told to: who reduces a part of it holds no more."""
    held: list[int] = []
    honest, take = PieceExchange._send_contributions, Reducer.take

    async def send_all(self: PieceExchange, *where: Any) -> None:
        if self._transport.peer == swarms[3].peer:
            stream = where[0]
            for piece in range(len(self.average.owners)):
                data = self.contribution_to(piece)
                await stream.send_piece(PieceHeader(piece, 999, bytes(64), len(data)), data)
        await honest(self, *where)

    def note(self: Reducer, member: int, piece: int, given: Input) -> None:
        take(self, member, piece, given)
        owners, arrived = self._average.owners, self._arrived
        held.append(sum(len(one.data) for at, of in arrived.items() for one in of.values() if owners[at] != self._me))

    monkeypatch.setattr(PieceExchange, "_send_contributions", send_all)
    monkeypatch.setattr(Reducer, "take", note)
    swarms = make_local_swarms(4)
    assert all(isinstance(outcome, Agreed) for outcome in outcomes(swarms)[:3]), "and none waits for it for ever"
    assert held
    assert max(held) == 0
