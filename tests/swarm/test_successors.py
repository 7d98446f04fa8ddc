"""Whoever has the state before gets the next version from the averages: in process, simulated and over libp2p."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.outer_step import follow_averages, outer_step
from dipaco_swarm.swarm.encoded_average import EncodedAverage
from dipaco_swarm.swarm.fetching import Older
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup, Role, Swarm
from dipaco_swarm.swarm.states.averages import pack
from dipaco_swarm.swarm.states.blob_download import CHUNK
from dipaco_swarm.swarm.states.store import Store
from dipaco_swarm.swarm.traffic import Purpose
from dipaco_swarm.swarm.transport import Stream
from dipaco_swarm.swarm.wire import AskBlob, BlobFollows
from tests.averages import OUTER, PARAMETERS, average_of, chain_from, noise, state_of
from tests.hub import until

from .conftest import MakeSwarms
from .test_contract import reduce_together

MODULE = ModuleId(0, 0)
BASE = state_of(1)
FOLLOW = partial(follow_averages, OUTER)
GROUP = ModuleGroup(0, MODULE, {PathIndex(0): 0.5, PathIndex(1): 0.5})


def say(swarm: Swarm, state: ModuleState, role: Role = Role.HOLDS) -> None:
    """Announce a state."""
    path = PathIndex(0) if role is Role.TRAINS else None
    said = Announcement(swarm.peer, 0, MODULE, path, state.version, state.digest, state.work, role=role)
    swarm.announce([said], [GROUP] if path is not None else [])


def hear(swarm: Swarm, others: Sequence[Swarm]) -> None:
    """Wait until a swarm knows what these have announced."""

    def heard() -> bool:
        swarm.look_up(0, [MODULE], timeout=10)
        return {other.peer for other in others} <= {said.peer for said in swarm.members(0, MODULE)}

    until(heard)


def successor(swarm: Swarm, state: ModuleState, base: ModuleState = BASE) -> ModuleState | None:
    """A state that nobody holds, from the averages."""
    return swarm.fetch_state(
        0, MODULE, state.digest, timeout=20, parameters=len(base.params), older=Older(base, FOLLOW)
    )


def hold(swarm: Swarm, chain: Sequence[tuple[EncodedAverage, ModuleState]]) -> None:
    for average, state in chain:
        swarm.hold_average(0, MODULE, average, state.digest)
    say(swarm, chain[-1][1])


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_who_was_not_in_a_round_makes_its_version_of_what_the_members_have(make_swarms: MakeSwarms, codec: str) -> None:
    one, two, third = make_swarms(3)
    for swarm in (one, two):
        swarm.configure_rounds(codec, 1000.0)
        say(swarm, BASE, Role.TRAINS)
    for swarm in (one, two):
        hear(swarm, [one, two])
    parts = [
        [Contribution(GROUP, PathIndex(path), BASE.version, noise(path), 5, BASE.digest, BASE.work)]
        for path in range(2)
    ]
    states = []
    for swarm, outcomes in zip((one, two), reduce_together([one, two], parts), strict=True):
        outcome = outcomes[MODULE]
        assert isinstance(outcome, Agreed), outcome
        states.append(outer_step(BASE, outcome.encoded, OUTER))
        swarm.hold_average(0, MODULE, outcome.encoded, states[-1].digest)
        say(swarm, states[-1], Role.TRAINS)
    assert states[0].digest == states[1].digest
    hear(third, [one, two])
    before = third.traffic().received
    made = successor(third, states[0])
    assert made is not None
    assert (made.version, made.work) == (BASE.version + 1, BASE.work + 10)
    assert ModuleState(made.version, made.params, made.momentum, made.work).digest == states[0].digest
    bytes_each = {"bf16": 2.0, "int8": 1.0}[codec]
    assert third.traffic().received - before < 1.05 * bytes_each * PARAMETERS
    assert third.traffic().received_for[Purpose.VERSIONS] == third.traffic().received - before
    assert sum(swarm.traffic().sent_for[Purpose.VERSIONS] for swarm in (one, two)) == third.traffic().received - before
    assert one.traffic().sent_for[Purpose.ROUND] > 0


def test_three_versions_are_made_up_for_at_once_and_then_given_to_others(make_swarms: MakeSwarms) -> None:
    holder, late, later = make_swarms(3)
    chain = chain_from(BASE, 3)
    hold(holder, chain)
    hear(late, [holder])
    made = successor(late, chain[-1][1])
    assert made is not None
    assert made.digest == chain[-1][1].digest
    holder.release(0, MODULE)
    say(late, made)
    hear(later, [late])
    again = successor(later, chain[-1][1])
    assert again is not None
    assert again.digest == made.digest
    assert successor(later, chain[1][1]) is not None  # and what lies between them


def test_who_knows_of_no_way_there_says_so(make_swarms: MakeSwarms) -> None:
    holder, late = make_swarms(2)
    chain = chain_from(BASE, 2)
    hold(holder, chain)
    hear(late, [holder])
    assert successor(late, chain[-1][1], base=state_of(5)) is None  # a fork
    assert successor(late, state_of(6)) is None
    assert late.traffic().received == 0
    assert successor(late, chain[-1][1]) is not None


def test_who_has_gone_astray_alone_goes_on_from_the_state_before(make_swarms: MakeSwarms) -> None:
    holder, astray = make_swarms(2)
    chain = chain_from(BASE, 2)
    hold(holder, chain)
    lone = outer_step(BASE, average_of(BASE, 55), OUTER)
    for state in (BASE, lone):
        astray.hold(0, MODULE, state)
    hear(astray, [holder])
    for _, state in chain:
        made = successor(astray, state, base=lone)
        assert made is not None
        assert made.digest == state.digest


def test_a_way_that_is_longer_than_the_state_is_not_taken(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(3)
    first, second = chain_from(BASE, 2, "fp32")
    for swarm, (average, state) in zip(swarms, (first, second), strict=False):
        swarm.hold_average(0, MODULE, average, state.digest)
        say(swarm, second[1])
    hear(swarms[2], swarms[:2])
    assert successor(swarms[2], second[1]) is None
    assert successor(swarms[2], second[1], base=first[1]) is not None


def test_averages_of_a_liar_are_not_taken_and_it_is_not_asked_again(
    make_swarms: MakeSwarms, caplog: pytest.LogCaptureFixture
) -> None:
    liar, honest, late = make_swarms(3)
    ((average, state),) = chain_from(BASE, 1)
    liar.hold_average(0, MODULE, replace(average_of(BASE, 77), work=average.work), state.digest)
    say(liar, state, Role.KEEPS)  # keepers are asked first
    say(honest, state, Role.TRAINS)
    hear(late, [liar, honest])
    with caplog.at_level(logging.WARNING, "dipaco_swarm"):
        assert successor(late, state) is None
    assert [liar.peer[-8:] in record.getMessage() for record in caplog.records] == [True]
    after_the_lie = late.traffic().received
    assert after_the_lie > 0.8 * PARAMETERS
    assert successor(late, state) is None
    assert late.traffic().received == after_the_lie
    honest.hold_average(0, MODULE, average, state.digest)
    made = successor(late, state)
    assert made is not None
    assert made.digest == state.digest


def test_the_next_holder_is_asked_where_one_lies(make_swarms: MakeSwarms) -> None:
    liar, honest, late = make_swarms(3)
    ((average, state),) = chain_from(BASE, 1)
    liar.hold_average(0, MODULE, average_of(BASE, 77), state.digest)
    honest.hold_average(0, MODULE, average, state.digest)
    say(liar, state, Role.KEEPS)
    say(honest, state, Role.TRAINS)
    hear(late, [liar, honest])
    made = successor(late, state)
    assert made is not None
    assert made.digest == state.digest


def test_the_same_lie_is_fetched_once(make_swarms: MakeSwarms) -> None:
    *liars, late = make_swarms(3)
    ((_, state),) = chain_from(BASE, 1)
    lie = average_of(BASE, 77)
    for liar in liars:
        hold(liar, [(lie, state)])
    hear(late, liars)
    assert successor(late, state) is None
    assert late.traffic().received == pack(lie, state.digest).packed.size


def test_a_holder_that_goes_in_the_middle_costs_a_chunk(
    make_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, late = make_swarms(3)
    base = state_of(1, 4 * CHUNK)
    chain = chain_from(base, 1)
    for swarm in (one, two):
        hold(swarm, chain)
    hear(late, [one, two])
    send, broken = Store._send_average, threading.Event()

    async def break_off_once(self: Store, stream: Stream, ask: AskBlob) -> None:
        data = self._averages.get(ask.digest)
        if broken.is_set() or data is None:
            await send(self, stream, ask)
            return
        broken.set()
        await stream.send(BlobFollows(size=len(data)))
        await stream.send_raw(memoryview(data)[: 2 * CHUNK])

    monkeypatch.setattr(Store, "_send_average", break_off_once)
    made = successor(late, chain[0][1], base=base)
    assert made is not None
    assert made.digest == chain[0][1].digest
    assert broken.is_set()
    size = pack(chain[0][0], made.digest).packed.size
    assert size <= late.traffic().received <= size + CHUNK
