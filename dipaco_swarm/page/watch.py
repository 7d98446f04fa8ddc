"""Looks at a run once a second, for everybody who has its page open; writes down what curves are drawn of.

In a thread of its own, so that a page goes on while its program fits a router, and the program while a page is made.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean

from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.dashboard.status import status_of
from dipaco_swarm.dashboard.views import BootstrapView, MemberStatus, SwarmStatus, View
from dipaco_swarm.errors import SwarmError
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.operator import PageServed, Serving
from dipaco_swarm.events.volunteer import BestSnapshot
from dipaco_swarm.events.watching import ManyCameAndWent, PeerCame, PeerWent, VersionEverywhere
from dipaco_swarm.page.board import Board
from dipaco_swarm.page.credit import Ledger
from dipaco_swarm.page.history import History, Sample
from dipaco_swarm.page.pace import Pace, PaceMeter, progress_of
from dipaco_swarm.page.picture import (
    FIRST,
    SHOWN_EVENTS,
    about_of,
    contributor_row,
    event_row,
    heldout_of,
    module_row,
    now_of,
    path_row,
)
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest
from dipaco_swarm.swarm.interface import Swarm

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
ALONE_SECONDS = 5.0
"""The same while nobody looks at the page: often enough for the history."""
MOST_SHARE = 0.03
"""Of a core, for looking and telling: where it would be more, it is done less often."""
VIEWER_SECONDS = 0.0002
"""Of a core, to tell one viewer what has changed."""
MOST_COUNTED = 200
"""Viewers for whom it is done less often: a crowd, which costs nothing to be, does not hold the others' page back."""
SAMPLE_SECONDS = 5.0
LEDGER_SECONDS = 5.0
MANY = 5
"""Who comes and goes at once is named up to so many."""
SETTLED_SECONDS = 30.0
"""After a start, and in a new stage, everybody is new, and nobody is news."""


UNINTERESTING = (Serving, PageServed)
"""For who looks at the page: the run address stands there anyway."""


@dataclass(frozen=True)
class Seen:
    """The last look, for whoever asks for more than the picture."""

    status: SwarmStatus
    pace: Pace
    heldout: Mapping[int, float] = field(default_factory=dict)
    trained: float | None = None

    def member(self, peer: str) -> MemberStatus | None:
        return next((member for member in self.status.members if member.name == peer), None)


class Watch:
    """What is seen of one run, from one program's start to its end."""

    def __init__(
        self,
        history: History,
        board: Board,
        fingerprint: str,
        roots: tuple[str, ...],
        look_up: Callable[[Swarm, Manifest], None] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`roots`: names of the operator's nodes. `look_up`: how a guest finds out who is there; None: others do."""
        self.history = history
        self.board = board
        self.seen: Seen | None = None
        self.address: str | None = None
        """Of the run, as people are given it."""
        self.on_sample: Callable[[Sample], None] = lambda sample: None
        """Who else is told what the history has."""
        self._fingerprint = fingerprint
        self._roots = roots
        self._look_up = look_up
        self._wall = wall
        self._pace = PaceMeter(history)
        self.ledger = Ledger(history.contributors())
        self.lock = threading.Lock()
        """Around the ledger."""
        self._activity: tuple[str, float | None] = ("", None)
        self._events: list[Event] = []
        self._swarm: Swarm | None = None
        self._manifest: tuple[bytes, Manifest] | None = None
        self._heldout: dict[int, float] = {}
        self._trained: float | None = None
        """Share of the time, the mean of the peers that say it."""
        self._stage = -1
        self._lowest = -1
        self._here: dict[str, int] = {}
        """Who was there at the last look, and on which path."""
        self._began = time.monotonic()
        self._at = self._sampled = float("-inf")
        self._cost = 0.0
        """Seconds of a core that a look takes lately."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="page-watch", daemon=True)

    # ------------------------------------------------------------------------------------------ what the program says

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Look until the block ends."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(timeout=10)
            self.board.close()

    @contextmanager
    def on(self, swarm: Swarm) -> Iterator[None]:
        """Look at this swarm until the block ends."""
        self._swarm = swarm
        try:
            yield
        finally:
            self._swarm = None

    def show(self, view: View) -> None:
        if isinstance(view, BootstrapView):
            self._activity = view.activity, view.progress
            self.address = view.address

    def event(self, event: Event) -> None:
        """From any thread."""
        self._events.append(event)

    # ------------------------------------------------------------------------------------------------------- looking

    def _run(self) -> None:
        while not self._stop.wait(self.pause()):
            try:
                begun = time.thread_time()
                self.look()
                self.note_cost(time.thread_time() - begun)
            except SwarmError as error:
                log.debug("nothing to see: %s", error)
            except Exception:  # a page that stands still is no reason to end a run
                log.exception("the page of the run could not be renewed; trying again every second")

    def note_cost(self, seconds: float) -> None:
        """So much of a core has the last look taken."""
        self._cost += 0.2 * (seconds - self._cost)

    def pause(self) -> float:
        """Seconds until the next look."""
        viewers = min(self.board.viewers, MOST_COUNTED)
        usual = LOOK_SECONDS if viewers or self.seen is None else ALONE_SECONDS
        return max(usual, (self._cost + viewers * VIEWER_SECONDS) / MOST_SHARE)

    def look(self) -> None:
        """See how the run is now, tell the viewers, and write it down when it is time to."""
        swarm = self._swarm
        manifest = None if swarm is None else self._newest(swarm)
        if swarm is None or manifest is None:
            self._take_events()
            return
        if self._look_up is not None:
            self._look_up(swarm, manifest)
        status = status_of(swarm, manifest, self._roots)
        self.take(status, manifest)

    def take(self, status: SwarmStatus, manifest: Manifest) -> None:
        """This is how the run is now."""
        now, at = time.monotonic(), self._wall()
        self._enter(status.stage)
        if now - self._at >= LEDGER_SECONDS:
            with self.lock:
                self.ledger.see(status, at, now - self._at if self._at > 0 else 0.0)
                changed = self.ledger.changed()
            self._at = now
            self.history.note_contributors(changed)
        pace = self._pace.see(status, now, at)
        self._notice(status, now)
        self._take_events()
        said = [member.trained for member in status.members if member.trained is not None]
        self._trained = fmean(said) if said else None
        self.seen = Seen(status, pace, dict(self._heldout), self._trained)
        if now - self._sampled >= SAMPLE_SECONDS:
            self._sampled = now
            sample = self._sample(status, pace, at)
            self.history.note(sample)
            self.on_sample(sample)
        self._put(status, pace, manifest)

    def _newest(self, swarm: Swarm) -> Manifest | None:
        signed = swarm.known_manifest()
        if signed is None:
            return None
        if self._manifest is None or self._manifest[0] != signed:
            self._manifest = signed, open_manifest(signed, self._fingerprint)
        return self._manifest[1]

    def _enter(self, stage: int) -> None:
        if stage != self._stage:
            prefix = f"heldout/{stage}/"
            kept = self.history.remembered()
            self._heldout = {int(key.removeprefix(prefix)): kept[key] for key in kept if key.startswith(prefix)}
            self._stage, self._lowest = stage, -1
            self._here, self._began = {}, time.monotonic()

    def _take_events(self) -> None:
        events, self._events = self._events, []
        for event in events:
            if isinstance(event, BestSnapshot) and event.kept:
                self._heldout[event.path] = event.loss
                self.history.remember(f"heldout/{self._stage}/{event.path}", event.loss)
            if event.for_people and not isinstance(event, UNINTERESTING):
                self.history.note_event(self._wall(), event.kind, str(event))

    def _notice(self, status: SwarmStatus, now: float) -> None:
        """What has happened since the last look."""
        here = {member.name: member.path for member in status.members}
        came = [name for name in here if name not in self._here]
        went = [name for name in self._here if name not in here]
        if now - self._began > SETTLED_SECONDS:
            if len(came) + len(went) > MANY:
                self.event(ManyCameAndWent(len(came), len(went)))
            else:
                for name in came:
                    self.event(PeerCame(name, self._nickname(name), here[name]))
                for name in went:
                    self.event(PeerWent(name, self._nickname(name), self._here[name]))
        self._here = here
        lowest = progress_of(status)[1]
        if lowest > self._lowest >= 0:
            self.event(VersionEverywhere(status.stage, lowest, status.target_version))
        self._lowest = max(self._lowest, lowest)

    def _nickname(self, peer: str) -> str:
        known = self.ledger.get(peer)
        return "" if known is None else known.nickname

    def _sample(self, status: SwarmStatus, pace: Pace, at: float) -> Sample:
        losses = {path.index: path.loss for path in status.paths}
        return Sample(
            at=at,
            stage=status.stage,
            tokens=pace.tokens,
            version=progress_of(status)[0],
            peers=status.peers,
            staffed=status.staffed,
            speed=status.tokens_per_second,
            counted=pace.counted_per_second,
            goodput=pace.goodput,
            trained=self._trained,
            loss=status.loss,
            heldout=heldout_of(status, self._heldout),
            paths=tuple(losses.get(index) for index in range(max(losses, default=-1) + 1)),
        )

    def _put(self, status: SwarmStatus, pace: Pace, manifest: Manifest) -> None:
        events = self.history.events(SHOWN_EVENTS)
        activity, progress = self._activity
        now = now_of(
            status,
            pace,
            activity=activity,
            progress=progress,
            heldout=self._heldout,
            trained=self._trained,
            last_event=events[-1].at if events else None,
        )
        with self.lock:
            ranking = self.ledger.ranking()[:FIRST]
        self.board.put(
            {
                "about": about_of(manifest, self.address, self.history.since(), guest=self._look_up is not None),
                "now": now,
                "paths": [path_row(path, self._heldout.get(path.index)) for path in status.paths],
                "modules": [module_row(module) for module in status.modules],
                "ranking": [
                    contributor_row(each, rank, each.peer in self._here) for rank, each in enumerate(ranking, 1)
                ],
                "feed": [event_row(event) for event in events],
            }
        )


class PageScreen:
    """A screen that tells the page as well."""

    def __init__(self, screen: Screen, watch: Watch) -> None:
        self._screen = screen
        self._watch = watch

    def show(self, view: View) -> None:
        self._watch.show(view)
        self._screen.show(view)

    def event(self, event: Event) -> None:
        self._watch.event(event)
        self._screen.event(event)
