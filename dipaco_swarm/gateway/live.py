"""The gateway of a run as it is now: its newest stage, the peers that train it, and this machine behind them."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.client.sources import run_in_swarm
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.gateway.asked import Piece, Task, Writer
from dipaco_swarm.gateway.checking import Answered, Checks, StateOf
from dipaco_swarm.gateway.gateway import Gateway, Note
from dipaco_swarm.gateway.own_paths import OwnPaths
from dipaco_swarm.gateway.peers import Peers, PeerWriter
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest
from dipaco_swarm.swarm.interface import PeerName, Swarm

REFRESH_SECONDS = 600.0
"""What this machine writes itself is of states that are not older than this, in a run that goes on."""
STATE_SECONDS = 60.0
MANY = 4
"""Questions about one path at the same time, after which this machine fetches it as well: peers will soon have given
what they may, and who asks then should not wait until it is here."""

Tell = Callable[[str], None]


class LiveGateway:
    """Called, gives the gateway for the next request. From any thread."""

    def __init__(self, swarm: Swarm, manifest: Manifest, fingerprint: str, tell: Tell) -> None:
        self._swarm = swarm
        self._fingerprint = fingerprint
        self._tell = tell
        self._lock = threading.Lock()
        self._signed: bytes | None = None
        self._manifest = manifest
        self._gateway: Gateway | None = None
        self._built = 0.0
        self.liars: set[PeerName] = set()
        """Who has not written what its path writes; it is asked nothing more."""
        self.checks: Checks | None = None

    def __call__(self) -> Gateway:
        with self._lock:
            newest = self._newest()
            stale = not newest.finished and time.monotonic() - self._built > REFRESH_SECONDS
            if self._gateway is None or newest.revision != self._manifest.revision or stale:
                self._manifest = newest
                self._gateway = self._build(newest)
                self._built = time.monotonic()
            return self._gateway

    def close(self, patience: float = 0.0) -> None:
        """`patience`: seconds in which those answers are checked that wait for it."""
        if self.checks is not None and not self.checks.finish(patience) and patience:
            self._tell("what peers have written could not all be checked in time")

    def _newest(self) -> Manifest:
        signed = self._swarm.known_manifest()
        if signed is None or signed == self._signed:
            return self._manifest
        self._signed = signed
        newest = open_manifest(signed, self._fingerprint)
        return newest if newest.revision > self._manifest.revision else self._manifest

    def _build(self, manifest: Manifest) -> Gateway:
        run = run_in_swarm(self._swarm, manifest, self._fingerprint)
        peers, own = Peers(self._swarm, manifest.stage.index, run.table, self.liars), OwnPaths(run)
        if self.checks is not None:
            self.checks.close()  # nobody waits here for a check that is under way: that takes as long as peers want
        self.checks = Checks(run, state_of(self._swarm, run), self._distrust, peers.writers)

        fetched: set[PathIndex] = set()

        def coming(path: PathIndex, why: str) -> "Future[Any]":
            """The path on this machine, at once or some time."""
            if path not in fetched:
                fetched.add(path)
                self._tell(f"{why} path {path} now; this machine fetches it and writes itself")
            return own.begin(path)

        def writers(path: PathIndex) -> Iterator[Writer]:
            if peers.under_way(path) >= MANY:
                coming(path, "many ask for")
            yield from peers.writers(path)
            ours = coming(path, "no peer answers for")
            ours.add_done_callback(lambda _: peers.look_again())
            while not ours.done():  # a large path takes minutes over a line, and a peer may have a place before
                peers.await_room(path, ours.done)
                yield from peers.writers(path)
            yield own

        return gateway_of(run, writers, partial(_check, self.checks))

    def _distrust(self, name: PeerName, why: str) -> None:
        if name in self.liars:
            return
        self.liars.add(name)
        self._tell(f"peer {str(name)[-8:]} is asked nothing more: {why}")


def state_of(swarm: Swarm, run: TrainedRun) -> StateOf:
    """States of the run's stage that peers have named: of a module's size, as anybody may name any."""

    def fetch(module: ModuleId, digest: str) -> ModuleState | None:
        stage, parameters = run.manifest.stage.index, run.parameters[module.level]
        return swarm.fetch_state(stage, module, digest, timeout=STATE_SECONDS, parameters=parameters)

    return fetch


def _check(checks: Checks, writer: Writer, task: Task, pieces: Sequence[Piece], ended: bool) -> None:
    if isinstance(writer, PeerWriter):
        tokens = tuple(piece.written.token for piece in pieces)
        checks.note(Answered(writer.name, task, tokens, pieces[-1].origin, ended))


def gateway_of(
    run: TrainedRun,
    writers: Callable[[PathIndex], Iterator[Writer]],
    note: Note = lambda writer, task, pieces, ended: None,
) -> Gateway:
    """What answers for a run."""
    manifest = run.manifest
    router = run.window_router() if manifest.window_router is not None else None
    prefix = manifest.rules.router.prefix_tokens
    return Gateway(manifest.rules.name, run.table.num_paths, prefix, run.routing(), router, writers, note)
