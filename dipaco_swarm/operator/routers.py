"""The routers of a run: fitted before a stage, and the window router after the last one; with words for people."""

from collections.abc import Callable

from dipaco_swarm.algorithm.paths import PathTable
from dipaco_swarm.algorithm.stages import table_of
from dipaco_swarm.errors import TrainingError
from dipaco_swarm.events.operator import (
    FittingRouter,
    NoWindowRouter,
    RouterFitted,
    RouterKept,
    TrainingWindowRouter,
    WindowRouterTrained,
)
from dipaco_swarm.machine.stopping import Stopped
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.operator.workshop import FittedRouter, States
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.training.scoring import Scores

SHOW_SECONDS = 1.0


class Routers:
    """Has routers made, and says so."""

    def __init__(
        self, around: Surroundings, show: Callable[[Manifest, str], None], renew: Callable[[Manifest], None]
    ) -> None:
        """`show`: redraws the screen with an activity. `renew`: publishes the manifest again if that is due."""
        self._around = around
        self._show = show
        self._renew = renew

    def fit(self, manifest: Manifest, index: int, scores: Scores | None) -> FittedRouter:
        """The router of stage `index`. Raises ManifestError, DataError or UnreachableError when it cannot be made."""
        around = self._around
        self._show(manifest, f"fitting the router of stage {index}")
        kind, paths = around.config.stages[index].router, table_of(around.config, index).num_paths
        around.screen.event(FittingRouter(kind, paths))
        fitted = around.workshop.fit_router(manifest, index, scores, around.fetch)
        if fitted.kept_because is not None:
            around.screen.event(RouterKept(manifest.stage.index, fitted.kept_because))
        around.screen.event(RouterFitted(fitted.prefixes, fitted.shares))
        return fitted

    def window_router(self, manifest: Manifest, states: States) -> str | None:
        """The blob of a window router for the stage's paths; None when asked to stop, or when its training failed."""
        around, clock = self._around, self._around.swarm.clock
        around.screen.event(TrainingWindowRouter(PathTable(manifest.stage.table).num_paths))
        shown = 0.0

        def on_progress(share: float) -> None:
            nonlocal shown
            if clock.monotonic() - shown > SHOW_SECONDS:
                shown = clock.monotonic()
                self._show(manifest, f"training the window router, {100 * share:.0f} %")
            self._renew(manifest)

        try:
            trained = around.workshop.window_router(manifest, states, around.fetch, on_progress, around.stop)
        except Stopped:
            return None
        except TrainingError as error:
            around.screen.event(NoWindowRouter(str(error)))
            return None
        around.screen.event(WindowRouterTrained(trained.right))
        return around.swarm.put_blob(trained.data)
