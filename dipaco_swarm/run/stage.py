"""The [[stages]] of a run file."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from dipaco_swarm.run.table import path_table_problem
from dipaco_swarm.run.values import Frozen, one_of
from dipaco_swarm.strategies import ROUTERS

MAX_PATHS = (1 << 16) - 2
"""A path is sent in two bytes, of which two values have another meaning."""
FROM_HERE = ("data", "inner", "outer", "rounds", "wire")
"""Sections of the run file that may change with a stage."""
Section = Literal["data", "inner", "outer", "rounds", "wire"]
Scalar = bool | int | float | str
Value = Scalar | tuple[dict[str, Scalar], ...]
"""Of a key; several sources of documents are a list."""
ModuleName = Annotated[str, StringConstraints(pattern=r"^L\d{1,3}M\d{1,5}$")]


class PlateauConfig(Frozen):
    """When a stage has stopped getting better."""

    rounds: int = Field(gt=0)
    """So many rounds are looked back."""
    gain: float = Field(default=0.005, ge=0)
    """Nats by which the held-out loss, the mean over paths, must have fallen in them."""


class StageConfig(Frozen):
    """A part of the run with one path table and one router."""

    router: Annotated[str, one_of(ROUTERS)]
    """single: one path that gets every document (DiLoCo; the dense warm-up). discriminative: the paths of the stage
    before, with a router learned from which path likes which document (paper section 2.4.2). added: those of the stage
    before, which rest, and further ones in `paths` for documents of another kind."""
    modules: tuple[int | Literal["path"], ...] | None = None
    """Modules per level; all combinations are paths. "path" gives every path its own module at that level."""
    paths: tuple[tuple[int, ...], ...] | None = None
    """Instead of modules: the path table itself, one row per path, one module index per level."""
    parents: dict[ModuleName, ModuleName] = Field(default_factory=dict)
    """Module -> the module of the stage before that it starts from, written L0M2; others: the one of its number, or in
    turns where there are more now."""
    overlap: int = Field(default=1, ge=1)
    """Nearest paths that train on a document; in evaluation it is always one (paper section 2.4.3: 2 of 256)."""
    rounds: int | None = Field(default=None, gt=0)
    """The stage ends when every module has made this many outer steps..."""
    tokens: int | None = Field(default=None, gt=0)
    """... or when each path has trained on this many tokens; without both, when the operator says so."""

    plateau: PlateauConfig | None = None
    """The stage ends sooner when its paths' loss on held-out documents falls no more. Needs [early_stopping]."""
    from_here: dict[Section, dict[str, Value]] = Field(default_factory=dict)
    """Keys of other sections that have another value from this stage on: `[stages.from_here.inner]`."""

    @model_validator(mode="after")
    def _ends_by_one_rule(self) -> Self:
        if self.rounds is not None and self.tokens is not None:
            raise ValueError(f"rounds={self.rounds} and tokens={self.tokens}: give one of them, a stage ends once")
        return self

    @model_validator(mode="after")
    def _table_fits_router(self) -> Self:
        choice = ROUTERS[self.router]
        if choice.paths == "added":
            if self.modules is not None or not self.paths:
                raise ValueError(f'router="{self.router}" needs paths, those that are added, and no modules')
            if len(set(map(len, self.paths))) != 1 or min(map(min, self.paths)) < 0:
                raise ValueError("paths: every row needs one module per level, counted from 0")
            return self
        if self.parents and choice.paths != "table":
            raise ValueError(f'router="{self.router}" keeps the modules it finds; leave out parents')
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
        if (self.num_paths or 0) > MAX_PATHS:
            raise ValueError(f"modules={list(self.modules or ())} are {self.num_paths:,} paths; at most {MAX_PATHS:,}")
        if self.num_paths == 1:
            raise ValueError(f'router="{self.router}" needs at least two paths; with one path it is router="single"')
        return self

    @property
    def num_paths(self) -> int | None:
        """Paths of the stage's table; None when they are those of the stage before."""
        if ROUTERS[self.router].paths in ("before", "added"):
            return None
        return len(self.paths) if self.paths else math.prod(c for c in self.modules or () if isinstance(c, int))
