"""What may change in a run that has begun: the rules of `dipaco-bootstrap extend`, and what a change is called.

Two run files are compared key by key. What everybody can follow while it trains may change; what is in the bytes that
are there already, or must be alike for all members of a round, may not, and each such key has its reason.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dipaco_swarm.run.checking import Problem
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.problems import shortened
from dipaco_swarm.run.stage import FROM_HERE
from dipaco_swarm.strategies import PACING

NEW_RUN = "it is in everything that has been made so far; begin a new run with it, in another --home"
HELD_OUT = "documents that nobody was to train on would be trained on; it stays for the whole run"
FROM_A_STAGE = (
    "stages that have begun keep it; one that has not may have another, with [stages.from_here.{section}] below it"
)
FIXED = {
    "name": "it is in the run address and in everybody's folders; a run with another name is another run",
    "seed": "the first parameters and the order of documents come of it; begin a new run with it",
    "model": NEW_RUN,
    "levels": NEW_RUN,
    "tokenizer": NEW_RUN,
    "early_stopping": HELD_OUT,
    "data.holdout": HELD_OUT,
    "data.routing_sample": HELD_OUT,
    "data.sequence_length": NEW_RUN,
    "router.prefix_tokens": "routers that are there read so many tokens, and evaluation does not score them",
}
"""Key or section -> why it never changes."""
ANY_TIME = ("about", "anchors", "data.prepared", "min_peers", "admission", "limits.max_members", "router", "rerouting")
OF_THE_CURRENT_STAGE = ("rounds", "tokens", "plateau")


@dataclass(frozen=True)
class Change:
    """A key that has another value now."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None and isinstance(self.after, Mapping):
            return f"{self.key} is new: " + ", ".join(f"{key} = {shortened(had)}" for key, had in self.after.items())
        if self.before is None:
            return f"{self.key} = {shortened(self.after)}"
        if self.after is None:
            return f"{self.key} is left out"
        return f"{self.key} {shortened(self.before)} -> {shortened(self.after)}"


def changes_between(before: RunConfig, after: RunConfig) -> tuple[Change, ...]:
    """Every key that differs, in the order of the run file; a stage that was added is one change."""
    return tuple(_compared("", before.model_dump(mode="json"), after.model_dump(mode="json")))


def _compared(key: str, before: Any, after: Any) -> Iterator[Change]:
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in {**before, **after}:
            yield from _compared(f"{key}.{name}" if key else name, before.get(name), after.get(name))
    elif key == "stages":
        for index in range(max(len(before), len(after))):
            old = before[index] if index < len(before) else None
            new = after[index] if index < len(after) else None
            if old is None and new is not None:  # without the keys that it leaves out: the line is short
                new = {name: value for name, value in new.items() if value not in (None, {}, [])}
            yield from _compared(f"stages[{index}]", old, new)
    else:
        yield Change(key, before, after)


def refused(before: RunConfig, after: RunConfig, stage: int) -> tuple[Problem, ...]:
    """Changes that cannot be made while the run is in this stage, and why."""
    found = (_refusal(change, before, stage) for change in changes_between(before, after))
    return tuple(problem for problem in found if problem is not None)


def _refusal(change: Change, config: RunConfig, stage: int) -> Problem | None:
    key = change.key
    section, _, name = key.partition(".")
    if section.startswith("stages["):
        return _refusal_of_stage(change, int(section[len("stages[") : -1]), name, stage)
    why = FIXED.get(key) or FIXED.get(section)
    if why is not None:
        return Problem(key, f"{_was(change)}: {why}")
    if section in ANY_TIME or key in ANY_TIME:
        return None
    if key == "rounds.inner_steps" and not PACING[config.rounds.pacing].overlaps_by_steps:
        return None
    if section in FROM_HERE:
        return Problem(key, f"{_was(change)}: {FROM_A_STAGE.format(section=section)}")
    return Problem(key, f"{_was(change)}: all members of a round must go by the same; it stays for the whole run")


def _refusal_of_stage(change: Change, index: int, name: str, stage: int) -> Problem | None:
    if index > stage:
        return None
    if index < stage:
        return Problem(
            change.key, f"{_was(change)}: stage {index} is over; stage {stage} and those after it may change"
        )
    if change.after is None and not name:
        return Problem(change.key, f"stage {index} has begun; to end it, give it fewer rounds or `advance`")
    if name.partition(".")[0] in OF_THE_CURRENT_STAGE:
        return None
    return Problem(
        change.key,
        f"{_was(change)}: stage {index} has begun, and only its {', '.join(OF_THE_CURRENT_STAGE)} may change; "
        "another stage after it may have this",
    )


def _was(change: Change) -> str:
    return f"{shortened(change.before)} cannot become {shortened(change.after)}"
