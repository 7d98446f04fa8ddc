"""Whether a claim about a module is believed: pure rules over who says to have had that state.

A claim alone moves nobody. Who hears of a state with more work behind it asks others whether they have had it:

situation (the first row that fits)                   believed
---------------------------------------------------------------------------------------------------------
the operator's node has had it                        Whole
somebody whom we know has had it; of all whom we know
and who are there, and of ourselves:
  half have had it                                    Whole
  half of those who have made a version of this
  module have had it                                  ByAverages   the others are new to it; Whole after long
  no half has had it, or what we have, for long       Whole        no side has a majority
we know somebody who is there                         No
the operator's node answers, and has not had it       No           it will, if its members do
strangers are there:
  more than half of them have had it                  Whole        for a guest or a newcomer, who can know nobody
                                                      ByAverages   for the operator's node, whose word others believe
  some have had it, and that for long                 Whole        if we have made nothing ourselves
else                                                  No

Known is who has contributed to a state that we believe. Whole: the state is taken as it is sent. ByAverages: only if
it follows from ours by the averages of its rounds, so that a stranger moves a module no faster than a member would.
"""

from dataclasses import dataclass
from enum import IntEnum


class Belief(IntEnum):
    NO = 0
    BY_AVERAGES = 1
    WHOLE = 2


@dataclass(frozen=True)
class Votes:
    """Of peers that are there and have answered, and of ourselves where we have made a version of the module."""

    asked: int = 0
    for_it: int = 0
    """So many have had the claimed state."""
    for_ours: int = 0
    """So many have had the state that we have."""
    makers: int = 0
    """So many have made a version of the module, or had the claimed one."""

    def half_of(self, all_of_them: int) -> bool:
        return self.for_it > 0 and 2 * self.for_it >= all_of_them


@dataclass(frozen=True)
class Evidence:
    """Everything that a belief depends on."""

    root: bool | None = None
    """Whether a node of the operator's has had the state; None: none answers, or we are it."""
    known: Votes = Votes()
    strangers: Votes = Votes()
    """Asked only where nobody is known."""
    made_here: bool = False
    """Whether we have made a version of the module ourselves, and are in `known` and `strangers`."""
    is_root: bool = False
    for_long: bool = False
    """Whether this question has been open for long."""


def belief(seen: Evidence) -> Belief:
    """The table at the top of this file."""
    known, strangers = seen.known, seen.strangers
    if seen.root or known.half_of(known.asked):
        return Belief.WHOLE
    by_makers = known.half_of(known.makers)
    if seen.for_long and known.for_it and (by_makers or not _is_settled(known)):
        return Belief.WHOLE
    if by_makers:
        return Belief.BY_AVERAGES
    if seen.root is not None or known.asked > int(seen.made_here):
        return Belief.NO
    if 2 * strangers.for_it > strangers.asked:
        return Belief.BY_AVERAGES if seen.is_root and not seen.for_long else Belief.WHOLE
    undecided = strangers.for_it > 0 and seen.for_long and not seen.made_here
    return Belief.WHOLE if undecided else Belief.NO


def is_open(seen: Evidence) -> bool:
    """Whether time may decide: nothing is certain yet, and no majority has what we have."""
    by_makers = seen.known.half_of(seen.known.makers)
    return belief(seen) is not Belief.WHOLE and (by_makers or not _is_settled(seen.known))


def _is_settled(known: Votes) -> bool:
    """Whether half of those whom we know have what we have."""
    return 0 < known.asked <= 2 * known.for_ours
