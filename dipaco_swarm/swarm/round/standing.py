"""What the rounds of a peer must know about the peer and its groups."""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm.checks import Convicted
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.proofs import Proof

Key = tuple[int, ModuleId, int]
"""stage, module, version"""


@dataclass(frozen=True)
class Member:
    """Where a peer that trains a module stands with it."""

    path: int
    claim: Claim


@dataclass(frozen=True)
class Standing:
    """Asked anew each time."""

    ours: Callable[[int, ModuleId], Member | None]
    """Where we stand with a module that we train; None when we do not train it."""
    holds: Callable[[int, ModuleId], Claim | None]
    """The state of a module that we have and do not train any more; None when we have none."""
    members_of: Callable[[int, ModuleId], Sequence[str]]
    """Live members that train a module, by announcement."""
    leaders_of: Callable[[int, ModuleId], Sequence[str]]
    """Live members that can be dialled."""
    group_of: Callable[[int, ModuleId], ModuleGroup | None]
    called: Callable[[int, ModuleId, int, bool], None]
    """Somebody gathers the round of this version; True: only strangers have asked for it so far."""
    heeds: Callable[[int, ModuleId, str], bool]
    """Whether a peer's word makes rounds of a module due: it is no stranger, and rounds have had of it what it says."""
    is_strange: Callable[[str], bool]
    """Whether a peer has contributed to nothing that we know of, while others have; we may be one ourselves."""
    lately: Callable[[int, ModuleId], Sequence[str]]
    """Members that were heard before and are not any more: gone, or cut off from us."""
    heard: Callable[[str, int, ModuleId, Member], None]
    """A peer has said itself, over a stream, where it stands."""
    look: Callable[[int, ModuleId], Coroutine[Any, Any, None]]
    """Read now who trains a module."""
    allows: Callable[[str], bool]
    """Whether a peer may take part in the run."""
    ban: Callable[[Proof], bool]
    """Let whom a proof convicts take part no more; whether it is one."""
    convict: Callable[[Convicted], None]
    """The same, of whom we have convicted ourselves."""
    proof_of: Callable[[str], Proof | None]
    """Why we have banned a peer ourselves, if we have."""
    matters: Callable[[str], bool]
    """Whether a peer has contributed to anything, or is to be heard: nobody need know what others have done."""
    seat: Callable[[Iterable[str]], None]
    """These are in a round with us, and so matter."""
    roots: Sequence[str]
    """The operator's nodes, which are told of everybody who is convicted."""
    others: Callable[[], Sequence[str]]
    """Everybody else who is to be heard now."""
    has_had: Callable[[int, ModuleId, Claim], bool]
    """Whether we have had this state, not long ago."""
    has_made: Callable[[int, ModuleId, int], bool]
    """Whether we have made this version: we know who has contributed to it."""
    counts_us: Callable[[int, ModuleId, int], bool]
    """Whether those who are at a version of a module count us; else they wait for us no more than for any stranger."""
    is_believed: Callable[[int, ModuleId, Claim, Claim], bool]
    """Whether somebody's claim, the last argument, is known by now to be better than the state before it."""
    ask_about: Callable[[int, ModuleId, Claim, Sequence[Claim]], Coroutine[Any, Any, list[Claim]]]
    """Which of several claims are, once others have been asked."""

    def known_of(self, stage: int, module: ModuleId) -> list[str]:
        """Live members that are no strangers."""
        return [peer for peer in self.members_of(stage, module) if not self.is_strange(peer)]

    def is_whole(self, stage: int, module: ModuleId) -> bool:
        """Whether the rounds of a module wait for everybody."""
        group = self.group_of(stage, module)
        return group is not None and group.whole
