"""What a leader decides about a round that has begun: a pure function of what its members said last.

situation (the first row that fits)           decision
---------------------------------------------------------------------------------------------------
a member's stream has ended:
  the round waits for everybody               Abort     the round is tried again, with whoever is there
  else                                        Drop      at once; its pieces get new reducers
half of the members or fewer are stragglers,
  for longer than the others needed           Drop      the next round counts their progress; never, where the round
                                                        waits for everybody
more than half of the roster have left        Abort
somebody has no average yet:
  nothing has moved for `standstill`:
    half of the members or fewer say nothing  Drop      ... at all about it
    half of them or fewer are stragglers      Drop      however long the others needed
    else                                      Abort     the round is tried again; after the patience, where the round
                                                        waits for everybody
  else                                        Wait
the averages differ                           Compare   what their reducers have signed shows who is to blame
else                                          Commit    everybody alive holds the same bytes

Members that have kept others waiting lately are not waited for (`RosterEntry.awaited`); what is said of members here is
said of the others. Stragglers are members that a round waits for. Every report is a set of complaints: "I miss the
contributions of these members to the pieces that I reduce", "I miss the averages of those reducers". Of the two sides
of a complaint, the one with more complaints about or by it is the straggler. `stragglers` has the rule.
"""

from collections import Counter
from dataclasses import dataclass, replace

from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.wire import Alive, Ready

SLOW_SHARE = 0.25
"""Stragglers are given at least this share of the median patience."""


@dataclass(frozen=True)
class MemberView:
    """What the leader knows of one member of the roster."""

    peer: str
    gone: bool = False
    """Its stream has ended, or nothing was heard on it for too long."""
    report: Alive | None = None
    """Whom it waits for, as it said last since the roster; None: nothing yet."""
    ready: Ready | None = None
    """The average that it holds, as it said last; it may be of an older generation."""


@dataclass(frozen=True)
class RoundView:
    """Everything that a decision depends on, besides `Memory`. All times are seconds of one clock."""

    members: tuple[MemberView, ...]
    """In the order of the roster; who was dropped stays in it."""
    alive: frozenset[int]
    """Indices of members that were not dropped."""
    generation: int
    """So often somebody was dropped."""
    now: float
    began: float
    """When the roster was sent."""
    patience: float
    """Seconds that the median member is willing to wait for others."""
    whole: bool = False
    """Whether the round waits for everybody, however slow."""
    waived: frozenset[int] = frozenset()
    """Indices of members that the round does not wait for."""

    @property
    def awaited(self) -> frozenset[int]:
        """Indices of those on whom it depends when the round ends."""
        return self.alive - self.waived

    def ready(self, member: int) -> Ready | None:
        """The average that a member holds of this generation; None when it has none yet."""
        said = self.members[member].ready
        return said if said is not None and said.generation == self.generation else None


@dataclass(frozen=True)
class Memory:
    """What a decision leaves for the next one of the same round."""

    moved_since: float
    """When the members had first received `moved` bytes in all; at first, when the round began."""
    moved: int = 0
    few_slow_since: float | None = None
    """Since when there have been stragglers, and no more than half of the members; None: there are none such."""
    waited: float = 0.0
    """Seconds that those who were dropped have cost: the others did not need them."""


@dataclass(frozen=True)
class Wait:
    pass


@dataclass(frozen=True)
class Drop:
    """Go on without these members of the roster."""

    members: frozenset[int]
    why: str
    late: bool = False
    """Whether they have kept the others waiting."""
    apart: frozenset[int] = frozenset()
    """Who may be to blame as well."""


@dataclass(frozen=True)
class Commit:
    digest: bytes
    generation: int


@dataclass(frozen=True)
class Abort:
    reason: str


@dataclass(frozen=True)
class Compare:
    """Ask the members for what the reducers have signed; then go on without somebody, or abort (seals.py)."""


Decision = Wait | Drop | Commit | Abort | Compare


def decide(view: RoundView, memory: Memory, timing: Timing) -> tuple[Decision, Memory]:
    """The one thing to do next, and what to remember; the table at the top of this file.

    `memory`: what the decision before it returned, or `Memory(moved_since=view.began)`.
    """
    gone = frozenset(i for i in view.alive if view.members[i].gone)
    if gone and view.whole:
        names = ", ".join(view.members[i].peer[-8:] for i in sorted(gone)[:3])
        return Abort(f"{names} went away in the middle of it; the round is tried again"), memory
    if gone:
        return Drop(gone, "went away"), replace(memory, few_slow_since=None)

    held_up = Stragglers() if view.whole else stragglers(view)
    slow = held_up.slow
    if not slow or 2 * len(slow) > len(view.awaited):
        memory = replace(memory, few_slow_since=None)
    elif memory.few_slow_since is None:
        memory = replace(memory, few_slow_since=view.now)
    elif view.now - memory.few_slow_since > _allowed(view, memory, memory.few_slow_since, timing):
        return _drop_slow(view, memory, memory.few_slow_since, held_up)

    if 2 * len(view.alive) < len(view.members):
        return Abort("more than half of the peers left in the middle of it"), memory
    ready = [average for i in sorted(view.awaited) if (average := view.ready(i)) is not None]
    if len(ready) < len(view.awaited):
        moved = sum(member.report.moved for member in view.members if member.report is not None) + len(ready)
        if moved != memory.moved:
            memory = replace(memory, moved=moved, moved_since=view.now)
        standstill = view.patience if view.whole else timing.standstill
        if view.now - memory.moved_since > standstill:
            silent = frozenset(i for i in view.awaited if view.members[i].report is None and view.ready(i) is None)
            if silent and 2 * len(silent) <= len(view.awaited) and not view.whole:
                return Drop(silent, "has said nothing about it", late=True), replace(memory, moved_since=view.now)
            if memory.few_slow_since is not None and view.now - memory.few_slow_since > timing.slow_floor:
                return _drop_slow(view, memory, memory.few_slow_since, held_up)
            return Abort(f"nothing moved for {standstill:.0f} s; the round is tried again"), memory
        return Wait(), memory
    if len({average.digest for average in ready}) > 1:
        return Compare(), memory
    if not ready:
        return Abort("all who are left have kept others waiting lately; the round is tried again"), memory
    return Commit(ready[0].digest, view.generation), memory


def _drop_slow(view: RoundView, memory: Memory, since: float, held_up: "Stragglers") -> tuple[Decision, Memory]:
    why = "was much slower than the others; the next round counts its progress"
    remembered = replace(memory, moved_since=view.now, few_slow_since=None, waited=memory.waited + view.now - since)
    return Drop(held_up.slow, why, late=True, apart=held_up.apart), remembered


def _allowed(view: RoundView, memory: Memory, since: float, timing: Timing) -> float:
    """Seconds that the others wait for stragglers: several times as long as they needed themselves."""
    needed_by_others = since - view.began - memory.waited
    return max(timing.slow_floor, 3 * needed_by_others, SLOW_SHARE * view.patience)


@dataclass(frozen=True)
class Stragglers:
    slow: frozenset[int] = frozenset()
    apart: frozenset[int] = frozenset()
    """The other sides of complaints that nobody shares: it may be they."""


def stragglers(view: RoundView) -> Stragglers:
    """The members that a round waits for; nobody before everybody has reported.

    A reducer that misses contributions is not to blame for its averages. A member that has no average yet and waits for
    nobody is slow itself.
    """
    reports = {i: report for i in view.awaited if (report := view.members[i].report) is not None}
    if len(reports) < len(view.awaited):
        return Stragglers()
    index = {view.members[i].peer: i for i in view.awaited}
    unready = {i: report for i, report in reports.items() if view.ready(i) is None}
    reducing = {i for i, report in unready.items() if report.awaits_contributions}
    complaints = {
        (i, index[peer], True) for i in unready for peer in unready[i].awaits_contributions if peer in index
    } | {
        (i, index[peer], False)
        for i in unready
        for peer in unready[i].awaits_averages
        if peer in index and index[peer] not in reducing
    }
    by = Counter(i for i, _, _ in complaints)
    about = Counter(j for _, j, _ in complaints)
    slow = {i for i, report in unready.items() if not report.awaits_contributions and not report.awaits_averages}
    apart = set[int]()
    for i, j, contribution in complaints:
        if by[i] == about[j]:
            # a sender has one link that many share; a receiver of averages has company if there is any
            sender_is = contribution or len(view.awaited) == 2
            slow.add(j if sender_is else i)
            apart.add(i if sender_is else j)
        else:
            slow.add(i if by[i] > about[j] else j)
    return Stragglers(frozenset(slow), frozenset(apart - slow))
