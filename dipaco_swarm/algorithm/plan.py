"""What a peer does next, and which state of a module it should have: pure decisions over snapshots.

situation            action         (the first row that fits)
---------------------------------------------------------------------------------
asked to stop        Leave
its machine is
  needed otherwise   Pause          unless the run is finished
a newer stage        MoveOn
the group agrees on
  another state      CatchUp        one per module of ours
the run is finished  Leave or Wait  as this machine chose
the stage is done    Wait           until the operator's node opens the next one
too few peers        Wait           before the first round of a stage only
else                 Train
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dipaco_swarm.algorithm.paths import ModuleId


@dataclass(frozen=True, order=True)
class Claim:
    """A peer's word that a module has a state with this digest, at this version, with this much work behind it."""

    version: int
    digest: str
    work: int = 0

    @classmethod
    def of(cls, said: "Standing") -> "Claim":
        """The claim in whatever has a version, a digest and work: a state, an announcement, an answer."""
        return cls(said.version, said.digest, said.work)

    def beats(self, other: "Claim") -> bool:
        """Whether this is the state to have, of the two. Everybody who compares the same two comes to the same."""
        if self.digest == other.digest:
            return False
        return (-self.work, -self.version, self.digest) < (-other.work, -other.version, other.digest)


class Standing(Protocol):
    """What a claim is made of."""

    @property
    def version(self) -> int: ...

    @property
    def digest(self) -> str: ...

    @property
    def work(self) -> int: ...


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
    reason: Literal["peers", "stage", "finished"]
    peers: int = 0
    """How many more are needed."""


@dataclass(frozen=True)
class Pause:
    pass


@dataclass(frozen=True)
class Train:
    pass


Action = Leave | Pause | MoveOn | CatchUp | Wait | Train


@dataclass(frozen=True)
class Situation:
    """Everything a decision depends on."""

    stopping: bool = False
    paused: bool = False
    """Whether the machine is for somebody else just now."""
    newer_stage: bool = False
    run_finished: bool = False
    leaves_when_finished: bool = False
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
    if now.paused and not now.run_finished:
        return Pause()
    if now.newer_stage:
        return MoveOn()
    if now.catch_up:
        return now.catch_up[0]
    if now.run_finished:
        return Leave() if now.leaves_when_finished else Wait("finished")
    if now.stage_done:
        return Wait("stage")
    if not now.begun and now.peers < now.peers_needed:
        return Wait("peers", now.peers_needed - now.peers)
    return Train()


def better_claim(ours: Claim, others: Sequence[Claim]) -> Claim | None:
    """The state that we should have instead of ours, or None when ours is right.

    The one with more work behind it wins, not the higher version and not the one that more peers have: a lone fast peer
    makes many versions out of little work. Among equals the higher version, then the smaller digest. So two halves of a
    partition that meet again choose the same, whoever is heard first.
    """
    best = ours
    for claim in others:
        if claim.beats(best):
            best = claim
    return None if best.digest == ours.digest else best
