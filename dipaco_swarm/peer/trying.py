"""What others contribute is tried on our documents; whose does harm is doubted (`algorithm/doubts.py`)."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from random import SystemRandom

import torch
from torch import Generator

from dipaco_swarm.algorithm.averaging.rule import averaging_of
from dipaco_swarm.algorithm.doubts import FEWEST, Doubts, Place, Trial, harmful, how_far
from dipaco_swarm.algorithm.outer import lower_median
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.repeats import Earlier, repeated
from dipaco_swarm.events.training import Doubted
from dipaco_swarm.machine.manners import Pause
from dipaco_swarm.outer_round import RoundReport
from dipaco_swarm.pacing import pacing_of_run
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.swarm.interface import Agreed
from dipaco_swarm.swarm.reduced import Reduced

SHARE = 0.01
"""Of our time, at most, and never before it is earned: the line is the same, but training stands still for a trial."""
MOST_TRIED = 8
"""Contributions of others that are tried at once, drawn anew each time: all in a group of 256 would take as long as 70
inner steps."""
GUESSED_STEPS = 3.0
"""Inner steps that a trial takes as long as, before one was measured: ours, eight, and noise, of batches of ten."""

Bends = Callable[[Sequence[Iterable[Place]]], list[Trial]]
"""`Trainer.bends` of a level, until we leave or pause; nothing then."""
NOTHING_TRIED = [Trial(0.0, 0.0, 0.0)]


class Judge:
    """What one peer finds about the contributions of others, and whom it doubts for it."""

    def __init__(self, us: str, random: Generator) -> None:
        """`random`: nobody else knows what it draws."""
        self._us = us
        self._random = random
        self._earlier = Earlier(random)
        self.doubts = Doubts()

    def judge(
        self, module: ModuleId, parameters: int, reduced: Reduced, counted: Collection[str], bends: Bends
    ) -> list[Doubted]:
        """Look at a round of a module of so many parameters. Returns who is doubted since now, and why.

        `counted`: whose contributions are in most of the mean.
        """
        members = sorted(reduced.peers)
        given = {name: reduced.of(name) for name in members}
        again = repeated(self._earlier.repeats(module, parameters, given, counted), reduced.tokens, self._us)
        tried = {name: given[name] for name in self._drawn(members)}
        *found, noise = bends([*tried.values(), self._noise(reduced.places, tried)]) or NOTHING_TRIED
        trials = dict(zip(tried, found, strict=False))
        harm = harmful(trials, self._us, noise)
        return [
            Doubted(name, str(module), trials[name].bend / noise.bend if name in harm else None, repeats=name in again)
            for name in sorted(self.doubts.note((trials.keys() | again) - {self._us}, harm | again))
        ]

    def forget(self) -> None:
        """What was contributed before: the modules are others now, also those that are called the same."""
        self._earlier.forget()

    def _drawn(self, members: Sequence[str]) -> list[str]:
        """We, if we are one of them, and as many others as are tried at once; sorted."""
        others = [name for name in members if name != self._us]
        if len(others) <= MOST_TRIED:
            return list(members)
        some = torch.randperm(len(others), generator=self._random)[:MOST_TRIED].tolist()
        return sorted([others[i] for i in some] + [self._us] * (self._us in members))

    def _noise(self, places: Sequence[slice], given: Mapping[str, Iterable[Place]]) -> list[Place]:
        """Random numbers there, in all as long as is usual."""
        found = [(here, torch.randn(here.stop - here.start, generator=self._random)) for here in places]
        part = lower_median(how_far(way) for way in given.values()) / how_far(found)
        return [(here, numbers * part) for here, numbers in found]


class Trying:
    """Of one peer, for all its rounds."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._random = SystemRandom()
        self._judge = Judge(around.swarm.peer, Generator().manual_seed(self._random.getrandbits(63)))
        self._began = around.clock.monotonic()
        self._spent = 0.0
        self._last: float | None = None
        """Seconds that the last trial took which came to its end."""
        self._stage: int | None = None

    def look(self, peer: PathInTraining, report: RoundReport) -> None:
        """Try what was contributed to one of the rounds that are over, where it is time."""
        peer.doubts = self._judge.doubts
        if peer.stage != self._stage:
            self._stage = peer.stage
            self._judge.forget()
        if self._is_called_away():
            return  # nobody waits for a trial on the way out
        if pacing_of_run(peer).whole:
            return  # what is found hangs on chance, and such a run is the same each time
        reduced = {
            module: (over.reduced, over.tokens.keys())
            for module, over in report.outcomes.items()
            if isinstance(over, Agreed)
            and over.reduced
            and len(over.reduced.peers) >= FEWEST
            and averaging_of(peer.groups[module].averaging).hears_doubts
        }
        now = self._around.clock.monotonic
        began = now()
        if reduced and self._spent + self._expected(peer) <= SHARE * (began - self._began):
            module = self._random.choice(sorted(reduced))
            bends = partial(peer.trainer.bends, module.level, stop=self._is_called_away)
            parameters = len(peer.progress[module].base.params)
            pieces, counted = reduced[module]
            for found in self._judge.judge(module, parameters, pieces, counted, bends):
                self._around.screen.event(found)
            took = now() - began
            self._spent += took
            if not self._is_called_away():
                self._last = took

    def _is_called_away(self) -> bool:
        """Whether we leave, or the machine is needed otherwise."""
        return self._around.stop() or isinstance(self._around.manners.now, Pause)

    def _expected(self, peer: PathInTraining) -> float:
        """Seconds that the next trial will take."""
        if self._last is not None:
            return self._last
        speed = peer.tokens_per_second
        return GUESSED_STEPS * peer.rules.tokens_per_step / speed if speed else math.inf
