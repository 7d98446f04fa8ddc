"""The rows of one data set as documents, read through Hugging Face `datasets`; and the text of any row."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.data import SourceConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import Document, cut


@contextmanager
def worded(data: SourceConfig) -> Iterator[None]:
    """Whatever cannot be read within the block is a DataError: the libraries raise anything for a damaged file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = str(error.__cause__ or error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(
            f"the documents cannot be read ({_where(data)}): {reason}; check that the files are {data.source} and "
            "complete, or that the name, data.config, data.split and data.revision exist"
        ) from error


def dataset_of(data: SourceConfig, name: str, settings: Mapping[str, Any], split: str | None, reach: Reach) -> Any:
    """The texts of a data set, to be streamed. `name`, `settings`: for `datasets.load_dataset_builder`. Raises
    DataError, also when it is made of files and addresses that `reach` does not allow.
    """
    import datasets  # takes seconds to import

    with worded(data):
        if reach.fenced:
            from dipaco_swarm.training.sources.fence import Fence, fenced_dataset

            fence = Fence(partial(reach.check_pattern, data), partial(reach.check_parts, data))
            return _texts_alone(fenced_dataset(name, settings, split, fence), data)
        return _texts_alone(datasets.load_dataset_builder(name, **settings).as_streaming_dataset(split=split), data)


def _texts_alone(dataset: Any, data: SourceConfig) -> Any:
    """Without what else is in the rows, and nothing decoded: an image is a file or an address, and would be opened."""
    import datasets

    if dataset.features is None:  # then nothing says that there is one
        return dataset
    if not set(data.fields) <= set(dataset.features):
        text_of(dict.fromkeys(dataset.features), data, lambda: "any row")
    texts = dataset.select_columns(list(data.fields))
    are_plain = all(isinstance(feature, datasets.Value) for feature in texts.features.values())
    return texts if are_plain else texts.decode(False)


def rows_of(
    data: SourceConfig, domain: str, name: str, settings: Mapping[str, Any], split: str | None, reach: Reach
) -> Iterator[Document]:
    """The documents of one data set, streaming. Raises DataError."""
    yield from documents_in(data, domain, dataset_of(data, name, settings, split, reach))


def documents_in(data: SourceConfig, domain: str, dataset: Any) -> Iterator[Document]:
    """The documents of what `dataset_of` gave, or of a part of it. Raises DataError."""
    with worded(data):
        for number, row in enumerate(dataset):
            yield from cut(text_of(row, data, partial("row {}".format, number)), domain)


def text_of(row: Mapping[str, object], data: SourceConfig, place: Callable[[], str]) -> str:
    """The text of a row; "" where its fields hold none. `place`: where the row is, for messages.

    Raises DataError when a field is not there, or holds something else than text; a template takes numbers as well.
    """
    if data.template is None:
        return _value(row, data.column, data, place, (str,))
    values = {field: _value(row, field, data, place, (str, int, float)) for field in data.fields}
    return data.template.format_map(values) if any(text.strip() for text in values.values()) else ""


def _value(
    row: Mapping[str, object], field: str, data: SourceConfig, place: Callable[[], str], kinds: tuple[type, ...]
) -> str:
    if field not in row:
        if data.template is None:
            raise DataError(
                f'there is no column "{field}" in {place()} ({_where(data)}); data.column can be one of {sorted(row)}'
            )
        raise DataError(
            f'there is no field "{field}", which data.template names, in {place()} ({_where(data)}), but '
            f"{sorted(row)}; correct the template, or give the field, which may be empty, to all rows"
        )
    value = row[field]
    if value is None:
        return ""
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise DataError(
            f'column "{field}" holds {type(value).__name__}, not text, in {place()} ({_where(data)}); '
            + ("data.column can be" if data.template is None else "data.template can name")
            + f" one of {sorted(row)}"
        )
    return str(value)


def _where(data: SourceConfig) -> str:
    return f'data.source="{data.source}", data.path="{data.path}"'
