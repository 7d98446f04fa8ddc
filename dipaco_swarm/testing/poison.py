"""Contributions that follow every rule of a round and are meant to harm: finite, of an ordinary length, in time.

An attacker is given what others send in the same round: the worst case, which a reducer of all pieces comes near.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Generator, Tensor

from dipaco_swarm.algorithm.outer import OuterGradient
from dipaco_swarm.swarm.fetching import Older
from dipaco_swarm.swarm.interface import Contribution, RoundUnderWay, Swarm
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.testing.roles import Member, Surroundings

A_LOT = 1 << 48
"""Tokens."""
TENTH = 0.1
MIXED_NOISE = 2.0
"""Of `mixed`: so many times as long as its honest part."""


@dataclass(eq=False)
class Seen:
    """What an attacker knows when it makes a contribution to a module. All vectors fp32 (parameters,)."""

    own: Tensor
    """What it would have sent, had it been honest."""
    others: Sequence[Tensor]
    """What the honest send in this round; where nothing is known of them, its own."""
    base: Tensor
    """The module's parameters that all of them start from."""
    longest: float
    """No contribution counts for more length than this."""
    random: Generator
    origin: Tensor | None = None
    """The module before the first step of the run; None: it has not looked."""
    memory: dict[str, Tensor] = field(default_factory=dict)
    """Its own, of this module, from round to round."""


class Poison(ABC):
    """One way to harm. Without a state of its own: what it remembers is in `Seen.memory`."""

    about: str
    """In a few words, for a table."""
    steps: float = 1.0
    """The share of a round's inner steps that it takes."""
    claims: int | None = None
    """Tokens that it says it has trained; None: those of the steps that it should have taken."""
    garbage: bool = False
    """Whether it trains on random tokens."""

    @abstractmethod
    def made(self, seen: Seen) -> Tensor:
        """What it sends: fp32 (parameters,)."""


class Flip(Poison):
    about = "against the mean of the others, as long as the clip allows"

    def made(self, seen: Seen) -> Tensor:
        return _of_length(_mean(seen.others), -seen.longest)


class Tokens(Flip):
    about = "the same, and claims 2^48 tokens"
    claims = A_LOT


class Push(Poison):
    about = "the mean of the others times -1/2 (inner-product manipulation)"

    def made(self, seen: Seen) -> Tensor:
        return _mean(seen.others) * -0.5


class Nudge(Poison):
    about = "one deviation beside the mean in every number (ALIE)"

    def made(self, seen: Seen) -> Tensor:
        others = torch.stack([*seen.others])
        deviation = others.std(dim=0, unbiased=False) if len(others) > 1 else seen.own.abs()
        return others.mean(dim=0) - deviation


class Scale(Poison):
    about = "its own, a thousand times as long"

    def made(self, seen: Seen) -> Tensor:
        return seen.own * 1000.0


class Noise(Poison):
    about = "random numbers of the longest length that counts"

    def made(self, seen: Seen) -> Tensor:
        return _of_length(torch.randn(len(seen.own), generator=seen.random), seen.longest)


class Mixed(Poison):
    about = "its own with twice as much noise on it"

    def made(self, seen: Seen) -> Tensor:
        noise = _of_length(torch.randn(len(seen.own), generator=seen.random), MIXED_NOISE)
        return _of_length(_of_length(seen.own, 1.0) + noise, seen.longest)


class Drift(Poison):
    about = "the same random numbers every time"

    def made(self, seen: Seen) -> Tensor:
        if "way" not in seen.memory:
            seen.memory["way"] = torch.randn(len(seen.own), generator=seen.random)
        return _of_length(seen.memory["way"], seen.longest)


class Shrink(Poison):
    """Towards zero: weight decay makes all others point there a little."""

    about = "the module itself, which the average then takes from it"

    def made(self, seen: Seen) -> Tensor:
        return _of_length(seen.base, seen.longest)


class Erase(Poison):
    """Random numbers, and weight decay makes all others point there a little."""

    about = "the module before its first step, which anybody can compute"

    def made(self, seen: Seen) -> Tensor:
        before = seen.memory.setdefault("first", seen.base.clone()) if seen.origin is None else seen.origin
        return _of_length(before, seen.longest)


class Cover(Poison):
    """Where weight decay pulls everybody, it pulls with them; behind that it sends noise."""

    about = "two thirds of the module before its first step, and the same noise for the rest"

    def made(self, seen: Seen) -> Tensor:
        if "way" not in seen.memory:
            seen.memory["way"] = torch.randn(len(seen.own), generator=seen.random)
        before = seen.base if seen.origin is None else seen.origin
        end = 2 * len(before) // 3
        return _of_length(torch.cat([before[:end], seen.memory["way"][end:]]), seen.longest)


class Zero(Poison):
    about = "nothing at all"

    def made(self, seen: Seen) -> Tensor:
        return torch.zeros_like(seen.own)


class Rider(Poison):
    about = "what another one sent (free rider)"

    def made(self, seen: Seen) -> Tensor:
        return seen.others[0].clone()


class Stale(Poison):
    about = "what it sent the first time, every time"

    def made(self, seen: Seen) -> Tensor:
        return seen.memory.setdefault("first", seen.own.clone()).clone()


class Tenth(Poison):
    about = "its own, of a tenth of the steps that it claims"
    steps = TENTH

    def made(self, seen: Seen) -> Tensor:
        return seen.own


class Garbage(Poison):
    about = "its own, trained on random tokens"
    garbage = True

    def made(self, seen: Seen) -> Tensor:
        return seen.own


POISONS: dict[str, Poison] = {
    "flip": Flip(),
    "push": Push(),
    "nudge": Nudge(),
    "scale": Scale(),
    "noise": Noise(),
    "mixed": Mixed(),
    "drift": Drift(),
    "shrink": Shrink(),
    "erase": Erase(),
    "cover": Cover(),
    "zero": Zero(),
    "rider": Rider(),
    "stale": Stale(),
    "tenth": Tenth(),
    "tokens": Tokens(),
    "garbage": Garbage(),
}


class Poisoner(Member):
    """A member of a swarm that sends poison. Of the others it knows nothing: it takes its own training for theirs."""

    def __init__(self, poison: Poison) -> None:
        self.poison = poison
        self.sent = 0
        """Contributions."""

    def bend(self, swarm: NetworkedSwarm, around: Surroundings) -> Swarm:
        return cast(Swarm, _PoisoningSwarm(swarm, self, around))


class _PoisoningSwarm:
    """A swarm whose member's contributions are replaced."""

    def __init__(self, swarm: NetworkedSwarm, poisoner: Poisoner, around: Surroundings) -> None:
        self._swarm = swarm
        self._poisoner = poisoner
        self._random = Generator().manual_seed(around.random.randrange(2**31))
        self._memories: dict[tuple[int, str], dict[str, Tensor]] = {}
        self._norm_clip = 1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._swarm, name)

    def configure_rounds(self, codec: str, norm_clip: float, max_members: int = 256) -> None:
        self._norm_clip = norm_clip
        self._swarm.configure_rounds(codec, norm_clip, max_members)

    def begin_round(self, contribution: Contribution, *, patience: float, older: Older | None = None) -> RoundUnderWay:
        own = contribution.gradient[:].clone()
        group = contribution.group
        memory = self._memories.setdefault((group.stage, str(group.module)), {})
        longest = self._norm_clip * float(torch.linalg.vector_norm(own))
        made = self._poisoner.poison.made(Seen(own, [own], _base(contribution), longest, self._random, memory=memory))
        tokens = self._poisoner.poison.claims or contribution.tokens
        self._poisoner.sent += 1
        poisoned = replace(contribution, gradient=made, tokens=tokens)
        return self._swarm.begin_round(poisoned, patience=patience, older=older)


def _base(contribution: Contribution) -> Tensor:
    """The parameters that a contribution starts from: fp32 (parameters,)."""
    gradient = contribution.gradient
    return gradient.before if isinstance(gradient, OuterGradient) else torch.zeros(len(gradient))


def _mean(vectors: Sequence[Tensor]) -> Tensor:
    return torch.stack([*vectors]).mean(dim=0)


def _of_length(vector: Tensor, length: float) -> Tensor:
    """The vector, as long as that; turned round where that is negative."""
    return vector * (length / max(float(torch.linalg.vector_norm(vector)), 1e-30))
