"""`source="huggingface"`: a data set by its name, on the hub or in a folder."""

from collections.abc import Iterator
from pathlib import Path

from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.training.documents import Document
from dipaco_swarm.training.sources.rows import rows_of


def read(data: DataConfig, base: Path | None) -> Iterator[Document]:
    assert data.path is not None  # DataConfig has checked it
    domain = data.config or data.path.rsplit("/", 1)[-1]
    return rows_of(data, domain, data.path, {"name": data.config, "split": data.split}, data.column)
