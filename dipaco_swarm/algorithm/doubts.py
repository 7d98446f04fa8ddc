"""Whose contributions do harm: found by trying them on documents, and left out where most others say so. Pure.

Directions say little where contributions are nearly orthogonal, as those of other paths are. What they do to a loss
says more. Whoever has reduced some pieces has all members' contributions to them. It puts each on its own model for a
moment, once this way and once the other, and looks at a few sequences of its own shard: a step of training goes where
the loss hardly bends, and random numbers of its length, or on top of it, bend it several times as much. By how a loss
rises or falls nobody is judged: a path's step may well be against the documents of another one
(docs/decisions/0049-contributions-are-tried-on-documents.md).

    trial      of a contribution: by how much it bends the loss
    doubt      about a member whose contribution bends it far more than others do, or is what it sent before
               (`repeats.py`): for some trials, longer each time
    left out   whom more than half of the others doubt, by voice

What one member finds is its word, and counts in a group as its word about directions does.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

OF_NOISE = 0.4
"""A contribution does harm that bends the loss by this part of what random numbers of a usual length do: honest ones
did by 0.08 to 0.45 of it where they are far from noise, twice as much noise as gradient by 1.05 and more."""
OF_OTHERS = 3.0
"""... and by so many times as much as half of all others do: in some modules training bends more than noise."""
OF_OURS = 2.0
"""... and by so many times as much as ours would, were it as long: we train on these documents."""
FLAT = 0.5
"""Where ours bends by more than this part of noise of its length, what bends says nothing. So it is at heads: there one
look in 120 found noise, and honest members of our own domain were found."""
ERRORS = 4.0
"""... and by so many standard errors."""
FIRST = 4
"""Trials without harm after which the first doubt about somebody is over; twice as many the next time, and so on."""
LONGEST = 64
FEWEST = 3
"""In a group of two nobody can be left out."""
MAX_DOUBTS = 16
"""So many are said; who doubts more of its groups does not know better than they."""


Place = tuple[slice, Tensor]
"""Some of a module's parameters, and numbers for them, fp32: one part of a contribution."""


def how_far(way: Iterable[Place]) -> float:
    """The length of a contribution, in these places."""
    return math.hypot(*(float(torch.linalg.vector_norm(part)) for _, part in way))


@dataclass(frozen=True)
class Trial:
    """What a contribution does."""

    bend: float
    """Nats a token."""
    error: float
    """Standard error of that."""
    length: float
    """Of what was tried."""

    def at(self, length: float) -> float:
        """How much it would bend, were it so long; endless, if it is nothing."""
        return abs(self.bend) * (length / self.length) ** 2 if self.length else math.inf


def harmful(trials: Mapping[str, Trial], us: str, noise: Trial) -> set[str]:
    """Whose contributions do harm. `trials`: by member, ours included; `noise`: that of random numbers of a usual
    length."""
    found: set[str] = set()
    ours = trials.get(us)
    if ours is None or noise.bend <= ERRORS * noise.error or ours.at(noise.length) > FLAT * noise.bend:
        return found  # these documents tell nothing
    for peer, trial in trials.items():
        others = sorted(abs(other.bend) for name, other in trials.items() if name != peer)
        if len(others) < FEWEST - 1 or peer == us:
            continue
        usual = others[len(others) // 2]
        own = ours.at(max(ours.length, trial.length))
        most = max(OF_NOISE * noise.bend, OF_OTHERS * usual, OF_OURS * own, ERRORS * trial.error)
        if trial.bend > most or not math.isfinite(trial.bend):
            found.add(peer)
    return found


@dataclass
class _Doubt:
    left: int = 0
    """Trials without harm until it is over."""
    times: int = 0


@dataclass
class Doubts:
    """Whom one peer doubts."""

    _of: dict[str, _Doubt] = field(default_factory=dict)

    def note(self, tried: Collection[str], found: Collection[str]) -> set[str]:
        """Contributions of these members were tried, and those of some did harm. Returns who is doubted since now."""
        new = set()
        for peer in tried:
            if peer in found:
                doubt = self._of.setdefault(peer, _Doubt())
                if not doubt.left:
                    doubt.times += 1
                    new.add(peer)
                doubt.left = min(LONGEST, FIRST << min(doubt.times - 1, LONGEST.bit_length()))
            elif (known := self._of.get(peer)) is not None:
                known.left = max(0, known.left - 1)
        return new

    @property
    def peers(self) -> tuple[str, ...]:
        """Whom we doubt now, sorted; those who did harm most often, where they are too many to be said."""
        now = [(-doubt.times, peer) for peer, doubt in self._of.items() if doubt.left]
        return tuple(sorted(peer for _, peer in sorted(now)[:MAX_DOUBTS]))


def left_out(members: Sequence[str], doubts: Mapping[str, Collection[int]], voices: Sequence[float]) -> frozenset[int]:
    """Members of a round, by index, whom more than half of the others doubt by voice.

    `doubts`: peer -> the indices of those who doubt it; `voices`: what the word of each member counts.
    """
    if len(members) < FEWEST:
        return frozenset()
    found = set()
    for i, peer in enumerate(members):
        against = sum(voices[j] for j in doubts.get(peer, ()) if j != i)
        if 2 * against > sum(voices[j] for j in range(len(members)) if j != i):
            found.add(i)
    return frozenset(found)
