"""A run in one process: an operator's node and peers as threads over the real protocol, without a network."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from dipaco_swarm.dashboard.screens import Screen, recorded
from dipaco_swarm.events.event import Event
from dipaco_swarm.machine.stopping import Stopped, Stopping
from dipaco_swarm.operator.home import OperatorHome, load_operator_key, load_standby_key
from dipaco_swarm.operator.operator import Operator
from dipaco_swarm.operator.standby import Standby
from dipaco_swarm.operator.training_workshop import TrainingWorkshop
from dipaco_swarm.peer.training_workbench import workbench_of
from dipaco_swarm.peer.volunteer import Volunteer
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.orders import Extend
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.run.signature import fingerprint_of
from dipaco_swarm.settings import Own, PeerSettings
from dipaco_swarm.swarm.circle import Circle, circle_file
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.states.blobs import BlobStore
from tests.hub import BOOTSTRAP, Hub
from tests.patience import PATIENCE

SINGLE = '[[stages]]\nrouter = "single"\n'
FOUR_PATHS = '[[stages]]\nrouter = "product-k-means"\nmodules = [2, 2]\n'


E = TypeVar("E", bound=Event)


def is_like(event: Event, fields: Mapping[str, object]) -> bool:
    """Whether an event has these values."""
    return all(getattr(event, name) == value for name, value in fields.items())


class Events(Screen):
    """A screen that remembers what was reported, and lets a test wait for events."""

    def __init__(self) -> None:
        self._reported: list[Event] = []
        self._new = threading.Condition()
        self._over = False
        self.shown: object = None
        """What the screen would show now."""

    def is_over(self) -> None:
        """Whoever reports here has ended; nobody need wait for more."""
        with self._new:
            self._over = True
            self._new.notify_all()

    def show(self, view: object) -> None:
        self.shown = view

    def event(self, event: Event) -> None:
        with self._new:
            self._reported.append(event)
            self._new.notify_all()

    def until(self, kind: type[E], times: int = 1, seconds: float = 60, **fields: object) -> E:
        """Wait until events of this kind and with these values were reported so often; the last of them."""

        def heard() -> bool:
            return len(self.reported(kind, **fields)) >= times

        with self._new:
            self._new.wait_for(lambda: heard() or self._over, seconds * PATIENCE)
            assert heard(), f"nobody reported {kind.kind} {fields or ''}: " + "\n".join(map(repr, self._reported))
            return self.reported(kind, **fields)[-1]

    def reported(self, kind: type[E], **fields: object) -> list[E]:
        """Events of this kind and with these values, the oldest first."""
        return [event for event in tuple(self._reported) if isinstance(event, kind) and is_like(event, fields)]

    def said(self, kind: type[Event], **fields: object) -> bool:
        return bool(self.reported(kind, **fields))

    @property
    def last(self) -> Event:
        """The last one that people read."""
        return [event for event in self._reported if event.for_people][-1]


class World:
    """An operator's node and peers as threads, each with a stop of its own."""

    def __init__(self, folder: Path, config: RunConfig, pool: ThreadPoolExecutor) -> None:
        self.folder, self.config = folder, config
        self.kept = OperatorHome(folder / BOOTSTRAP)
        self._key = load_operator_key(folder / BOOTSTRAP)
        self.hub = Hub(config.name, fingerprint_of(self._key.public_key()))
        self.address = self.hub.address
        self._pool = pool
        self._stops: list[Stopping] = []
        self._work: list[Future[None]] = []

    def operator(self) -> Events:
        return self.operator_that_ends()[0]

    def operator_that_ends(self) -> tuple[Events, Callable[[], None]]:
        """Starts the operator's node; returns its screen, and what stops it and waits for its end."""
        screen, stop = Events(), self._stop()

        def live(swarm: NetworkedSwarm) -> None:
            workshop = TrainingWorkshop(self.config)
            operator = Operator(self.config, self._key, swarm, self.kept, screen, stop, str(self.address), workshop)
            with suppress(Stopped):
                operator.run(until_finished=True)

        return screen, self._start(BOOTSTRAP, live, screen, stop)

    def standby(self, name: str) -> tuple[OperatorHome, Callable[[], None]]:
        """Starts a standby that nobody has appointed; returns its home, and what stops it and waits for its end."""
        folder, screen, stop = self.folder / name, Events(), self._stop()
        home, key = OperatorHome(folder), load_standby_key(folder)

        def live(swarm: NetworkedSwarm) -> None:
            signed = swarm.newest_manifest(timeout=30)
            assert signed is not None, "the operator's node has not begun"
            fingerprint, workshop = self.address.fingerprint, TrainingWorkshop(self.config)
            Standby(key, fingerprint, signed, swarm, home, screen, stop, str(self.address), workshop).run(name)

        return home, self._start(name, live, screen, stop)

    def _start(
        self,
        name: str,
        live: Callable[[NetworkedSwarm], None],
        screen: Events,
        stop: Stopping,
        met_before: Sequence[str] = (),
        *,
        may_fail: bool = False,
    ) -> Callable[[], None]:
        """A life in a thread, with a swarm and a folder of its own; one that fails ends all. Returns what ends it."""

        def life() -> None:
            home = self.folder / name
            circle = Circle(circle_file(home, self.address.fingerprint))
            with self.hub.open(name, BlobStore(home / "blobs"), met_before, circle) as swarm:
                stop.tell(swarm.interrupt)
                live(swarm)

        work = self._pool.submit(life)
        work.add_done_callback(lambda done: screen.is_over())
        work.add_done_callback(lambda done: self.break_off() if done.exception() and not may_fail else None)
        self._work.append(work)

        def leave() -> None:
            stop.request()
            work.result(30 * PATIENCE)

        return leave

    def peer(
        self,
        name: str,
        path: int | None,
        met_before: Sequence[str] = (),
        invitation: str | None = None,
        *,
        may_fail: bool = False,
        stays: bool = False,
        own: Path | None = None,
    ) -> tuple[Events, Callable[[], None]]:
        """Starts a peer; returns its screen, and what stops it and waits for its end.

        `met_before`: peers that it knows from earlier, which it asks while the operator's node is down. `invitation`:
        what its run address ends in. `may_fail`: then the others go on. `stays`: also when the run is finished.
        `own`: a folder with documents of its own, for two fifths of what it trains on.
        """
        screen, stop = Events(), self._stop()
        settings = PeerSettings(
            address=self.address if invitation is None else self.address.with_invitation(invitation),
            path=path,
            home=self.folder / name,
            cache=self.folder / "cache",
            listen=None,
            device="cpu",
            micro_batch=None,
            threads=1,
            until_finished=not stays,
            rounds=None,
            screen="none",
            reach=Reach(self.folder, fenced=True),
            own=None if own is None else Own(own, 0.4, self.folder / name),
        )

        def live(swarm: NetworkedSwarm) -> None:
            shown = recorded(screen, settings.home)
            Volunteer(settings, swarm, shown, stop, workbench_of(settings)).live()

        return screen, self._start(name, live, screen, stop, met_before, may_fail=may_fail)

    @property
    def started(self) -> list[Future[None]]:
        """The lives that were started, in their order."""
        return self._work

    def manifest(self) -> Manifest:
        manifest = self.kept.manifest(self.address.fingerprint)
        assert manifest is not None
        return manifest

    def extend(self, config: RunConfig) -> None:
        """Have the run go on by another run file; the node obeys in a moment."""
        self.kept.order(Extend(config=config))
        self.config = config

    def end(self) -> None:
        """Let the run come to its own end; whatever failed in a thread is raised here."""
        for work in self._work:
            work.result(60 * PATIENCE)

    def break_off(self) -> None:
        for stop in self._stops:
            stop.request()

    def _stop(self) -> Stopping:
        self._stops.append(Stopping())
        return self._stops[-1]


MakeWorld = Callable[..., World]
