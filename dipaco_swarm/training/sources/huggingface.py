"""`source="huggingface"`: a data set by its name, on the hub or in a folder. Its shards, mostly files, are portions."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from dipaco_swarm.run.data import SourceConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import Document, Portion
from dipaco_swarm.training.sources.rows import dataset_of, documents_in


def read(data: SourceConfig, reach: Reach) -> Iterator[Document]:
    yield from documents_in(data, _domain(data), _dataset(data, reach))


def portions(data: SourceConfig, reach: Reach) -> Sequence[Portion]:
    dataset = _dataset(data, reach)
    count: int = dataset.num_shards
    return [
        Portion(f"{index} of {count}", _domain(data), None, partial(_shard, data, dataset, index))
        for index in range(count)
    ]


def _shard(data: SourceConfig, dataset: Any, index: int) -> Iterator[Document]:
    yield from documents_in(data, _domain(data), dataset.shard(dataset.num_shards, index))


def _dataset(data: SourceConfig, reach: Reach) -> Any:
    assert data.path is not None  # SourceConfig has checked it
    reach.check_name(data)
    settings: dict[str, Any] = {"name": data.config}
    if data.revision is not None and not os.path.exists(data.path):
        settings["revision"] = data.revision
    return dataset_of(data, data.path, settings, data.split, reach)


def _domain(data: SourceConfig) -> str:
    assert data.path is not None
    return data.domain or data.config or data.path.rsplit("/", 1)[-1]
