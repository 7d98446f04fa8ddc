"""Going back: the operator can take a module back to an older state, and that counts for more than all that was done
since.

Of two states the one with more work behind it is the one to have (`plan.py`). So a state that is restored has more of
it, by definition: the upper bits of its work count how often the operator has gone back with the module in this stage,
its *generation*; the rest are tokens, as ever. Nothing else has to know: a claim of an earlier generation loses
wherever two claims are compared. What keeps others from doing the same: a claim is believed only if its generation is
the one in the operator's signed manifest (`swarm/vouching.py`).

generation of a claim     is it believed?
---------------------------------------------------------------------------
that of the manifest      by its evidence (`evidence.py`)
an earlier one            no: it comes from what was taken back
a later one               no: the operator has not said so, as far as we know
"""

from collections.abc import Mapping

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState, StateOutline

GENERATION = 1 << 54
"""Tokens of a generation: 18 quadrillion. A history that says that it has more has this much."""
MAX_GENERATION = 255


def generation_of(work: int) -> int:
    """How often the operator had gone back when this work was done."""
    return work // GENERATION


def tokens_of(work: int) -> int:
    """Tokens behind a state, of its work."""
    return work % GENERATION


def more_work(work: int, tokens: int) -> int:
    """The work after so many tokens more: whatever members say that they have trained, its generation stays."""
    return min(work + tokens, work - tokens_of(work) + GENERATION - 1)


def restored(state: ModuleState, generation: int) -> ModuleState:
    """The same numbers and version, as a state that beats all states of earlier generations."""
    work = generation * GENERATION + tokens_of(state.work)
    outline = state.outline
    return ModuleState.checked(
        StateOutline(outline.version, outline.parameters, outline.hashes, work), state.params, state.momentum
    )


def taken_back(states: Mapping[ModuleId, ModuleState], signed: Mapping[ModuleId, int]) -> frozenset[ModuleId]:
    """Modules that are not at the generation that the operator has signed. `signed`: without those that are at 0."""
    return frozenset(module for module, state in states.items() if generation_of(state.work) < signed.get(module, 0))
