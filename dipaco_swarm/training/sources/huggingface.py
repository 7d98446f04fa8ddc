"""`source="huggingface"`: a data set by its name, on the hub or in a folder. Its shards, mostly files, are portions."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import Document, Portion
from dipaco_swarm.training.sources.rows import dataset_of, documents_in


def read(data: DataConfig, reach: Reach) -> Iterator[Document]:
    yield from documents_in(data, _domain(data), _dataset(data, reach), data.column)


def portions(data: DataConfig, reach: Reach) -> Sequence[Portion]:
    dataset = _dataset(data, reach)
    count: int = dataset.num_shards
    return [
        Portion(f"{index} of {count}", _domain(data), None, partial(_shard, data, dataset, index))
        for index in range(count)
    ]


def _shard(data: DataConfig, dataset: Any, index: int) -> Iterator[Document]:
    yield from documents_in(data, _domain(data), dataset.shard(dataset.num_shards, index), data.column)


def _dataset(data: DataConfig, reach: Reach) -> Any:
    assert data.path is not None  # DataConfig has checked it
    reach.check_name(data)
    return dataset_of(data, data.path, {"name": data.config, "split": data.split})


def _domain(data: DataConfig) -> str:
    assert data.path is not None
    return data.config or data.path.rsplit("/", 1)[-1]
