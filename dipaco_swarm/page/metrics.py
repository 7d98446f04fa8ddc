"""The values of the page for Prometheus: a collector that is asked when somebody scrapes, and keeps nothing."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dipaco_swarm.page.pace import progress_of
from dipaco_swarm.page.picture import heldout_of
from dipaco_swarm.page.watch import Seen, Watch

MOST_SERIES = 512
"""Of each kind with a label: a run with more paths or modules says the sums alone."""


class RunCollector(Collector):
    """One run."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        """Every value that is known just now; what nobody can say is left out."""
        seen = self._watch.seen
        yield _gauge("page_viewers", "Viewers that have the page open", self._watch.board.viewers)
        yield _gauge("up", "Whether the run was seen yet: 1 or 0", int(seen is not None))
        if seen is None:
            return
        yield from _of_run(seen)
        yield from _of_paths(seen)
        yield from _of_modules(seen)


def _of_run(seen: Seen) -> Iterator[Metric]:
    status, pace = seen.status, seen.pace
    version, lowest = progress_of(status)
    tokens = CounterMetricFamily("dipaco_tokens_counted", "Tokens that have come into versions of modules")
    tokens.add_metric([], pace.tokens)
    yield tokens
    values = (
        ("stage", "The current stage, counted from 0", status.stage),
        ("finished", "Whether the run is finished: 1 or 0", int(status.finished)),
        ("peers", "Peers that train", status.peers),
        ("peers_awake", "Of these, the ones that were heard of lately", sum(m.awake for m in status.members)),
        ("keepers", "Peers that train nothing and keep modules", status.keepers),
        ("paths", "Paths of the current stage", len(status.paths)),
        ("paths_staffed", "Of these, the ones that somebody trains", status.staffed),
        ("tokens_per_second", "Training speed, as peers say", status.tokens_per_second),
        ("counted_tokens_per_second", "Tokens a second that came into versions lately", pace.counted_per_second),
        ("goodput_ratio", "Share of the tokens trained that came into versions lately", pace.goodput),
        ("trained_ratio", "Share of the time that peers trained lately, as they say", seen.trained),
        ("loss", "Training loss, mean over the paths, nats per token", status.loss),
        ("heldout_loss", "Loss of the best snapshots on held-out documents", heldout_of(status, seen.heldout)),
        ("stage_version_mean", "Outer steps of the modules in this stage, their mean", version),
        ("stage_version_min", "Outer steps of the module that has made fewest", lowest),
        ("stage_version_target", "Outer steps with which the stage ends", status.target_version),
        ("stage_seconds_left", "Until the stage ends, at the present pace", pace.stage_seconds),
        ("round_seconds", "Training in an outer round at the present pace", status.round_seconds),
        ("modules", "Modules of the current stage", len(status.modules)),
        ("modules_under_held", "Modules with fewer holders than there should be", len(status.under_held)),
        ("modules_lost", "Modules that nobody serves", len(status.lost)),
        ("modules_differ", "Modules whose holders disagree", sum(not m.digests_agree for m in status.modules)),
    )
    for name, words, value in values:
        if value is not None:
            yield _gauge(name, words, value)


def _of_paths(seen: Seen) -> Iterator[Metric]:
    paths = seen.status.paths
    if len(paths) > MOST_SERIES:
        return
    peers = GaugeMetricFamily("dipaco_path_peers", "Peers that train the path", labels=["path"])
    loss = GaugeMetricFamily("dipaco_path_loss", "Training loss of the path, nats per token", labels=["path"])
    for path in paths:
        peers.add_metric([str(path.index)], path.peers)
        if path.loss is not None:
            loss.add_metric([str(path.index)], path.loss)
    yield peers
    yield loss


def _of_modules(seen: Seen) -> Iterator[Metric]:
    modules = seen.status.modules
    if len(modules) > MOST_SERIES:
        return
    version = GaugeMetricFamily("dipaco_module_version", "Outer steps of the module", labels=["module"])
    holders = GaugeMetricFamily("dipaco_module_holders", "Peers that serve its newest version", labels=["module"])
    for module in modules:
        version.add_metric([module.name], module.version)
        holders.add_metric([module.name], module.holders)
    yield version
    yield holders


def _gauge(name: str, words: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"dipaco_{name}", words, value=value)
