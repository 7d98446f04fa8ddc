"""A page of a run by a guest: anybody with the run address shows it, and nobody else's machine is asked for more."""

from dipaco_swarm.algorithm.paths import ModuleId, PathTable
from dipaco_swarm.client.sources import at_the_door
from dipaco_swarm.dashboard.screens import open_screen
from dipaco_swarm.machine.stopping import Stopping, stopping_on_signals, until_stopped
from dipaco_swarm.page.opening import open_page
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.settings import Web
from dipaco_swarm.swarm.interface import Swarm

ROUND_SECONDS = 15
"""Every module is looked up once in so long, some each second: before what was heard of it expires."""


def show_page(address: RunAddress, web: Web) -> None:
    """Serve a page of the run until Ctrl+C. Raises SwarmError."""
    address = RunAddress(address.name, address.fingerprint, address.bootstraps)  # an invitation is nobody else's
    with (
        stopping_on_signals() as stop,
        open_screen("plain") as screen,
        open_page(address, screen, None, web, LookingUp()) as (_, watch),
    ):
        watch.address = str(address)

        def look(stop: Stopping) -> bool:
            """Join as a guest; whether the swarm was lost."""
            with at_the_door(address) as (swarm, _), watch.on(swarm):
                stop.tell(swarm.interrupt)
                swarm.follow_manifest()
                while not stop() and not swarm.lost:
                    stop.wait(1.0)
                return swarm.lost

        until_stopped(look, stop, screen.event)


class LookingUp:
    """How a guest finds out who is there: all at first, then some of the modules each second."""

    def __init__(self) -> None:
        self._stage = -1
        self._turn = 0

    def __call__(self, swarm: Swarm, manifest: Manifest) -> None:
        modules = sorted(PathTable(manifest.stage.table).modules)
        first = manifest.stage.index != self._stage
        self._stage = manifest.stage.index
        due = modules if first else self._due(modules)
        swarm.look_up(self._stage, due, timeout=swarm.timing.look_up, thorough=first)

    def _due(self, modules: list[ModuleId]) -> list[ModuleId]:
        count = -(-len(modules) // ROUND_SECONDS)
        self._turn = (self._turn + count) % len(modules)
        return [modules[(self._turn + i) % len(modules)] for i in range(min(count, len(modules)))]
