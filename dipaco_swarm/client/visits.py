"""What a visitor of a run can ask for: status, evaluation, text."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers.decoders import DecodeStream

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.client.sources import Source, at_the_door, insist, open_run, visit
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.dashboard.status import status_of
from dipaco_swarm.dashboard.views import Evaluation, PathScore, SwarmStatus
from dipaco_swarm.errors import DataError, UsageError
from dipaco_swarm.events.joining import Terms
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import ANYWHERE, Split, read_documents
from dipaco_swarm.training.evaluation import RoutedScore, evaluate_rerouted, evaluate_routed, window_paths
from dipaco_swarm.training.inference import Sampling, generate_rerouted, generate_tokens
from dipaco_swarm.training.pieces import EvaluationSet, evaluation_pieces, together
from dipaco_swarm.training.terms import terms_of
from dipaco_swarm.training.tokenizer import end_of_text_id, load_tokenizer, prompt_ids, vocabulary_size
from dipaco_swarm.training.trial import Trial
from dipaco_swarm.training.window_router import WindowRouter

Tell = Callable[[str], None]
"""Says one line to a person."""

PIECES_PER_DOMAIN = 200
"""Held-out pieces scored of each domain."""


def status(address: RunAddress) -> SwarmStatus:
    """Who trains what, now."""
    with visit(address) as (swarm, manifest):
        return status_of(swarm, manifest)


def evaluate(
    source: Source,
    data: str | None,
    *,
    window: int | None = None,
    best: bool = False,
    tell: Tell = lambda line: None,
) -> Evaluation:
    """Routed perplexity per path and in all; on text files matching `data`, or on the run's held-out documents.

    `window`: route anew every so many tokens; None: each document once, by its prefix. `best`: score the best snapshots
    of the paths; `tell` then says which paths have none.
    """
    check_window(window)
    with open_run(source, best=best) as run:
        router = run.window_router() if window is not None else None  # what can fail fails before the slow part
        pieces = held_out(run, data)
        if router is not None and window is not None:
            scores, documents = score_rerouted(run, pieces, router, window)
        else:
            scores, documents = score(run, pieces)
        tell_what_fell_back(run, tell)
        return Evaluation(
            run=run.manifest.rules.name,
            stage=run.manifest.stage.index,
            data=(data or f"held-out documents of {run.manifest.rules.data.called}")
            + (", best snapshot of each path" if best else ""),
            prefix_tokens=run.manifest.rules.router.prefix_tokens,
            paths=tuple(
                PathScore(path, documents[path], found.tokens, found.loss)
                for path, found in sorted(scores.by_path.items())
            ),
            window=window,
        )


def terms(address: RunAddress, device: str) -> Terms:
    """What the run asks of a machine that takes part with this device."""
    with at_the_door(address) as (swarm, manifest):
        return terms_of(manifest, partial(insist, swarm), device)


def prospect(address: RunAddress) -> tuple[Trial, SwarmStatus]:
    """What a machine would train, and how far the others are."""
    with visit(address) as (swarm, manifest):
        vocabulary = vocabulary_size(load_tokenizer(insist(swarm, manifest.tokenizer)))
        return Trial(manifest.rules, vocabulary), status_of(swarm, manifest)


def check_window(window: int | None) -> None:
    """Raises UsageError for no number of tokens."""
    if window is not None and window < 1:
        raise UsageError(f"--reroute {window} is no number of tokens; give 1 or more, for example 64")


def tell_what_fell_back(run: TrainedRun, tell: Tell) -> None:
    """Name the paths that were loaded without a snapshot although snapshots were asked for."""
    line = run.fallen_back()
    if line is not None:
        tell(line)


def held_out(run: TrainedRun, data: str | None = None) -> EvaluationSet:
    """Pieces that nobody trained on: the run's held-out documents, or all of the given text files."""
    config = run.manifest.rules
    source, reach = config.data, Reach(Path.cwd(), fenced=True)
    if data is not None:
        reach = ANYWHERE  # the user says so, and not the operator
        source = DataConfig(source="text", path=data, sequence_length=source.sequence_length)
    split: Split | None = "holdout" if data is None else None
    tokenizer = run.routing().tokenizer
    sources = [source]
    if data is None:  # of whatever the run was trained on
        there = (run.manifest.config.at(index).data for index in range(run.manifest.stage.index + 1))
        sources = list(dict.fromkeys((*there, source)))
    parts = dict.fromkeys((part, each) for each in sources for part in each.parts)
    found, lacking = [], []
    for part, each in parts:  # each source alone: a domain with a small weight comes too rarely
        documents = read_documents(part, reach=reach)
        try:
            found.append(evaluation_pieces(documents, tokenizer, each, config.router, PIECES_PER_DOMAIN, split=split))
        except DataError as error:
            lacking.append(error)
    if not found or (lacking and len(parts) == len(sources)):
        raise lacking[0]
    return together(found)


def score(run: TrainedRun, pieces: EvaluationSet) -> tuple[RoutedScore, dict[PathIndex, int]]:
    """Score every piece under the path it is routed to; also the number of pieces of each path."""
    prefix = run.manifest.rules.router.prefix_tokens
    paths = run.routing().paths(pieces.tokens[:, :prefix])
    model = run.model()
    result = evaluate_routed(pieces, paths, lambda path: run.load(model, path), prefix)
    return result, {PathIndex(int(path)): int((paths == path).sum()) for path in set(paths.tolist())}


def score_rerouted(
    run: TrainedRun, pieces: EvaluationSet, router: WindowRouter, window: int
) -> tuple[RoutedScore, dict[PathIndex, int]]:
    """As `score`, but routed anew every `window` tokens; also the number of windows of each path."""
    prefix = run.manifest.rules.router.prefix_tokens
    choices = router.choices(torch.from_numpy(pieces.tokens)).numpy()
    paths = window_paths(run.routing().paths(pieces.tokens[:, :prefix]), choices, prefix, window)
    model = run.model()
    result = evaluate_rerouted(pieces, paths, lambda path: run.load(model, path), prefix)
    starts = np.arange(prefix, paths.shape[1], window)
    begun = paths[:, starts][starts < pieces.lengths[:, None]]  # the path of each window that there is
    return result, {path: int((begun == path).sum()) for path in result.by_path}


def generate(
    source: Source,
    prompt: str,
    *,
    tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
    window: int | None = None,
    best: bool = False,
    tell: Tell = lambda line: None,
) -> Iterator[str]:
    """Text that follows the prompt, in pieces: routed on the prompt's first tokens, written by that one path.

    `window`: route anew every so many new tokens, on all the text that there is by then; a prompt longer than what the
    prefix router reads is routed by the window router from the start. `best`, `tell`: see `evaluate`.
    """
    check_window(window)
    with open_run(source, best=best) as run:
        routing = run.routing()
        ids = prompt_ids(routing.tokenizer, prompt)
        if not ids:
            raise UsageError("the prompt is empty; give some text to go on from")
        prefix = torch.tensor([ids[: run.manifest.rules.router.prefix_tokens]]).numpy()
        path = PathIndex(int(routing.paths(prefix)[0]))
        model, stop = run.model(), end_of_text_id(routing.tokenizer)
        sampling = Sampling(temperature, top_k or None)
        generator = torch.Generator().manual_seed(seed)
        stream = DecodeStream(ids=[], skip_special_tokens=True)
        if window is None:
            new = generate_tokens(run.load(model, path), ids, sampling, generator, stop)
        else:
            router = run.window_router()
            path = router.choose(ids) if len(ids) > prefix.shape[1] else path
            load = lambda path: run.load(model, path)  # noqa: E731
            new = generate_rerouted(path, router.choose, load, window, ids, sampling, generator, stop)
        for token in islice(new, tokens):
            text = stream.step(routing.tokenizer, token)
            if text:
                yield text
        tell_what_fell_back(run, tell)
