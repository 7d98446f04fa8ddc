"""What a run agreed on: the operator's run file, the signed manifest made from it, and the address that names it.

    RUN.toml --read_run_file--> RunConfig --(bootstrap node: tokenizer, stages)--> Manifest --sign--> bytes in the swarm

A volunteer is given a `RunAddress`: the run's name, the fingerprint of the operator's public key, and where to knock.
The fingerprint is what makes a manifest trustworthy. Everything big (tokenizer, router arrays, module seeds) is named
in the manifest by its SHA-256 digest and fetched as a blob. Frozen values, checked when made; no torch, no network.
"""

import base64
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic_core import PydanticKnownError

from dipaco_swarm.errors import AddressError, ManifestError, RunFileError
from dipaco_swarm.strategies import AVERAGING, CODECS, PACING, ROUTERS, SOURCES, Choices

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a blob, in hexadecimal."""

RunName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]

MANIFEST_FORMAT = 1


def one_of(choices: Choices[Any]) -> BeforeValidator:
    """A text that is one of these names; another one is answered with all of them."""

    def check(value: object) -> object:
        if value not in choices:
            raise PydanticKnownError("literal_error", {"expected": choices.listed})
        return value

    return BeforeValidator(check)


class Frozen(BaseModel):
    """A value: frozen, strictly typed, and unknown keys are mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelConfig(Frozen):
    """One path as a transformers causal language model."""

    model_type: str = "llama"
    """Any Llama-style model type that transformers knows: llama, mistral, qwen2, ..."""
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int | None = Field(default=None, gt=0)
    max_position_embeddings: int = Field(default=1024, gt=0)
    tie_word_embeddings: bool = False
    extra: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Further fields of the transformers configuration, passed on as they are."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
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


class TokenizerConfig(Frozen):
    """The run's tokenizer: an existing one, or a byte-level BPE that the bootstrap node trains on a sample of data."""

    path: str | None = None
    """A folder or tokenizer.json on the bootstrap node; peers fetch it from the swarm."""
    vocab_size: int = Field(default=2048, ge=300, le=1_000_000)
    """Size of the vocabulary that is trained when no path is given."""


class DataConfig(Frozen):
    """Where documents come from. Every peer reads them itself; no document ever travels."""

    source: Annotated[str, one_of(SOURCES)]
    """`python`: the text of the Python installation itself. `huggingface`: a dataset name. Else: files on each peer."""
    path: str | None = None
    """Glob of files (text, jsonl, parquet) or name of the Hugging Face dataset."""
    config: str | None = None
    """Configuration of the Hugging Face dataset."""
    split: str = "train"
    column: str = "text"
    """The field that holds a document's text."""
    max_documents: int | None = Field(default=None, gt=0)
    """Read at most this many documents; for trials."""
    sequence_length: int = Field(default=256, ge=16)
    """Tokens per training sequence."""
    holdout: float = Field(default=0.05, gt=0, lt=0.5)
    """Share of documents kept for evaluation, chosen by a hash of the text; never trained on."""
    routing_sample: float = Field(default=0.05, gt=0, lt=0.5)
    """Share of documents the operator's router is fitted on, chosen by the same hash; never trained on."""

    @model_validator(mode="after")
    def _files_need_a_path(self) -> Self:
        if SOURCES[self.source].needs_path and not self.path:
            raise ValueError(f'source="{self.source}" needs path')
        return self


class InnerConfig(Frozen):
    """The inner optimizer: AdamW on a path's shard (paper table 4; DiLoCo)."""

    learning_rate: float = Field(default=4e-4, gt=0)
    embedding_learning_rate_ratio: float = Field(default=1.0, gt=0)
    """Learning rate of the embedding, as a multiple of learning_rate. Small models need a large one (30)."""
    head_learning_rate_ratio: float = Field(default=1.0, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    weight_decay: float = Field(default=0.1, ge=0)
    gradient_clip: float = Field(default=1.0, gt=0)
    warmup_steps: int = Field(default=1000, ge=0)
    schedule_steps: int = Field(default=88_000, gt=0)
    """Length of the cosine schedule, in inner steps of a path over all stages."""
    final_learning_rate_ratio: float = Field(default=0.1, ge=0, le=1)
    batch_sequences: int = Field(default=512, gt=0)
    """Sequences per inner step; a peer accumulates micro-batches until it has them."""


class OuterConfig(Frozen):
    """The outer optimizer: Nesterov on the averaged outer gradient."""

    learning_rate: float = Field(default=0.7, gt=0)  # DiPaCo section 4
    momentum: float = Field(default=0.9, ge=0, lt=1)  # DiPaCo section 4; 0.6 in runs of some tens of rounds
    rescale: bool = True
    """Multiply the average by the square root of the effective number of paths (paper section 2.7)."""
    averaging: Annotated[str, one_of(AVERAGING)] = "mean"
    """radial: mean length times mean direction, which needs no rescaling (docs/paper.md#radial-averaging)."""
    ramp_rounds: int = Field(default=0, ge=0)
    """The learning rate rises linearly from half over the first rounds of a module in a stage."""

    @model_validator(mode="after")
    def _lengthens_once(self) -> Self:
        if AVERAGING[self.averaging].keeps_length and self.rescale:
            raise ValueError(
                f'averaging="{self.averaging}" keeps the length of outer gradients itself; set rescale = false'
            )
        return self

    def learning_rate_at(self, version: int) -> float:
        """The outer learning rate of the step that takes a module from `version` to `version + 1` of its stage."""
        if version >= self.ramp_rounds:
            return self.learning_rate
        return self.learning_rate * (0.5 + 0.5 * version / self.ramp_rounds)


class RoundsConfig(Frozen):
    """When an outer round of a module is due."""

    pacing: Annotated[str, one_of(PACING)] = "paced"
    """synchronous: every member takes exactly inner_steps. paced: when the group's tokens reach the target."""
    inner_steps: int = Field(default=150, gt=0)  # tau, paper figure 9


class WireConfig(Frozen):
    """How outer gradients travel."""

    codec: Annotated[str, one_of(CODECS)] = "int8"


class LimitsConfig(Frozen):
    """Bounds on what strangers may do."""

    norm_clip: float = Field(default=4.0, gt=1)
    """No contribution counts for more than this many times the median norm of its round."""
    max_members: int = Field(default=256, gt=0)
    """Members of one module group that a peer will listen to."""


class RouterConfig(Frozen):
    """How a router is fitted (paper section 2.4 and 7.2)."""

    prefix_tokens: int = Field(default=32, ge=1)  # paper section 2.4
    max_documents: int = Field(default=20_000, gt=1)
    """Documents of the routing sample that are used at most."""
    components: int = Field(default=32, ge=1)
    """PCA components of the prefix feature that are kept."""
    min_share: float = Field(default=0.25, ge=0, lt=1)
    """No shard smaller than this share of an equal split."""


class EarlyStoppingConfig(Frozen):
    """Per path, the parameters with the lowest loss on a slice of its shard are kept, for serving (paper section 4)."""

    share: float = Field(default=0.01, gt=0, lt=0.5)
    """Share of each shard's documents in its slice, chosen by a hash of the text; never trained on."""
    max_sequences: int = Field(default=256, gt=0)
    """Sequences of the slice that are scored at most."""
    every: int = Field(default=5, gt=0)
    """Outer rounds between two scorings."""


class ReroutingConfig(Frozen):
    """The window router: at test time it picks a path anew, every W tokens (paper section 2.4.4 and 7.2.1)."""

    window: int = Field(default=64, ge=1)  # paper table 3
    """Tokens that each choice is trained to suit. W may be another number at test time. With as many as a sequence has,
    choices are trained for the rest of the document, which suits any W almost as well."""
    steps: int = Field(default=2000, ge=1)  # paper section 7.2.1
    learning_rate: float = Field(default=4e-4, gt=0)
    """Falls in a cosine, without warm-up; the other rules of AdamW are those of [inner]."""
    batch_sequences: int = Field(default=32, ge=1)
    max_documents: int = Field(default=20_000, ge=1)
    """Pieces of the routing sample that are used at most. The bootstrap node scores each of them under every path."""


class StageConfig(Frozen):
    """A part of the run with one path table and one router."""

    router: Annotated[str, one_of(ROUTERS)]
    """single: one path that gets every document (DiLoCo; the dense warm-up). discriminative: the paths of the stage
    before, with a router learned from which path likes which document (paper section 2.4.2)."""
    modules: tuple[int | Literal["path"], ...] | None = None
    """Modules per level; all combinations are paths. "path" gives every path its own module at that level."""
    paths: tuple[tuple[int, ...], ...] | None = None
    """Instead of modules: the path table itself, one row per path, one module index per level."""
    overlap: int = Field(default=1, ge=1)
    """Nearest paths that train on a document; in evaluation it is always one (paper section 2.4.3: 2 of 256)."""
    rounds: int | None = Field(default=None, gt=0)
    """The stage ends when every module has made this many outer steps..."""
    tokens: int | None = Field(default=None, gt=0)
    """... or when each path has trained on this many tokens; without both, when the operator says so."""

    @model_validator(mode="after")
    def _ends_by_one_rule(self) -> Self:
        if self.rounds is not None and self.tokens is not None:
            raise ValueError(f"rounds={self.rounds} and tokens={self.tokens}: give one of them, a stage ends once")
        return self

    @model_validator(mode="after")
    def _table_fits_router(self) -> Self:
        choice = ROUTERS[self.router]
        if choice.paths != "table":
            if self.modules is not None or self.paths is not None:
                has = "has one path" if choice.paths == "one" else "keeps the paths it finds"
                raise ValueError(f'router="{self.router}" {has}; leave out modules and paths')
            return self
        if (self.modules is None) == (self.paths is None):
            raise ValueError(f'router="{self.router}" needs either modules or paths')
        if self.modules is not None and any(isinstance(count, int) and count < 1 for count in self.modules):
            raise ValueError(f"modules={list(self.modules)}: every level needs at least one module")
        if choice.branching is not None:
            branching = [c for c in self.modules or () if isinstance(c, int) and c > 1]
            if self.paths is not None or len(branching) != choice.branching:
                raise ValueError(
                    f'router="{self.router}" needs modules with exactly {choice.branching} levels that branch, '
                    f"for example {[2] * choice.branching}"
                )
        if self.paths is not None and (problem := path_table_problem(self.paths)):
            raise ValueError(f"paths: {problem}")
        if self.num_paths == 1:
            raise ValueError(f'router="{self.router}" needs at least two paths; with one path it is router="single"')
        return self

    @property
    def num_paths(self) -> int | None:
        """Paths of the stage's table; None when they are those of the stage before."""
        if ROUTERS[self.router].paths == "before":
            return None
        return len(self.paths) if self.paths else math.prod(c for c in self.modules or () if isinstance(c, int))


class RunConfig(Frozen):
    """The run file. Its order of sections is the order of a page that explains it."""

    name: RunName
    min_peers: int = Field(default=1, ge=1)
    """Training of a stage starts when this many peers have announced themselves."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    model: ModelConfig
    levels: tuple[LevelConfig, ...] = Field(min_length=1)
    tokenizer: TokenizerConfig = TokenizerConfig()
    data: DataConfig
    inner: InnerConfig = InnerConfig()
    outer: OuterConfig = OuterConfig()
    rounds: RoundsConfig = RoundsConfig()
    wire: WireConfig = WireConfig()
    limits: LimitsConfig = LimitsConfig()
    router: RouterConfig = RouterConfig()
    early_stopping: EarlyStoppingConfig | None = None
    """None: shards are trained on whole, and no snapshots are kept."""
    rerouting: ReroutingConfig | None = None
    """Train a window router when the last stage is done; none: text stays with the path that its prefix chose."""
    stages: tuple[StageConfig, ...] = Field(min_length=1)

    @property
    def tokens_per_step(self) -> int:
        """Tokens in the batch of one inner step."""
        return self.inner.batch_sequences * self.data.sequence_length

    @property
    def round_tokens(self) -> int:
        """Tokens that a path trains on in a full round."""
        return self.rounds.inner_steps * self.tokens_per_step

    def rounds_of(self, stage: StageConfig) -> int | None:
        """Outer rounds after which a stage ends; None: when the operator says so.

        However rounds are paced, one of them is `inner_steps` batches of every path, so tokens are rounds as well.
        """
        if stage.tokens is None:
            return stage.rounds
        return math.ceil(stage.tokens / self.round_tokens)

    def steps_of(self, stages: Sequence[StageConfig]) -> int:
        """Inner steps that a path takes in these stages; none in one that ends when the operator says so."""
        return self.rounds.inner_steps * sum(self.rounds_of(stage) or 0 for stage in stages)

    @model_validator(mode="after")
    def _levels_add_up(self) -> Self:
        blocks = sorted(block for level in self.levels for block in level.blocks)
        expected = list(range(self.model.num_hidden_layers))
        if blocks != expected:
            missing, extra = sorted(set(expected) - set(blocks)), sorted(set(blocks) - set(expected))
            twice = sorted({block for block in blocks if blocks.count(block) > 1})
            what = [
                f"{words} {which}"
                for words, which in (("no level has", missing), ("the model has no", extra), ("twice:", twice))
                if which
            ]
            raise ValueError(
                f"levels must hold each of the model's {len(expected)} blocks exactly once: {'; '.join(what)}"
            )
        for part in ("embedding", "head"):
            holders = [i for i, level in enumerate(self.levels) if getattr(level, part)]
            if len(holders) != 1:
                raise ValueError(f"exactly one level must have {part}=true; now {len(holders)} have")
        if self.model.tie_word_embeddings and not any(level.embedding and level.head for level in self.levels):
            raise ValueError("tie_word_embeddings=true needs embedding and head in the same level")
        paths = 1
        for i, stage in enumerate(self.stages):
            paths = stage.num_paths or paths
            if stage.overlap > paths:
                raise ValueError(
                    f"stages[{i}].overlap={stage.overlap} but the stage has {paths} path{'s' if paths > 1 else ''}; "
                    "a document goes to as many different paths"
                )
            columns = len(stage.modules) if stage.modules is not None else None
            columns = len(stage.paths[0]) if stage.paths else columns
            goes_on = ROUTERS[stage.router].paths == "before" or ROUTERS[stage.router].needs_scores
            if goes_on and (i == 0 or self.stages[i - 1].num_paths == 1):
                raise ValueError(f"stages[{i}] is {stage.router}, but there are no paths to learn from before it")
            if columns is not None and columns != len(self.levels):
                raise ValueError(f"stages[{i}] has {columns} columns but there are {len(self.levels)} levels")
        last = self.stages[-1]
        if self.rerouting is not None and (last.num_paths == 1 or last.rounds is None):
            raise ValueError(
                f"rerouting needs a last stage with several paths and with rounds, but stages[{len(self.stages) - 1}] "
                f'has router="{last.router}" and rounds={last.rounds}: the window router chooses among its paths, and '
                "is trained when its rounds are done"
            )
        if self.data.sequence_length > self.model.max_position_embeddings:
            raise ValueError(
                f"data.sequence_length={self.data.sequence_length} is longer than "
                f"model.max_position_embeddings={self.model.max_position_embeddings}"
            )
        if self.router.prefix_tokens >= self.data.sequence_length:
            raise ValueError(
                f"router.prefix_tokens={self.router.prefix_tokens} leaves nothing of "
                f"data.sequence_length={self.data.sequence_length} to train on"
            )
        return self


def path_table_problem(rows: Sequence[Sequence[int]]) -> str | None:
    """What is wrong with a path table, or None: equal rows in length, all different, modules numbered without gaps."""
    if not rows or not rows[0]:
        return "the path table is empty; it needs at least one path with at least one level"
    for path, row in enumerate(rows):
        if len(row) != len(rows[0]):
            return (
                f"path {path} has {len(row)} levels but path 0 has {len(rows[0])}; every row needs one module per level"
            )
        if min(row) < 0:
            return f"path {path} has a negative module index: {list(row)}"
    seen: dict[tuple[int, ...], int] = {}
    for path, row in enumerate(rows):
        if (first := seen.setdefault(tuple(row), path)) != path:
            return f"paths {first} and {path} take the same modules, {list(row)}; every row must be different"
    for level, column in enumerate(zip(*rows, strict=True)):
        used = set(column)
        if used != set(range(len(used))):
            missing = min(set(range(max(used))) - used)
            return f"level {level} has no module {missing} but has {max(used)}; number them 0, 1, 2, ... without gaps"
    return None


class Stage(Frozen):
    """A stage that has begun: everything a peer needs to take part in it."""

    index: int = Field(ge=0)
    table: tuple[tuple[int, ...], ...]
    """The path table: a row per path, a module index per level."""
    path_weights: tuple[float, ...]
    """Share of the documents that each path trains on, each counted `overlap` times; the weight of its outer gradients.
    Sums to one."""
    router: Digest | None
    """Blob of the router's arrays; none in a stage of one path."""
    overlap: int = Field(default=1, ge=1)
    """Nearest paths that train on a document."""
    seeds: dict[str, Digest]
    """Blob of the parameters that each module (written L0M1) starts from."""
    momenta: dict[str, Digest] = Field(default_factory=dict)
    """Blob of the outer momentum that each module starts with, when the stage keeps the paths of the one before. Empty
    when paths are new: then momentum starts at zero, and the outer learning rate ramps up."""
    rounds: int | None = Field(default=None, gt=0)
    """The stage ends when every module has made this many outer steps; without it, when the operator says so."""
    first_step: int = Field(default=0, ge=0)
    """Inner steps of a path before this stage: its learning rate schedule goes on from there."""

    @model_validator(mode="after")
    def _fits_itself(self) -> Self:
        if problem := path_table_problem(self.table):
            raise ValueError(problem)
        if len(self.path_weights) != len(self.table):
            raise ValueError(f"{len(self.path_weights)} path weights for {len(self.table)} paths")
        if self.overlap > len(self.table):
            raise ValueError(f"overlap={self.overlap} but there are {len(self.table)} paths")
        if min(self.path_weights) <= 0 or not math.isclose(sum(self.path_weights), 1.0, rel_tol=1e-6):
            raise ValueError("path weights must be positive and sum to one")
        modules = {f"L{level}M{index}" for row in self.table for level, index in enumerate(row)}
        if set(self.seeds) != modules:
            raise ValueError("there must be exactly one seed for each module of the path table")
        if self.momenta and set(self.momenta) != modules:
            raise ValueError("there must be the outer momentum of each module of the path table, or of none")
        return self


class Manifest(Frozen):
    """What the operator publishes: the run file, resolved as far as the run has come."""

    format: Literal[1] = 1
    revision: int = Field(ge=0)
    """Rises with every publication; a peer never goes back."""
    config: RunConfig
    tokenizer: Digest
    stages: tuple[Stage, ...] = Field(min_length=1)
    scoring: Digest | None = None
    """Blob of the routing sample, while the peers are asked to score it under their paths."""
    feature_seeds: tuple[Digest, ...] = ()
    """Per level, the blob of the frozen dense model that turns a prefix into the router's feature; none at first."""
    window_router: Digest | None = None
    """Blob of the window router of the last stage; none before the run is finished, or without [rerouting]."""
    finished: bool = False
    """The last stage's rounds are done: hold, evaluate, serve; train no more."""

    @property
    def stage(self) -> Stage:
        """The current stage: the newest that has begun."""
        return self.stages[-1]

    def canonical_bytes(self) -> bytes:
        """The one byte string that stands for this manifest: JSON, sorted keys, no spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    def digest(self) -> str:
        return hashlib.sha256(self.canonical_bytes()).hexdigest()


def read_run_file(path: Path) -> RunConfig:
    """Read and check the operator's RUN.toml. Raises RunFileError that names the field, the value and the reason."""
    try:
        return parse_run_file(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise RunFileError(
            f"there is no run file {path}; `dipaco-bootstrap init {path}` writes one to start from"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunFileError(f"the run file {path} cannot be read: {error}") from None


def parse_run_file(text: str, name: str = "run file") -> RunConfig:
    """Check the text of a run file. Raises RunFileError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RunFileError(f"{name} is not valid TOML: {error}") from None
    try:
        # through JSON, so that strict types accept TOML's arrays as tuples and nothing else is bent
        return RunConfig.model_validate_json(json.dumps(document, default=_not_json))
    except ValidationError as error:
        raise RunFileError(f"{name}: {_explain(error)}") from None


def _not_json(value: Any) -> list[str]:
    """TOML has dates and JSON has not: as a list, which no field takes for a text."""
    return [str(value)]


def _explain(error: ValidationError) -> str:
    """The first problems of a validation, one `field: reason (got value)` each."""
    reasons: dict[str, list[str]] = {}
    got: dict[str, str] = {}
    for problem in error.errors():
        field = _field(problem["loc"])
        reason = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            reason = "this key is not known; check its spelling and section"
        elif problem["type"] == "missing":
            reason = "this key is required"
        elif problem["type"] != "value_error":
            reason = reason[:1].lower() + reason[1:]
            got[field] = f" (got {_short(problem['input'])})"
        reasons.setdefault(field, []).append(reason)  # a union says one reason for each of its types
    problems = [f"{field}: {', or '.join(why)}{got.get(field, '')}" for field, why in reasons.items()]
    more = len(problems) - 3
    return "; ".join(problems[:3]) + (f"; and {more} more" if more > 0 else "")


def _field(location: Sequence[int | str]) -> str:
    """`stages[1].modules[0]`, as one would point at it; pydantic adds the types of a union, which nobody wrote."""
    name = ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part != "int" and not part.startswith("literal["):
            name += f".{part}" if name else part
    return name or "as a whole"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ---------------------------------------------------------------------------------------------- signing and addresses


def fingerprint_of(key: Ed25519PublicKey) -> str:
    """The first 160 bits of the SHA-256 of a public key, in base 32: what a run address carries."""
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return base64.b32encode(hashlib.sha256(raw).digest()[:20]).decode().lower()


def sign_manifest(manifest: Manifest, key: Ed25519PrivateKey) -> bytes:
    """The manifest as it is published: JSON of public key, signature, and the canonical bytes."""
    body = manifest.canonical_bytes()
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    envelope = {"public_key": public.hex(), "signature": key.sign(body).hex(), "manifest": body.decode()}
    return json.dumps(envelope).encode()


def open_manifest(signed: bytes, fingerprint: str) -> Manifest:
    """Check a published manifest against the fingerprint of the run address; raises ManifestError."""
    try:
        envelope = json.loads(signed)
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(envelope["public_key"]))
        signature, body = bytes.fromhex(envelope["signature"]), envelope["manifest"].encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # RecursionError: brackets without end
        raise ManifestError(
            "the manifest is not a signed manifest; it was damaged or made by another program"
        ) from None
    if fingerprint_of(key) != fingerprint:
        raise ManifestError(
            f"the manifest is signed by {fingerprint_of(key)}, but the run address names {fingerprint}; "
            "check the address with the operator of the run"
        )
    try:
        key.verify(signature, body)
    except InvalidSignature:
        raise ManifestError(
            "the manifest was altered after the operator signed it; ask another bootstrap node"
        ) from None
    try:
        return Manifest.model_validate_json(body)
    except ValidationError as error:
        raise ManifestError(
            f"the manifest does not fit this version of dipaco-swarm ({_explain(error)}); update, or ask the operator"
        ) from None


def signer_of(signed: bytes) -> str:
    """The fingerprint of whoever signed a manifest, for files of our own; raises ManifestError."""
    try:
        return fingerprint_of(Ed25519PublicKey.from_public_bytes(bytes.fromhex(json.loads(signed)["public_key"])))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ManifestError(
            "the manifest is not a signed manifest; it was damaged or made by another program"
        ) from None


@dataclass(frozen=True)
class RunAddress:
    """The one string a volunteer is given: `dipaco:NAME:FINGERPRINT@MULTIADDR[,MULTIADDR...]`."""

    name: str
    fingerprint: str
    bootstraps: tuple[str, ...]

    def __str__(self) -> str:
        return f"dipaco:{self.name}:{self.fingerprint}@{','.join(self.bootstraps)}"

    @classmethod
    def parse(cls, text: str) -> "RunAddress":
        """Read a run address. Raises AddressError that says which part is wrong."""
        text = "".join(text.split())  # an address that was copied from a narrow window has line breaks in it
        match = re.fullmatch(r"dipaco:([^:@]*):([^:@]*)@(.*)", text)
        if match is None:
            raise AddressError(
                f"{_short(text)} is not a run address; it looks like "
                "dipaco:NAME:FINGERPRINT@/ip4/1.2.3.4/tcp/4001/p2p/..., and `dipaco-bootstrap serve` prints it"
            )
        name, fingerprint, places = match.groups()
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", name):
            raise AddressError(
                f"the run address has the name {name!r}; names are lower-case letters, digits and dashes"
            )
        if not re.fullmatch(r"[a-z2-7]{32}", fingerprint):
            raise AddressError(
                f"the run address has the fingerprint {fingerprint!r}, which is not 32 letters and digits"
            )
        bootstraps = tuple(place for place in places.split(",") if place)
        for place in bootstraps:
            if not re.fullmatch(r"/[a-z0-9]+(/[^/,]+)+/p2p/[1-9A-HJ-NP-Za-km-z]+", place):
                raise AddressError(f"{place!r} in the run address is not a multiaddr that ends in /p2p/PEER")
        if not bootstraps:
            raise AddressError("the run address names no bootstrap node after the @")
        return cls(name, fingerprint, bootstraps)

    @property
    def nobody_knows_it(self) -> str:
        """What to tell a person when bootstrap nodes answer and none of them has the run's manifest."""
        return (
            f"there is no run {self.name} with the fingerprint {self.fingerprint} at {', '.join(self.bootstraps)}; "
            "check the run address with the operator, and if the node has just been started, try again in a minute"
        )

    def with_bootstraps(self, bootstraps: Sequence[str]) -> "RunAddress":
        return RunAddress(self.name, self.fingerprint, tuple(bootstraps))
