"""Which commit of a data set of the hub a run reads: a name means something else tomorrow, and peers must not."""

import logging
import os
import re
from collections.abc import Iterator
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.data import SourceConfig
from dipaco_swarm.strategies import SOURCES

log = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")
ASK_SECONDS = 15.0
NO_ANSWER: tuple[type[BaseException], ...] = (OSError, ValueError, HfHubHTTPError.__bases__[0])
"""The last one is of whatever library the hub's client is made of."""


def pinned(config: RunConfig, known: RunConfig | None = None) -> RunConfig:
    """The run file with the commit of every data set of the hub that it reads, where the hub answers.

    `known`: as it was published; what it says of the same data sets stays, and nobody is asked.
    """
    published = {_nameless(part): part.revision for part in _all_parts(known)} if known is not None else {}
    commits = {part: _revision_of(part, published) for part in _all_parts(config)}
    if all(part.revision == revision for part, revision in commits.items()):
        return config
    document = config.model_dump(mode="json")
    _pin(document["data"], config.data.parts, commits)
    for index, stage in enumerate(config.stages):
        if {"source", "sources", "path", "revision"} & set(stage.from_here.get("data", {})):
            _pin(document["stages"][index]["from_here"]["data"], config.at(index).data.parts, commits)
    return RunConfig.model_validate(document, strict=False)


def _pin(section: dict[str, Any], parts: Any, commits: dict[SourceConfig, str | None]) -> None:
    """Write commits into a section of the run file, or of what changes of it with a stage."""
    for place, part in zip(section.get("sources") or (section,), parts, strict=True):
        if commits[part] is not None:
            place["revision"] = commits[part]


def _all_parts(config: RunConfig) -> Iterator[SourceConfig]:
    for index in range(len(config.stages)):
        yield from config.at(index).data.parts


def _nameless(part: SourceConfig) -> SourceConfig:
    return part.model_copy(update={"revision": None})


def _revision_of(part: SourceConfig, published: dict[SourceConfig, str | None]) -> str | None:
    if not SOURCES[part.source].is_remote or part.path is None or os.path.exists(part.path):
        return part.revision
    known = published.get(_nameless(part))
    if _nameless(part) in published and part.revision in (None, known):
        return known
    if part.revision is not None and COMMIT.fullmatch(part.revision):
        return part.revision
    return _asked(part) or known or part.revision


def _asked(part: SourceConfig) -> str | None:
    """What the hub says; None when it does not answer, or knows no such data set: reading it says that better."""
    assert part.path is not None
    try:
        return HfApi().dataset_info(part.path, revision=part.revision, timeout=ASK_SECONDS).sha
    except NO_ANSWER as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        log.warning("the hub does not say which commit of %s this run reads: %s", part.path, reason)
        return None
