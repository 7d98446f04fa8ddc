"""Whom a member follows into a round: a pure function of what it knows of the others.

who may lead (the first row with somebody in it)
---------------------------------------------------------------------------------------------------
can be dialled, neither failed nor is doubted nor demoted, and is no stranger
can be dialled, and neither failed nor is doubted nor demoted
can be dialled, and neither failed nor is doubted
can be dialled                                        better one of them than nobody
is of the group, and neither failed nor is doubted    through relays, if need be
is of the group
nobody                                                the round is not made

Lost leaders, and who still waits for one of them, are in none of them. Among those of a row, `leader_order` says who:
the same one to everybody who knows the same candidates. Members that know different ones meet (`meeting.py`).
"""

import math
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from dipaco_swarm.algorithm.forgetting import put_last
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.swarm.round.reduction import leader_order

LEADER_FAILURES = 2
"""A leader that refused or aborted the round of one version this often is passed over."""
REFUSAL_SECONDS = 10.0
"""So long a refusal counts where everybody is waited for: who is moving to a path of the module refuses, and comes."""

DEMOTED_AT = 3
"""Points. As many for a leader that is alive and does not begin. Two for one that was lost after it had answered, for
one that sends us again to a state that nobody sends, and for a member that was late. One for doing so first, for a
round that was off, and for the other side of a complaint that nobody shares."""
DEMOTED_AGAIN_AT = 2
"""Who was demoted before has less credit."""
DEMOTED_SECONDS = 60.0
DEMOTED_ROUNDS = 12
"""So long somebody is demoted for the first time, whichever is longer: after a minute it would be back before the next
round of a run whose rounds take ten."""
LATELY = 5
"""Rounds of which the median counts: who was away for a night has waited long for its last one."""
LONGEST_ROUND_SECONDS = 1800.0
"""A round counts as no longer."""
LONGEST_SECONDS = 3600.0
LONGEST_TIMES = 8
"""The longest demotion, whichever is longer: so long, or so many times the first one."""
FORGIVEN_SECONDS = 7200.0
FORGIVEN_TIMES = 2
"""What somebody was demoted for is forgotten after so long, and so many times as long as it was demoted."""
STRANGERS = "any stranger"
"""Instead of a peer's name, which has no blanks: a stranger has wasted a round that we went to, and names are free."""
MAX_DEMERITS = 1024
"""Names."""


@dataclass(frozen=True)
class Candidates:
    """Whom a member could follow into one round. Who is in which set is asked anew for each attempt."""

    dialled: frozenset[str]
    """Live peers that can be dialled; the member itself if it is one of them."""
    of_group: frozenset[str]
    """Live members that train the module, and the member itself: for when nobody else is left."""
    lost: frozenset[str] = frozenset()
    """Went away while they led this round, or could not be reached."""
    waiting: frozenset[str] = frozenset()
    """Have sent us to a lost leader: they wait for it still, and are joined when they gather the round themselves."""
    failed: frozenset[str] = frozenset()
    """Refused or aborted the round of this version LEADER_FAILURES times."""
    doubted: frozenset[str] = frozenset()
    """Left our last question without an answer."""
    demoted: frozenset[str] = frozenset()
    """Have wasted rounds of ours lately, or kept them waiting."""
    strangers: frozenset[str] = frozenset()
    """Have contributed to nothing that we know of, while others have: there may be nobody behind these names."""

    @property
    def known(self) -> frozenset[str]:
        """Those of whom one is chosen, lost ones included."""
        return self.dialled if self.dialled - self.lost - self.waiting else self.dialled | self.of_group


def next_leader(candidates: Candidates, stage: int, module: ModuleId, version: int) -> str | None:
    """Who leads next, as far as this member knows; None when nobody is left. The table at the top of this file."""
    left = candidates.known - candidates.lost - candidates.waiting
    trusted = left - candidates.failed - candidates.doubted
    willing = trusted - candidates.demoted
    order = leader_order(stage, module, version, sorted(willing - candidates.strangers or willing or trusted or left))
    return order[0] if order else None


def may_redirect(candidates: Candidates, leader: str) -> bool:
    """Whether a member lets itself be sent to this leader; one that it did not know of has nothing against it yet."""
    return leader not in candidates.lost | (candidates.failed & candidates.known)


def outnumbered(demoted: AbstractSet[str], follows: Mapping[str, str], here: int) -> frozenset[str]:
    """Leaders that are demoted here and joined by fewer than `here`: nobody is sent to them.

    Where more have joined one that is demoted here alone, all go there: else there would be two versions.

    `follows`: whom those have joined who are not here; a leader has joined itself.
    """
    joined = Counter(follows.values())
    return frozenset(leader for leader in demoted if joined[leader] < here)


def most_joined(follows: Mapping[str, str], here: int) -> str | None:
    """The leader that more than `here` have joined; of several the one that most have, and of those the first by name.

    `follows`: as for `outnumbered`.
    """
    joined = Counter(follows.values())
    most = min(joined, key=lambda leader: (-joined[leader], leader), default=None)
    return most if most is not None and joined[most] > here else None


def voices(members: AbstractSet[str], is_strange: Callable[[str], bool]) -> AbstractSet[str]:
    """Of these members who is no stranger, or all of them: they say who is late, and whether too many have left."""
    return frozenset(member for member in members if not is_strange(member)) or members


def with_strangers(
    demoted: AbstractSet[str], there: AbstractSet[str], is_strange: Callable[[str], bool]
) -> frozenset[str]:
    """These, and of those who are there all strangers, where strangers together are among them."""
    return frozenset(demoted) | frozenset(filter(is_strange, there) if STRANGERS in demoted else ())


class LeaderFailures:
    """How often each leader has refused or aborted the round that we are about to make of a module."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, ModuleId], tuple[int, dict[str, list[float]]]] = {}
        """Stage and module -> version, and until when each failure of a leader counts."""

    def note(self, stage: int, module: ModuleId, version: int, leader: str, until: float = math.inf) -> None:
        self._about(stage, module, version)[leader].append(until)

    def failed(self, stage: int, module: ModuleId, version: int, now: float) -> frozenset[str]:
        """Who has failed LEADER_FAILURES times."""
        failures = self._about(stage, module, version)
        return frozenset(
            leader for leader, counts in failures.items() if sum(now < until for until in counts) >= LEADER_FAILURES
        )

    def _about(self, stage: int, module: ModuleId, version: int) -> dict[str, list[float]]:
        if (stage, module) not in self._of or self._of[stage, module][0] != version:
            self._of[stage, module] = version, defaultdict(list)
        return self._of[stage, module][1]


class Demotions:
    """Who has wasted rounds of ours lately: each time for twice as long. A peer has two of these.

    Of leaders: others lead then. Anybody who leads can say "alive" and nothing else, or send all to a state that nobody
    has. Of members: nobody waits for them. Anybody can be in every round and send nothing. What somebody did as a
    leader is no reason to make rounds without it: two that do not wait for each other make two versions. Lines break
    as well, so it is not for long at first: a dozen rounds.
    """

    def __init__(self) -> None:
        self._first = DEMOTED_SECONDS
        self._rounds: deque[float] = deque(maxlen=LATELY)
        """Seconds that each of the last ones took."""
        self._of: dict[str, Demerits] = {}
        self._believed: dict[str, float] = {}
        """Of whom most others say so -> until when it counts."""
        self._sent_from: dict[str, str] = {}
        """Leader -> digest of the state from which it has sent us to another one last."""

    def round_took(self, seconds: float) -> None:
        """One of ours: so long somebody is demoted from now on is a dozen of what they take lately."""
        self._rounds.append(seconds)
        usual = statistics.median_low(self._rounds)
        self._first = max(DEMOTED_SECONDS, DEMOTED_ROUNDS * min(usual, LONGEST_ROUND_SECONDS))

    def sent_from(self, leader: str, digest: str) -> bool:
        """It sends us to another state than this; returns whether it has done so before."""
        before = self._sent_from.get(leader)
        put_last(self._sent_from, leader, digest, MAX_DEMERITS)
        return before == digest

    def note(self, peer: str, now: float, points: int = 1) -> None:
        """It has wasted a round, or time of one; `points`: how badly."""
        before = self._of.get(peer, Demerits())
        if now - before.last > max(FORGIVEN_SECONDS, FORGIVEN_TIMES * (before.until - before.last)):
            before = Demerits()
        demerits = Demerits(before.points + points, before.times, now, before.until)
        if demerits.points >= (DEMOTED_AGAIN_AT if before.times else DEMOTED_AT):
            lasts = min(self._first * 2.0**demerits.times, max(LONGEST_SECONDS, LONGEST_TIMES * self._first))
            demerits = Demerits(0, demerits.times + 1, now, now + lasts)
        put_last(self._of, peer, demerits, MAX_DEMERITS)

    def forgive(self, peer: str) -> None:
        """It has done well in a round that is agreed on. What it was demoted for before is remembered."""
        self._believed.pop(peer, None)
        if peer in self._of:
            self._of[peer] = replace(self._of[peer], points=0)

    def believe(self, peer: str, now: float) -> None:
        """Most others have demoted it: it is here as well, for as long as it is at first."""
        put_last(self._believed, peer, now + self._first, MAX_DEMERITS)

    def times(self) -> list[int]:
        """How often each was demoted that is remembered."""
        return [demerits.times for demerits in self._of.values() if demerits.times]

    def is_demoted(self, peer: str, now: float) -> bool:
        """From any thread."""
        return now < max(self._of.get(peer, Demerits()).until, self._believed.get(peer, -math.inf))

    def demoted(self, now: float) -> frozenset[str]:
        believed = frozenset(peer for peer, until in self._believed.items() if now < until)
        return frozenset(self.found(now)) | believed

    def found(self, now: float) -> list[str]:
        """Whom we have demoted for what it has done to us; the last one first."""
        return [peer for peer, demerits in reversed(self._of.items()) if now < demerits.until]


@dataclass(frozen=True)
class Demerits:
    """What one peer has done. Times are those of the monotonic clock."""

    points: int = 0
    """Since it was demoted last, or did well."""
    times: int = 0
    """It was demoted."""
    last: float = -math.inf
    until: float = -math.inf
