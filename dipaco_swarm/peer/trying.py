"""What others contribute is tried on our documents; whose does harm is doubted (`algorithm/doubts.py`)."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import SystemRandom

import torch
from torch import Tensor

from dipaco_swarm.algorithm.averaging.rule import averaging_of
from dipaco_swarm.algorithm.doubts import FEWEST, Doubts, Trial, harmful
from dipaco_swarm.algorithm.outer import lower_median
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.events.training import Doubted
from dipaco_swarm.outer_round import RoundReport
from dipaco_swarm.pacing import pacing_of_run
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.swarm.interface import Agreed
from dipaco_swarm.swarm.reduced import Reduced

SHARE = 0.01
"""Of our time, at most."""

Place = tuple[slice, Tensor]
Bends = Callable[[Sequence[Iterable[Place]]], list[Trial]]
"""`Trainer.bends` of a level."""


class Trying:
    """Of one peer, for all its rounds."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._random = SystemRandom()  # nobody knows before what we look at
        self._began: float | None = None
        self._spent = 0.0
        self.doubts = Doubts()

    def look(self, peer: PathInTraining, report: RoundReport) -> None:
        """Try what was contributed to one of the rounds that are over, where it is time."""
        peer.doubts = self.doubts
        now = self._around.clock.monotonic
        began = now()
        if self._began is None:
            self._began = began
        if pacing_of_run(peer).whole:
            return  # what is found hangs on chance, and such a run is the same each time
        reduced = {
            module: over.reduced
            for module, over in report.outcomes.items()
            if isinstance(over, Agreed) and over.reduced and averaging_of(peer.groups[module].averaging).hears_doubts
        }
        if reduced and self._spent <= SHARE * (began - self._began):
            module = self._random.choice(sorted(reduced))
            self._try(peer, module, reduced[module])
            self._spent += now() - began

    def _try(self, peer: PathInTraining, module: ModuleId, reduced: Reduced) -> None:
        found = try_all(reduced, partial(peer.trainer.bends, module.level))
        if found is None:
            return
        trials, noise = found
        for name in sorted(self.doubts.note(trials.keys(), harmful(trials, peer.swarm.peer, noise))):
            of_noise = trials[name].bend / noise.bend
            self._around.screen.event(Doubted(peer=name, module=str(module), of_noise=of_noise))


def try_all(reduced: Reduced, bends: Bends) -> tuple[dict[str, Trial], Trial] | None:
    """What the members' contributions do, and what random numbers of a usual length do there.

    None with too few of them, or where `bends` cannot try any.
    """
    members = sorted(reduced.peers)
    if len(members) < FEWEST:
        return None
    ways = [reduced.of(name) for name in members]
    noise = _noise(reduced.places, lower_median(_length(way) for way in ways))
    found = bends([*ways, noise])
    return (dict(zip(members, found, strict=False)), found[-1]) if found else None


def _length(way: Iterable[Place]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(part)) for _, part in way))


def _noise(places: Iterable[slice], length: float) -> list[Place]:
    """Random numbers there, of that length in all; nobody knows them before."""
    random = torch.Generator()
    random.seed()
    found = [(here, torch.randn(here.stop - here.start, generator=random)) for here in places]
    whole = _length(found)
    return [(here, part * (length / whole)) for here, part in found]
