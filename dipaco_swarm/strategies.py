"""What a run file may choose by name, and where the code of each choice is.

    RUN.toml             here         an object of type
    [wire] codec         CODECS       swarm.round.codecs.codec.Codec
    [outer] averaging    AVERAGING    algorithm.averaging.rule.Averaging
    [rounds] pacing      PACING       algorithm.pacing.pacing.Pacing
    [data] source        SOURCES      training.documents.Source
    [[stages]] router    ROUTERS      algorithm.routers.router.RouterKind

To add a choice: write its file, and add its line here. The run file then accepts its name, and a wrong name is
answered with the names that there are.

The code is named and not imported, and loaded when a run uses it: this floor is below all of it, and whoever only
reads a run file needs neither torch nor numpy. What the run file itself must know of a choice stands in its line.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Generic, Literal, TypeVar


@dataclass(frozen=True)
class Choice:
    """One line: a name, and the object behind it."""

    name: str
    code: object
    """`module:attribute` within this package, or the object itself."""


def loaded(code: object) -> object:
    """The object that `Choice.code` names, or is."""
    if not isinstance(code, str):
        return code
    module, _, attribute = code.partition(":")
    found: object = getattr(import_module(f"{__package__}.{module}"), attribute)
    return found


C = TypeVar("C", bound=Choice)


class Choices(Generic[C]):
    """The choices of one key of the run file, in the order in which people read them."""

    def __init__(self, key: str, *choices: C) -> None:
        """`key`: the key of the run file, for messages."""
        self._key = key
        self._by_name = {choice.name: choice for choice in choices}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __getitem__(self, name: str) -> C:
        """The line of a name. Raises ValueError when there is none."""
        try:
            return self._by_name[name]
        except KeyError:
            raise ValueError(f"there is no {self._key} {name!r}; choose {self.listed}") from None

    @property
    def listed(self) -> str:
        """The names as people write them: 'fp32', 'bf16' or 'int8'."""
        *most, last = map(repr, self._by_name)
        return f"{', '.join(most)} or {last}" if most else last

    def load(self, name: str) -> object:
        """The object of a name; the import of its module comes with the first use."""
        return loaded(self[name].code)

    def register(self, choice: C) -> None:
        """Add a choice from outside this package. Raises ValueError when the name is taken."""
        if choice.name in self._by_name:
            raise ValueError(f"there is a {self._key} {choice.name!r} already; give yours another name")
        self._by_name[choice.name] = choice

    def remove(self, name: str) -> None:
        """Take back what `register` added."""
        del self._by_name[self[name].name]


@dataclass(frozen=True)
class CodecChoice(Choice):
    bytes_on_the_way: float = 4.0
    """Of a parameter that is a normal number, packed; measured."""


CODECS = Choices(
    "wire.codec",
    CodecChoice("fp32", "swarm.round.codecs.exact:EXACT"),
    CodecChoice("bf16", "swarm.round.codecs.bf16:BF16", bytes_on_the_way=1.4),
    CodecChoice("int8", "swarm.round.codecs.int8:INT8", bytes_on_the_way=0.83),
    CodecChoice("int4", "swarm.round.codecs.int4:INT4", bytes_on_the_way=0.45),
    CodecChoice("e3m0", "swarm.round.codecs.e3m0:E3M0", bytes_on_the_way=0.45),
)


@dataclass(frozen=True)
class AveragingChoice(Choice):
    keeps_length: bool = False
    """The average does not shorten with the number of paths, so that [outer] rescale would lengthen it twice."""


AVERAGING = Choices(
    "outer.averaging",
    AveragingChoice("robust", "algorithm.averaging.robust:ROBUST"),
    AveragingChoice("mean", "algorithm.averaging.mean:MEAN"),
    AveragingChoice("radial", "algorithm.averaging.radial:RADIAL", keeps_length=True),
)


@dataclass(frozen=True)
class PacingChoice(Choice):
    overlaps_by_steps: bool = False
    """Whether [rounds] overlap_steps says how long training goes on beside a round, and not overlap whether it does."""
    trains_on: bool = False
    """Whether a stage whose rounds are done trains on until the next one opens; else all wait for it at one version."""


PACING = Choices(
    "rounds.pacing",
    PacingChoice("synchronous", "algorithm.pacing.synchronous:SYNCHRONOUS", overlaps_by_steps=True),
    PacingChoice("paced", "algorithm.pacing.paced:PACED", trains_on=True),
)


@dataclass(frozen=True)
class SourceChoice(Choice):
    needs_path: bool = True
    """Whether [data] path says what is to be read."""
    portions: object = None
    """What divides its documents into portions, `training.documents.Divide`, named like `code`; None: nothing does, and
    they are read whole."""
    is_remote: bool = False
    """Whether the documents are elsewhere: nobody knows how many they are before reading."""
    has_fields: bool = True
    """Whether a document is a row with names for its fields, of which [data] column or template names the text."""


SOURCES = Choices(
    "data.source",
    SourceChoice("python", "training.sources.python:read", needs_path=False, has_fields=False),
    SourceChoice(
        "text",
        "training.sources.files:read_text",
        portions="training.sources.files:text_portions",
        has_fields=False,
    ),
    SourceChoice("jsonl", "training.sources.files:read_jsonl", portions="training.sources.files:jsonl_portions"),
    SourceChoice("parquet", "training.sources.files:read_parquet", portions="training.sources.files:parquet_portions"),
    SourceChoice(
        "huggingface",
        "training.sources.huggingface:read",
        portions="training.sources.huggingface:portions",
        is_remote=True,
    ),
    SourceChoice(
        "mixture",
        "training.sources.mixture:read",
        portions="training.sources.mixture:portions",
        needs_path=False,
        has_fields=False,
    ),
)


@dataclass(frozen=True)
class RouterChoice(Choice):
    paths: Literal["one", "table", "before", "added"] = "table"
    """Where the stage's paths come from. one: there is one, and no router and no code. table: the run file's `modules`
    or `paths`. before: those of the stage before. added: those, which rest, and `paths`, which train."""
    branching: int | None = None
    """The levels of `modules` that must branch; None: any table will do."""
    needs_scores: bool = False
    """Whether the peers score the routing sample first, each under the path that it trains."""


ROUTERS = Choices(
    "stages.router",
    RouterChoice("single", None, paths="one"),
    RouterChoice("k-means", "algorithm.routers.k_means:K_MEANS"),
    RouterChoice("product-k-means", "algorithm.routers.product_k_means:PRODUCT_K_MEANS", branching=2),
    RouterChoice(
        "discriminative", "algorithm.routers.discriminative:DISCRIMINATIVE", paths="before", needs_scores=True
    ),
    RouterChoice("added", "algorithm.routers.added:ADDED", paths="added"),
)
