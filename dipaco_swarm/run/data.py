"""The run file's word on documents: where they come from, how several sources are mixed, and how they are cut."""

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from dipaco_swarm.run.values import Frozen, one_of
from dipaco_swarm.strategies import SOURCES

MIXTURE = "mixture"
"""`source` of a [data] that has several."""
DEFAULT_COLUMN = "text"
LONGEST_TEMPLATE = 4096
"""Characters. It is made out for every row, so that a long one makes a small row as large as it likes."""
MOST_FIELDS, MOST_TIMES = 64, 4
"""Fields that a template names, and how often the same one."""


class SourceConfig(Frozen):
    """Documents of one kind, and what of them is text."""

    source: Annotated[str, one_of(SOURCES)]
    """`python`: the text of the Python installation itself. `huggingface`: a dataset name. Else: files on each peer."""
    path: str | None = None
    """Glob of files (text, jsonl, parquet) or name of the Hugging Face dataset."""
    config: str | None = None
    """Configuration of the Hugging Face dataset."""
    revision: str | None = Field(default=None, min_length=1)
    """Of the Hugging Face dataset: a branch, a tag or a commit. The manifest has the commit that was read first."""
    split: str = "train"
    column: str = DEFAULT_COLUMN
    """The field that holds a document's text."""
    template: str | None = Field(default=None, max_length=LONGEST_TEMPLATE)
    """Instead of `column`: a text with names of fields in braces, as in "{title}\\n\\n{text}"."""
    domain: str | None = Field(default=None, min_length=1, max_length=100)
    """What the documents are called in reports; by default that comes of the names of their files."""
    max_documents: int | None = Field(default=None, gt=0)
    """Read at most this many documents; for trials."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a row that hold text."""
        if self.template is None:
            return (self.column,)
        return tuple(dict.fromkeys(name for _, name, _, _ in string.Formatter().parse(self.template) if name))

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keys that older run files did not have are left out where they say nothing: their digests stay."""
        said: dict[str, Any] = serialize(self)
        return {key: value for key, value in said.items() if value not in LATER_KEYS.get(key, ())}

    @model_validator(mode="after")
    def _files_need_a_path(self) -> Self:
        choice = SOURCES[self.source]
        if choice.needs_path and not self.path:
            raise ValueError(f'source="{self.source}" needs path')
        if self.revision is not None and not choice.is_remote:
            raise ValueError(f'revision="{self.revision}" is for data sets of the hub; source="{self.source}" has none')
        return self

    @model_validator(mode="after")
    def _template_names_fields(self) -> Self:
        if self.template is None:
            return self
        if not SOURCES[self.source].has_fields:
            raise ValueError(f'template: documents of source="{self.source}" have no fields; leave it out')
        if self.column != DEFAULT_COLUMN:
            raise ValueError(f'column="{self.column}" and template: give one of them; a template names its columns')
        if problem := _template_problem(self.template):
            raise ValueError(f"template={self.template!r}: {problem}")
        return self


class MixedSource(SourceConfig):
    """A part of a mixture."""

    weight: float = Field(default=1.0, gt=0)
    """Its share of the characters that are read, of the sum of all weights."""
    epochs: int = Field(default=4, ge=1)
    """It is read at most so often while another one is read for the first time; then the others go on without it."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.source == MIXTURE:
            raise ValueError("a part of a mixture is one source; list the parts of the other mixture here")
        return self


class DataConfig(SourceConfig):
    """Where documents come from. Every peer reads them itself; none travels, unless `shares` says so.

    One source, or several with weights in `[[data.sources]]`.
    """

    source: Annotated[str, one_of(SOURCES)] = MIXTURE
    sources: tuple[MixedSource, ...] = ()
    """Several sources, of any kinds, mixed by their weights."""
    prepared: str | None = Field(default=None, min_length=1)
    """A folder, or a data set of the hub, that has these documents already split by path (`dipaco-bootstrap shard`).
    Peers of a stage whose router split them read the files of their path alone."""
    reading: Literal["auto", "whole", "beside"] = "auto"
    """whole: a path's shard is made before training, and shuffled whole. beside: training begins with the first
    sequences; the rest is read beside it, and shuffled over a window. auto: beside, where rounds are paced and the
    documents come in portions and are more than 64 MB, or take minutes to be routed with the path's model."""
    sequence_length: int = Field(default=256, ge=16)
    """Tokens per training sequence."""
    holdout: float = Field(default=0.05, gt=0, lt=0.5)
    """Share of documents kept for evaluation, chosen by a hash of the text; never trained on."""
    routing_sample: float = Field(default=0.05, gt=0, lt=0.5)
    """Share of documents the operator's router is fitted on, chosen by the same hash; never trained on."""

    shares: Literal["routes", "tokens", "nothing"] = "routes"
    """What peers that read beside training give each other of the corpus, so that each routes a part of it. routes: the
    paths of texts, and everybody reads all documents itself. tokens: also the texts of a path, as tokens, to its peers:
    then documents travel, and nobody reads all. nothing: everybody routes all that it needs."""

    @property
    def parts(self) -> Sequence[SourceConfig]:
        """Its sources, each alone."""
        return self.sources or (self,)

    @property
    def called(self) -> str:
        """What is read, in a word or two."""
        return f"{len(self.sources)} sources" if len(self.sources) > 1 else self.parts[0].source

    def but_for(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The keys that stay when some have other values: those of other documents do not."""
        gone: set[str] = set()
        if "sources" in values:
            gone = set(SourceConfig.model_fields)
        elif "source" in values and self.sources:
            gone = {"source", "sources"}
        elif {"source", "path"} & set(values):
            gone = {"revision"}
        return {key: value for key, value in self.model_dump(mode="json").items() if key not in gone}

    @model_validator(mode="after")
    def _one_or_several(self) -> Self:
        if self.source != MIXTURE and self.sources:
            raise ValueError(f'source="{self.source}" and [[data.sources]]: give one of them')
        if self.source == MIXTURE and not self.sources:
            raise ValueError(
                f"source is required: {', '.join(name for name in SOURCES if name != MIXTURE)}; or several, in "
                "[[data.sources]]"
            )
        if self.sources and (said := [key for key, usual in OF_A_SOURCE.items() if getattr(self, key) != usual]):
            raise ValueError(f"{', '.join(said)}: each of the [[data.sources]] has its own; write it there")
        if len(self.sources) > 1 and any("weight" not in source.model_fields_set for source in self.sources):
            raise ValueError("weight: each of several [[data.sources]] needs one, its share of the text")
        return self


LATER_KEYS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("revision", "template", "domain", "prepared"), (None,)),
    "sources": ((), []),
    "shares": ("routes",),
}
"""Keys that older run files did not have -> what they are where they say nothing."""
OF_A_SOURCE = {key: field.default for key, field in SourceConfig.model_fields.items() if key != "source"}
"""Keys that a source has, and what they are where nobody says so."""


def _template_problem(template: str) -> str | None:
    """Why a text is no template."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        return f"{error}; a brace that is text is written twice"
    names = [(name, spec, conversion) for _, name, spec, conversion in parts if name is not None]
    if not names:
        return 'it names no field; write for example "{title}\\n\\n{text}"'
    for name, spec, conversion in names:
        if not name or spec or conversion or set(name) & set(".["):
            return "between braces stands the name of a field and nothing else"
    times = Counter(name for name, _, _ in names)
    if len(times) > MOST_FIELDS or max(times.values()) > MOST_TIMES:
        return f"it may name {MOST_FIELDS} fields, each {MOST_TIMES} times"
    return None
