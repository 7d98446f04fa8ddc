"""The leader's side of a round until it begins: who takes part. What follows is `deciding.py`.

A leader needs no contribution of its own, only a live loop. It keeps a seat for every member, with what the member said
last; every decision is made from the seats, whenever one changes and at least once a pulse. For whom it waits, and how
long: `awaiting.py`.
"""

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm.fields import MAX_MEMBERS
from dipaco_swarm.swarm.round.awaiting import Waiting
from dipaco_swarm.swarm.round.candidates import Demotions, with_strangers
from dipaco_swarm.swarm.round.channels import Channel
from dipaco_swarm.swarm.round.deciding import RunningRound
from dipaco_swarm.swarm.round.gathering import Gathering, ahead_of, unconfirmed
from dipaco_swarm.swarm.round.inquiry import Inquiry
from dipaco_swarm.swarm.round.questions import Questions
from dipaco_swarm.swarm.round.seats import Seat, tell
from dipaco_swarm.swarm.round.standing import Key, Member, Standing
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import Transport
from dipaco_swarm.swarm.wire import Join, Refuse

MAX_GATHERINGS = 1024
"""Rounds that one peer leads at once."""


class Leader:
    """The rounds that this peer leads."""

    def __init__(
        self,
        transport: Transport,
        norm_clip: float,
        standing: Standing,
        questions: Questions,
        waiting: Waiting,
        inquiry: Inquiry,
        laggards: Demotions,
        hidden: Demotions,
    ) -> None:
        """`laggards`: who has kept others waiting lately. `hidden`: reducers."""
        self._transport = transport
        self._clock, self._timing = transport.clock, transport.timing
        self._norm_clip = norm_clip
        self._standing = standing
        self._questions = questions
        self._waiting = waiting
        self._inquiry = inquiry
        self._laggards, self._hidden = laggards, hidden
        self._gatherings: dict[Key, Gathering] = {}
        self._tasks = Tasks()

    async def stop(self) -> None:
        await self._tasks.end()

    def gathers(self, key: Key) -> bool:
        return key in self._gatherings and not self._gatherings[key].closed

    def leads(self, key: Key) -> bool:
        """Whether we gather that round, or it has begun: we need not be in it ourselves."""
        return key in self._gatherings

    def admit(self, join: Join, channel: Channel) -> Gathering | Refuse:
        """Let a member into the gathering of its round, opening it if it is the first."""
        key = stage, module, version = join.stage, ModuleId.parse(join.module), join.version
        theirs = Claim.of(join)
        if not self._standing.allows(channel.peer):
            return Refuse(reason="this peer has not been admitted by the run's operator, or is banned", version=0)
        self._standing.heard(channel.peer, stage, module, Member(join.path, theirs))
        gathering = self._gatherings.get(key)
        # who has moved to another path leads what it has begun to its end: those who are here wait for the others
        group = self._standing.group_of(stage, module) if gathering is None else gathering.group
        if group is None:
            return Refuse(reason="we do not take part in this module", version=0)
        ours = self._standing.ours(stage, module)
        if ours is not None and ours.claim.beats(theirs):
            return ahead_of(theirs, ours.claim, self._transport.peer)
        if join.path not in group.path_weights:
            return Refuse(reason=f"path {join.path} does not use {module}", version=version)
        if gathering is None:
            # for every gathering we ask all who are there, again and again
            if self._standing.is_strange(channel.peer) and not group.whole and not self._is_real(stage, module, theirs):
                return unconfirmed(version)
            if len(self._gatherings) >= MAX_GATHERINGS:
                return Refuse(reason="too many peers at once; trying the next round", version=version)
            now = self._clock.monotonic()
            gathering = Gathering(key, group, theirs, self._transport, self._questions, self._inquiry, now)
            self._gatherings[key] = gathering
            self._tasks.start(self._lead(gathering))
            if ours is not None and ours.claim == theirs:
                self._standing.called(stage, module, version, not self._standing.heeds(stage, module, channel.peer))
        if gathering.closed:
            return Refuse(reason="came after the round had begun; the next one counts our progress", version=version)
        if len(gathering.seats) >= MAX_MEMBERS or gathering.is_crowded(channel, self._standing.is_strange):
            return Refuse(reason="too many peers at once; trying the next round", version=version)
        refusal = self._settle_base(gathering, theirs, channel.peer)
        if refusal is not None:
            return refusal
        # nobody waits in two rounds of one module
        for other in self._gatherings.values():
            if other is not gathering and other.key[:2] == key[:2] and not other.closed:
                other.leave(channel.peer)
        gathering.take(Seat(join, channel), self._standing.is_strange)
        return gathering

    def _is_real(self, stage: int, module: ModuleId, claim: Claim) -> bool:
        """Whether we have that state, or believe that somebody has it."""
        ours = self._standing.ours(stage, module)
        return ours is not None and (
            ours.claim == claim or self._standing.is_believed(stage, module, ours.claim, claim)
        )

    def _settle_base(self, gathering: Gathering, theirs: Claim, peer: str) -> Refuse | None:
        """Who comes goes on from another state than those who are here: one of them is told to fetch the better one.

        Unless nobody confirms that one: then it is theirs who came with it to find that out.
        """
        base, (stage, module, version) = gathering.base, gathering.key
        if base == theirs:
            return None
        worse, better = (theirs, base) if base.beats(theirs) else (base, theirs)
        believed = self._standing.is_believed(stage, module, worse, better)
        if better == base and (believed or not self._standing.has_had(stage, module, theirs)):
            first = next(iter(gathering.seats), self._transport.peer)
            return ahead_of(theirs, base, first) if believed else unconfirmed(version)
        if better == theirs and not believed:
            return unconfirmed(version)
        gathering.rebase(theirs, ahead_of(base, theirs, peer) if better == theirs else unconfirmed(version))
        return None

    async def _lead(self, gathering: Gathering) -> None:
        try:
            pulse = gathering.listeners.start(gathering.pulse())
            refusal = await self._waiting.until_closed(gathering)
            gathering.closed = True
            pulse.cancel()
            if refusal is not None:
                await tell(list(gathering.seats.values()), refusal, self._timing)
                return
            is_strange = self._waiting.strange_in(gathering)
            seats = await gathering.seats_of_one_size(is_strange)
            if seats:
                now = self._clock.monotonic()
                waived = with_strangers(self._laggards.demoted(now), {*gathering.seats}, is_strange)
                seats = await gathering.without_a_crowd(seats, waived, is_strange)
                gathering.hide(self._hidden.demoted(now))
                running = RunningRound(
                    self._transport,
                    gathering,
                    seats,
                    self._norm_clip,
                    self._standing,
                    self._inquiry,
                    waived,
                    is_strange,
                )
                await running.reach_decision()
        finally:
            gathering.closed = True
            self._gatherings.pop(gathering.key, None)
            await gathering.listeners.end()
            for seat in gathering.seats.values():
                seat.channel.close()
            gathering.over.set()
