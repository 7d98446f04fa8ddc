"""What this home has done in all its lives, for its person: tokens trained, and its share of what its modules learned.

Tokens are the sum of what the book notes for each path (`training/checkpoint.py`). Of the rounds that had something of
ours we keep how much, as only those who were there know; a home that is new to a stage begins at nothing.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import HomeError
from dipaco_swarm.files import write_whole
from dipaco_swarm.training.checkpoint import all_trained

log = logging.getLogger(__name__)

SHARE_FILE = "share.json"


class Life:
    """Of one home. Reads its folder when it is made, and tells nobody but its person."""

    def __init__(self, home: Path) -> None:
        self._file = home / SHARE_FILE
        self.tokens_before = all_trained(home)
        """Trained in all lives before this one, on whatever path."""
        self._stage, self._counted = _read(self._file)

    def counted(self, stage: int, tokens: Mapping[ModuleId, int]) -> None:
        """Rounds of these modules were agreed on, with so many tokens of ours in them."""
        if stage != self._stage:
            self._stage, self._counted = stage, {}
        for module, number in tokens.items():
            self._counted[str(module)] = self._counted.get(str(module), 0) + number
        try:
            said = json.dumps({"stage": stage, "counted": self._counted})
            write_whole(self._file, said.encode(), durable=False)
        except HomeError as error:
            log.debug("%s", error)  # the checkpoint says so to the person

    def share(self, stage: int, works: Mapping[ModuleId, int]) -> float | None:
        """Of the tokens behind these modules in this stage (`ModuleState.work`) what was ours, 0 to 1.

        The mean of those that have learned something; None: none has.
        """
        ours = self._counted if stage == self._stage else {}
        shares = [min(1.0, ours.get(str(module), 0) / work) for module, work in works.items() if work]
        return sum(shares) / len(shares) if shares else None


def _read(file: Path) -> tuple[int, dict[str, int]]:
    try:
        found = json.loads(file.read_bytes())
        return int(found["stage"]), {str(name): int(number) for name, number in found["counted"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.debug("%s: %s", file, error)  # of a new home there is none, and a damaged one is made anew
        return -1, {}
