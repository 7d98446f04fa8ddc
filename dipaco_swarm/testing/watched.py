"""A `Swarm` whose peer is looked at: what it gives, takes and says goes into the ledger as well."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.fetching import Older
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup, Outcome, RoundUnderWay, Swarm
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.testing.ledger import Ledger, Place, Version, trainer_of

AWAY = "away for too long"
NOT_MADE = "given to a round that was not made"
KILLED = "killed between two checkpoints"
HEARD_OF_HEARTBEATS = 3
"""After so many, a leader has heard of a newcomer: until it is said, until that is read, and the reading."""


class WatchedSwarm:
    """A peer's swarm and its entries in the ledger."""

    def __init__(self, swarm: NetworkedSwarm, ledger: Ledger, lost_before: str | None) -> None:
        """`lost_before`: why it may have less than it had in its life before; None in the first one."""
        self._swarm = swarm
        self._ledger = ledger
        self._lost_before = lost_before or AWAY
        self._entered: tuple[int, PathIndex] | None = None
        """Stage and path that it said last it trains."""
        self._entered_at = 0.0
        self._agreed: dict[Place, tuple[Contribution, Agreed]] = {}
        """Rounds whose outer step is about to be taken."""
        self.at: dict[Place, tuple[int, str]] = {}
        """Version and digest of every module that it says it trains."""
        self._was_at: dict[Place, str] = {}
        """Digest of the state that it had before that."""
        self.made: dict[Place, set[str]] = {}
        """Digests of the versions that it has committed in this life."""
        self.dropping: dict[Place, tuple[str, int]] = {}
        """Modules of which it has said that it goes on without what it had trained: why, and how many tokens."""

    def as_swarm(self) -> Swarm:
        return cast(Swarm, self)

    def as_networked(self) -> NetworkedSwarm:
        """What is watched."""
        return self._swarm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._swarm, name)

    def announce(self, announcements: Sequence[Announcement], groups: Sequence[ModuleGroup] = ()) -> None:
        trains = {(said.stage, said.module): (said, said.path) for said in announcements if said.path is not None}
        now = self._swarm.clock.monotonic()
        for place, (said, path) in trains.items():
            trainer = trainer_of(self._swarm.peer, path)
            if self._entered != (said.stage, path):
                self._entered_at = now
                self._ledger.drop(trainer, place, said.tokens, self._lost_before)
            elif place in self.dropping:
                reason, tokens = self.dropping[place]
                self._ledger.drop(trainer, place, said.tokens, reason)
                if reason == NOT_MADE:
                    self._ledger.check_given(now, trainer, place, self._was_at.get(place, ""), tokens)
            self.dropping.pop(place, None)
            if place in self.at and self.at[place][1] != said.digest:
                self._was_at[place] = self.at[place][1]
            if said.version not in self._ledger.done[trainer, place]:
                self._ledger.done[trainer, place][said.version] = self._ledger.trained[trainer, place] - said.tokens
                if now - self._entered_at < HEARD_OF_HEARTBEATS * self._swarm.timing.heartbeat:
                    self._ledger.too_late.add((trainer, place, said.version))
        if trains:
            self._enter(*next((said.stage, path) for said, path in trains.values()))
            self._lost_before = AWAY
        self.at = {place: (said.version, said.digest) for place, (said, _) in trains.items()}
        self._swarm.announce(announcements, groups)

    def _enter(self, stage: int, path: PathIndex) -> None:
        if self._entered is not None and self._entered[0] == stage and self._entered[1] != path:
            self._ledger.moved.add((trainer_of(self._swarm.peer, self._entered[1]), stage))
        self._ledger.moved.discard((trainer_of(self._swarm.peer, path), stage))
        self._entered = stage, path

    def begin_round(self, contribution: Contribution, *, patience: float, older: Older | None = None) -> RoundUnderWay:
        place = (contribution.group.stage, contribution.group.module)
        trainer = trainer_of(self._swarm.peer, contribution.path)
        self._ledger.give(trainer, place, contribution.digest, contribution.tokens)
        began, before = self._swarm.clock.monotonic(), contribution.gradient[:].clone()

        def over(outcome: Outcome, until: float) -> None:
            self._check_promises(contribution, before, began, until, patience)
            if isinstance(outcome, Agreed):
                self._agreed[place] = contribution, outcome

        return _WatchedRound(
            self._swarm.begin_round(contribution, patience=patience, older=older), self._swarm.clock, over
        )

    def hold(self, stage: int, module: ModuleId, state: ModuleState) -> None:
        place = (stage, module)
        part, agreed = self._agreed.pop(place, (None, None))
        if part is not None and agreed is not None and state.version == part.version + 1:
            version = Version(state.digest, part.digest, state.version, state.work)
            tokens = {str(peer): count for peer, count in agreed.tokens.items()}
            self._ledger.commit(self._swarm.clock.monotonic(), place, version, tokens)
            self.made.setdefault(place, set()).add(state.digest)
        self._swarm.hold(stage, module, state)

    def _check_promises(self, part: Contribution, before: Tensor, began: float, until: float, patience: float) -> None:
        """`NotAgreed` changed nothing here: the gradient is never written to. And no wait is without bound."""
        now = self._swarm.clock.monotonic()
        if not torch.equal(part.gradient[:], before):
            what = f"{self._swarm.peer}: the gradient of {part.group.module} was written to"
            self._ledger.violate(now, "a round changes nothing here", what)
        self._ledger.wait(self._swarm.peer, [(part.group.stage, part.group.module)], patience, began, until)


class _WatchedRound:
    """A round under way; `over` is told how it ended, once, and until when it was seen to go on."""

    def __init__(self, under_way: RoundUnderWay, clock: Clock, over: Callable[[Outcome, float], None]) -> None:
        self._under_way = under_way
        self._clock = clock
        self._over = over
        self._outcome: Outcome | None = None
        self._goes_on = clock.monotonic()
        """When it was asked last, and was not over."""

    def outcome(self, *, timeout: float | None = 0.0) -> Outcome | None:
        if self._outcome is None:
            asked = self._clock.monotonic()
            self._outcome = self._under_way.outcome(timeout=timeout)
            if self._outcome is None or self._clock.monotonic() > asked:
                self._goes_on = self._clock.monotonic()  # else it ended in the middle of a step, however long that was
            if self._outcome is not None:
                self._over(self._outcome, self._goes_on)
        return self._outcome

    @property
    def progress(self) -> float:
        return self._under_way.progress

    def cancel(self) -> None:
        self._under_way.cancel()
