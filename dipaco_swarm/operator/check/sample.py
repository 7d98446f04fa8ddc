"""Some documents of a run: read, cut, tokenized and routed, as a peer would do it."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

from tokenizers import Tokenizer

from dipaco_swarm.algorithm.routers.router import Sample, kind_of, path_shares
from dipaco_swarm.algorithm.stages import table_of
from dipaco_swarm.errors import DataError, ManifestError, SwarmError
from dipaco_swarm.operator.check.mixing import SourceSample, sources_of
from dipaco_swarm.run.checking import Problem
from dipaco_swarm.run.config import ModelConfig, RunConfig
from dipaco_swarm.run.data import SourceConfig
from dipaco_swarm.strategies import ROUTERS
from dipaco_swarm.training.documents import Document, read_documents, split_of
from dipaco_swarm.training.features import Floats, prefix_features
from dipaco_swarm.training.modules import build_network
from dipaco_swarm.training.pieces import EvaluationSet, evaluation_pieces
from dipaco_swarm.training.pretrained import existing_tokenizer
from dipaco_swarm.training.sources.mixture import nothing_in
from dipaco_swarm.training.tokenizer import load_tokenizer, train_tokenizer, vocabulary_size

READ_SECONDS = 20.0
"""Reading ends then, however few documents have come."""
PIECES_A_PATH = 80
"""Of the routing sample: with fewer a router is worse than it could be."""
SMALL = ModelConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2)
"""What the sample is routed with: nothing is trained yet, and no model that is not trained tells more than this."""


@dataclass(frozen=True)
class RoutedSample:
    """A stage's router, fitted on the documents read."""

    stage: int
    smallest: float | None
    """The share of the smallest path, of an equal split."""
    largest: float | None
    problem: str = ""
    """Why there is none."""


@dataclass(frozen=True)
class DocumentSample:
    """What was found in the first documents."""

    documents: int
    characters: int
    seconds: float
    domains: dict[str, int]
    """Documents of each, the ten with most."""
    splits: dict[str, int]
    """Documents for training, evaluation and routers."""
    tokens: int
    pieces: int
    """Of at most a sequence; what is not longer than the prefix is none."""
    routed: tuple[RoutedSample, ...]
    sources: tuple[SourceSample, ...] = ()
    """Of a mixture."""


@dataclass(frozen=True)
class Read:
    """The documents, and the tokenizer that the run has or would be given by them."""

    by_source: tuple[tuple[Document, ...], ...]
    """One of a run without a mixture."""
    seconds: float
    tokenizer: Tokenizer

    @property
    def documents(self) -> tuple[Document, ...]:
        return tuple(chain.from_iterable(self.by_source))


def read_some(config: RunConfig, count: int, problems: list[Problem]) -> Read | None:
    """At most so many documents, of each source of a mixture as many as of the others.

    What is wrong with a source, or with the tokenizer, is added to `problems`; None: then there is nothing to look at.
    """
    started, parts, before = time.monotonic(), config.data.parts, len(problems)
    found: list[tuple[Document, ...]] = []
    for index, part in enumerate(parts):
        try:
            of_part = tuple(islice(_in_time(part, READ_SECONDS / len(parts)), -(-count // len(parts))))
        except DataError as error:
            problems.append(Problem(f"data.sources[{index}]" if config.data.sources else "data", str(error)))
            continue
        if config.data.sources and not of_part:
            problems.append(Problem(f"data.sources[{index}]", nothing_in(index, part)))
        found.append(of_part)
    if len(problems) > before:
        return None
    seconds = time.monotonic() - started
    try:
        data = existing_tokenizer(config)
        if data is None:
            texts = (document.text for of_part in found for document in of_part)
            data = train_tokenizer(texts, config.tokenizer.vocab_size)
        return Read(tuple(found), seconds, load_tokenizer(data))
    except DataError as error:
        problems.append(Problem("data", str(error)))
    except SwarmError as error:
        problems.append(Problem("tokenizer", str(error)))
    return None


def look_at(config: RunConfig, read: Read) -> DocumentSample:
    """Raises DataError when nothing of the documents is long enough."""
    documents, tokenizer = read.documents, read.tokenizer
    pieces = evaluation_pieces(documents, tokenizer, config.data, config.router, len(documents) * 4, split=None)
    return DocumentSample(
        documents=len(documents),
        characters=sum(len(document.text) for document in documents),
        seconds=read.seconds,
        domains=dict(Counter(document.domain for document in documents).most_common(10)),
        splits=dict(Counter(split_of(document.text, config.data) for document in documents)),
        tokens=int(pieces.lengths.sum()),
        pieces=len(pieces.lengths),
        routed=tuple(_routed(config, pieces, vocabulary_size(tokenizer))),
        sources=sources_of(config.data, read.by_source) if config.data.sources else (),
    )


def _in_time(part: SourceConfig, seconds: float) -> Iterator[Document]:
    """The documents of a source, until it takes too long."""
    over = time.monotonic() + seconds
    for document in read_documents(part):
        yield document
        if time.monotonic() > over:
            return


def _routed(config: RunConfig, pieces: EvaluationSet, vocabulary: int) -> Iterator[RoutedSample]:
    """Each stage whose router is fitted on documents alone, tried on these."""
    features: Floats | None = None
    for index, stage in enumerate(config.stages):
        choice = ROUTERS[stage.router]
        if choice.paths != "table" or choice.needs_scores:
            continue
        table = table_of(config, index)
        if len(pieces.lengths) < 2 * table.num_paths:
            few = f"{len(pieces.lengths)} pieces say nothing about {table.num_paths} paths: give more --documents"
            yield RoutedSample(index, None, None, few)
            continue
        if features is None:
            network = build_network(SMALL, vocabulary, config.seed)
            features = prefix_features(network, pieces.tokens[:, : config.router.prefix_tokens])
        try:
            router = kind_of(stage.router).fit(Sample(features), table, config.router, config.seed)
        except (DataError, ManifestError) as error:
            yield RoutedSample(index, None, None, str(error))
            continue
        shares = path_shares(router, features)
        yield RoutedSample(index, min(shares) * len(shares), max(shares) * len(shares))
