"""Whom a member follows into a round: a pure function of what it knows of the others.

who may lead (the first row with somebody in it)
---------------------------------------------------------------------------------------------------
can be dialled, and neither failed nor is doubted
can be dialled                                        better one of them than nobody
is of the group, and neither failed nor is doubted    through relays, if need be
is of the group
nobody                                                the round is not made

Lost leaders are in none of them. Among those of a row, `leader_order` says who: the same one to everybody who knows the
same candidates. Members that know different ones meet by redirects: a leader sends them to one who comes before it, or
whom it has joined itself.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.swarm.round.reduction import leader_order

LEADER_FAILURES = 2
"""A leader that refused or aborted the round of one version this often is passed over."""
REFUSAL_SECONDS = 10.0
"""So long a refusal counts where everybody is waited for: who is moving to a path of the module refuses, and comes."""


@dataclass(frozen=True)
class Candidates:
    """Whom a member could follow into one round. Who is in which set is asked anew for each attempt."""

    dialled: frozenset[str]
    """Live peers that can be dialled; the member itself if it is one of them."""
    of_group: frozenset[str]
    """Live members that train the module, and the member itself: for when nobody else is left."""
    lost: frozenset[str] = frozenset()
    """Went away while they led this round, or could not be reached."""
    failed: frozenset[str] = frozenset()
    """Refused or aborted the round of this version LEADER_FAILURES times."""
    doubted: frozenset[str] = frozenset()
    """Left our last question without an answer."""

    @property
    def known(self) -> frozenset[str]:
        """Those of whom one is chosen, lost ones included."""
        return self.dialled if self.dialled - self.lost else self.dialled | self.of_group


def next_leader(candidates: Candidates, stage: int, module: ModuleId, version: int) -> str | None:
    """Who leads next, as far as this member knows; None when nobody is left. The table at the top of this file."""
    left = candidates.known - candidates.lost
    trusted = left - candidates.failed - candidates.doubted
    order = leader_order(stage, module, version, sorted(trusted or left))
    return order[0] if order else None


def may_redirect(candidates: Candidates, leader: str) -> bool:
    """Whether a member lets itself be sent to this leader; one that it did not know of has nothing against it yet."""
    return leader not in candidates.lost | (candidates.failed & candidates.known)


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
