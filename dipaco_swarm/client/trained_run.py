"""A run as it can be used: its manifest, its blobs, and whatever state of each module can be had."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from tokenizers import Tokenizer
from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import UsageError
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.training.bank import load_path
from dipaco_swarm.training.early import Snapshot, load_into
from dipaco_swarm.training.features import one_or_full
from dipaco_swarm.training.modules import PathModel, build_network, level_sizes
from dipaco_swarm.training.routed import Routing, load_routing
from dipaco_swarm.training.tokenizer import load_tokenizer, vocabulary_size
from dipaco_swarm.training.window_router import WindowRouter, window_router_from_bytes


@dataclass(frozen=True)
class TrainedRun:
    """A run as it can be used: the manifest, its blobs, and the newest state of each module that can be had."""

    manifest: Manifest
    fetch: Callable[[str], bytes]
    state_of: Callable[[ModuleId], ModuleState]
    """Raises CheckpointError or UnreachableError when a module cannot be had."""
    snapshot_of: Callable[[PathModel, PathIndex], Snapshot | None] | None = None
    """The best snapshot of a path that fits the model; None: not asked for, the agreed modules are used."""
    served: dict[PathIndex, Snapshot | None] = field(default_factory=dict)
    """What was loaded of each path: a snapshot, or its agreed modules."""

    @property
    def table(self) -> PathTable:
        return PathTable(self.manifest.stage.table)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.fetch(self.manifest.tokenizer))

    @cached_property
    def parameters(self) -> tuple[int, ...]:
        """Of a module of each level: a state of another size is none of it."""
        rules = self.manifest.rules
        return level_sizes(rules.model, rules.levels, vocabulary_size(self.tokenizer))

    def routing(self) -> Routing:
        """What routes texts: of one text alone it takes no longer than reading it."""
        return load_routing(self.manifest, self.manifest.stage, self.fetch, batch=one_or_full)

    def model(self) -> PathModel:
        """A network of the run's shape; `load_path` fills it."""
        config = self.manifest.config
        vocabulary = vocabulary_size(self.tokenizer)
        return PathModel(build_network(config.model, vocabulary, config.seed), config.levels)

    def window_router(self) -> WindowRouter:
        """What chooses a path anew every W tokens. Raises UsageError when the run has none."""
        manifest = self.manifest
        if manifest.window_router is None:
            reason = (
                "its run file has no [rerouting]"
                if manifest.config.rerouting is None
                else "it is trained when the last stage is done"
                if not manifest.finished
                else "its training failed, as the bootstrap node's log says"
            )
            raise UsageError(f"the run {manifest.config.name} has no window router: {reason}; leave out --reroute")
        vocabulary = vocabulary_size(self.tokenizer)
        data = self.fetch(manifest.window_router)
        return window_router_from_bytes(data, manifest.config, vocabulary, self.table.num_paths)

    def load(self, model: PathModel, path: PathIndex) -> PreTrainedModel:
        """Put a path into the model. Raises UsageError when there is no such path."""
        if not 0 <= path < self.table.num_paths:
            raise UsageError(
                f"path {path} does not exist: this stage of the run {self.manifest.config.name} has paths 0 to "
                f"{self.table.num_paths - 1}"
            )
        snapshot = self.snapshot_of(model, path) if self.snapshot_of is not None else None
        self.served[path] = snapshot
        if snapshot is not None:
            load_into(model, snapshot)
            return model.network
        return load_path(model, self.table, path, {m: self.state_of(m) for m in self.table.modules_of(path)})

    def fallen_back(self) -> str | None:
        """Which of the loaded paths had no snapshot although snapshots were asked for, in one line; None: all had."""
        without = sorted(path for path, snapshot in self.served.items() if snapshot is None)
        if self.snapshot_of is None or not without:
            return None
        which = ", ".join(map(str, without)) if len(without) <= 8 else f"{without[0]} and {len(without) - 1} others"
        return f"no early-stopping snapshot of path {which} can be had; using the agreed modules there"
