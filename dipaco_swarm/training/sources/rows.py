"""The rows of one data set as documents, read through Hugging Face `datasets`."""

from collections.abc import Iterator
from typing import Any

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.training.documents import Document, cut


def rows_of(data: DataConfig, domain: str, name: str, settings: dict[str, Any], column: str) -> Iterator[Document]:
    """The documents of one data set, streaming. `name`, `settings`: for `datasets.load_dataset`. Raises DataError."""
    import datasets  # takes seconds to import

    where = f'data.source="{data.source}", data.path="{data.path}"'
    try:
        for row in datasets.load_dataset(name, streaming=True, **settings):
            yield from cut(_text_of(row, column, where), domain)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error.__cause__ or error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(
            f"the documents cannot be read ({where}): {reason}; check that the files are {data.source} and complete, "
            "or that the name, data.config and data.split exist"
        ) from error


def _text_of(row: dict[str, object], column: str, where: str) -> str:
    if column not in row:
        raise DataError(f'there is no column "{column}" ({where}); data.column can be one of {sorted(row)}')
    text = row[column]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise DataError(
            f'column "{column}" holds {type(text).__name__}, not text ({where}); '
            f"data.column can be one of {sorted(row)}"
        )
    return text
