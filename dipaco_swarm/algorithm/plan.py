"""What a peer does next, and which state of a module it should have: pure decisions over snapshots.

situation            action         (the first row that fits)
---------------------------------------------------------------------------------
asked to stop        Leave
a newer stage        MoveOn
the group agrees on
  another state      CatchUp        one per module of ours
scores are wanted    Score          the routing sample, under our path
the run is finished  Leave or Wait  as this machine chose
the stage is done    Wait           until the operator's node opens the next one
too few peers        Wait           before the first round of a stage only
else                 Train
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.paths import ModuleId


@dataclass(frozen=True, order=True)
class Claim:
    """A peer's word that a module at this version has this digest."""

    version: int
    digest: str


@dataclass(frozen=True)
class Leave:
    pass


@dataclass(frozen=True)
class MoveOn:
    pass


@dataclass(frozen=True)
class CatchUp:
    module: ModuleId
    to: Claim


@dataclass(frozen=True)
class Wait:
    reason: str


@dataclass(frozen=True)
class Score:
    pass


@dataclass(frozen=True)
class Train:
    pass


Action = Leave | MoveOn | CatchUp | Score | Wait | Train


@dataclass(frozen=True)
class Situation:
    """Everything a decision depends on."""

    stopping: bool = False
    newer_stage: bool = False
    run_finished: bool = False
    leaves_when_finished: bool = False
    scores_wanted: bool = False
    """The operator asks for scores of the routing sample, and ours are not out yet."""
    stage_done: bool = False
    begun: bool = False
    """Whether we have trained in this stage."""
    peers: int = 1
    """Live peers of the stage that train, ourselves included."""
    peers_needed: int = 1
    catch_up: tuple[CatchUp, ...] = ()


def next_action(now: Situation) -> Action:
    """The one thing to do next; the table at the top of this file."""
    if now.stopping:
        return Leave()
    if now.newer_stage:
        return MoveOn()
    if now.catch_up:
        return now.catch_up[0]
    if now.scores_wanted:
        return Score()
    if now.run_finished:
        return Leave() if now.leaves_when_finished else Wait("the run is finished; serving its modules until Ctrl+C")
    if now.stage_done:
        return Wait("this stage is done; waiting for the next one")
    if not now.begun and now.peers < now.peers_needed:
        missing = now.peers_needed - now.peers
        return Wait(f"waiting for {missing} more {'peer' if missing == 1 else 'peers'} to start")
    return Train()


def better_claim(ours: Claim, others: Sequence[Claim]) -> Claim | None:
    """The state that we should have instead of ours, or None when ours is right.

    A newer version wins. Among states of one version, the one that more peers have; among equals, the smaller digest,
    so that two halves of a partition that meet again choose the same.
    """
    newest = max([ours.version, *(claim.version for claim in others)])
    holders = Counter(claim.digest for claim in others if claim.version == newest)
    if newest == ours.version:
        holders[ours.digest] += 1
    digest = min(holders, key=lambda digest: (-holders[digest], digest))
    best = Claim(newest, digest)
    return None if best == ours else best
