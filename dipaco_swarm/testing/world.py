"""A whole swarm in virtual time: the real `Volunteer`s and an operator, on a simulated network, by one seed.

    world = World(seed=7, plan=Plan(table=((0, 0), (0, 1))))
    world.play(story)          # a coroutine that starts peers, breaks things, and waits in virtual time

A failing seed fails again: print it, and play it alone.
"""

import asyncio
import contextlib
import hashlib
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.peer.volunteer import Volunteer
from dipaco_swarm.settings import PeerSettings
from dipaco_swarm.swarm.local import LocalNetwork, LocalTransport, local_address
from dipaco_swarm.swarm.networked import NetworkedSwarm, networked_swarm
from dipaco_swarm.swarm.states.blobs import MemoryBlobs
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.testing.directory import SimulatedDirectory, SimulatedRecords
from dipaco_swarm.testing.ledger import Balance, Ledger, Place
from dipaco_swarm.testing.network import Line, SimulatedNetwork
from dipaco_swarm.testing.pauses import VirtualPauses
from dipaco_swarm.testing.run import OPERATOR, SimulatedRun
from dipaco_swarm.testing.training import SimulatedWorkbench
from dipaco_swarm.testing.virtual_time import Inline, Program, VirtualClock, VirtualLoop, context_of
from dipaco_swarm.testing.watched import WatchedSwarm
from dipaco_swarm.training.checkpoint import Checkpoint, given, load
from dipaco_swarm.training.early import run_of

ENDING_SECONDS = 120.0
"""After Ctrl+C a program ends within this, whatever it waits for."""

DROPPED = {
    "too old to count": "too old when it caught up",
    "whose end we did not hear": "given to a round that was not made",
}
"""What a peer says when it goes on without tokens that it has trained, and what that is called."""

Story = Callable[["World"], Awaitable[None]]


@dataclass(frozen=True)
class Machine:
    """A volunteer's machine."""

    line: Line = field(default_factory=Line)
    step_seconds: float = 1.0
    """Of one inner step, on average."""
    clock_offset: float = 0.0
    preparing_seconds: float = 1.0


class Lines:
    """A screen that remembers."""

    def __init__(self, world: "World", name: str) -> None:
        self._world = world
        self._name = name

    def show(self, view: object) -> None:
        """Nobody looks."""

    def event(self, text: object) -> None:
        self._world.note(self._name, str(text))
        watched = self._world.peers[self._name].watched
        if watched is not None and any(words in str(text) for words in DROPPED):
            module = ModuleId.parse(str(text).partition(":")[0])
            reason = next(DROPPED[words] for words in DROPPED if words in str(text))
            watched.dropping |= {place: reason for place in watched.at if place[1] == module}


class SimulatedPeer:
    """One volunteer, over all its lives. Its home folder stays when it is killed."""

    def __init__(self, world: "World", name: str, path: int | None, machine: Machine) -> None:
        self.name = name
        self.path = path
        self.machine = machine
        self.home = world.folder / name
        self.lives = 0
        self.clock = VirtualClock(world.loop, machine.clock_offset)
        self.program: Program | None = None
        self.stop: Stopping | None = None
        self.watched: WatchedSwarm | None = None
        self._world = world
        self._ended_by: str | None = None
        """How its last life ended."""
        self._open = contextlib.AsyncExitStack()

    @property
    def owner(self) -> str:
        return f"{self.name}#{self.lives}"

    @property
    def is_alive(self) -> bool:
        return self.program is not None and not self.program.ended.done()

    def start(self) -> None:
        """A new process."""
        assert not self.is_alive, f"{self.name} is running"
        self.lives += 1
        world = self._world
        world.network.owners[self.name] = self.owner
        world.network.revive(self.name)
        self.program = program = Program(world.loop, self.owner)
        self.stop = Stopping(VirtualPauses(program, self.clock))
        self._open = contextlib.AsyncExitStack()
        program.start(self._live)

    def _live(self) -> None:
        assert self.program is not None
        assert self.stop is not None
        program, stop, world = self.program, self.stop, self._world
        random = Random(f"{world.seed}/{self.owner}")
        swarm = program.run(self._join(program, random))
        stop.tell(swarm.interrupt)
        self.watched = WatchedSwarm(swarm, world.ledger, self._ended_by)
        settings = PeerSettings(
            address=world.run.address,
            path=self.path,
            home=self.home,
            cache=None,
            listen=None,
            device="cpu",
            micro_batch=None,
            threads=None,
            until_finished=world.plan.until_finished,
            rounds=None,
            screen="none",
        )
        workbench = SimulatedWorkbench(
            parameters=world.plan.parameters,
            seconds=lambda: self.machine.step_seconds * random.uniform(0.8, 1.25),
            preparing=self.machine.preparing_seconds,
            sleep=program.sleep,
            now=self.clock.monotonic,
            random=random,
            trained=self._trained,
        )
        try:
            Volunteer(settings, self.watched.as_swarm(), Lines(world, self.name), stop, workbench).live()
        finally:
            program.run(self._leave())

    async def _join(self, program: Program, random: Random) -> NetworkedSwarm:
        world = self._world
        transport = LocalTransport(
            world.local,
            self.name,
            clock=self.clock,
            records=SimulatedRecords(world.directory, self.name, self.clock),
            executor=Inline,
            reachable=self.name not in world.network.behind_routers,
            random=random,
        )
        transport.open()
        self._open.push_async_callback(transport.close)
        return await self._open.enter_async_context(
            networked_swarm(program, transport, world.run.address, MemoryBlobs())
        )

    async def _leave(self) -> None:
        await self._open.aclose()
        self._world.network.kill(self.name)

    def _trained(self, path: PathIndex, tokens: int) -> None:
        assert self.watched is not None
        for place in self.watched.at:
            self._world.ledger.train(self.name, place, tokens)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.program is not None
        world = self._world
        world.loop.kill(self.owner)
        world.local.transports.pop(self.name, None)
        world.network.kill(self.name)
        self.program.kill()
        self.watched = None
        self._ended_by = "killed between two checkpoints"

    def ask_to_stop(self) -> None:
        """Ctrl+C."""
        assert self.stop is not None
        self._ended_by = "away for too long"
        context_of(self.owner).run(self.stop.request)

    def checkpoints(self) -> list[tuple[Checkpoint, dict[ModuleId, int]]]:
        """What it has saved, newest last; and of which versions it has noted that others may have its progress."""
        files = sorted(self.home.glob("checkpoints/*.safetensors"), key=lambda file: file.stat().st_mtime_ns)
        address = self._world.run.address
        run = run_of(address.name, address.fingerprint)
        return [(saved, given(file)) for file in files if (saved := load(file, run)) is not None]


@dataclass(frozen=True)
class Plan:
    """What is trained, and how."""

    table: Sequence[Sequence[int]] = ((0, 0), (0, 1), (1, 0), (1, 1))
    inner_steps: int = 10
    rounds: int | None = None
    codec: str = "fp32"
    pacing: str = "paced"
    parameters: int = 64
    """Of each module."""
    min_peers: int = 1
    until_finished: bool = False
    timing: Timing = field(default_factory=Timing)


class World:
    """All peers of one simulated run, and what they are connected by."""

    def __init__(self, seed: int, plan: Plan, folder: Path) -> None:
        self.seed = seed
        self.plan = plan
        self.folder = folder
        self.loop = VirtualLoop()  # type: ignore[abstract]  # no sockets, no processes
        self.random = Random(f"{seed}/world")
        self.network = SimulatedNetwork(Random(f"{seed}/network"), relay=OPERATOR)
        self.directory = SimulatedDirectory(self.network, Random(f"{seed}/directory"), VirtualClock(self.loop))
        self.local = LocalNetwork(self.network, plan.timing, VirtualClock(self.loop), Random(f"{seed}/local"))
        self.ledger = Ledger()
        self.run = SimulatedRun(plan, local_address)
        self.peers: dict[str, SimulatedPeer] = {}
        self.lines: list[tuple[float, str, str]] = []
        """(when, who, what): all that peers told their people."""
        self.troubles: list[tuple[float, float]] = []
        """When something was broken, from and to."""
        self.final: Balance | None = None
        """Where all tokens were when the story was over."""
        self._trace = hashlib.sha256()

    operator = OPERATOR

    @property
    def forks(self) -> int:
        """Versions that came from the same state as another one."""
        return sum(self.ledger.forks(place) for place in self.ledger.versions)

    def apart(self) -> str:
        """Who is at which state, of the modules whose peers are not at one."""
        apart = {place[1]: self.digests(place) for place in self.places()}
        return "; ".join(
            f"{module}: " + ", ".join(f"{peer} v{number} {digest[:6]}" for peer, (number, digest) in found.items())
            for module, found in apart.items()
            if len(set(found.values())) > 1
        )

    @property
    def now(self) -> float:
        return self.loop.time()

    @property
    def trace(self) -> str:
        """A digest of all that was said, when and by whom: equal traces, equal runs."""
        return self._trace.hexdigest()

    def note(self, name: str, text: str) -> None:
        self.lines.append((self.now, name, text))
        self._trace.update(f"{self.now:.6f} {name} {text}\n".encode())

    def play(self, story: Story) -> None:
        """Open the run, play the story, end everybody. Raises what a program raised."""
        self.folder.mkdir(parents=True)
        try:
            self.loop.run_until_complete(self._play(story))
        finally:
            self.loop.end()
            shutil.rmtree(self.folder)

    async def _play(self, story: Story) -> None:
        try:
            await self.run.open(self)
            await story(self)
            await self._end_everybody()
        finally:
            for peer in self.live_peers():
                peer.kill()
            self.run.end()

    async def _end_everybody(self) -> None:
        """Ctrl+C for all, and then look where all tokens are: in versions, or in somebody's checkpoint."""
        live = self.live_peers()
        for peer in live:
            peer.ask_to_stop()
        for peer in live:
            assert peer.program is not None
            try:
                async with asyncio.timeout(ENDING_SECONDS):
                    await asyncio.shield(peer.program.ended)
            except TimeoutError:
                self.ledger.violate(self.now, "Ctrl+C ends it", f"{peer.name} goes on for {ENDING_SECONDS:.0f} s")
            left = self.loop.tasks_of(peer.owner)
            if left and peer.program.ended.done():
                names = ", ".join(sorted({str(task.get_coro()) for task in left}))
                self.ledger.violate(self.now, "no task left behind", f"{peer.name} has ended, and left {names}")
        best: dict[Place, Claim] = {}
        for peer in self.peers.values():
            for saved, _ in peer.checkpoints():
                for module, state in saved.base.items():
                    place, claim = (saved.stage, module), Claim.of(state)
                    if place not in best or claim.beats(best[place]):
                        best[place] = claim
        for peer in self.peers.values():
            for saved, noted in peer.checkpoints():
                self._note_local(peer.name, saved, noted, best)
        self._check_most_work(live, best)
        self.final = self.ledger.balance({place: claim.digest for place, claim in best.items()})

    def _note_local(
        self, name: str, saved: Checkpoint, noted: Mapping[ModuleId, int], best: Mapping[Place, Claim]
    ) -> None:
        """What a peer would go on with if it came back: what it saved, less what others have gone on with."""
        for module, state in saved.base.items():
            place = (saved.stage, module)
            gone = noted.get(module, -1) >= state.version and best[place].beats(Claim.of(state))
            self.ledger.local[name, place] = 0 if gone else saved.tokens[module]
            if gone:
                self.ledger.drop(name, place, 0, DROPPED["whose end we did not hear"])

    def _check_most_work(self, live: Sequence[SimulatedPeer], best: dict[Place, Claim]) -> None:
        """Nobody who was there to the end has made a version with more work behind it than the one that is left."""
        for peer in live:
            for place, digests in (peer.watched.made if peer.watched is not None else {}).items():
                most = self.ledger.most_work(place, digests)
                if most > best[place].work:
                    what = f"{peer.name} made {place[1]} with {most:,} tokens; {best[place].work:,} are left"
                    self.ledger.violate(self.now, "the most work survives", what)

    def start(self, name: str, path: int | None, machine: Machine | None = None) -> SimulatedPeer:
        """A new peer, or a new life of one that was there before."""
        if name not in self.peers:
            machine = machine or Machine()
            self.network.lines[name] = machine.line
            self.peers[name] = SimulatedPeer(self, name, path, machine)
        self.peers[name].start()
        return self.peers[name]

    def live_peers(self) -> list[SimulatedPeer]:
        return [peer for peer in self.peers.values() if peer.is_alive]

    async def until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Let time pass until something holds; False when it does not within so many seconds."""
        over = self.now + limit
        while not condition():
            if self.now >= over:
                return False
            await asyncio.sleep(0.5)
        return True

    def digests(self, place: Place) -> dict[str, tuple[int, str]]:
        """Peer -> version and digest of a module, of all that train it now."""
        return {
            peer.name: peer.watched.at[place]
            for peer in self.live_peers()
            if peer.watched is not None and place in peer.watched.at
        }

    def places(self, stage: int = 0) -> list[Place]:
        return [(stage, module) for module in PathTable(tuple(map(tuple, self.plan.table))).modules]

    def at_versions(self) -> dict[Place, int]:
        """The lowest version that a live peer is at, of every module that somebody trains."""
        found: dict[Place, int] = {}
        for peer in self.live_peers():
            for place, (version, _) in (peer.watched.at if peer.watched is not None else {}).items():
                found[place] = min(version, found.get(place, version))
        return found

    def is_one(self) -> bool:
        """Whether all live peers of every module are at the same state."""
        return all(len(set(self.digests(place).values())) <= 1 for place in self.places())

    def failures(self) -> list[str]:
        """What programs raised, and what tasks raised that nobody awaited."""
        raised = [
            f"{peer.name}: {error!r}"
            for peer in self.peers.values()
            if peer.program is not None and peer.program.ended.done() and (error := peer.program.ended.result())
        ]
        return [*raised, *self.loop.unhandled]


def module(level: int, index: int) -> Place:
    return 0, ModuleId(level, index)
