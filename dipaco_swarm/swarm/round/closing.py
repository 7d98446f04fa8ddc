"""When a leader stops gathering a round: a pure function of who is there and who is missing.

situation (the first row that fits)            what the leader does
---------------------------------------------------------------------------------------------------
somebody missing has a better state            CatchUpFirst    whoever is here fetches that state
another leader has the same round              JoinThere       members that had not heard of each other meet: meeting.py
                                                               says where
only strangers are here, somebody known is     Wait            who has contributed to nothing begins no round while
missing                                                        somebody is there who has
nobody is missing                              Begin           or nobody is there any more
the members' patience is over                  Begin           the next round counts the progress of the missing
else                                           Wait            the missing are asked again where they are

Missing is who is announced and has not joined; and, where hardly anybody is announced, who was there lately: who hears
nobody may be the one that is parted from the others. Not missing any more is who says that it does not come, until it
says that it does; who leaves questions unanswered (two of them, one of those who were there lately); who has kept two
rounds waiting lately; and, where the round waits for everybody, only who is gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dipaco_swarm.algorithm.plan import Claim

STRANGERS_SHARE = 0.05
"""Of the members' patience, which is as long as their training took: so long a stranger keeps a round waiting."""
MAX_SILENCES = 2
"""So many questions may an announced member leave unanswered in one gathering; who was there lately, one less."""


@dataclass(frozen=True)
class GatheringView:
    """Everything that the decision depends on. Sets are of names of peers."""

    seated: frozenset[str]
    """Who has joined."""
    live: frozenset[str]
    """Who is announced as a member and awake."""
    waited: float
    """Seconds since the first one joined."""
    patience: float
    """Seconds that the median member is willing to wait."""
    lately: frozenset[str] = frozenset()
    """Who was announced not long ago."""
    elsewhere: frozenset[str] = frozenset()
    """Who has said that it does not come."""
    unanswered: Mapping[str, int] = field(default_factory=dict)
    """Questions of this gathering that came to nothing, by peer."""
    gone: frozenset[str] = frozenset()
    """Who could not be dialled for long."""
    whole: bool = False
    """Whether the round waits for everybody."""
    waived: frozenset[str] = frozenset()
    """Who has kept others waiting lately."""
    known: frozenset[str] = frozenset()
    """Of all these, who is no stranger."""
    strangers: frozenset[str] = frozenset()
    """Who is waited for a moment only."""
    moment: float = 0.0
    """Seconds, at least."""
    ahead: tuple[Claim, str] | None = None
    """A better state than that of the round, and who has it."""
    first: str | None = None
    """Another leader of the same round, to whom all go (`meeting.py`)."""

    @property
    def missing(self) -> frozenset[str]:
        """For whom the round waits, and who is asked."""
        missed = (self._live_missed() | self._lately_missed()) - self.seated - self.elsewhere - self.waived
        is_over = self.waited > max(self.moment, STRANGERS_SHARE * self.patience)
        return missed - self.strangers if is_over else missed

    @property
    def is_of_strangers(self) -> bool:
        """Whether only strangers are here, and somebody known may come."""
        return self.seated.isdisjoint(self.known) and not self.missing.isdisjoint(self.known)

    @property
    def is_of_few(self) -> bool:
        """Whether no more are here than are missing."""
        return bool(self.seated) and len(self.seated) <= len(self.missing)

    def _live_missed(self) -> frozenset[str]:
        if self.whole:
            return self.live - {peer for peer in self.gone if self.unanswered.get(peer, 0)}
        return frozenset(peer for peer in self.live if self.unanswered.get(peer, 0) < MAX_SILENCES)

    def _lately_missed(self) -> frozenset[str]:
        if self.whole:
            return self.lately - self.gone
        missed = frozenset(peer for peer in self.lately if self.unanswered.get(peer, 0) < MAX_SILENCES - 1)
        return missed if 2 * len(self.seated) <= len(self.seated | missed) else frozenset()


@dataclass(frozen=True)
class Wait:
    pass


@dataclass(frozen=True)
class Begin:
    pass


@dataclass(frozen=True)
class CatchUpFirst:
    to: Claim
    holder: str


@dataclass(frozen=True)
class JoinThere:
    leader: str


Closing = Wait | Begin | CatchUpFirst | JoinThere


def close(view: GatheringView) -> Closing:
    """The one thing to do next; the table at the top of this file."""
    if view.ahead is not None:
        return CatchUpFirst(*view.ahead)
    if view.first is not None:
        return JoinThere(view.first)
    if view.seated and view.is_of_strangers:
        return Wait()
    if not view.seated or not view.missing or view.waited > view.patience:
        return Begin()
    return Wait()
