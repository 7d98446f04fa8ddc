"""A directory that shows nobody whom we know may have been taken from us: then those are asked whom we know.

Who writes nodes beside a key can make a directory empty for those who read it there; a group falls apart then, each
member alone and all of them content. So where nobody whom we know is to be seen in a module, the operator's nodes are
asked who is in it, and some of those we have made rounds with: over streams, on which libp2p proves who answers. What
they say of others is as good as a record of these: it tells where to find them, and nothing that they say of a state is
believed for it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.directory import Directory
from dipaco_swarm.swarm.greetings import MAX_MEMBERS_NAMED, AskMembers, MembersAre, SaidOfMember
from dipaco_swarm.swarm.records import encode_announcement
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import Transport

log = logging.getLogger(__name__)

MAX_ASKED = 8
"""Besides the operator's nodes: those who were there last."""
MOST = 4096
"""Modules, of all stages, that are remembered."""


class Witnesses:
    """Asks and answers, in the loop."""

    def __init__(
        self,
        transport: Transport,
        protocol: str,
        directory: Directory,
        roots: Sequence[str],
        met_last: Callable[[int], Sequence[str]],
    ) -> None:
        """`protocol`: of the streams on which is asked. `roots`: the operator's nodes. `met_last`: so many of those
        with whom we have made rounds."""
        self._transport = transport
        self._protocol = protocol
        self._directory = directory
        self._roots = tuple(roots)
        self._met_last = met_last
        self._tasks = Tasks()
        self._asking: dict[tuple[int, ModuleId], asyncio.Task[None]] = {}
        self._looked: dict[tuple[int, ModuleId], None] = {}
        """Modules that were read in this life."""
        self._said: set[tuple[int, ModuleId]] = set()
        """Of which modules it was said that nobody is to be seen."""

    async def stop(self) -> None:
        await self._tasks.end()

    def answer(self, asked: AskMembers) -> MembersAre:
        """Who trains a module, as we have heard of them ourselves; we are named first, then whom we know."""
        stage, module = asked.stage, ModuleId.parse(asked.module)
        ours = [one for one in self._directory.ours if (one.stage, one.module) == (stage, module) and one.trains]
        others = [one for one in self._directory.heard_ourselves(stage, module) if one.peer != self._transport.peer]
        others.sort(key=lambda one: (not self._directory.knows(one.peer), one.peer))
        said = [*ours, *others][:MAX_MEMBERS_NAMED]
        where = self._transport.addresses_of
        named = (SaidOfMember(peer=one.peer, said=encode_announcement(one, where(one.peer))) for one in said)
        return MembersAre(members=tuple(named))

    def look(self, stage: int, module: ModuleId, found: Collection[str]) -> asyncio.Task[None] | None:
        """These are in the directory. Ask, unless it shows somebody whom we know; or unless nobody was ever there.

        The first time in a life that is asked at any rate. Who is being asked is asked once.
        """
        key, us = (stage, module), self._transport.peer
        is_first = key not in self._looked
        self._looked[key] = None
        for oldest in list(self._looked)[:-MOST]:
            del self._looked[oldest]
        if any(peer != us and self._directory.knows(peer) for peer in found):
            return None
        first_hand = {said.peer for said in self._directory.heard_ourselves(stage, module)}
        hearsay = {said.peer for said in self._directory.members(stage, module)} - first_hand - {us}
        if not (is_first or hearsay or self._known_lately(stage, module)):
            return None
        if key not in self._asking:
            self._asking[key] = self._tasks.start(self._look(stage, module))
        return self._asking[key]

    def _known_lately(self, stage: int, module: ModuleId) -> frozenset[str]:
        """Others whom we know and who trained a module not long ago; whether they are there still or not."""
        lately = filter(self._directory.knows, self._directory.lately(stage, module))
        return self._there(stage, module).union(lately) - {self._transport.peer}

    async def _look(self, stage: int, module: ModuleId) -> None:
        try:
            before = self._known_lately(stage, module)
            gone = not self._there(stage, module)
            met = dict.fromkeys((*sorted(before), *self._met_last(MAX_ASKED)))
            others = [peer for peer in met if peer not in self._roots and peer != self._transport.peer]
            await asyncio.gather(*(self._ask(peer, stage, module) for peer in (*self._roots, *others[:MAX_ASKED])))
            if not gone:
                self._said.discard((stage, module))
            elif before and (stage, module) not in self._said:
                self._said.add((stage, module))
                found = len(self._there(stage, module))
                log.warning(
                    "the directory shows nobody of %s any more, where %d others were not long ago; %s",
                    module,
                    len(before),
                    f"by asking those we know, {found} were found" if found else "nor does anybody whom we have asked",
                )
        finally:
            self._asking.pop((stage, module), None)

    def _there(self, stage: int, module: ModuleId) -> frozenset[str]:
        """Whom we know of those who train a module now, as far as we have heard."""
        members = self._directory.members(stage, module)
        others = (said.peer for said in members if said.trains and said.peer != self._transport.peer)
        return frozenset(filter(self._directory.knows, others))

    async def _ask(self, peer: str, stage: int, module: ModuleId) -> None:
        try:
            async with (
                asyncio.timeout(self._transport.timing.answer),
                self._transport.dial(peer, self._protocol) as stream,
            ):
                await stream.send(AskMembers(stage=stage, module=str(module)))
                answer = await stream.receive()
            if isinstance(answer, MembersAre):
                for member in answer.members:
                    self._directory.heard_of(member.peer, member.said, stage, module)
        except RemoteDataError as error:
            self._transport.border.note(error, "does without its word on who is there")
        except (ConnectionError, EOFError, TimeoutError) as error:
            log.debug("peer %s does not say who is there: %s", peer[-8:], error)
