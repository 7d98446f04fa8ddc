"""The window router, trained beside the node's loop after the last stage; with words for people."""

from dipaco_swarm.algorithm.paths import PathTable
from dipaco_swarm.errors import TrainingError
from dipaco_swarm.events.operator import NoWindowRouter, TrainingWindowRouter, WindowRouterTrained
from dipaco_swarm.operator.desk import Desk, Done
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.operator.workshop import States
from dipaco_swarm.run.manifest import Manifest


class WindowRouters:
    """Has window routers made, and says so."""

    def __init__(self, around: Surroundings, desk: Desk) -> None:
        self._around = around
        self._desk = desk
        self._share = 0.0

    @property
    def activity(self) -> str:
        return f"training the window router, {100 * self._share:.0f} %"

    def made(self, manifest: Manifest, states: States) -> Done[str | None] | None:
        """The blob of a window router for the stage's paths, or that there is none as its training failed; None while
        it is made."""
        around, key, states = self._around, ("window router", manifest.stage.index), dict(states)
        if not self._desk.is_at(key):
            self._share = 0.0
            around.screen.event(TrainingWindowRouter(PathTable(manifest.stage.table).num_paths))

        def on_progress(share: float) -> None:
            self._share = share

        try:
            done = self._desk.done(
                key, lambda: around.workshop.window_router(manifest, states, around.fetch, on_progress, around.stop)
            )
        except TrainingError as error:
            around.screen.event(NoWindowRouter(str(error)))
            return Done(None)
        if done is None:
            return None
        around.screen.event(WindowRouterTrained(done.result.right))
        return Done(around.swarm.put_blob(done.result.data))
