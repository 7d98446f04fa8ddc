"""What every `Swarm` promises: within one process, over a simulated network, and over libp2p."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.swarm.interface import (
    Agreed,
    Announcement,
    Contribution,
    ModuleGroup,
    NotAgreed,
    Outcome,
    Role,
    Swarm,
)
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.round import deciding
from dipaco_swarm.swarm.round.decision import Commit, Decision, Drop, Memory, RoundView, Wait, decide
from dipaco_swarm.swarm.round.reduction import leader_order, piece_average
from dipaco_swarm.swarm.round.roster import named_in
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.wire import RosterEntry
from tests.hub import until
from tests.long import cases

from .conftest import MakeSwarms

MODULE = ModuleId(0, 0)
OTHER = ModuleId(1, 0)
STATE = ModuleState(3, torch.arange(3000, dtype=torch.float32), torch.ones(3000))


def digest_of(version: int) -> str:
    return f"{version:064x}" if version else STATE.digest


def group(*weights: float, module: ModuleId = MODULE) -> ModuleGroup:
    return ModuleGroup(0, module, {PathIndex(path): weight for path, weight in enumerate(weights)})


def announcement(swarm: Swarm, path: int | None, version: int = 0, module: ModuleId = MODULE) -> Announcement:
    return Announcement(
        peer=swarm.peer,
        stage=0,
        module=module,
        path=None if path is None else PathIndex(path),
        version=version,
        digest=digest_of(version),
        work=version,
        catching_up=True,
        role=Role.KEEPS if path is None else Role.TRAINS,
    )


def gather(swarms: Sequence[Swarm], modules: Mapping[ModuleId, ModuleGroup], paths: Sequence[int]) -> None:
    """Announce everybody, one path each, and wait until each sees all."""
    for swarm, path in zip(swarms, paths, strict=True):
        said = [announcement(swarm, path, module=module) for module in modules]
        swarm.announce(said, list(modules.values()))
    for swarm in swarms:
        for module in modules:
            until(lambda s=swarm, m=module: len(_looked_up(s, m)) == len(swarms))  # type: ignore[misc]


def _looked_up(swarm: Swarm, module: ModuleId) -> Sequence[Announcement]:
    swarm.look_up(0, [module], timeout=10)
    return swarm.members(0, module)


def reduce_together(
    swarms: Sequence[Swarm], parts: Sequence[Sequence[Contribution]], patience: float = 20.0
) -> list[dict[ModuleId, Outcome]]:
    with ThreadPoolExecutor(len(swarms)) as pool:
        calls = [pool.submit(s.all_reduce, p, patience=patience) for s, p in zip(swarms, parts, strict=True)]
        return [call.result(timeout=60) for call in calls]


def part(path: int, gradient: torch.Tensor, group: ModuleGroup, tokens: int = 1, version: int = 0) -> Contribution:
    return Contribution(group, PathIndex(path), version, gradient, tokens, digest_of(version), work=version)


def agreed(outcome: Outcome) -> Agreed:
    assert isinstance(outcome, Agreed), outcome
    return outcome


def test_a_group_agrees_on_the_weighted_mean(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(2)
    weights = group(0.75, 0.25)
    gather(swarms, {MODULE: weights}, [0, 1])
    for swarm in swarms:
        swarm.configure_rounds("fp32", 4.0)
    ones = torch.ones(5000)
    outcomes = reduce_together(swarms, [[part(0, 1.0 * ones, weights)], [part(1, 3.0 * ones, weights)]])
    for outcome in outcomes:
        result = agreed(outcome[MODULE])
        assert torch.equal(result.mean, 1.5 * ones)  # (3 * 1 + 1 * 3) / 4
        assert set(result.contributors) == {swarm.peer for swarm in swarms}
        assert [span.effective_paths for span in result.spans] == pytest.approx([1.6])  # 1 / (9/16 + 1/16)


@pytest.mark.parametrize("codec", cases("fp32", "int4", long=["bf16", "int8", "e3m0"]))
def test_members_get_the_same_bytes_whatever_the_codec(make_swarms: MakeSwarms, codec: str) -> None:
    swarms = make_swarms(3)
    weights = group(1 / 3, 1 / 3, 1 / 3)
    gather(swarms, {MODULE: weights}, [0, 1, 2])
    gradients = [torch.randn(300_000, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    for swarm in swarms:
        swarm.configure_rounds(codec, 4.0)
    outcomes = reduce_together(swarms, [[part(i, gradients[i], weights)] for i in range(3)])
    means = [agreed(outcome[MODULE]).mean for outcome in outcomes]
    assert torch.equal(means[0], means[1])
    assert torch.equal(means[0], means[2])
    exact = sum(gradients[1:], gradients[0]) / 3
    lost = {"fp32": 1e-6, "bf16": 0.004, "int8": 0.015, "int4": 0.17, "e3m0": 0.3}[codec]  # on both ways together
    assert float((means[0] - exact).norm() / exact.norm()) < lost


def test_the_radial_average_is_as_long_as_its_parts(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(2)
    weights = ModuleGroup(0, MODULE, {PathIndex(0): 0.5, PathIndex(1): 0.5}, "radial")
    gather(swarms, {MODULE: weights}, [0, 1])
    gradients = [torch.randn(300_000, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    for swarm in swarms:
        swarm.configure_rounds("int8", 4.0)
    outcomes = reduce_together(swarms, [[part(i, gradients[i], weights)] for i in range(2)])
    means = [agreed(outcome[MODULE]).mean for outcome in outcomes]
    assert torch.equal(means[0], means[1])
    lengths = [float(gradient.norm()) for gradient in gradients]
    assert float(means[0].norm()) == pytest.approx(sum(lengths) / 2, rel=0.02)


def test_replicas_of_a_path_count_once(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(3)
    weights = group(0.5, 0.5)
    gather(swarms, {MODULE: weights}, [0, 0, 1])
    for swarm in swarms:
        swarm.configure_rounds("fp32", 4.0)
    values = [(0, 2.0, 300), (0, 6.0, 100), (1, 5.0, 7)]
    parts = [[part(path, torch.full((10,), value), weights, tokens)] for path, value, tokens in values]
    result = agreed(reduce_together(swarms, parts)[0][MODULE])
    assert torch.equal(result.mean, torch.full((10,), 4.0))  # ((300 * 2 + 100 * 6) / 400 + 5) / 2
    assert result.spans[0].effective_paths == pytest.approx(2.0)


def test_members_agree_on_the_usual_weight_decay(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(3)
    weights = group(1 / 3, 1 / 3, 1 / 3)
    gather(swarms, {MODULE: weights}, [0, 1, 2])
    for swarm in swarms:
        swarm.configure_rounds("fp32", 4.0)
    amounts = [0.01, 1.0, 0.015]
    parts = [[replace(part(i, torch.ones(10), weights), decay=amount)] for i, amount in enumerate(amounts)]
    for outcome in reduce_together(swarms, parts):
        result = agreed(outcome[MODULE])
        assert [span.decay for span in result.spans] == [0.015]
        assert torch.equal(result.mean, torch.ones(10)), "it is put on by the outer step"


def test_whom_most_others_doubt_is_left_out_of_the_average(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(4)
    weights = replace(group(0.25, 0.25, 0.25, 0.25), averaging="robust")
    gather(swarms, {MODULE: weights}, [0, 1, 2, 3])
    for swarm in swarms:
        swarm.configure_rounds("fp32", 4.0)
    names = [swarm.peer for swarm in swarms]
    doubts = [(names[3],), (names[3], names[1]), (), (names[0], names[1], names[2])]
    gradients = [float(path) * torch.ones(300_000) for path in (1, 2, 3, 9)]
    parts = [replace(part(path, gradients[path], weights), doubts=tuple(sorted(doubts[path]))) for path in range(4)]
    for outcome in reduce_together(swarms, [[each] for each in parts]):
        result = agreed(outcome[MODULE])
        assert torch.allclose(result.mean, 2.0 * torch.ones(300_000))  # of 1, 2 and 3
        assert {*result.tokens} == {*names[:3]}
        assert result.left_out == (names[3],)


def test_a_rule_that_counts_all_hears_no_doubts() -> None:
    said = RosterEntry(peer="a", path=0, tokens=1, norm=1e6, scale=1.0, reduces=True, nonce=bytes(16))
    roster = [said.model_copy(update={"peer": peer, "path": path}) for path, peer in enumerate("abcd")]
    doubts = named_in([() if peer == "d" else ("d",) for peer in "abcd"])
    contributions = {i: torch.full((5000,), float(i + 1)) for i in range(4)}
    for averaging, members in (("mean", (0, 1, 2, 3)), ("robust", (0, 1, 2))):
        rule = replace(group(0.25, 0.25, 0.25, 0.25), averaging=averaging)
        assert tuple(piece_average(roster, doubts, rule)(contributions).members) == members
        assert tuple(piece_average(roster, doubts, rule)({3: contributions[3]}).members) == (3,)  # there is nobody else


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_a_reducer_has_what_was_contributed_to_its_pieces(make_swarms: MakeSwarms, codec: str) -> None:
    swarms = make_swarms(3)
    weights = group(1 / 3, 1 / 3, 1 / 3)
    gather(swarms, {MODULE: weights}, [0, 1, 2])
    gradients = [torch.randn(300_000, generator=torch.Generator().manual_seed(path)) for path in range(3)]
    gradients[2] *= 10.0
    for swarm in swarms:
        swarm.configure_rounds(codec, 2.0)
    expected = [gradients[0].clone(), gradients[1].clone(), gradients[2] * 0.2]  # twice as long as the others
    outcomes = reduce_together(swarms, [[part(path, gradients[path], weights)] for path in range(3)])
    for gradient in gradients:
        gradient.zero_()  # it is the program's again
    places = []
    for outcome in outcomes:
        reduced = agreed(outcome[MODULE]).reduced
        assert reduced is not None
        assert reduced.peers == {swarm.peer for swarm in swarms}
        places += [(place.start, place.stop) for place in reduced.places]
        for swarm, vector in zip(swarms, expected, strict=True):
            for _ in range(2):  # as often as one likes
                for place, given in reduced.of(swarm.peer):
                    assert float((given - vector[place]).norm() / vector[place].norm()) < 0.02
    ends = [0, *(stop for _, stop in sorted(places))]
    assert ends[:-1] == [start for start, _ in sorted(places)]  # all of it, once
    assert ends[-1] == 300_000


def test_several_modules_are_averaged_at_once(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(2)
    groups = {module: group(0.5, 0.5, module=module) for module in (MODULE, OTHER)}
    gather(swarms, groups, [0, 1])
    for swarm in swarms:
        swarm.configure_rounds("fp32", 4.0)
    parts = [
        [part(i, torch.full((size,), float(2 * i)), groups[module]) for module, size in ((MODULE, 10), (OTHER, 99))]
        for i in range(2)
    ]
    for outcome in reduce_together(swarms, parts):
        assert torch.equal(agreed(outcome[MODULE]).mean, torch.ones(10))
        assert torch.equal(agreed(outcome[OTHER]).mean, torch.ones(99))


def test_a_lone_member_agrees_with_itself(make_swarms: MakeSwarms) -> None:
    (swarm,) = make_swarms(1)
    weights = group(1.0)
    gather([swarm], {MODULE: weights}, [0])
    swarm.configure_rounds("fp32", 4.0)
    gradient = torch.randn(2000)
    outcome = agreed(swarm.all_reduce([part(0, gradient, weights)], patience=5)[MODULE])
    assert torch.equal(outcome.mean, gradient)
    assert outcome.contributors == (swarm.peer,)


def test_a_member_who_does_not_come_is_waited_for_only_as_long_as_patience(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(2)
    weights = group(0.5, 0.5)
    gather(swarms, {MODULE: weights}, [0, 1])
    for swarm in swarms:
        swarm.configure_rounds("fp32", 4.0)
    started = time.monotonic()
    outcome = agreed(swarms[0].all_reduce([part(0, torch.ones(10), weights)], patience=1.0)[MODULE])
    assert 0.9 < time.monotonic() - started < 10
    assert outcome.contributors == (swarms[0].peer,)
    assert swarms[1].is_gathering(0, MODULE, 0)  # it was called all the same


def test_interrupting_a_wait_gives_nothing_away(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(2)
    weights = group(0.5, 0.5)
    gather(swarms, {MODULE: weights}, [0, 1])
    for swarm in swarms:
        swarm.configure_rounds("fp32", 4.0)
    timer = threading.Timer(0.5, swarms[0].interrupt)
    timer.start()
    outcome = swarms[0].all_reduce([part(0, torch.ones(10), weights)], patience=60.0)[MODULE]
    assert isinstance(outcome, NotAgreed)


def test_a_goodbye_is_heard(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(2)
    gather(swarms, {MODULE: group(0.5, 0.5)}, [0, 1])
    swarms[1].announce([])
    until(lambda: [said.peer for said in _looked_up(swarms[0], MODULE)] == [swarms[0].peer])


def test_who_leaves_tells_a_keeper_past_the_directory_what_it_holds(make_swarms: MakeSwarms) -> None:
    keeper, leaving = make_swarms(2)
    keeper.announce([Announcement(keeper.peer, 0, MODULE, None, 0, "a" * 64, role=Role.KEEPS)])
    until(lambda: bool(keeper.members(0, MODULE)))
    leaving.interrupt()  # after Ctrl+C no other call goes out
    elsewhere = ModuleId(1, 7)
    said = Announcement(leaving.peer, 0, MODULE, None, 3, "b" * 64, 500, role=Role.HOLDS)
    leaving.tell(keeper.peer, [said, replace(said, module=elsewhere)])
    until(lambda: said in keeper.members(0, MODULE))
    assert not keeper.members(0, elsewhere)  # what somebody says of modules that are none of ours is not kept


def test_a_state_is_fetched_by_its_digest(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(2)
    swarms[0].hold(0, MODULE, STATE)
    gather(swarms, {MODULE: group(0.5, 0.5)}, [0, 1])
    fetched = swarms[1].fetch_state(0, MODULE, STATE.digest, timeout=10)
    assert fetched is not None
    assert fetched.version == 3
    assert torch.equal(fetched.params, STATE.params)
    assert torch.equal(fetched.momentum, STATE.momentum)
    assert swarms[1].fetch_state(0, MODULE, "0" * 64, timeout=10) is None


def test_a_state_that_nobody_has_is_fetched_once_somebody_has_it(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(3)
    other = ModuleState(3, STATE.params + 1, STATE.momentum)
    swarms[0].hold(0, MODULE, other)
    gather(swarms, {MODULE: group(0.5, 0.25, 0.25)}, [0, 1, 2])  # all announce STATE
    started = time.monotonic()
    assert swarms[2].fetch_state(0, MODULE, STATE.digest, timeout=10) is None
    assert time.monotonic() - started < 10
    swarms[1].hold(0, MODULE, STATE)
    fetched = swarms[2].fetch_state(0, MODULE, STATE.digest, timeout=10, parameters=3000)
    assert fetched is not None
    assert fetched.digest == STATE.digest
    assert torch.equal(fetched.params, STATE.params)
    assert swarms[2].fetch_state(0, MODULE, STATE.digest, timeout=10, parameters=3001) is None


def test_a_blob_is_fetched_by_its_digest(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(2)
    data = bytes(range(256)) * 10_000
    digest = swarms[0].put_blob(data)
    assert swarms[1].fetch_blob(digest, timeout=10) == data
    with pytest.raises(UnreachableError, match="000000000000"):
        swarms[1].fetch_blob("0" * 64, timeout=10)


def test_a_blob_that_is_dropped_makes_room_and_others_keep_theirs(make_swarms: MakeSwarms) -> None:
    swarms = make_swarms(2)
    old, new = (swarms[0].put_blob(data) for data in (b"old", b"new"))
    assert swarms[1].fetch_blob(old, timeout=10) == b"old"
    swarms[0].drop_blob(old)
    swarms[0].drop_blob(old)  # twice is once
    assert swarms[1].fetch_blob(old, timeout=10) == b"old"
    assert swarms[1].fetch_blob(new, timeout=10) == b"new"
    if isinstance(swarms[0], NetworkedSwarm):
        assert not swarms[0]._store.blobs.has(old)


@pytest.mark.swarm
@pytest.mark.parametrize("how", ["interrupted", "much slower"])
def test_who_is_out_of_a_round_in_the_middle_knows_that_the_others_have_its_part(
    make_libp2p_swarms: Callable[[int], list[NetworkedSwarm]], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    swarms, weights = make_libp2p_swarms(3), group(1 / 3, 1 / 3, 1 / 3)
    for swarm in swarms:
        swarm.configure_rounds("fp32", 1000.0)
    gather(swarms, {MODULE: weights}, [0, 1, 2])
    leader = leader_order(0, MODULE, 0, sorted(swarm.peer for swarm in swarms))[0]
    out = next(swarm for swarm in swarms if swarm.peer != leader)
    all_ready, may_commit = threading.Event(), threading.Event()

    def held_back(view: RoundView, memory: Memory, timing: Timing) -> tuple[Decision, Memory]:
        straggler = [member.peer for member in view.members].index(out.peer)
        if how == "much slower" and all_ready.is_set() and straggler in view.alive:
            return Drop(frozenset({straggler}), "was much slower than the others"), memory
        decided, memory = decide(view, memory, timing)
        if isinstance(decided, Commit) and not may_commit.is_set():
            all_ready.set()
            decided = Wait()
        return decided, memory

    monkeypatch.setattr(deciding, "decide", held_back)
    parts = {swarm.peer: [part(i, torch.full((1_000_000,), float(i)), weights)] for i, swarm in enumerate(swarms)}
    with ThreadPoolExecutor(3) as pool:
        calls = {swarm.peer: pool.submit(swarm.all_reduce, parts[swarm.peer], patience=20.0) for swarm in swarms}
        assert all_ready.wait(30)
        if how == "interrupted":
            out.interrupt()
        theirs = calls[out.peer].result(timeout=30)[MODULE]
        may_commit.set()
        others = [call.result(timeout=60)[MODULE] for peer, call in calls.items() if peer != out.peer]
    assert isinstance(theirs, NotAgreed)
    assert how in theirs.reason
    assert theirs.given
    for outcome in others:
        assert out.peer in agreed(outcome).contributors


@pytest.mark.swarm
def test_who_does_not_hear_how_a_round_ended_knows_what_the_others_have_of_it(
    make_libp2p_swarms: Callable[[int], list[NetworkedSwarm]], monkeypatch: pytest.MonkeyPatch
) -> None:
    swarms, weights = make_libp2p_swarms(3), group(1 / 3, 1 / 3, 1 / 3)
    for swarm in swarms:
        swarm.configure_rounds("fp32", 1000.0)
    gather(swarms, {MODULE: weights}, [0, 1, 2])
    deaf = swarms[2]
    assert deaf._rounds is not None
    monkeypatch.setattr(deaf._rounds._verdicts, "take", lambda commit, exchange: NotAgreed("nothing was heard"))
    parts = [[part(i, torch.full((30_000,), float(i)), weights)] for i in range(3)]
    first, second, unheard = (each[MODULE] for each in reduce_together(swarms, parts))
    for outcome in (first, second):
        assert isinstance(outcome, Agreed)
        assert deaf.peer in outcome.contributors
    assert unheard == NotAgreed("nothing was heard", given=True)

    # one that comes when the round is over has given nothing
    monkeypatch.undo()
    for swarm, version in zip(swarms, (1, 1, 0), strict=True):
        swarm.announce([announcement(swarm, 0, version)], [weights])
    until(lambda: sorted(said.version for said in _looked_up(deaf, MODULE)) == [0, 1, 1])
    late = deaf.all_reduce([part(2, torch.ones(30_000), weights)], patience=5.0)[MODULE]
    assert not (isinstance(late, NotAgreed) and late.given)
