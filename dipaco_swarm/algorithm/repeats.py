"""Who contributes once more what has counted already: compared on some numbers of a module. Pure.

Steps of different rounds are of different documents. Honest members' contributions to two rounds are hardly more alike
than those of two members; what was trained once and is sent every time is the same. What did not count, honest members
bring again as well: those whose part came to some reducers alone. And few steps go where the optimizer's momentum goes,
as those before did: where others took 40, one of them was 0.05 apart from the one before at least, two 0.08, four 0.14
and ten 0.27 (40: 0.44). So what has less weight must be the same more exactly.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from dipaco_swarm.algorithm.doubts import Place
from dipaco_swarm.algorithm.outer import lower_median
from dipaco_swarm.algorithm.paths import ModuleId

SAMPLED = 2048
"""Numbers of a module that are remembered: the cosine of two random vectors of so many is 0.02 off."""
KEPT = 2
"""Contributions of each member that are remembered."""
MOST_MEMBERS = 1024
"""Members of modules of whom something is remembered, 8 or 16 KB of each; whoever did not contribute for the longest is
forgotten, for names are free."""
FEW = 256
"""From fewer numbers nothing is said."""
APART = 0.1
"""A contribution repeats one from which it is no further apart than this, 1 less their cosine, ..."""
OF_OTHERS = 1 / 3
"""... and than this part of what half of the other members are apart from theirs: in the first rounds of a model all go
where they went. Both times its tokens, as a part of what half of the others have, where they are fewer."""
ROUNDING = 1e-6
"""Where others are no further apart than that, all repeat themselves, and how they are rounded tells nothing."""


@dataclass
class Earlier:
    """What of the members of some modules has counted before, as far as one peer has seen it."""

    random: Generator
    """Draws the numbers that are compared: nobody else knows which."""
    _sampled: dict[ModuleId, Tensor] = field(default_factory=dict)
    """Places in the module's vector, sorted: int64 (SAMPLED,)."""
    _kept: dict[tuple[ModuleId, str], deque[Tensor]] = field(default_factory=dict)
    """fp32 (SAMPLED,), nan where we had nothing of it. Who contributed last comes last."""

    def forget(self) -> None:
        """All of it: the modules have changed."""
        self._sampled.clear()
        self._kept.clear()

    def repeats(
        self, module: ModuleId, parameters: int, given: Mapping[str, Iterable[Place]], counted: Collection[str]
    ) -> dict[str, float]:
        """By member, the largest cosine of what it contributes now with what has counted of it before.

        `parameters`: of the module; `counted`: whose contributions do now, and are remembered. Without members of whom
        nothing is known in the same places.
        """
        if module not in self._sampled:
            self._sampled[module] = torch.randint(parameters, (SAMPLED,), generator=self.random).sort().values
        places, found = self._sampled[module], {}
        for peer, way in given.items():
            now = torch.full((SAMPLED,), torch.nan)
            for here, part in way:
                inside = (places >= here.start) & (places < here.stop)
                now[inside] = part[places[inside] - here.start]
            kept = self._kept.pop((module, peer), deque(maxlen=KEPT))
            cosines = [cosine for before in kept if (cosine := _cosine(now, before)) is not None]
            if cosines:
                found[peer] = max(cosines)
            if peer in counted:
                kept.append(now)
            if kept:
                self._kept[module, peer] = kept
        for forgotten in list(self._kept)[:-MOST_MEMBERS]:
            del self._kept[forgotten]
        return found


def repeated(cosines: Mapping[str, float], tokens: Mapping[str, int], us: str) -> set[str]:
    """Who sends what it has sent before. By member, ours included: `cosines`, as `Earlier.repeats` has them, and
    `tokens` behind what it contributes now.
    """
    apart = {peer: max(0.0, 1.0 - cosine) for peer, cosine in cosines.items()}
    found = set()
    for peer in apart.keys() - {us}:
        others = apart.keys() - {peer}
        if len(others) < 2:
            continue
        usual = lower_median(apart[name] for name in others)
        usual_tokens = lower_median(tokens[name] for name in others)
        weight = min(1.0, tokens[peer] / max(1, usual_tokens))
        if usual > ROUNDING and apart[peer] < weight * min(APART, OF_OTHERS * usual):
            found.add(peer)
    return found


def _cosine(one: Tensor, other: Tensor) -> float | None:
    """Where both are known; None where that is in few places, or one of them is nothing there."""
    both = ~(one.isnan() | other.isnan())
    if int(both.sum()) < FEW:
        return None
    one, other = one[both].double(), other[both].double()
    lengths = float(one.norm() * other.norm())
    return float(one @ other) / lengths if lengths > 0 else None
