"""A whole run in one process: the same bootstrap node and the same peers, as threads over an in-process transport.

For experiments, and as the reference that the networked run is compared with, byte for byte: with the same names of
peers, seeds and threads, synchronous rounds and no faults, both end on the same states.

Peers compute in turns, as many at once as there are cores. Threads of two peers of half a million parameters on two
cores train twice as fast as one after the other (torch computes without the interpreter's lock); sixteen at once on the
same cores would cost 10 to 20 % more CPU time for the same steps, and waste their caches.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from dipaco_swarm.algorithm.paths import ModuleId, PathTable
from dipaco_swarm.algorithm.stages import check_tables, most_paths
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.client.visits import evaluate
from dipaco_swarm.dashboard.screens import NoScreen, Screen, open_screen, recorded
from dipaco_swarm.dashboard.views import Evaluation, View
from dipaco_swarm.errors import UsageError
from dipaco_swarm.events.event import Event, OfPeer
from dipaco_swarm.events.operator import SimulationStopped
from dipaco_swarm.machine.clock import SYSTEM_CLOCK
from dipaco_swarm.machine.stopping import Flag, Stopped, Stopping, ThreadPauses, stopping_on_signals
from dipaco_swarm.operator.home import OperatorHome, load_operator_key
from dipaco_swarm.operator.operator import Operator
from dipaco_swarm.operator.program import with_its_model
from dipaco_swarm.operator.training_workshop import TrainingWorkshop
from dipaco_swarm.peer.attendance import Attendance
from dipaco_swarm.peer.training_workbench import workbench_of
from dipaco_swarm.peer.volunteer import Volunteer
from dipaco_swarm.peer.workbench import Bench, Fetch, Preparation, Workbench
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.file import read_run_file
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.run.signature import fingerprint_of
from dipaco_swarm.settings import PeerSettings, ScreenKind
from dipaco_swarm.swarm.local import LocalSwarms, local_address
from dipaco_swarm.swarm.states.blobs import BlobStore
from dipaco_swarm.swarm.transport import Portal

T = TypeVar("T")

BOOTSTRAP = "bootstrap"
"""The name of the bootstrap node among the peers of a simulation."""
LONGEST_TURN = 1.0
"""Seconds of computing after which a peer lets others go first: long enough that caches are of use."""


class Turns:
    """Lets so many peers compute at once. A peer has a turn until it waits for others, or has had it for a while.

    Whoever has waited longest is next: where rounds overlap with training a peer never waits for others, and those
    without a turn would never begin.
    A turn is one thread's. What else works for a peer, such as its exchange of what was routed, has none to leave.
    """

    def __init__(self, at_once: int) -> None:
        self._lock = threading.Lock()
        self._free = at_once
        self._queue: deque[threading.Event] = deque()
        self._ours = threading.local()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for a turn, and have it within the block."""
        self._take()
        self._ours.taken = True
        try:
            yield
        finally:
            self._ours.taken = False
            self._give()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Within the block somebody else may have the turn that the caller has, if it has one."""
        if not getattr(self._ours, "taken", False):
            yield
            return
        self._give()
        try:
            yield
        finally:
            self._take()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within the block the caller offers its turn to nobody: others wait for what it has, turn in hand."""
        self._ours.kept = True
        try:
            yield
        finally:
            self._ours.kept = False

    def offer(self) -> None:
        """Let those who wait have the turn first, if the caller has had it for long."""
        if not getattr(self._ours, "taken", False) or getattr(self._ours, "kept", False) or not self._queue:
            return
        if SYSTEM_CLOCK.monotonic() - self._ours.since >= LONGEST_TURN:
            with self.left():
                pass

    def _take(self) -> None:
        mine = None
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                mine = threading.Event()
                self._queue.append(mine)
        if mine is not None:
            mine.wait()  # whoever leaves a turn hands it over
        self._ours.since = SYSTEM_CLOCK.monotonic()

    def _give(self) -> None:
        with self._lock:
            if self._queue:
                self._queue.popleft().set()
            else:
                self._free += 1


class PortalInTurns:
    """A peer's way into the loop of the swarms; while it waits there its turn is free."""

    def __init__(self, portal: Portal, turns: Turns) -> None:
        self._portal = portal
        self._turns = turns

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._turns.left():
            return self._portal.run(work)

    def soon(self, work: Callable[..., object], *args: Any) -> None:
        self._portal.soon(work, *args)


class EventInTurns:
    """An event of a peer; while the peer waits for it, its turn is free."""

    def __init__(self, turns: Turns) -> None:
        self._event = threading.Event()
        self._turns = turns

    def is_set(self) -> bool:
        self._turns.offer()  # asked before each step of training
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        with self._turns.left():
            return self._event.wait(timeout)


class PausesInTurns(ThreadPauses):
    """How a peer waits: while it does, its turn is free."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def event(self) -> Flag:
        return EventInTurns(self._turns)

    def sleep(self, seconds: float) -> None:
        with self._turns.left():
            super().sleep(seconds)


class WorkbenchInTurns:
    """A peer's workbench; while it reads documents the peer keeps its turn, as others may wait for the same shard."""

    def __init__(self, workbench: Workbench, turns: Turns) -> None:
        self._workbench = workbench
        self._turns = turns

    def sizes(self, manifest: Manifest, fetch: Fetch) -> Sequence[int]:
        return self._workbench.sizes(manifest, fetch)

    def prepare(self, wanted: Preparation) -> Bench:
        with self._turns.kept():
            return self._workbench.prepare(wanted)

    def prepare_next(self, wanted: Preparation) -> Bench:
        return self._workbench.prepare_next(wanted)

    def begin(self, bench: Bench) -> None:
        self._workbench.begin(bench)

    def rest(self, *, resting: bool) -> None:
        self._workbench.rest(resting=resting)

    def close(self) -> None:
        self._workbench.close()


class ScreenOfPeer:
    """Events with the peer's name; one screen cannot show the views of many."""

    def __init__(self, screen: Screen, name: str) -> None:
        self._screen = screen
        self._name = name

    def show(self, view: View) -> None: ...

    def event(self, event: Event) -> None:
        self._screen.event(OfPeer(self._name, event))


def simulate(
    config: RunConfig,
    home: Path,
    peers: Mapping[str, int | None],
    *,
    threads: int = 1,
    at_once: int | None = None,
    cache: Path | None = None,
    screen: Screen | None = None,
    stop: Stopping | None = None,
) -> dict[ModuleId, ModuleState]:
    """Run to the end of the last stage, or until asked to stop; returns what is there of every module's last state.

    `peers`: name of each peer -> the path it asks for (None: auto). `home`: a folder for checkpoints, and in
    `home/bootstrap` all that a bootstrap node keeps, for evaluation, generation and export. `cache`: a folder for
    shards that simulations may share; by default in `home`. `threads`: of torch, for each peer. `at_once`: peers that
    compute at the same time; by default as many as there are cores. A simulation that was stopped goes on when it is
    called again. Raises SwarmError as a real node or peer would; NotWholeError when it ended and was not whole.
    """
    stop = stop or Stopping()
    turns = Turns(at_once or max(1, (os.cpu_count() or 1) // threads))
    screen = screen or NoScreen()
    key = load_operator_key(home / "bootstrap")
    kept = OperatorHome(home / "bootstrap")
    config = with_its_model(config, kept, key)
    fingerprint = fingerprint_of(key.public_key())
    address = local_address(config.name, fingerprint, BOOTSTRAP)

    def operate(swarms: LocalSwarms) -> None:
        with swarms.open(BOOTSTRAP, address, BlobStore(home / BOOTSTRAP / "blobs")) as swarm, suppress(Stopped):
            stop.tell(swarm.interrupt)
            operator = Operator(config, key, swarm, kept, screen, stop, str(address), TrainingWorkshop(config))
            operator.run(until_finished=True)

    def volunteer(swarms: LocalSwarms, name: str, path: int | None) -> Attendance:
        settings = PeerSettings(
            address=address,
            path=path,
            home=home / name,
            cache=cache or home / "cache",
            listen=None,
            device="cpu",
            micro_batch=None,
            threads=threads,
            until_finished=True,
            rounds=None,
            screen="none",
            reach=Reach(),
        )
        blobs, portal = BlobStore(home / name / "blobs"), PortalInTurns(swarms.portal, turns)
        # a peer measures its patience in its own training; here the others may have to train after it
        with swarms.open(name, address, blobs, portal, patience=len(peers)) as swarm:
            stop.tell(swarm.interrupt)
            with turns.taken():
                waiting = stop.until_then(PausesInTurns(turns))
                shown = recorded(ScreenOfPeer(screen, name), settings.home)
                workbench = WorkbenchInTurns(workbench_of(settings), turns)
                peer = Volunteer(settings, swarm, shown, waiting, workbench)
                peer.live()
                return peer.attendance

    with LocalSwarms() as swarms, ThreadPoolExecutor(len(peers) + 1) as pool:
        node = pool.submit(operate, swarms)
        volunteers = [pool.submit(volunteer, swarms, name, path) for name, path in peers.items()]
        work: list[Future[Any]] = [node, *volunteers]
        for done in work:
            # one that fails ends all of them; its error is raised below
            done.add_done_callback(lambda future: stop.request() if future.exception() else None)
    node.result()
    attendances = [done.result() for done in volunteers]
    if not stop():
        for attendance in attendances:
            attendance.in_the_end()
    manifest = kept.manifest(fingerprint)
    if manifest is None:  # asked to stop before anything was published
        return {}
    return final_states(home / "bootstrap", manifest.stage.index, PathTable(manifest.stage.table))


def final_states(home: Path, stage: int, table: PathTable) -> dict[ModuleId, ModuleState]:
    """What a bootstrap node's home folder holds of a stage; modules it holds only as seeds are left out."""
    kept = OperatorHome(home)
    states = {module: kept.state(stage, module) for module in table.modules}
    return {module: state for module, state in states.items() if state is not None}


def run_simulation(
    run_file: Path, home: Path, *, peers: int | None = None, seed: int | None = None, screen: ScreenKind = "plain"
) -> Evaluation | None:
    """Simulate a run file and score what came out on its held-out documents; None when Ctrl+C ended it.

    `peers`: by default one for each path. Training begins when all of them are there. Raises SwarmError.
    """
    config = read_run_file(run_file)
    check_tables(config)
    paths = most_paths(config)
    if peers is not None and peers < paths:
        raise UsageError(
            f"{peers} peers cannot train the {paths} paths of the run {config.name}: a stage ends when every "
            f"module has made its rounds; give at least --peers {paths}"
        )
    count = peers or paths
    updates = {"min_peers": count} if seed is None else {"min_peers": count, "seed": seed}
    names = {f"peer-{number}": number % paths for number in range(count)}
    with stopping_on_signals() as stop, open_screen(screen) as shown:
        simulate(config.model_copy(update=updates), home, names, screen=shown, stop=stop)
        if stop():
            shown.event(SimulationStopped())
            return None
    return evaluate(home / "bootstrap", None)
