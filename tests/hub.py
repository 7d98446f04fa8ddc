"""Swarms of one process for tests: the real protocol, without a network."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.swarm.circle import Circle
from dipaco_swarm.swarm.interface import Announcement
from dipaco_swarm.swarm.local import LocalNetwork, LocalSwarms, local_address
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.states.blobs import Blobs, MemoryBlobs
from tests.patience import PATIENCE

BOOTSTRAP = "bootstrap"
FINGERPRINT = "a" * 32


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class Hub:
    """Peers that can reach each other. The one named "bootstrap" is everybody's bootstrap node, if it is there."""

    def __init__(self, run: str = "test", fingerprint: str = FINGERPRINT, network: LocalNetwork | None = None) -> None:
        self.address = local_address(run, fingerprint, BOOTSTRAP)
        self._swarms = LocalSwarms(network)
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> "Hub":
        self._opened.enter_context(self._swarms)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    @contextlib.contextmanager
    def open(
        self,
        name: str,
        blobs: Blobs | None = None,
        met_before: Sequence[str] = (),
        circle: Circle | None = None,
    ) -> Iterator[NetworkedSwarm]:
        """A peer's swarm; it says goodbye when the block ends.

        `met_before`: whom it knows while no "bootstrap" is. `circle`: who made states with it in an earlier life.
        """
        blobs = blobs or MemoryBlobs()
        with self._swarms.open(name, self.address, blobs, met_before=met_before, circle=circle) as swarm:
            yield swarm

    def swarm(self, name: str, blobs: Blobs | None = None) -> NetworkedSwarm:
        """A peer's swarm that is there until the hub closes."""
        return self._opened.enter_context(self.open(name, blobs))


def hear(swarms: Sequence[NetworkedSwarm], stage: int, modules: Sequence[ModuleId]) -> None:
    """Wait until each of these swarms knows what the others say about these modules now."""

    def members(swarm: NetworkedSwarm, module: ModuleId) -> set[Announcement]:
        return {replace(said, awake=True) for said in swarm.members(stage, module)}

    def is_heard(swarm: NetworkedSwarm) -> bool:
        swarm.look_up(stage, modules, timeout=10)
        return all(
            {said for said in members(other, module) if said.peer == other.peer} <= members(swarm, module)
            for module in modules
            for other in swarms
        )

    for swarm in swarms:
        until(lambda each=swarm: is_heard(each))  # type: ignore[misc]
