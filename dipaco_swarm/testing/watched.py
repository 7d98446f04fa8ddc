"""A `Swarm` whose peer is looked at: what it gives, takes and says goes into the ledger as well."""

from collections.abc import Sequence
from typing import Any, cast

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup, Outcome, Swarm
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.testing.ledger import Ledger, Place, Version


class WatchedSwarm:
    """A peer's swarm and its entries in the ledger."""

    def __init__(self, swarm: NetworkedSwarm, ledger: Ledger, lost_before: str | None) -> None:
        """`lost_before`: why it may have less than it had in its life before; None in the first one."""
        self._swarm = swarm
        self._ledger = ledger
        self._lost_before = lost_before
        self._agreed: dict[Place, tuple[Contribution, Agreed]] = {}
        """Rounds whose outer step is about to be taken."""
        self.at: dict[Place, tuple[int, str]] = {}
        """Version and digest of every module that it says it trains."""
        self.dropping: set[Place] = set()
        """Modules of which it has said that it drops what was trained too long ago."""

    def as_swarm(self) -> Swarm:
        return cast(Swarm, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._swarm, name)

    def announce(self, announcements: Sequence[Announcement], groups: Sequence[ModuleGroup] = ()) -> None:
        peer = self._swarm.peer
        trains = {(said.stage, said.module): said for said in announcements if said.path is not None}
        if trains and self._lost_before is not None:
            for place, said in trains.items():
                gone = self._ledger.outstanding(peer, place) - said.tokens
                if gone > 0:
                    self._ledger.lose(peer, place, gone, self._lost_before)
            self._lost_before = None
        for place, said in trains.items():
            self.at[place] = (said.version, said.digest)
            if place in self.dropping:
                self.dropping.discard(place)
                gone = self._ledger.outstanding(peer, place) - said.tokens
                if gone > 0:
                    self._ledger.lose(peer, place, gone, "too old when it caught up")
        self._swarm.announce(announcements, groups)

    def all_reduce(self, contributions: Sequence[Contribution], *, patience: float) -> dict[ModuleId, Outcome]:
        outcomes = self._swarm.all_reduce(contributions, patience=patience)
        for part in contributions:
            outcome = outcomes[part.group.module]
            if isinstance(outcome, Agreed):
                self._agreed[part.group.stage, part.group.module] = part, outcome
        return outcomes

    def hold(self, stage: int, module: ModuleId, state: ModuleState) -> None:
        place = (stage, module)
        part, agreed = self._agreed.pop(place, (None, None))
        if part is not None and agreed is not None and state.version == part.version + 1:
            version = Version(
                state.digest,
                part.digest,
                state.version,
                state.work,
                {str(peer): tokens for peer, tokens in agreed.tokens.items()},
            )
            self._ledger.commit(self._swarm.clock.monotonic(), self._swarm.peer, place, version)
        self._swarm.hold(stage, module, state)
