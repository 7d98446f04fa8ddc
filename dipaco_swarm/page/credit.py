"""Who has offered how much time, and whose tokens counted.

A peer's word alone earns nothing. What a module's versions have of work is known, for others have agreed on it; that is
shared out among those who trained the module meanwhile, by the speed that they announce, whoever is new excepted until
a version has something of it. So the sum is right whoever lies, and a lie takes from its own module group alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dipaco_swarm.dashboard.views import MemberStatus, SwarmStatus
from dipaco_swarm.page.history import Contributor

MOST_STEP_SECONDS = 60.0
"""Nobody is credited for more time at once: we may have slept."""
MOST_NAMES = 4000
"""Remembered at once; names cost nothing, so those with the least go first."""


class Ledger:
    """Of all peers that were ever seen."""

    def __init__(self, known: Iterable[Contributor]) -> None:
        self._known = {each.peer: each for each in known}
        self._work: dict[str, int] = {}
        """Of each module, when it was seen last."""
        self._stage: int | None = None
        self._changed: set[str] = set()

    def see(self, status: SwarmStatus, at: float, seconds: float) -> None:
        """`at`: seconds since the epoch. `seconds`: since the last time."""
        for member in status.members:
            known = self._known.get(member.name)
            nickname = member.nickname or (known.nickname if known is not None else "")
            if known is None:
                self._known[member.name] = Contributor(member.name, nickname, member.path, at, at, 0.0, 0.0)
            elif member.awake and not status.finished:
                offered = known.offered + min(seconds, MOST_STEP_SECONDS)
                self._known[member.name] = replace(known, nickname=nickname, path=member.path, last=at, offered=offered)
            self._changed.add(member.name)
        self._share_out(status)
        self._forget(status)

    def _share_out(self, status: SwarmStatus) -> None:
        """What has come into each module since the last time, to those who train it."""
        if status.stage != self._stage:
            self._stage, self._work = status.stage, {}
        levels = len({module.name.partition("M")[0] for module in status.modules}) or 1
        fresh_of: dict[str, int] = {}
        for module in status.modules:
            before = self._work.get(module.name)
            self._work[module.name] = max(module.work, before or 0)
            if before is not None and module.work > before:
                fresh_of[module.name] = module.work - before
        groups = _groups(status) if fresh_of else {}
        for name, fresh in fresh_of.items():
            members = groups.get(name, ())
            speeds = sum(member.tokens_per_second for member in members)
            for member in members:
                share = member.tokens_per_second / speeds if speeds else 1 / len(members)
                known = self._known[member.name]
                self._known[member.name] = replace(known, counted=known.counted + share * fresh / levels)
                self._changed.add(member.name)

    def _forget(self, status: SwarmStatus) -> None:
        if len(self._known) <= MOST_NAMES + MOST_NAMES // 4:
            return
        here = {member.name for member in status.members}
        ranked = sorted(self._known.values(), key=lambda each: (each.counted, each.peer in here, each.last))
        for each in ranked[: len(ranked) - MOST_NAMES]:
            del self._known[each.peer]
            self._changed.discard(each.peer)

    def changed(self) -> list[Contributor]:
        """Those of whom something is new since this was asked last."""
        found = [self._known[name] for name in sorted(self._changed)]
        self._changed.clear()
        return found

    def ranking(self) -> list[Contributor]:
        """Whose tokens counted most comes first."""
        return sorted(self._known.values(), key=lambda each: (-each.counted, -each.offered, each.peer))

    def get(self, peer: str) -> Contributor | None:
        return self._known.get(peer)


def _groups(status: SwarmStatus) -> dict[str, Sequence[MemberStatus]]:
    """Who trains each module, of those who count."""
    modules_of = {path.index: path.modules for path in status.paths}
    groups: dict[str, list[MemberStatus]] = {}
    for member in status.members:
        for name in modules_of.get(member.path, ()) if member.known else ():
            groups.setdefault(name, []).append(member)
    return dict(groups)
