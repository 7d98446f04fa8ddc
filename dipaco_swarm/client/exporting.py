"""The model out of a run: one path, each path, or the whole routed model; with a card that says what is known of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import safetensors.numpy
from torch import Tensor

from dipaco_swarm.algorithm.generations import tokens_of
from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.algorithm.routers.nearest import NearestRouter
from dipaco_swarm.algorithm.routers.router import router_from_bytes
from dipaco_swarm.client.sources import Source, open_run
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.client.visits import Tell, held_out, score, tell_what_fell_back
from dipaco_swarm.errors import UsageError
from dipaco_swarm.events.volunteer import BestSnapshot
from dipaco_swarm.run.config import AboutConfig
from dipaco_swarm.training.card import PATH_CODE, ROUTED_CODE, SOFT_CAP_CODE, Card, Table
from dipaco_swarm.training.evaluation import RoutedScore
from dipaco_swarm.training.export import Routed, export_each, export_path, export_routed
from dipaco_swarm.training.modules import PathModel
from dipaco_swarm.training.routed import feature_network
from dipaco_swarm.training.tokenizer import vocabulary_size


@dataclass(frozen=True)
class Wanted:
    """What is to come out, and how."""

    best: bool = False
    """Of each path the best snapshot, if there is one."""
    dtype: str = "fp32"
    measured: bool = False
    """Score the held-out documents, for the card."""


def export(source: Source, path: int, out: Path, wanted: Wanted = Wanted(), tell: Tell = lambda line: None) -> None:
    """Write one path as an ordinary transformers folder. `tell` says what fell back to agreed modules."""
    with open_run(source, best=wanted.best) as run:
        model, index = run.model(), PathIndex(path)
        run.load(model, index)  # what can fail fails before the slow part
        scores = _scores(run, wanted)
        run.load(model, index)
        tell_what_fell_back(run, tell)
        card = _card_of_path(run, index, model, scores)
        export_path(model, run.routing().tokenizer_json, out, card, wanted.dtype)


def export_all(source: Source, out: Path, wanted: Wanted = Wanted(), tell: Tell = lambda line: None) -> int:
    """Write each path as a folder `path-N` in `out`; how many."""
    with open_run(source, best=wanted.best) as run:
        scores = _scores(run, wanted)

        def paths() -> Iterator[tuple[str, PathModel, Card]]:
            model = run.model()
            for path in map(PathIndex, range(run.table.num_paths)):
                run.load(model, path)
                yield f"path-{path}", model, _card_of_path(run, path, model, scores)

        export_each(paths(), run.routing().tokenizer_json, out, wanted.dtype)
        tell_what_fell_back(run, tell)
        return run.table.num_paths


def export_whole(source: Source, out: Path, wanted: Wanted = Wanted(), tell: Tell = lambda line: None) -> int:
    """Write the whole routed model: each module once, the router, a loader; how many paths it has."""
    with open_run(source, best=wanted.best) as run:
        routed = _routed(run)
        scores = _scores(run, wanted)
        model = run.model()
        rows = _modules_of_paths(run, model)
        tell_what_fell_back(run, tell)
        routed = Routed(**{**vars(routed), "paths": rows})
        card = _card_of_whole(run, scores)
        export_routed(model, _modules(run, model), routed, run.routing().tokenizer_json, out, card, wanted.dtype)
        return run.table.num_paths


# -------------------------------------------------------------------------------------------------- the parts of a run


def _routed(run: TrainedRun) -> Routed:
    """The router of the run's stage, and what it reads with. Raises UsageError for one that the loader cannot be."""
    manifest, config = run.manifest, run.manifest.config
    prefix, length = config.router.prefix_tokens, config.data.sequence_length
    if manifest.stage.router is None:
        return Routed((), prefix, length)
    router = router_from_bytes(run.fetch(manifest.stage.router), run.table.num_paths)
    if not isinstance(router, NearestRouter):
        raise UsageError(
            f"the router of stage {manifest.stage.index} is a {type(router).__name__}, which an exported model does "
            "not know; export its paths one by one, with --each"
        )
    vocabulary = vocabulary_size(run.tokenizer)
    window = None if manifest.window_router is None or config.rerouting is None else config.rerouting.window
    return Routed(
        paths=(),
        prefix_tokens=prefix,
        sequence_length=length,
        router=safetensors.numpy.save(dict(router.arrays())),
        features=feature_network(config, vocabulary, manifest.feature_seeds, run.fetch),
        window_router=None if manifest.window_router is None else run.fetch(manifest.window_router),
        window=window,
    )


def _modules_of_paths(run: TrainedRun, model: PathModel) -> list[list[str]]:
    """The name of each path's module at each level: the run's own, or of a path alone where its snapshot is served."""
    rows = []
    for path in map(PathIndex, range(run.table.num_paths)):
        has_snapshot = run.snapshot_of is not None and run.load(model, path) and run.served[path] is not None
        names = [str(module) for module in run.table.modules_of(path)]
        rows.append([f"{name}-of-path-{path}" for name in names] if has_snapshot else names)
    return rows


def _modules(run: TrainedRun, model: PathModel) -> Iterator[tuple[str, int, Tensor]]:
    """Each module that some path has, once: its name, its level, its parameters."""
    for module in run.table.modules:
        if any(run.served.get(path) is None for path in run.table.paths_through(module)):
            yield str(module), module.level, run.state_of(module).params
    for path, snapshot in sorted(run.served.items()):
        for module, params in sorted(snapshot.params.items()) if snapshot is not None else ():
            yield f"{module}-of-path-{path}", module.level, params


# --------------------------------------------------------------------------------------------------------------- cards


def _scores(run: TrainedRun, wanted: Wanted) -> RoutedScore | None:
    return score(run, held_out(run))[0] if wanted.measured else None


def _about(run: TrainedRun) -> AboutConfig:
    config = run.manifest.config
    named = [part.path for part in config.data.parts if part.source == "huggingface" and part.path is not None]
    if config.about.datasets or not named:
        return config.about
    return config.about.model_copy(update={"datasets": tuple(dict.fromkeys(named))})


def _base_model(run: TrainedRun) -> str | None:
    """As the hub calls it; a folder of the operator's machine says nothing to others."""
    model = run.manifest.config.model
    name = model.checkpoint or ""
    return name if name.count("/") == 1 and not name.startswith((".", "/", "~")) else None


def _measured_on(run: TrainedRun) -> str:
    config = run.manifest.config
    prefix = config.router.prefix_tokens
    return (
        f"held-out documents of {config.data.path or config.data.called}, the first {prefix} tokens of each excluded, "
        "which the router reads"
    )


def _origin(run: TrainedRun) -> str:
    """What the model was made of, and by which run."""
    config, stage = run.manifest.config, run.manifest.stage
    words = f"the DiPaCo run `{config.name}`, stage {stage.index}, which volunteers trained together with dipaco-swarm"
    if config.model.checkpoint is not None and (base := _base_model(run)) is not None:
        at = f" at {config.model.revision}" if config.model.revision else ""
        words += f"; it began as {base}{at}"
    return words


def _card_of_path(run: TrainedRun, path: PathIndex, model: PathModel, scores: RoutedScore | None) -> Card:
    share = run.manifest.stage.path_weights[path]
    where = f", {100 * share:.0f} % of them" if run.table.num_paths > 1 else ""
    mine = scores.by_path.get(path) if scores is not None else None
    return Card(
        about=_about(run),
        base_model=_base_model(run),
        what=(
            f"Path {path} of {run.table.num_paths} of {_origin(run)}: {_versions_of(run, path)}. It was trained on the "
            f"documents that the run's router sends to it{where}, and is at home there."
        ),
        tables=() if run.served[path] is not None else (_table_of_modules(run, [path]),),
        perplexity=None if mine is None else mine.perplexity,
        data=_measured_on(run),
        code=SOFT_CAP_CODE if getattr(model.network.config, "attn_logit_softcapping", None) else PATH_CODE,
    )


def _card_of_whole(run: TrainedRun, scores: RoutedScore | None) -> Card:
    header = ["path", "modules", "documents", *(["tokens scored", "perplexity"] if scores is not None else [])]
    rows = []
    for path, share in enumerate(run.manifest.stage.path_weights):
        row = [str(path), " ".join(map(str, run.table.modules_of(PathIndex(path)))), f"{100 * share:.1f} %"]
        if scores is not None:
            mine = scores.by_path.get(PathIndex(path))
            row += ["0", ""] if mine is None else [f"{mine.tokens:,}", f"{mine.perplexity:.2f}"]
        rows.append(row)
    everyone = [PathIndex(path) for path in range(run.table.num_paths)]
    return Card(
        about=_about(run),
        base_model=_base_model(run),
        what=(
            f"All {run.table.num_paths} paths of {_origin(run)}. A text is routed by its first "
            f"{run.manifest.config.router.prefix_tokens} tokens, and one path reads and writes it: a network of "
            f"{sum(run.model().size(level) for level in range(run.table.num_levels)):,} parameters."
        ),
        tables=(Table(header, rows), _table_of_modules(run, everyone)),
        perplexity=None if scores is None else scores.total.perplexity,
        data=_measured_on(run),
        code=ROUTED_CODE,
    )


def _table_of_modules(run: TrainedRun, paths: list[PathIndex]) -> Table:
    """What is known of each module of these paths."""
    modules = sorted({module for path in paths for module in run.table.modules_of(path)})
    rows = []
    for module in modules:
        state = run.state_of(module)
        rows.append(
            [
                str(module),
                f"{len(state.params):,}",
                str(state.version),
                f"{tokens_of(state.work):,}",
                f"`{state.digest}`",
            ]
        )
    return Table(["module", "parameters", "version", "tokens in this stage", "digest"], rows)


def _versions_of(run: TrainedRun, path: PathIndex) -> str:
    """Which parameters of a path were loaded."""
    snapshot = run.served[path]
    if snapshot is not None:
        return str(BestSnapshot(snapshot.path, snapshot.loss, snapshot.named_versions))
    states = {module: run.state_of(module) for module in run.table.modules_of(path)}
    return ", ".join(f"{module} at version {state.version}" for module, state in states.items())
