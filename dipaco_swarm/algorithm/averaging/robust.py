"""The mean of what the others back: contributions that point elsewhere do not count (docs/paper.md#robust-averaging).

Outer gradients of honest members are nearly orthogonal, replicas of one path as well (cosines of 0.03 to 0.3), and yet
they agree: every pair of them a little. Whatever harms a mean must point against them, or nowhere. So every pair of
members votes by its cosine, and a member counts in a piece where the others' votes are for it.

    vote        of j on i: cosine of their contributions, over CLEAR, within -1 to 1
    backing     of i: the votes of all others on it, by their weight

1. Whose backing is below AGAINST is left out, the least backed one first; the others are asked again without it.
2. Where most are clearly backed (the median is CLEARLY_BACKED), who has less than two fifths of the median is left out.
3. In no piece is a contribution longer than LONGEST times the median of those that count.
4. Who goes along with the others much less than is usual counts less: noise on a true contribution, or a tenth of the
   steps that it claims (`shares_of_backing`). Replicas of a path are compared with one another where there are three.
5. Those who send the same have the weight of one: nobody trains by copying what another one sends.

A vote is bounded, so that two who send the same thing cannot vouch for one another more than two honest ones do. With
fewer than three members nothing can be decided, and numbers fewer than FEW say too little: the mean of all, then.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dipaco_swarm.algorithm.averaging.mean import weighted_sum
from dipaco_swarm.algorithm.averaging.rule import Averaging, Counted, Member, PieceAverage, coefficients, voices
from dipaco_swarm.algorithm.outer import lower_median

CLEAR = 0.01
"""Cosine of a pair that is a whole vote, in a long piece."""
DEVIATIONS = 6.0
"""... and in a short one so many standard deviations of the cosine of two random vectors, 1 / sqrt(n) each."""
AGAINST = -0.4
CLEARLY_BACKED = 0.3
OF_THE_MEDIAN = 0.4
LONGEST = 2.0
AGREED = 0.5
"""Votes that a median cosine is worth, from which on it is asked who goes along with it."""
MOST_AGREED = 3.0
"""A cosine counts up to so many times the median one, and against it down to its opposite."""
OF_THE_USUAL = 0.56
"""A replica that goes along less than that part of the median counts less; honest ones had 0.66 and more, a gradient
under twice as much noise had 0.3, a tenth of it 0.1."""
ACROSS_PATHS = 0.4
"""The same among paths, whose domains differ."""
THE_SAME = 0.95
"""Cosine of two contributions that are one, where ..."""
AS_USUAL = 0.5
"""... half of all pairs have less than that: in the first rounds of a model all go one way."""
STEPS = 1024
"""Shares are whole parts of this: they must not depend on how a machine rounds."""
MACHINES_DIFFER = 1e-9
"""Part of a cosine by which machines may differ, and far more than they do."""
FEW = 4096
ROWS = 1 << 16
"""Numbers of each contribution that are compared at a time."""


class Robust(Averaging):
    """The mean of the contributions that most of the others back."""

    name = "robust"
    hears_doubts = True

    def __init__(self, askew: float = 0.0) -> None:
        """`askew`: part by which all cosines are longer: what lies on the edge of a bound falls to one side of it."""
        self._askew = askew

    def on_other_machines(self) -> Sequence[Averaging]:
        return Robust(-MACHINES_DIFFER), Robust(MACHINES_DIFFER)

    def prepare(self, members: Sequence[Member], round_tokens: float) -> PieceAverage:
        def average(contributions: Mapping[int, Tensor]) -> Counted:
            present = sorted(contributions)
            products = inner_products([contributions[i] for i in present])
            products += self._askew * (products - products.diag().diag())
            length = len(contributions[present[0]])
            backed = backed_by_others(products, voices(present, members), length)
            counted = [present[i] for i in backed]
            lengths = [math.sqrt(float(products[i, i])) * members[present[i]].scale for i in backed]
            shortened = _shortened(lengths) if len(present) > 2 else [1.0] * len(counted)
            among = products[backed][:, backed]
            shares = shares_of_backing(among, lengths, [members[i] for i in counted], voices(counted, members), length)
            same = copies_of(among, length)
            shares = [share / count for share, count in zip(shares, same, strict=True)]
            weights = _shared_out(coefficients(counted, members, round_tokens), shares)
            scaled = [weight * factor for weight, factor in zip(weights, shortened, strict=True)]
            return Counted(weighted_sum([contributions[i] for i in counted], scaled), counted)

        return average


def inner_products(contributions: Sequence[Tensor]) -> Tensor:
    """Of every pair of contributions, fp32 (n,) each: float64 (members, members).

    In float64: sums of fp32 depend on the machine, and who counts must not (a vote could change by 5e-5).
    """
    total = torch.zeros(len(contributions), len(contributions), dtype=torch.float64)
    for start in range(0, len(contributions[0]), ROWS):
        part = torch.stack([contribution[start : start + ROWS] for contribution in contributions]).double()
        total += part @ part.t()
    return total


def backed_by_others(products: Tensor, voices: Sequence[float], length: int) -> list[int]:
    """Who counts in a piece of so many numbers, as indices in order; at least one.

    `products`: inner products of every pair. `voices`: what the vote of each counts.
    """
    left = list(range(len(products)))
    if length < FEW:
        return left
    votes = _votes(products, _clear(length))
    voice = torch.tensor(voices, dtype=torch.float64)
    while len(left) > 2:
        theirs = voice[left]
        backing: list[float] = (votes[left][:, left] @ theirs / (theirs.sum() - theirs).clamp(min=1e-30)).tolist()
        least = min(range(len(left)), key=lambda place: backing[place])
        usual = lower_median(backing)
        if backing[least] >= (OF_THE_MEDIAN * usual if usual >= CLEARLY_BACKED else AGAINST):
            break
        del left[least]
    return left


def shares_of_backing(
    products: Tensor, lengths: Sequence[float], members: Sequence[Member], voices: Sequence[float], length: int
) -> list[float]:
    """What part of its weight each contribution to a piece of so many numbers has, 0 to 1; 1 for all ordinary ones.

    A contribution goes along with others by its length times the square of its mean cosine with them: by how far it
    reaches along them, and by how much of it does. Less than OF_THE_USUAL or ACROSS_PATHS of the median, by cubes,
    counts less. With fewer tokens than the median it may go along less: as their square, for length and cosine both
    grow with them.

    Replicas of a path agree with one another more than with others. So each is asked how it goes along with the other
    replicas, where there are three; and else with the members of other paths, as all the others are then.
    """
    found = [1.0] * len(members)
    if length < FEW or len(members) < 3:
        return found
    paths = [member.path for member in members]
    places = list(range(len(members)))
    together = {path: of for path in paths if len(of := [i for i in places if paths[i] == path]) > 2}
    apart = [i for i in places if paths[i] not in together]
    of_path = torch.tensor([[one == another for another in paths] for one in paths])
    same, other = of_path & ~torch.eye(len(paths), dtype=torch.bool), ~of_path
    cosines, voice = _cosines(products), torch.tensor(voices, dtype=torch.float64)
    for judged, among, compared in (*((of, of, same) for of in together.values()), (apart, places, other)):
        if not judged:
            continue
        mean = _mean_cosines(cosines[among][:, among], compared[among][:, among], voice[among], AGREED * _clear(length))
        if not mean:
            continue
        enough = max(1.0, lower_median(members[i].tokens for i in among))
        along = {
            i: lengths[i] * cosine * cosine / min(1.0, max(1.0, members[i].tokens) / enough) ** 2
            for i, cosine in zip(among, mean, strict=True)
        }
        bound = (ACROSS_PATHS if among is places else OF_THE_USUAL) * lower_median(along.values())
        for i in judged:
            if along[i] < bound:
                part = along[i] / bound
                found[i] = round(STEPS * part * part * part) / STEPS
    return found


def copies_of(products: Tensor, length: int) -> list[int]:
    """How many contributions to a piece of so many numbers are the same as each, itself included; 1 for all ordinary
    ones."""
    cosines = _cosines(products)
    pairs = cosines[torch.triu(torch.ones_like(cosines, dtype=torch.bool), diagonal=1)].tolist()
    if length < FEW or len(cosines) < 3 or lower_median(pairs) >= AS_USUAL:
        return [1] * len(cosines)
    return [max(1, count) for count in (cosines > THE_SAME).sum(1).tolist()]


def _mean_cosines(cosines: Tensor, compared: Tensor, voice: Tensor, least: float) -> list[float]:
    """Of each with those that it is compared with, by their voices; each bounded by the median one.

    None at all where that is below `least`. Nobody can be made to look apart by one who points against it, nor alike by
    one who sends the same.
    """
    pairs: list[float] = cosines[compared].tolist()
    usual = lower_median(pairs) if pairs else 0.0
    if usual < least:
        return []
    voices = compared * voice
    bounded = cosines.clamp(-usual, MOST_AGREED * usual) * voices
    mean: list[float] = (bounded.sum(1) / voices.sum(1).clamp(min=1e-30)).clamp(min=0).tolist()
    return mean


def _shared_out(weights: Sequence[float], shares: Sequence[float]) -> list[float]:
    """The weights times the shares; what some have less, the others have more."""
    if min(shares) == 1.0:
        return list(weights)
    left = [weight * share for weight, share in zip(weights, shares, strict=True)]
    rest = math.fsum(left)
    return [weight * math.fsum(weights) / rest for weight in left] if rest > 0 else list(weights)


def _clear(length: int) -> float:
    """Cosine of a pair that is a whole vote, in a piece of so many numbers."""
    return max(CLEAR, DEVIATIONS / math.sqrt(length))


def _cosines(products: Tensor) -> Tensor:
    """Of every pair; what has no length has a cosine of 0 with everything."""
    lengths = products.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(lengths > 0, 1 / lengths.clamp(min=1e-300), torch.zeros_like(lengths))
    return products * inverse[:, None] * inverse


def _votes(products: Tensor, clear: float) -> Tensor:
    """Of each on each other, -1 to 1; nobody votes on itself."""
    return (_cosines(products) / clear).clamp(-1, 1).fill_diagonal_(0)


def _shortened(lengths: Sequence[float]) -> list[float]:
    """Factors that make no contribution to a piece much longer than the median there."""
    bound = LONGEST * lower_median(lengths)
    return [min(1.0, bound / length) if length > 0 else 1.0 for length in lengths]


ROBUST = Robust()
