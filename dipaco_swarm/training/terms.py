"""What a run asks of a machine, known before anything is read or allocated."""

import os
from collections.abc import Callable

from dipaco_swarm.errors import UsageError, printable
from dipaco_swarm.events.joining import Terms
from dipaco_swarm.events.words import size
from dipaco_swarm.run.data import DataConfig, SourceConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.strategies import SOURCES
from dipaco_swarm.training.modules import buffer_bytes, level_sizes
from dipaco_swarm.training.needs import PathNeeds, round_bytes
from dipaco_swarm.training.tokenizer import load_tokenizer, vocabulary_size

MOST_NAMED = 6
"""Sources of a mixture that are said whole."""


def sizes_in(manifest: Manifest, fetch: Callable[[str], bytes]) -> tuple[int, ...]:
    """Parameters of a module of each level. Raises as `terms_of`."""
    config = manifest.rules
    return level_sizes(config.model, config.levels, vocabulary_in(manifest, fetch))


def vocabulary_in(manifest: Manifest, fetch: Callable[[str], bytes]) -> int:
    """Its size. Raises as `terms_of`."""
    return vocabulary_size(load_tokenizer(fetch(manifest.tokenizer)))


def terms_of(manifest: Manifest, fetch: Callable[[str], bytes], device: str, helpers: int = 0) -> Terms:
    """What a path asks of this machine. `fetch`: blobs by digest. `helpers`: devices beside the first. Raises
    what `fetch` raises, and DataError or ManifestError for a tokenizer or model that is none."""
    config, vocabulary = manifest.rules, vocabulary_in(manifest, fetch)
    parameters = sum(level_sizes(config.model, config.levels, vocabulary))
    needs, buffers = PathNeeds.of(parameters), buffer_bytes(config.model, vocabulary)
    return Terms(
        source=printable(config.data.called) + (", split by path" if config.data.prepared is not None else ""),
        reads=_read_by(config.data),
        parameters=parameters,
        memory=(needs.memory if device == "cpu" else needs.memory_beside_gpu)
        + helpers * needs.helper
        + (1 + helpers) * buffers,
        disk=needs.disk,
        sends=round_bytes(config.wire.codec, parameters),
        admission=config.admission.kind,
        passes_on=config.data.shares == "tokens" and config.data.reading != "whole",
    )


def check_memory(terms: Terms) -> None:
    """Whether this machine has the memory at all. Raises UsageError: a model that is too large would end it later."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if terms.memory > there:
        raise UsageError(
            f"a path of this run has {terms.parameters:,} parameters and takes up to {size(terms.memory)} of memory, "
            f"but this machine has {size(there)} in all; take part with a larger machine"
        )


def _read_by(data: DataConfig) -> str:
    read = list(dict.fromkeys(map(_source_read_by, data.parts)))
    if data.prepared is not None:
        read.insert(0, printable(f"{data.prepared}, split by path, where it is there"))
    more = len(read) - MOST_NAMED
    return "; ".join(read[:MOST_NAMED]) + (f"; and {more} sources more" if more > 0 else "")


def _source_read_by(data: SourceConfig) -> str:
    if SOURCES[data.source].is_remote:
        return printable(f"the data set {data.path}" + (f" ({data.config})" if data.config else ""))
    if data.path is None:
        return "the text of the Python installation of this machine"
    is_address = "://" in data.path
    return printable(data.path if is_address else f'files of this machine: data.path="{data.path}", below --data-root')
