"""From the stages of a run file to path tables; and the old module that each new module starts from."""

from collections.abc import Callable, Mapping

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable, grid
from dipaco_swarm.algorithm.state import ModuleState, vector_from_bytes
from dipaco_swarm.errors import ManifestError, RunFileError
from dipaco_swarm.run.config import OuterConfig, RunConfig
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.strategies import ROUTERS


def table_of(config: RunConfig, index: int) -> PathTable:
    """The path table of a stage of the run file. Raises ManifestError when it is impossible."""
    stage, num_levels = config.stages[index], len(config.levels)
    paths = ROUTERS[stage.router].paths
    if paths == "before":
        return table_of(config, index - 1)
    if paths == "added":
        assert stage.paths is not None, "a run file that adds no paths does not parse"
        return PathTable((*table_of(config, index - 1).rows, *stage.paths))
    if paths == "one":
        return grid([1] * num_levels)
    if stage.paths is not None:
        return PathTable(stage.paths)
    assert stage.modules is not None, "a run file without modules and paths does not parse"
    path_specific = frozenset(level for level, count in enumerate(stage.modules) if count == "path")
    return grid([count if isinstance(count, int) else 1 for count in stage.modules], path_specific)


def check_tables(config: RunConfig) -> None:
    """Build every path table once, so that an impossible one is found before a run begins. Raises RunFileError."""
    for i in range(len(config.stages)):
        try:
            table = table_of(config, i)
            if i:
                for module in table.modules:
                    parent(config, i, module, table_of(config, i - 1))
                for name in config.stages[i].parents:
                    if ModuleId.parse(name) not in table.modules:
                        raise ManifestError(f"parents: there is no module {name} in this stage")
        except ManifestError as error:
            raise RunFileError(f"stages.{i}: {error}") from None


def most_paths(config: RunConfig) -> int:
    """The number of paths of the run's largest stage: what a volunteer may ask for."""
    return max(table_of(config, i).num_paths for i in range(len(config.stages)))


def ancestor(module: ModuleId, before: PathTable) -> ModuleId:
    """The module of the previous stage that a module starts from: same level, index modulo the old number of modules.

    So where a level gets more modules, each old one is the start of several new ones.
    """
    width = sum(1 for old in before.modules if old.level == module.level)
    return ModuleId(module.level, module.index % width)


def parent(config: RunConfig, index: int, module: ModuleId, before: PathTable) -> ModuleId:
    """The module of the stage before that a module of stage `index` starts from.

    Raises ManifestError when the run file names one that is not there.
    """
    stage = config.stages[index]
    if ROUTERS[stage.router].paths == "added" and module in before.modules:
        return module
    named = stage.parents.get(str(module))
    found = ancestor(module, before) if named is None else ModuleId.parse(named)
    if found not in before.modules or found.level != module.level:
        raise ManifestError(f"{module} is to start from {named}, but stage {index - 1} has no such module at its level")
    return found


def last_versions(manifest: Manifest) -> dict[ModuleId, int]:
    """The version after which each module of the current stage is done; without those that go on."""
    return {ModuleId.parse(module): version for module, version in manifest.last_versions.items()}


def generations(stage: Stage) -> dict[ModuleId, int]:
    """How often the operator has gone back with modules of a stage; without those that never were."""
    return {ModuleId.parse(module): generation for module, generation in stage.generations.items()}


def trained_modules(stage: Stage) -> frozenset[ModuleId]:
    """The modules of the paths that do not rest."""
    table = PathTable(stage.table)
    training = (PathIndex(path) for path in range(table.num_paths) if path not in stage.resting)
    return frozenset(module for path in training for module in table.modules_of(path))


def soonest_end(held: Mapping[ModuleId, int], trained: Mapping[ModuleId, int], under_way: int) -> int:
    """After how many versions a stage ends that its operator wants to end; 0: there is nothing to end it with yet.

    With the rounds that are under way, and as early as modules need that nobody trains: those come no further.
    `held`: versions of all modules of the stage. `trained`: the version that those have come to who train a module.
    `under_way`: rounds that may have begun beyond a version.
    """
    if not trained:
        return min(held.values())
    resting = [version for module, version in held.items() if module not in trained]
    return max(1, min([max(*held.values(), *trained.values()) + under_way, *resting]))


def state_at_start(stage: Stage, module: ModuleId, fetch: Callable[[str], bytes]) -> ModuleState:
    """A module before the first outer step of a stage. `fetch`: a blob by its digest.

    Raises ManifestError when the blobs are not what they should be, or whatever `fetch` raises.
    """
    params = vector_from_bytes(fetch(stage.seeds[str(module)]))
    if str(module) not in stage.momenta:
        return ModuleState.seed(params)
    momentum = vector_from_bytes(fetch(stage.momenta[str(module)]))
    if len(momentum) != len(params):
        raise ManifestError(
            f"{module} starts with {len(params)} parameters and the momentum of {len(momentum)}; ask the operator"
        )
    return ModuleState(0, params, momentum)


def outer_rules(config: RunConfig, stage: Stage) -> OuterConfig:
    """A stage's outer optimizer: a ramp is for modules that have no outer momentum yet.

    `config`: the run file, as a whole or as it is in that stage.
    """
    config = config.at(stage.index)
    return config.outer.model_copy(update={"ramp_rounds": 0}) if stage.momenta else config.outer


def covering_modules(table: PathTable) -> tuple[ModuleId, ...]:
    """The modules of the narrowest level: every peer belongs to the group of exactly one of them."""
    widths = [sum(1 for module in table.modules if module.level == level) for level in range(table.num_levels)]
    level = widths.index(min(widths))
    return tuple(module for module in table.modules if module.level == level)
