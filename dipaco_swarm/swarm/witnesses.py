"""A directory may not show us who is there: then those are asked whom we know.

Who writes nodes beside a key can make a directory empty for those who read it there; a group falls apart then, each
member alone and all of them content. So where nobody whom we know is to be seen in a module, the operator's nodes are
asked who is in it, and some of those we have made rounds with: over streams, on which libp2p proves who answers. What
they say of others tells where to find them, and nothing that they say of a state is believed for it.

And where many come at once, the nodes beside a key are new, and have not what the operator's node has said before they
came. So who begins to read a group and does not see it there asks it: it alone may have what was trained.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence

from dipaco_swarm.algorithm.forgetting import keep_last
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.directory import Directory
from dipaco_swarm.swarm.greetings import MAX_MEMBERS_NAMED, AskMembers, MembersAre, SaidOfMember
from dipaco_swarm.swarm.interface import Announcement, PeerName, Role
from dipaco_swarm.swarm.lately import Key
from dipaco_swarm.swarm.records import decode_announcement, encode_announcement
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import Transport
from dipaco_swarm.swarm.wire import Holding

log = logging.getLogger(__name__)

MAX_ASKED = 8
"""Besides the operator's nodes: those who were there last."""
TIMES = 3
"""So often the operator's nodes are asked for their own word: one may be starting, and another one be down."""
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
        self._asking: dict[Key, asyncio.Task[None]] = {}
        self._left: dict[Key, int] = {}
        """Modules that were read in this life -> how often the operator's nodes are asked still, to be heard."""
        self._said: set[Key] = set()
        """Of which modules it was said that nobody is to be seen."""

    async def stop(self) -> None:
        await self._tasks.end()

    def told(self, peer: str, held: Holding) -> None:
        """A peer says what it has; what is not about modules of ours is none of our business."""
        stage, module = held.stage, ModuleId.parse(held.module)
        if any((said.stage, said.module) == (stage, module) for said in self._directory.ours):
            name, version, digest, work = PeerName(peer), held.version, held.digest, held.work
            said = Announcement(name, stage, module, None, version, digest, work, role=Role.HOLDS)
            self._directory.heard_directly(said)

    def answer(self, asked: AskMembers) -> MembersAre:
        """Who trains a module, as we have heard of them ourselves; we are named first, whatever we do with it, then
        whom we know."""
        stage, module = asked.stage, ModuleId.parse(asked.module)
        ours = [one for one in self._directory.ours if (one.stage, one.module) == (stage, module)]
        heard = self._directory.heard_ourselves(stage, module)
        others = [one for one in heard if one.trains and one.peer != self._transport.peer]
        others.sort(key=lambda one: (not self._directory.knows(one.peer), one.peer))
        said = [*ours, *others][:MAX_MEMBERS_NAMED]
        where = self._transport.addresses_of
        named = (SaidOfMember(peer=one.peer, said=encode_announcement(one, where(one.peer))) for one in said)
        return MembersAre(members=tuple(named))

    def look(self, stage: int, module: ModuleId, found: Collection[str]) -> asyncio.Task[None] | None:
        """These are in the directory. Ask, unless it shows somebody whom we know; or unless nobody was ever there.

        The first time in a life that is asked at any rate; and the operator's nodes that are not shown, three times at
        most until they are heard. Who is being asked is asked once.
        """
        key, us = (stage, module), self._transport.peer
        left = self._left.pop(key, TIMES)
        held = {said.peer for said in self._directory.heard_ourselves(stage, module)}
        missed = left > 0 and any(root not in held for root in self._roots)
        self._left[key] = left - 1 if missed else 0
        keep_last(self._left, MOST)
        if any(peer != us and peer in held and self._directory.knows(peer) for peer in found):
            return self._begin(key, self._ask_roots) if missed else None
        hearsay = {said.peer for said in self._directory.members(stage, module)} - held - {us}
        if not (left == TIMES or missed or hearsay or self._known_lately(stage, module)):
            return None
        return self._begin(key, self._ask_all)

    def _begin(self, key: Key, ask: Callable[[Key], Coroutine[None, None, None]]) -> asyncio.Task[None]:
        async def asking() -> None:
            try:
                await ask(key)
            finally:
                self._asking.pop(key, None)

        if key not in self._asking:
            self._asking[key] = self._tasks.start(asking())
        return self._asking[key]

    def _known_lately(self, stage: int, module: ModuleId) -> frozenset[str]:
        """Others whom we know and who trained a module not long ago; whether they are there still or not."""
        lately = filter(self._directory.knows, self._directory.lately(stage, module))
        return self._there(stage, module).union(lately) - {self._transport.peer}

    async def _ask_roots(self, key: Key) -> None:
        await asyncio.gather(*(self._ask(peer, key) for peer in self._roots))

    async def _ask_all(self, key: Key) -> None:
        """The operator's nodes, and whom we know; and say so, where nobody is left to be seen."""
        before, gone = self._known_lately(*key), not self._there(*key)
        met = dict.fromkeys((*sorted(before), *self._met_last(MAX_ASKED)))
        others = [peer for peer in met if peer not in self._roots and peer != self._transport.peer]
        await asyncio.gather(*(self._ask(peer, key) for peer in (*self._roots, *others[:MAX_ASKED])))
        if not gone:
            self._said.discard(key)
        elif before and key not in self._said:
            self._said.add(key)
            found = len(self._there(*key))
            log.warning(
                "the directory shows nobody of %s any more, where %d others were not long ago; %s",
                key[1],
                len(before),
                f"by asking those we know, {found} were found" if found else "nor does anybody whom we have asked",
            )

    def _there(self, stage: int, module: ModuleId) -> frozenset[str]:
        """Whom we know of those who train a module now, as far as we have heard."""
        members = self._directory.members(stage, module)
        others = (said.peer for said in members if said.trains and said.peer != self._transport.peer)
        return frozenset(filter(self._directory.knows, others))

    async def _ask(self, peer: str, key: Key) -> None:
        stage, module = key
        try:
            async with (
                asyncio.timeout(self._transport.timing.answer),
                self._transport.dial(peer, self._protocol) as stream,
            ):
                await stream.send(AskMembers(stage=stage, module=str(module)))
                answer = await stream.receive()
            if isinstance(answer, MembersAre):
                for member in answer.members:
                    try:
                        heard = decode_announcement(member.peer, member.said, stage, module)
                    except RemoteDataError as error:  # of whom it says that, may have said something else
                        raise RemoteDataError(peer, "says of another what nobody can have said") from error
                    self._hear(*heard, by=peer)
        except RemoteDataError as error:
            self._transport.border.note(error, "does without its word on who is there")
        except (ConnectionError, EOFError, TimeoutError) as error:
            log.debug("peer %s does not say who is there: %s", peer[-8:], error)

    def _hear(self, said: Announcement, addresses: Sequence[str], by: str) -> None:
        if said.peer == by:
            self._directory.heard_directly(said)  # and where it is we know
        elif said.peer not in self._roots and self._directory.heard_of(said):  # nobody speaks for the operator's nodes
            self._transport.remember(said.peer, addresses, reachable=said.reduces)
