"""Whether a claim about a module is believed: pure rules over who says to have had that state.

A claim alone moves nobody. Who hears of a state with more work behind it asks others whether they have had it:

situation (the first row that fits)              believed
----------------------------------------------------------------------------------------------------
the operator's node has had it                   yes
somebody whom we know has had it                 yes
somebody whom we know is there                   no      also one that has had no version yet: a stage begins so
the operator's node has had another version      no      it will have had it, if its members have
somebody whom we know trained it lately          no      gone without a word, it may be back with what it has
somebody whom we know was in the run lately      no      unless nothing has been believed for long
strangers have had a version of the module:
  more than half of them, and of us, had it      yes     a newcomer, a guest, a new run: nobody is known
  some have, and that for long                   yes     if we have made no version of the module ourselves
else                                             no

Known is who has contributed to a state that we have taken.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Votes:
    """Of peers that are there, without ourselves."""

    asked: int = 0
    for_it: int = 0
    """So many have had the claimed state."""


@dataclass(frozen=True)
class Evidence:
    """Everything that it depends on."""

    root: bool | None = None
    """Whether a node of the operator's has had the state; None: none can tell, or we are it."""
    known: Votes = Votes()
    """Asked: all that are there and have not left it for another one, whether they have had a version of the module and
    have answered or not."""
    known_here: bool = False
    """Whether somebody whom we know has trained the module not long ago, and has not said goodbye."""
    known_elsewhere: bool = False
    """Whether somebody whom we know has trained any module not long ago."""
    strangers: Votes = Votes()
    """That have had a version. Asked where nobody known is there, and no node of the operator's can tell."""
    made_here: bool = False
    """Whether we have made a version of the module ourselves."""
    for_long: bool = False
    """Whether nothing has been believed of the module for long, although others claim a better state."""


def is_believed(seen: Evidence) -> bool:
    """The table at the top of this file."""
    if seen.root or seen.known.for_it:
        return True
    if seen.root is not None or seen.known.asked or seen.known_here:
        return False
    if seen.known_elsewhere and not seen.for_long:
        return False
    if 2 * seen.strangers.for_it > seen.strangers.asked + int(seen.made_here):
        return True
    return seen.strangers.for_it > 0 and seen.for_long and not seen.made_here
