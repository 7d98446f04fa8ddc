"""What the announcements say about a whole run, as values for the screens."""

from statistics import fmean

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.stages import trained_modules
from dipaco_swarm.dashboard.views import ModuleStatus, PathStatus, SwarmStatus
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.interface import Announcement, Role, Swarm


def status_of(swarm: Swarm, manifest: Manifest) -> SwarmStatus:
    """The run as it was heard of last; `Swarm.look_up` makes that recent."""
    stage = manifest.stage
    table = PathTable(stage.table)
    said = {module: swarm.members(stage.index, module) for module in table.modules}
    trainers = {s.peer: s for members in said.values() for s in members if s.trains}
    keepers = {s.peer for members in said.values() for s in members if s.role is Role.KEEPS}
    of_paths = trained_modules(stage)  # the others stay as they are
    modules = tuple(_module_status(module, members) for module, members in said.items() if module in of_paths)
    versions = {module.name: module.version for module in modules}
    losses = [s.loss for s in trainers.values() if s.loss is not None]
    speed = sum(s.tokens_per_second for s in trainers.values())
    return SwarmStatus(
        run=manifest.config.name,
        stage=stage.index,
        stages=len(manifest.config.stages),
        finished=manifest.finished,
        peers=len(trainers),
        keepers=len(keepers),
        paths=tuple(
            _path_status(PathIndex(path), table, stage.path_weights[path], list(trainers.values()), versions)
            for path in range(table.num_paths)
            if path not in stage.resting
        ),
        modules=modules,
        tokens_per_second=speed,
        loss=fmean(losses) if losses else None,
        target_version=stage.rounds,
        round_seconds=_round_seconds(manifest, len({s.path for s in trainers.values()}), speed),
    )


def _round_seconds(manifest: Manifest, staffed: int, tokens_per_second: float) -> float | None:
    """Seconds of training in a round at the present pace."""
    return staffed * manifest.rules.round_tokens / tokens_per_second if tokens_per_second else None


def _module_status(module: ModuleId, members: tuple[Announcement, ...]) -> ModuleStatus:
    version = max((s.version for s in members), default=0)
    newest = [s for s in members if s.version == version]
    return ModuleStatus(
        name=str(module),
        version=version,
        holders=len(newest),
        keepers=sum(1 for s in newest if s.role is Role.KEEPS),
        peers=sum(1 for s in members if s.trains),
        digests_agree=len({s.digest for s in newest}) <= 1,
    )


def _path_status(
    path: PathIndex, table: PathTable, share: float, trainers: list[Announcement], versions: dict[str, int]
) -> PathStatus:
    ours = [s for s in trainers if s.path == path]
    names = tuple(str(module) for module in table.modules_of(path))
    losses = [s.loss for s in ours if s.loss is not None]
    return PathStatus(
        index=path,
        modules=names,
        peers=len(ours),
        share=share,
        version_min=min(versions[name] for name in names),
        version_max=max(versions[name] for name in names),
        tokens_per_second=sum(s.tokens_per_second for s in ours),
        loss=fmean(losses) if losses else None,
    )
