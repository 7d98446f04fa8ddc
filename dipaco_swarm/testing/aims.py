"""What random faults aim at: which kinds, at which moments of a round, how often.

Faults of any kind at any moment seldom meet the few messages in which a rule of the protocol matters. An aim draws only
those that do. It is drawn by the same seed: an aimed seed is one history as well.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Aim:
    """Kinds and moments are those of `faults.py`; whatever is there twice is drawn twice as often."""

    kinds: tuple[str, ...]
    moments: tuple[str, ...]
    """The empty one is any."""
    lasts: tuple[float, ...] = (2.0, 5.0, 10.0, 15.0, 20.0)
    """Seconds until what broke comes back."""
    every: float = 10.0
    """Seconds from the end of one to the next, on average."""
    operator_share: float = 0.0
    """Of the faults that hit the operator's node, alone or with others."""
    parameters: int | None = None
    """Of each module; None: what the seed says, which is one piece."""


ANYTHING = Aim(
    kinds=("busy", "clock", "freeze", "kill", "leave", "leave parted", "part", "silence"),
    moments=("", "", "joins", "gives", "is ready"),
    lasts=(2.0, 5.0, 10.0, 15.0, 20.0, 40.0, 90.0),
    every=40.0,
    operator_share=0.3,
)
"""Its order is part of every history: what is added here makes all of them others."""

SEVERAL_PIECES = 200_000
"""Parameters."""

AIMS = {
    "unheard when ready": Aim(("part", "silence"), ("is ready",), lasts=(5.0, 10.0, 15.0, 20.0)),
    "stopped when ready": Aim(("leave",), ("is ready",), lasts=(2.0, 5.0)),
    "cut while giving": Aim(("cut",), ("gives",), lasts=(0.05, 0.1, 0.2, 0.4), parameters=SEVERAL_PIECES),
    "stopped while giving": Aim(("leave", "kill"), ("sends a piece",), lasts=(2.0, 5.0), parameters=SEVERAL_PIECES),
}
"""By what befalls a member of a round."""
