"""Modules as people read them."""

from collections.abc import Sequence

from dipaco_swarm.algorithm.paths import ModuleId

NAMED = 4


def names(modules: Sequence[ModuleId]) -> str:
    """All of them: L0M1, L1M0."""
    return ", ".join(str(module) for module in modules)


def some(modules: Sequence[ModuleId]) -> str:
    """The first ones, for a line that must not become long: L0M1, L1M0, L2M5 and 13 more."""
    named = modules if len(modules) <= NAMED else modules[: NAMED - 1]
    more = "" if len(named) == len(modules) else f" and {len(modules) - len(named)} more"
    return names(named) + more
