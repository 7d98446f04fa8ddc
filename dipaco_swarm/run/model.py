"""The run file's word on one path: what kind of network it is, where it comes from, and how levels divide it."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import ConfigDict, Field, JsonValue, model_validator

from dipaco_swarm.run.values import Frozen

MAX_BLOCKS = 1 << 12
"""More than any model has: whoever reads a run file counts them before anything else is known."""
SHAPE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
"""What every model has to say, and a checkpoint says itself."""


class ModelConfig(Frozen):
    """One path as a transformers causal language model: described by the run file, or taken from a checkpoint.

    With `from` the run file says nothing else of the network; the bootstrap node reads the rest from the checkpoint and
    publishes it, so that peers need the manifest alone (`is_described`).
    """

    model_config = ConfigDict(serialize_by_alias=True)

    checkpoint: str | None = Field(default=None, alias="from", min_length=1)
    """A folder on the bootstrap node, or a name on the Hugging Face hub. Modules start from its parameters."""
    revision: str | None = Field(default=None, min_length=1)
    """Of the hub's repository: a branch, a tag or a commit. The manifest has the commit that was read."""
    model_type: str = "llama"
    """Any Llama-style model type that transformers knows: llama, mistral, qwen2, ..."""
    hidden_size: int | None = Field(default=None, gt=0)
    intermediate_size: int | None = Field(default=None, gt=0)
    num_hidden_layers: int | None = Field(default=None, gt=0, le=MAX_BLOCKS)
    num_attention_heads: int | None = Field(default=None, gt=0)
    num_key_value_heads: int | None = Field(default=None, gt=0)
    max_position_embeddings: int = Field(default=1024, gt=0)
    tie_word_embeddings: bool | None = None
    """One matrix for both ends; no unless the checkpoint says so. false with `from`: the head begins as a copy."""
    vocab_size: int | None = Field(default=None, gt=0)
    """Rows of the embedding. Of a checkpoint only, as it may have more than its tokenizer uses."""
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    """Further fields of the transformers configuration, passed on as they are."""

    @property
    def is_described(self) -> bool:
        """Whether the network can be built; else its checkpoint has to be read first."""
        return self.checkpoint is None or self.vocab_size is not None

    def same_origin(self, other: "ModelConfig") -> bool:
        """Whether both name the same checkpoint, to be used alike; `self` as the run file has it."""
        return (
            self.checkpoint == other.checkpoint
            and self.revision in (None, other.revision)
            and self.tie_word_embeddings in (None, other.tie_word_embeddings)
        )

    @property
    def folder_problem(self) -> str | None:
        """Why the checkpoint's folder cannot be read; None when it may be, or what is named may be on the hub."""
        name = self.checkpoint or ""
        if not name.startswith((".", "/", "~")) or Path(name).expanduser().is_dir():
            return None
        return (
            f'there is no folder "{name}" on this machine (from {Path.cwd()}); correct it, or name a model of the hub'
        )

    @model_validator(mode="after")
    def _says_enough(self) -> Self:
        missing = [name for name in SHAPE if getattr(self, name) is None]
        if self.checkpoint is None:
            if missing:
                raise ValueError(f"{', '.join(missing)}: required, unless `from` names a checkpoint to start from")
            for name in ("revision", "vocab_size"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is for models that start `from` a checkpoint; leave it out")
        elif missing or self.vocab_size is None:
            may_say = {"checkpoint", "revision", "tie_word_embeddings"}
            if said := sorted(self.model_fields_set - may_say):
                raise ValueError(f"{', '.join(said)}: the checkpoint says it; leave it out beside `from`")
            if self.tie_word_embeddings:
                raise ValueError(
                    "tie_word_embeddings=true: the checkpoint says whether they are tied; beside `from` this key can "
                    "be false, which makes the head a copy of the embedding, or left out"
                )
        return self

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if not self.hidden_size or not self.num_attention_heads or "head_dim" in self.extra:
            return self
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads={self.num_attention_heads}"
            )
        return self


class LevelConfig(Frozen):
    """Which parts of the model one level holds."""

    blocks: tuple[int, ...] = ()
    """Indices of transformer blocks; they need not be neighbours (paper section 7.1 shares blocks 1-4 and 7-10)."""
    embedding: bool = False
    head: bool = False
    """The final norm and the output head."""


def levels_problem(model: ModelConfig, levels: Sequence[LevelConfig]) -> str | None:
    """Why the levels do not divide the model among them; None when they do, or the checkpoint has to be read first."""
    for part in ("embedding", "head"):
        holders = [i for i, level in enumerate(levels) if getattr(level, part)]
        if len(holders) != 1:
            return f"exactly one level must have {part}=true; now {len(holders)} have"
    if model.num_hidden_layers is None:
        return None
    blocks = Counter(block for level in levels for block in level.blocks)
    expected = range(model.num_hidden_layers)
    if sorted(blocks.elements()) != list(expected):
        missing, extra = sorted(set(expected) - set(blocks)), sorted(set(blocks) - set(expected))
        twice = sorted(block for block, count in blocks.items() if count > 1)
        what = [
            f"{words} {which}"
            for words, which in (("no level has", missing), ("the model has no", extra), ("twice:", twice))
            if which
        ]
        return f"levels must hold each of the model's {len(expected)} blocks exactly once: {'; '.join(what)}"
    if model.tie_word_embeddings and not any(level.embedding and level.head for level in levels):
        return _tied(model, levels)
    return None


def _tied(model: ModelConfig, levels: Sequence[LevelConfig]) -> str:
    """What to do about a matrix that is embedding and head, and was given to two levels."""
    blocks = "; ".join(f"blocks = {list(level.blocks)}" for level in levels if level.blocks)
    copy = ""
    if model.checkpoint is not None and model.vocab_size and model.hidden_size:
        numbers = model.vocab_size * model.hidden_size
        copy = f". Or set model.tie_word_embeddings = false: the head becomes a copy, {numbers:,} parameters more"
    return (
        "tie_word_embeddings=true: embedding and output head are one matrix, so one level must have embedding = true "
        f"and head = true. Levels that work: one with both and no blocks, which all paths share, then {blocks}, with "
        f"modules = [1, {', '.join('2' for level in levels if level.blocks)}] in the stages{copy}"
    )
