"""The rows of one data set as documents, read through Hugging Face `datasets`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.training.documents import Document, cut


@contextmanager
def worded(data: DataConfig, *more: type[Exception]) -> Iterator[None]:
    """Whatever cannot be read within the block is a DataError. `more`: what a library raises beside Python's own."""
    unreadable: tuple[type[Exception], ...] = (OSError, ValueError, RuntimeError, *more)
    try:
        yield
    except unreadable as error:
        reason = str(error.__cause__ or error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(
            f"the documents cannot be read ({_where(data)}): {reason}; check that the files are {data.source} and "
            "complete, or that the name, data.config and data.split exist"
        ) from error


def dataset_of(data: DataConfig, name: str, settings: Mapping[str, Any]) -> Any:
    """A data set to be streamed. `name`, `settings`: for `datasets.load_dataset`. Raises DataError."""
    import datasets  # takes seconds to import

    with worded(data, datasets.exceptions.DatasetsError):
        return datasets.load_dataset(name, streaming=True, **settings)


def rows_of(data: DataConfig, domain: str, name: str, settings: Mapping[str, Any], column: str) -> Iterator[Document]:
    """The documents of one data set, streaming. Raises DataError."""
    yield from documents_in(data, domain, dataset_of(data, name, settings), column)


def documents_in(data: DataConfig, domain: str, dataset: Any, column: str) -> Iterator[Document]:
    """The documents of what `dataset_of` gave, or of a part of it. Raises DataError."""
    import datasets

    with worded(data, datasets.exceptions.DatasetsError):
        for row in dataset:
            yield from cut(text_of(row, column, data), domain)


def text_of(row: Mapping[str, object], column: str, data: DataConfig) -> str:
    """The text of a row. Raises DataError when the column is not there, or holds something else."""
    if column not in row:
        raise DataError(f'there is no column "{column}" ({_where(data)}); data.column can be one of {sorted(row)}')
    text = row[column]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise DataError(
            f'column "{column}" holds {type(text).__name__}, not text ({_where(data)}); '
            f"data.column can be one of {sorted(row)}"
        )
    return text


def _where(data: DataConfig) -> str:
    return f'data.source="{data.source}", data.path="{data.path}"'
