"""The operator's run file as a value: one class a section, with its defaults, bounds and meaning."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from dipaco_swarm.run.data import DataConfig as DataConfig
from dipaco_swarm.run.model import LevelConfig as LevelConfig
from dipaco_swarm.run.model import ModelConfig as ModelConfig
from dipaco_swarm.run.model import levels_problem
from dipaco_swarm.run.problems import explain
from dipaco_swarm.run.stage import StageConfig as StageConfig
from dipaco_swarm.run.stage import Value
from dipaco_swarm.run.values import Frozen, RunName, one_of
from dipaco_swarm.strategies import AVERAGING, CODECS, PACING, ROUTERS


class AboutConfig(Frozen):
    """What model cards say of the run. Nothing of it changes the training."""

    description: str | None = Field(default=None, max_length=4000)
    """Markdown."""
    license: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=60)
    """Of the model, as the Hugging Face hub writes it: apache-2.0, cc-by-sa-4.0, other."""
    languages: tuple[Annotated[str, Field(min_length=1, max_length=20)], ...] = Field(default=(), max_length=100)
    """Of the documents: en, de, code."""
    datasets: tuple[Annotated[str, Field(min_length=1, max_length=100)], ...] = Field(default=(), max_length=100)
    """Names on the hub of what was trained on; by default [data] path, where that is one."""


class TokenizerConfig(Frozen):
    """The run's tokenizer: an existing one, or a byte-level BPE that the bootstrap node trains on a sample of data."""

    path: str | None = None
    """A folder or tokenizer.json on the bootstrap node; peers fetch it from the swarm."""
    vocab_size: int = Field(default=2048, ge=300, le=1_000_000)
    """Size of the vocabulary that is trained when no path is given."""


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
    momentum: float = Field(default=0.9, ge=0, lt=1)  # DiPaCo section 4; 0.3 in runs of some tens of rounds
    rescale: bool = True
    """Multiply the average by the square root of the effective number of paths (paper section 2.7)."""
    averaging: Annotated[str, one_of(AVERAGING)] = "robust"
    """robust: the mean of the contributions that most of the others back. mean: of all. radial: mean length times mean
    direction, which needs no rescaling (docs/paper.md#radial-averaging)."""
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
    overlap: bool | None = None
    """paced: unless this is false, training goes on while a round is made, and is part of the next one."""
    overlap_steps: int = Field(default=0, ge=0)
    """synchronous: exactly so many inner steps are taken while a round is made, and then it is waited for."""

    @property
    def overlaps(self) -> bool:
        """Whether training goes on while a round is made."""
        return self.overlap_steps > 0 if PACING[self.pacing].overlaps_by_steps else self.overlap is not False

    @model_validator(mode="after")
    def _overlap_fits_pacing(self) -> Self:
        by_steps = PACING[self.pacing].overlaps_by_steps
        if self.overlap and by_steps:
            raise ValueError(f'overlap=true needs pacing="paced"; with "{self.pacing}" say overlap_steps')
        if self.overlap_steps and not by_steps:
            raise ValueError(
                f'overlap_steps={self.overlap_steps} needs pacing="synchronous"; {self.pacing} rounds overlap anyway'
            )
        if self.overlap_steps >= self.inner_steps:
            raise ValueError(f"overlap_steps={self.overlap_steps} must be less than inner_steps={self.inner_steps}")
        return self


class WireConfig(Frozen):
    """How outer gradients travel."""

    codec: Annotated[str, one_of(CODECS)] = "int8"


class AdmissionConfig(Frozen):
    """Who may take part."""

    kind: Literal["open", "invited"] = "open"
    """open: whoever has the run address. invited: names that the operator has admitted, or that had an invitation."""


class LimitsConfig(Frozen):
    """Bounds on what strangers may do."""

    norm_clip: float = Field(default=1.25, ge=1)
    """No contribution counts for more than this many times the median norm of its round."""
    max_members: int = Field(default=256, gt=0)
    """Members of one module group that a peer will listen to."""


class AnchorsConfig(Frozen):
    """Copies of all modules that the bootstrap node keeps, to go back to."""

    every: int = Field(default=20, gt=0, le=100_000)
    """Versions from one to the next."""
    keep: int = Field(default=3, ge=0, le=16)
    """So many, each about four times as old as the one before; 0: none. One takes 8 bytes a parameter of all modules on
    the node's disk: three of them are about as much as all else that is there."""


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


MAX_STAGES = 256
FOR_THE_WHOLE_RUN = frozenset({"holdout", "routing_sample", "sequence_length"})
"""Keys of [data]."""


class RunConfig(Frozen):
    """The run file. Its order of sections is the order of a page that explains it."""

    name: RunName
    min_peers: int = Field(default=1, ge=1)
    """Training of a stage starts when this many peers have announced themselves."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    about: AboutConfig = AboutConfig()
    model: ModelConfig
    levels: tuple[LevelConfig, ...] = Field(min_length=1)
    tokenizer: TokenizerConfig = TokenizerConfig()
    data: DataConfig
    inner: InnerConfig = InnerConfig()
    outer: OuterConfig = OuterConfig()
    rounds: RoundsConfig = RoundsConfig()
    wire: WireConfig = WireConfig()
    limits: LimitsConfig = LimitsConfig()
    anchors: AnchorsConfig = AnchorsConfig()
    admission: AdmissionConfig = AdmissionConfig()
    router: RouterConfig = RouterConfig()
    early_stopping: EarlyStoppingConfig | None = None
    """None: shards are trained on whole, and no snapshots are kept."""
    rerouting: ReroutingConfig | None = None
    """Train a window router when the last stage is done; none: text stays with the path that its prefix chose."""
    stages: tuple[StageConfig, ...] = Field(min_length=1, max_length=MAX_STAGES)

    @property
    def tokens_per_step(self) -> int:
        """Tokens in the batch of one inner step."""
        return self.inner.batch_sequences * self.data.sequence_length

    @property
    def round_tokens(self) -> int:
        """Tokens that a path trains on in a full round."""
        return self.rounds.inner_steps * self.tokens_per_step

    def at(self, index: int) -> "RunConfig":
        """As it is in a stage: with what stages up to that one change from there on."""
        changed: dict[str, Frozen] = {}
        for stage in self.stages[: index + 1]:
            for section, values in stage.from_here.items():
                before = changed.get(section, getattr(self, section))
                changed[section] = _with(before, values)
        return self.model_copy(update=changed) if changed else self

    def rounds_of(self, stage: StageConfig) -> int | None:
        """Outer rounds after which a stage ends; None: when the operator says so. `self`: as it is in that stage.

        However rounds are paced, one of them is `inner_steps` batches of every path, so tokens are rounds as well.
        """
        if stage.tokens is None:
            return stage.rounds
        return math.ceil(stage.tokens / self.round_tokens)

    def steps_of(self, stages: Sequence[StageConfig]) -> int:
        """Inner steps that a path takes in these stages; none in one that ends when the operator says so."""
        there = [self.at(index) for index in range(len(self.stages))]
        return sum(
            config.rounds.inner_steps * (config.rounds_of(stage) or 0)
            for config, stage in zip(there, self.stages, strict=True)
            if stage in stages
        )

    @model_validator(mode="after")
    def _levels_add_up(self) -> Self:
        if problem := levels_problem(self.model, self.levels):
            raise ValueError(problem)
        if self.model.checkpoint is not None and self.tokenizer != TokenizerConfig():
            raise ValueError(
                f"tokenizer: the model starts from {self.model.checkpoint}, and has its tokenizer; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _stages_follow_each_other(self) -> Self:
        paths = 1
        for i, stage in enumerate(self.stages):
            adds = ROUTERS[stage.router].paths == "added"
            paths = paths + len(stage.paths or ()) if adds else stage.num_paths or paths
            if stage.overlap > paths:
                raise ValueError(
                    f"stages[{i}].overlap={stage.overlap} but the stage has {paths} path{'s' if paths > 1 else ''}; "
                    "a document goes to as many different paths"
                )
            columns = len(stage.modules) if stage.modules is not None else None
            columns = len(stage.paths[0]) if stage.paths else columns
            goes_on = ROUTERS[stage.router].paths == "before" or ROUTERS[stage.router].needs_scores or adds
            if stage.plateau is not None and self.early_stopping is None:
                raise ValueError(
                    f"stages[{i}].plateau looks at the loss on held-out documents, and nothing is held out of a path's "
                    "shard; write [early_stopping]"
                )
            if adds and "data" not in stage.from_here:
                raise ValueError(
                    f"stages[{i}] adds paths, and has no documents for them; say in [stages.from_here.data] what they "
                    "are to be trained on"
                )
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
        return self

    @model_validator(mode="after")
    def _changes_of_stages_are_values(self) -> Self:
        for i, stage in enumerate(self.stages):
            for key in set(stage.from_here.get("data", {})) & FOR_THE_WHOLE_RUN:
                raise ValueError(
                    f"stages[{i}].from_here.data.{key}: which documents nobody trains on, and how they are cut, is for "
                    "the whole run; leave it out here"
                )
            try:
                self.at(i)
            except ValidationError as error:
                raise ValueError(f"stages[{i}].from_here: {explain(error)}") from None
        return self

    @model_validator(mode="after")
    def _sequences_fit(self) -> Self:
        if self.model.is_described and self.data.sequence_length > self.model.max_position_embeddings:
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


def _with(section: Frozen, values: Mapping[str, Value]) -> Frozen:
    """A section with some other values. Raises ValidationError."""
    before = section.but_for(values) if isinstance(section, DataConfig) else section.model_dump(mode="json")
    return type(section).model_validate_json(json.dumps({**before, **values}))
