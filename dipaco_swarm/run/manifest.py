"""What the operator publishes: the run file, and the stages that have begun.

Everything big (tokenizer, router arrays, module seeds) is named here by its SHA-256 digest and fetched as a blob.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.lengths import RoundLengths
from dipaco_swarm.run.table import path_table_problem
from dipaco_swarm.run.values import Digest, Frozen
from dipaco_swarm.strategies import PACING


class Restored(Frozen):
    """The operator has gone back with a module: this state counts, and what comes from it."""

    generation: int = Field(ge=1, le=255)
    """How often that was done with it in this stage."""
    version: int = Field(ge=0)
    digest: Digest
    """Of the state as it is since."""


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
    text_characters: int | None = Field(default=None, gt=0)
    """Where documents are read beside training, they are cut into texts of so many characters, about a sequence by the
    run's own tokenizer, each of which goes to a path as a whole. None: four for each token."""
    resting: tuple[int, ...] = ()
    """Paths that nobody trains in this stage: modules that no other path has keep their bytes."""
    seeds: dict[str, Digest]
    """Blob of the parameters that each module (written L0M1) starts from."""
    momenta: dict[str, Digest] = Field(default_factory=dict)
    """Blob of the outer momentum that each module starts with, when the stage keeps the paths of the one before. Empty
    when paths are new: then momentum starts at zero, and the outer learning rate ramps up."""
    rounds: int | None = Field(default=None, gt=0)
    """The stage is done when every module has made this many outer steps; without it, when the operator says so. Where
    it trains on until the next one opens, modules have made more of them in the end."""
    first_step: int = Field(default=0, ge=0)
    """Inner steps of a path before this stage: its learning rate schedule goes on from there."""
    inner_steps: tuple[tuple[int, int], ...] = ()
    """Where the operator has changed how many a round has: (version, inner steps of a round from there on)."""
    restored: dict[str, Restored] = Field(default_factory=dict)
    """Modules (written L0M1) with which the operator has gone back to an older state, and to which one last."""

    @model_validator(mode="after")
    def _fits_itself(self) -> Self:
        if problem := path_table_problem(self.table):
            raise ValueError(problem)
        versions = [version for version, _ in self.inner_steps]
        if versions and (versions[0] != 0 or versions != sorted(set(versions))):
            raise ValueError(f"inner steps of rounds change at the versions {versions}, which do not rise from 0")
        if any(steps < 1 for _, steps in self.inner_steps):
            raise ValueError("a round has at least one inner step")
        if len(self.path_weights) != len(self.table):
            raise ValueError(f"{len(self.path_weights)} path weights for {len(self.table)} paths")
        if self.overlap > len(self.table):
            raise ValueError(f"overlap={self.overlap} but there are {len(self.table)} paths")
        if min(self.path_weights) <= 0 or not math.isclose(sum(self.path_weights), 1.0, rel_tol=1e-6):
            raise ValueError("path weights must be positive and sum to one")
        if not set(self.resting) < set(range(len(self.table))):
            raise ValueError(f"the paths {self.resting} of {len(self.table)} rest, and one at least has to train")
        modules = self.modules
        if set(self.seeds) != modules:
            raise ValueError("there must be exactly one seed for each module of the path table")
        if self.momenta and set(self.momenta) != modules:
            raise ValueError("there must be the outer momentum of each module of the path table, or of none")
        if not set(self.restored) <= modules:
            raise ValueError(f"restored: {sorted(set(self.restored) - modules)[0]} is no module of the path table")
        return self

    @property
    def generations(self) -> dict[str, int]:
        """How often the operator has gone back with modules (written L0M1); without those that never were."""
        return {module: state.generation for module, state in self.restored.items()}

    @property
    def modules(self) -> set[str]:
        """The modules of the path table, written L0M1."""
        return {f"L{level}M{index}" for row in self.table for level, index in enumerate(row)}


class Closing(Frozen):
    """The rounds of the current stage are done; it trains on while the operator's node prepares the next one."""

    params: dict[str, Digest]
    """Blob of the parameters that each module (written L0M1) had then: what paths score the routing sample with."""
    ends: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    """The last version of each module, once the next stage is ready to open. Empty: the stage goes on."""


class Delegate(Frozen):
    """A standby: a bootstrap node with a key of its own, which the operator has signed."""

    key: Digest
    """Its public key, in hexadecimal."""
    signature: str = Field(pattern=r"^[0-9a-f]{128}$")
    """The operator's, under the key: with it this node can sign manifests for the operator."""
    places: tuple[Annotated[str, Field(max_length=300)], ...] = Field(max_length=8)
    """Where it can be dialled, for run addresses."""


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
    closing: Closing | None = None
    """How the current stage comes to its end, where it trains on until the next one opens; none before its rounds are
    done."""
    coming: Stage | None = None
    """The next stage as far as it is known, so that peers get ready for it beside training. Its modules will start from
    others than these: from the last versions of the current stage."""
    decays: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per level, where the weights of its modules decay: each a parameter before which a place ends, and the learning
    rate there as a multiple of the base one, 0 where nothing decays. None: weight decay is in outer gradients."""
    feature_seeds: tuple[Digest, ...] = ()
    """Per level, the blob of the frozen dense model that turns a prefix into the router's feature; none at first."""
    window_router: Digest | None = None
    """Blob of the window router of the last stage; none before the run is finished, or without [rerouting]."""
    peers: Digest | None = None
    """Blob of who may take part and who may not (run/register.py); none: nobody was admitted or banned yet."""
    delegates: tuple[Delegate, ...] = Field(default=(), max_length=8)
    """Nodes that may take over; none: there is only the operator's own."""
    finished: bool = False
    """The last stage's rounds are done: hold, evaluate, serve; train no more."""

    @model_validator(mode="after")
    def _decays_fit(self) -> Self:
        if self.decays and len(self.decays) != len(self.config.levels):
            raise ValueError(f"decays: {len(self.decays)} levels, but the model has {len(self.config.levels)}")
        for level, places in enumerate(self.decays):
            stops = [stop for stop, _ in places]
            if stops != sorted({*stops}) or any(stop < 1 for stop in stops):
                raise ValueError(f"decays: the places of level {level} do not rise")
            if not all(0 <= ratio < math.inf for _, ratio in places):
                raise ValueError(f"decays: a learning rate of level {level} is negative, or no number")
        return self

    @model_validator(mode="after")
    def _what_comes_fits(self) -> Self:
        closing, coming = self.closing, self.coming
        if closing is not None:
            if set(closing.params) != self.stage.modules:
                raise ValueError("closing: there must be the parameters of each module of the current stage")
            if closing.ends and set(closing.ends) != self.stage.modules:
                raise ValueError("closing: there must be a last version of each of its modules, or of none")
        if coming is not None and (closing is None or coming.index != self.stage.index + 1):
            raise ValueError(f"coming: stage {coming.index} cannot come, for stage {self.stage.index} is not closing")
        return self

    @property
    def stage(self) -> Stage:
        """The current stage: the newest that has begun."""
        return self.stages[-1]

    @property
    def rules(self) -> RunConfig:
        """The run file as it is in the current stage."""
        return self.config.at(self.stage.index)

    @property
    def trains_on(self) -> bool:
        """Whether the current stage goes on after its rounds until the next one opens."""
        return PACING[self.rules.rounds.pacing].trains_on and self.stage.index + 1 < len(self.config.stages)

    @property
    def last_versions(self) -> Mapping[str, int]:
        """The version after which each module (written L0M1) of the current stage is done; without those that go on."""
        if self.trains_on:
            return {} if self.closing is None else self.closing.ends
        rounds = self.stage.rounds
        return {} if rounds is None else dict.fromkeys(self.stage.modules, rounds)

    @property
    def lengths(self) -> RoundLengths:
        """Of the current stage's rounds."""
        return RoundLengths(self.stage.inner_steps or ((0, self.rules.rounds.inner_steps),))

    def canonical_bytes(self) -> bytes:
        """The one byte string that stands for this manifest: JSON, sorted keys, no spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    def digest(self) -> str:
        return hashlib.sha256(self.canonical_bytes()).hexdigest()
