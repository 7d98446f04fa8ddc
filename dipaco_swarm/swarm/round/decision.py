"""What a leader decides about a round that has begun: a pure function of what its members said last.

situation (the first row that fits)           decision
---------------------------------------------------------------------------------------------------
a member's stream has ended:
  the round waits for everybody               Abort     the round is tried again, with whoever is there
  else                                        Drop      at once; its pieces get new reducers. A stranger was late,
                                                        if it has not gone at once
half of the members or fewer are stragglers,
  for longer than the others needed           Drop      the next round counts their progress; never, where the round
                                                        waits for everybody
more than half of the roster have left        Abort
somebody has no average yet:
  half of the members or fewer say nothing    Drop      ... at all about it, for `standstill`, whatever moves
  nothing has moved for `standstill`:
    half of them or fewer are stragglers      Drop      however long the others needed
    else                                      Abort     the round is tried again; after the patience, where the round
                                                        waits for everybody
  else                                        Wait
the averages differ                           Compare   what their reducers have signed shows who is to blame
else                                          Commit    everybody alive holds the same bytes

Members that have kept others waiting lately are not waited for (`RosterEntry.awaited`); what is said of members here is
said of the others. Halves are of those who are no strangers, if anybody is none: names are free, and a crowd of them
would have it that everybody else is slow, or keep the round open for ever.

Stragglers are members that a round waits for. Every report is a set of complaints: "I miss the contributions of these
members to the pieces that I reduce", "I miss the averages of those reducers". Of the two sides of a complaint, the one
with more complaints about or by it is the straggler; of a stranger and somebody else, the stranger. `stragglers` has
the rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.wire import Alive, Ready

Flags = NDArray[np.bool_]

LEFT_AT_ONCE = 1.0
"""Seconds; a stranger that leaves a round in these has cost it nothing."""
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
    strangers: frozenset[int] = frozenset()
    """Indices of members that have contributed to nothing before, where others have."""
    usual: float = 0.0
    """Seconds that an exchange takes on a usual line."""

    @property
    def awaited(self) -> frozenset[int]:
        """Indices of those on whom it depends when the round ends."""
        return self.alive - self.waived

    @property
    def known(self) -> frozenset[int]:
        """Indices of those of them that are no strangers."""
        return self.awaited - self.strangers

    def is_more_than_half(self, members: frozenset[int]) -> bool:
        """Whether these are more than half of those on whom it depends; of who is known, if anybody is."""
        among = self.known or self.awaited
        return 2 * len(members & among) > len(among)

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
        # names are free: who comes, keeps the others for a while, and leaves has kept them, and may come again
        left = {i for i in gone & view.strangers if view.ready(i) is None and view.now - view.began > LEFT_AT_ONCE}
        since = view.now if memory.few_slow_since is None else memory.few_slow_since
        memory = replace(memory, few_slow_since=None, waited=memory.waited + view.now - since)
        return Drop(frozenset(left) or gone, "went away", late=bool(left)), memory

    held_up = Stragglers() if view.whole else stragglers(view)
    slow = held_up.slow
    if not slow or view.is_more_than_half(slow):
        memory = replace(memory, few_slow_since=None)
    elif memory.few_slow_since is None:
        memory = replace(memory, few_slow_since=view.now)
    elif view.now - memory.few_slow_since > _allowed(view, memory, memory.few_slow_since, timing):
        return _drop_slow(view, memory, memory.few_slow_since, held_up)

    if 2 * len(view.alive - view.strangers) < len(view.members) - len(view.strangers):
        return Abort("more than half of the peers left in the middle of it"), memory
    ready = [average for i in sorted(view.awaited) if (average := view.ready(i)) is not None]
    if len(ready) < len(view.awaited):
        reports = [report for i in view.awaited if (report := view.members[i].report) is not None]
        moved = sum(report.moved for report in reports) + len(ready)
        if moved != memory.moved:
            memory = replace(memory, moved=moved, moved_since=view.now)
        standstill = view.patience if view.whole else timing.standstill
        silent = frozenset(i for i in view.awaited if view.members[i].report is None and view.ready(i) is None)
        if silent and view.now - view.began > standstill and not view.is_more_than_half(silent) and not view.whole:
            return Drop(silent, "has said nothing about it", late=True), replace(memory, moved_since=view.now)
        if view.now - memory.moved_since > standstill:
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
    if len(view.known) == 1:  # it has nobody to measure a stranger by
        needed_by_others = max(needed_by_others, view.usual / 3)
    return max(timing.slow_floor, 3 * needed_by_others, SLOW_SHARE * view.patience)


@dataclass(frozen=True)
class Stragglers:
    slow: frozenset[int] = frozenset()
    apart: frozenset[int] = frozenset()
    """The other sides of complaints that nobody shares: it may be they."""


def stragglers(view: RoundView) -> Stragglers:
    """The members that a round waits for; nobody before everybody has reported.

    A member that has no average yet and waits for nobody who is there is slow itself.
    """
    of = sorted(view.awaited)
    is_strange = np.array([i in view.strangers for i in of], bool)
    if any(view.members[i].report is None for i in view.known or of):
        return Stragglers()
    is_ready = np.array([view.ready(i) is not None for i in of], bool)
    # of whom the round still depends on
    contributions = _awaited(view, of, lambda report: report.awaits_contributions)[:, of] & ~is_ready[:, None]
    averages = _awaited(view, of, lambda report: report.awaits_averages)[:, of] & ~is_ready[:, None]
    slow = ~is_ready & ~contributions.any(1) & ~averages.any(1)
    # a reducer that misses contributions is not to blame for its averages; if that is known of it
    averages &= ~(contributions.any(1) & ~is_strange)
    # of a stranger and somebody known
    mixed = (contributions | averages) & (is_strange[:, None] != is_strange)
    slow |= is_strange & (mixed.any(0) | mixed.any(1))
    contributions, averages = contributions & ~mixed, averages & ~mixed
    # a complaint is a pair: who has it, by row, and whom it is about
    complaints = contributions.astype(int) + averages
    by, about = complaints.sum(1)[:, None], complaints.sum(0)[None, :]
    shared = (contributions | averages) & (by != about)
    alone = by == about
    # a sender has one link that many share; a receiver of averages has company if there is any
    are_two = np.where(is_strange, is_strange.sum(), (~is_strange).sum()) == 2
    of_sender = alone & (contributions | averages & are_two)
    of_receiver = alone & averages & ~are_two
    slow |= (shared & (by > about)).any(1) | (shared & (by < about)).any(0)
    slow |= of_sender.any(0) | of_receiver.any(1)
    apart = (of_sender.any(1) | of_receiver.any(0)) & ~slow
    return Stragglers(frozenset(of[i] for i in np.flatnonzero(slow)), frozenset(of[i] for i in np.flatnonzero(apart)))


def _awaited(view: RoundView, of: Sequence[int], mask: Callable[[Alive], bytes]) -> Flags:
    """Who waits for whom, (n, members) of bool: a row for each of these, as it has said last."""
    size = -(-len(view.members) // 8)
    reports = [view.members[i].report for i in of]
    masks = b"".join((b"" if said is None else mask(said))[:size].ljust(size, b"\0") for said in reports)
    bits = np.unpackbits(np.frombuffer(masks, np.uint8).reshape(len(of), size), axis=1, bitorder="little")
    return bits[:, : len(view.members)].astype(bool)
