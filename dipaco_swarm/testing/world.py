"""A whole swarm in virtual time: the real `Operator` and `Volunteer`s on a simulated network, by one seed.

    world = World(seed=7, plan=Plan())
    world.play(story)          # a coroutine that starts peers, breaks things, and waits in virtual time

A failing seed fails again: print it, and play it alone.
"""

import asyncio
import hashlib
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from dipaco_swarm.swarm.local import LocalNetwork
from dipaco_swarm.testing.directory import SimulatedDirectory
from dipaco_swarm.testing.ending import end_everybody
from dipaco_swarm.testing.ledger import Balance, Ledger, Place
from dipaco_swarm.testing.network import SimulatedNetwork
from dipaco_swarm.testing.operator import SimulatedOperator
from dipaco_swarm.testing.process import Machine, SimulatedProcess
from dipaco_swarm.testing.run import OPERATOR, Plan, address_of
from dipaco_swarm.testing.virtual_time import VirtualClock, VirtualLoop
from dipaco_swarm.testing.volunteer import SimulatedPeer

OPENING_SECONDS = 60.0
"""The operator's node has published the run by then."""

OVERLAPPED_LAG = 3
"""Versions that a peer may be behind the newest one while rounds overlap with training."""

Story = Callable[["World"], Awaitable[None]]


class World:
    """All programs of one simulated run, and what they are connected by."""

    def __init__(self, seed: int, plan: Plan, folder: Path) -> None:
        """`folder`: for the programs' homes; made, and removed when the story is over."""
        self.seed = seed
        self.plan = plan
        self.folder = folder
        self.config = plan.config(seed)
        self.address = address_of(self.config)
        self.loop = VirtualLoop()  # type: ignore[abstract]  # no sockets, no processes
        self.network = SimulatedNetwork(Random(f"{seed}/network"), relay=OPERATOR)
        self.directory = SimulatedDirectory(self.network, Random(f"{seed}/directory"), VirtualClock(self.loop))
        self.local = LocalNetwork(self.network, plan.timing, VirtualClock(self.loop), Random(f"{seed}/local"))
        self.ledger = Ledger()
        self.operator = SimulatedOperator(self, Machine())
        self.peers: dict[str, SimulatedPeer] = {}
        self.lines: list[tuple[float, str, str]] = []
        """(when, who, what): all that programs told their people."""
        self.final: Balance | None = None
        """Where all tokens were when the story was over."""
        self._trace = hashlib.sha256()

    @property
    def now(self) -> float:
        return self.loop.time()

    # the story -------------------------------------------------------------------------------------------------------

    def play(self, story: Story) -> None:
        """Open the run, play the story, end everybody."""
        self.folder.mkdir(parents=True)
        try:
            self.loop.run_until_complete(self._play(story))
        finally:
            self.loop.end()
            shutil.rmtree(self.folder)

    async def _play(self, story: Story) -> None:
        try:
            self.operator.start()
            if not await self.until(lambda: self.operator.manifest is not None, OPENING_SECONDS):
                self.ledger.violate(self.now, "the run is opened", f"not within {OPENING_SECONDS:.0f} s")
            await story(self)
            self.final = await end_everybody(self)
        finally:
            for process in self.live():
                process.kill()

    def start(self, name: str, path: int | None, machine: Machine | None = None) -> SimulatedPeer:
        """A new peer, or a new life of one that was there before. `path`: None: where it is needed."""
        if name not in self.peers:
            machine = machine or Machine()
            self.network.lines[name] = machine.line
            self.peers[name] = SimulatedPeer(self, name, path, machine)
        self.peers[name].start()
        return self.peers[name]

    async def until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Let time pass until something holds; False when it does not within so many seconds."""
        over = self.now + limit
        while not condition():
            if self.now >= over:
                return False
            await asyncio.sleep(0.5)
        return True

    def process(self, name: str) -> SimulatedProcess:
        """A peer, or the operator's node."""
        return self.operator if name == OPERATOR else self.peers[name]

    # what is heard ---------------------------------------------------------------------------------------------------

    def note(self, name: str, text: str) -> None:
        """A program has told its person something."""
        self.lines.append((self.now, name, text))
        self._trace.update(f"{self.now:.6f} {name} {text}\n".encode())

    @property
    def trace(self) -> str:
        """A digest of all that was said, when and by whom: equal traces, equal runs."""
        return self._trace.hexdigest()

    def failures(self) -> list[str]:
        """What programs raised, and what tasks raised that nobody awaited."""
        raised = [
            f"{process.name}: {error!r}"
            for process in (self.operator, *self.peers.values())
            if process.program is not None and process.program.ended.done()
            if (error := process.program.ended.result())
        ]
        return [*raised, *self.loop.unhandled]

    # where it stands -------------------------------------------------------------------------------------------------

    def live(self) -> list[SimulatedProcess]:
        """Everybody who is there."""
        return [process for process in (*self.peers.values(), self.operator) if process.is_alive]

    def live_peers(self) -> list[SimulatedPeer]:
        return [peer for peer in self.peers.values() if peer.is_alive]

    @property
    def stage(self) -> int:
        """The one that the operator has opened last."""
        manifest = self.operator.manifest
        return 0 if manifest is None else manifest.stage.index

    @property
    def _told_stage(self) -> int:
        """The newest one that the operator's node, or somebody who is in it, can tell others of."""
        if self.operator.is_alive:
            return self.stage
        return max((stage for stage, _ in self.states()), default=self.stage)

    def last_version(self, place: Place) -> int | None:
        """The last version of a module; None where it has no end, or none yet.

        Of a stage that is over that is what the next one began with: it may have trained on after its rounds.
        """
        stage, module = place
        manifest = self.operator.manifest
        if manifest is None or stage >= len(manifest.stages):
            return None
        if stage < manifest.stage.index:
            kept = self.operator.kept(stage).get(module)
            return 0 if kept is None else kept.version
        return manifest.last_versions.get(str(module))

    @property
    def finished(self) -> bool:
        """Whether the operator has closed the last stage."""
        manifest = self.operator.manifest
        return manifest is not None and manifest.finished

    @property
    def forks(self) -> int:
        """Versions that came from the same state as another one."""
        return sum(self.ledger.forks(place) for place in self.ledger.versions)

    def states(self) -> dict[Place, dict[str, tuple[int, str]]]:
        """Version and digest of every module, of each live peer that trains it."""
        found: dict[Place, dict[str, tuple[int, str]]] = {}
        for peer in self.live_peers():
            for place, at in (peer.watched.at if peer.watched is not None else {}).items():
                found.setdefault(place, {})[peer.name] = at
        return found

    def is_one(self) -> bool:
        """Whether all live peers are in the newest stage, and those of every module at the same state.

        Where training goes on in rounds, they take a version one after the other: there some may be a little behind.
        The newest stage is one that somebody who is there can tell of: where a run has ended and all have left, who was
        cut off meanwhile has nobody to hear of it from, and nobody to be one with.
        """
        lag = OVERLAPPED_LAG if self.plan.overlap else 0
        return all(
            place[0] == self._told_stage
            and {digest for _, digest in at.values()} <= self._newest(place, max(at.values()), lag)
            for place, at in self.states().items()
        )

    def _newest(self, place: Place, newest: tuple[int, str], lag: int) -> set[str]:
        """The digests of a version and of so many before it."""
        _, digest = newest
        before = self.ledger.line_of(place, digest)[:lag]
        return {digest, *(version.parent for version in before)}

    def apart(self) -> str:
        """Who is at which state, of the modules whose peers are not at one; and who is behind."""
        return "; ".join(
            f"stage {place[0]} {place[1]}: " + ", ".join(f"{peer} v{at[0]} {at[1][:6]}" for peer, at in states.items())
            for place, states in self.states().items()
            if len(set(states.values())) > 1 or place[0] != self._told_stage
        )

    def at_versions(self) -> dict[Place, int]:
        """The lowest version that a live peer is at, of every module that somebody trains."""
        return {place: min(version for version, _ in at.values()) for place, at in self.states().items()}
