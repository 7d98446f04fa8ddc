"""Our module groups: how their paths weigh, where we stand in each, and which of them somebody gathers."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from dipaco_swarm.algorithm.pacing.pacing import pacing_of
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Stage
from dipaco_swarm.swarm.directory import Directory
from dipaco_swarm.swarm.door import Door
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup, PeerName
from dipaco_swarm.swarm.round.standing import Member, Standing
from dipaco_swarm.swarm.vouching import Vouching


def group_of(config: RunConfig, stage: Stage, table: PathTable, module: ModuleId) -> ModuleGroup:
    """The group of a module of a stage. `config`: as it is in that stage; `table`: the stage's."""
    weights = {path: stage.path_weights[path] for path in table.paths_through(module)}
    whole = pacing_of(config.rounds.pacing).whole
    return ModuleGroup(stage.index, module, weights, config.outer.averaging, config.round_tokens, whole)


class Groups:
    """What the rounds of a peer ask about its groups, from what it announces and what the directory hears."""

    def __init__(self, peer: PeerName, directory: Directory, knows: Callable[[str], bool]) -> None:
        """`knows`: whether a peer is no stranger; ourselves included."""
        self._peer = peer
        self._directory = directory
        self._knows = knows
        self._groups: dict[tuple[int, ModuleId], ModuleGroup] = {}
        self._called: dict[tuple[int, ModuleId, int], set[bool]] = {}
        """Stage, module and version of rounds that somebody gathers, and whether those who do are strangers."""
        self._left_out: dict[tuple[int, ModuleId], frozenset[str]] = {}
        """Of the last round of a module that we made: who was in its roster, and not in most of its average."""
        self._made: dict[tuple[int, ModuleId], int] = {}
        """The last version of a module that we made."""
        self._counted: set[tuple[int, ModuleId]] = set()
        """Modules of which we have made a version with most of those whom we knew there."""
        self.waits_for: Callable[[str], bool] = lambda peer: True
        """Whether a peer has not kept rounds waiting lately."""

    def standing(self, vouching: Vouching, door: Door) -> Standing:
        """The same, as the rounds ask for it. `vouching`: which claims are believed. `door`: who may take part."""

        def is_believed(stage: int, module: ModuleId, ours: Claim, claim: Claim) -> bool:
            return claim in vouching.believed(stage, module, ours, [claim])

        return Standing(
            ours=self._ours,
            holds=self._holds,
            members_of=self._members_of,
            leaders_of=self._leaders_of,
            group_of=lambda stage, module: self._groups.get((stage, module)),
            called=self._note_call,
            heeds=self.heeds,
            is_strange=lambda peer: not self._knows(peer),
            lately=self._directory.lately,
            heard=self._heard,
            look=self._directory.look,
            allows=door.allows,
            ban=door.bans.take,
            convict=door.bans.convict,
            proof_of=door.bans.proof_of,
            matters=door.bans.matters,
            seat=door.bans.seat,
            roots=vouching.roots,
            others=self._directory.peers,
            has_had=vouching.had.has,
            has_made=self.has_made,
            counts_us=self.counts_us,
            is_believed=is_believed,
            ask_about=vouching.check,
        )

    def members(self, stage: int, module: ModuleId) -> tuple[Announcement, ...]:
        """Live announcements about a module, and whether the word of each counts; of ours, whether with others."""
        found = [(said, self._counts(said)) for said in self._directory.members(stage, module)]
        return tuple(said if said.known == counts else replace(said, known=counts) for said, counts in found)

    def _counts(self, said: Announcement) -> bool:
        if said.peer == self._peer:
            return self.counts_us(said.stage, said.module, said.version)
        return self.heeds(said.stage, said.module, said.peer)

    def counts_us(self, stage: int, module: ModuleId, version: int) -> bool:
        """Whether the others who are at this version count us: who is known to some by another module is a stranger to
        these yet, until it has made a version with most of them."""
        return self._knows(self._peer) and (version == 0 or (stage, module) in self._counted)

    def announce(self, announcements: Sequence[Announcement], groups: Sequence[ModuleGroup]) -> None:
        """From now on these are ours. A gathering of a version that is behind us is forgotten."""
        self._groups = {(group.stage, group.module): group for group in groups}
        standing = {(said.stage, said.module): said.version for said in announcements}
        for called in list(self._called):
            if called[2] < standing.get(called[:2], called[2] + 1):
                self._called.pop(called, None)

    def is_gathering(self, stage: int, module: ModuleId, version: int, *, by_strangers: bool) -> bool:
        return by_strangers in self._called.get((stage, module, version), ())

    def _note_call(self, stage: int, module: ModuleId, version: int, by_strangers: bool) -> None:
        self._called.setdefault((stage, module, version), set()).add(by_strangers)

    def heeds(self, stage: int, module: ModuleId, peer: str) -> bool:
        """Whether a peer is no stranger, and rounds have of it what it says: else its word makes none due.

        From any thread.
        """
        left_out = self._left_out.get((stage, module), frozenset())
        return peer == self._peer or (self._knows(peer) and self.waits_for(peer) and peer not in left_out)

    def agreed(self, part: Contribution, outcome: Agreed) -> None:
        """A round of ours is made; all who were in it see alike who was left out."""
        place = part.group.stage, part.group.module
        self._left_out[place] = frozenset(outcome.left_out) - outcome.tokens.keys()
        self._made[place] = part.version + 1
        there = {peer for peer in self._members_of(*place) if peer != self._peer and self._knows(peer)}
        if 2 * len(there & outcome.tokens.keys()) >= len(there):
            self._counted.add(place)

    def has_made(self, stage: int, module: ModuleId, version: int) -> bool:
        """Whether the last round of a module that we were in made this version."""
        return self._made.get((stage, module)) == version

    def enter(self, contributions: Sequence[Contribution]) -> None:
        """We take part in rounds of these groups, announced or not."""
        for part in contributions:
            self._groups.setdefault((part.group.stage, part.group.module), part.group)

    def leave(self, contributions: Sequence[Contribution]) -> None:
        """These rounds are over for us."""
        for part in contributions:
            self._called.pop((part.group.stage, part.group.module, part.version), None)

    def _ours(self, stage: int, module: ModuleId) -> Member | None:
        for said in self._directory.ours:
            if (said.stage, said.module) == (stage, module) and said.path is not None:
                return Member(said.path, Claim.of(said))
        return None

    def _holds(self, stage: int, module: ModuleId) -> Claim | None:
        claims = [Claim.of(said) for said in self._directory.ours if (said.stage, said.module) == (stage, module)]
        return claims[0] if claims else None

    def _members_of(self, stage: int, module: ModuleId) -> list[str]:
        return [said.peer for said in self._directory.members(stage, module) if said.trains]

    def _leaders_of(self, stage: int, module: ModuleId) -> list[str]:
        members = self._directory.members(stage, module)
        return [said.peer for said in members if said.trains and said.reduces and said.peer != self._peer]

    def _heard(self, peer: str, stage: int, module: ModuleId, there: Member) -> None:
        if (stage, module) not in self._groups and self._holds(stage, module) is None:
            return  # none of our business, and there is no end of such modules
        claim, path = there.claim, PathIndex(there.path)
        self._directory.heard_directly(
            Announcement(PeerName(peer), stage, module, path, claim.version, claim.digest, claim.work)
        )
