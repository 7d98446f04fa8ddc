"""Whether what others say of a slice is believed: a part of it is done again here.

    of every slice        some of the texts that came for us are routed: our path must come out
    of a peer's first,    all its documents are read and compared; some texts, ours or not, are routed, and all of ours
    of one of its first   tokenized: the same must come out. Not deep in a portion: who reads there reads all before it
    with texts of ours,   (but where somebody of whom nothing was read says that one ends there)
    and of some later

Routes may differ by rounding where a text is as near to one path as to another, so a few may be wrong; tokens may not.
Whoever says something else is not believed any more, on this machine, in this stage.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from dipaco_swarm.algorithm.forgetting import put_last
from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.files import keep_if_possible
from dipaco_swarm.training.encoding import Indices
from dipaco_swarm.training.reading.cheap import CheapRouting
from dipaco_swarm.training.reading.shared.slices import NOWHERE, EndedError, Read, Slice, Slices, Trained, digest_of

log = logging.getLogger(__name__)

PREFIXES = 2
"""Texts of ours in a slice that are routed again at most..."""
PREFIX_CHANCE = 0.25
"""... each with this chance."""
FIRST_SAMPLE = 8
"""Texts of a peer's first slices that are routed, until there are so many: where everything is wrong, that is seen."""
SAMPLE = 32
"""Texts of a slice that are routed when its documents are read again later."""
READ_AGAIN = 0.5
"""What is read of others' documents later, in shares of what is ours of the corpus. Who looks at a slice reads all that
is before it, so deep ones are looked at less often."""
SHALLOW = 4
"""Where a portion begins: its first slices, some 220 documents. Whom we have not met is looked at there..."""
PASSED_OVER = 24
"""... and one slice deeper for so many of the peer's that were too deep to be looked at. Of whom nothing was read, no
more than these are used."""
MOST_REFUSED = 1024
"""Names that are remembered as not believed. The oldest are forgotten: another name is free anyway."""
MOST_TALLIES = 4096
"""Peers of whom is remembered what was found out; whom nothing was heard of for the longest is new again."""
ROUNDED = 0.02
"""So many routes may be others by rounding, and two more."""
NOT_HERE = "a slice that is not in the documents here"
MOST_TOKENS_A_CHARACTER = 4
"""Of a tokenizer of bytes."""


@dataclass
class Tally:
    """What was found out about a peer."""

    read: int = 0
    """Slices that were compared with their documents."""
    tokenized: int = 0
    """Texts that were tokenized again."""
    passed_over: int = 0
    """Slices that would have told something, and were too deep in their portions."""
    routed: int = 0
    """Texts that were routed again..."""
    wrong: int = 0
    """... and came out on another path."""

    @property
    def is_new(self) -> bool:
        return self.routed < FIRST_SAMPLE

    def is_too_deep(self, number: int, is_last: bool) -> bool:
        """Whether a slice of somebody new is used without looking at its documents."""
        if not self.read and (is_last or self.passed_over >= PASSED_OVER):
            return False  # who ends a portion, or goes on after its end, would take more than a slice from us
        return number >= SHALLOW + self.passed_over // PASSED_OVER

    @property
    def is_wrong(self) -> bool:
        return self.wrong > 2 + ROUNDED * self.routed


class Belief:
    """Looks at what others say. Used by the reader alone."""

    def __init__(
        self,
        routing: CheapRouting,
        slices: Slices,
        trained: Trained,
        path: PathIndex,
        prefix_tokens: int,
        noted: Path,
        random: Random,
    ) -> None:
        """`slices`: to read documents with. `noted`: the file that remembers who is not believed. `random`: one that
        nobody can foresee."""
        self._routing = routing
        self._slices = slices
        self._trained = trained
        self._path = path
        self._prefix = prefix_tokens
        self._noted = noted
        self._random = random
        self._tallies: dict[str, Tally] = {}
        self.refused: dict[str, str] = _read(noted)
        """Who is not believed -> why."""

    def refuse(self, peer: str, why: str) -> None:
        put_last(self.refused, peer, why, MOST_REFUSED)
        keep_if_possible(self._noted, json.dumps(self.refused).encode())

    def problem(self, peer: str, portion: int, number: int, said: Slice, paths: int) -> str | None:
        """What is wrong with a slice; None when it stands what was looked at. `paths`: of the stage.

        Raises DataError when documents of this machine cannot be read.
        """
        tally = self._tally(peer)
        problem = self._by_itself(said, tally)
        chance = READ_AGAIN / paths / (number + 1)
        is_new = tally.is_new or (not tally.tokenized and len(said.numbers_of(self._path)) > 0)
        if is_new and tally.is_too_deep(number, said.is_last):
            tally.passed_over += 1
            is_new = False
        if problem is None and (is_new or self._random.random() < chance):
            most = FIRST_SAMPLE if is_new else SAMPLE
            problem = self._by_its_documents(portion, number, said, tally, most)
        return problem

    def compared(self, peer: str, here: Read, texts: Sequence[str], said: Slice) -> str | None:
        """The same for a slice without tokens. `here`: what was read of it. `texts`: of its training documents."""
        tally = self._tally(peer)
        if problem := _other_documents(here, said):
            return problem
        tally.read += 1
        return self._routes(texts, said, tally, FIRST_SAMPLE if tally.is_new else PREFIXES)

    def _tally(self, peer: str) -> Tally:
        tally = self._tallies.get(peer, Tally())
        put_last(self._tallies, peer, tally, MOST_TALLIES)
        return tally

    def _by_itself(self, said: Slice, tally: Tally) -> str | None:
        if not said.has_tokens_of(self._path):
            return None
        texts = said.texts_of(self._path)
        longest = MOST_TOKENS_A_CHARACTER * self._routing.longest
        if any(len(ids) and not self._prefix < len(ids) <= longest for ids in texts):
            return f"a text of {max(map(len, texts))} tokens where {self._prefix + 1} to {longest} are possible"
        some = [ids for ids in texts if len(ids) and self._random.random() < PREFIX_CHANCE][:PREFIXES]
        return self._same(some, [self._path] * len(some), tally)

    def _by_its_documents(self, portion: int, number: int, said: Slice, tally: Tally, most: int) -> str | None:
        try:
            here = self._slices.read(portion, number)
        except EndedError:
            return NOT_HERE
        if problem := _other_documents(here, said):
            return problem
        tally.read += 1
        texts = self._routing.texts_of([document for document in here[0] if self._trained(document)])
        problem = self._routes(texts, said, tally, most)
        if problem is not None or not said.has_tokens_of(self._path):
            return problem
        ours = self._routing.whole([texts[i] for i in said.numbers_of(self._path)])
        tally.tokenized += len(ours)
        for again, sent in zip(ours, said.texts_of(self._path), strict=True):
            if not np.array_equal(again, sent):
                return "tokens that are not those of its text"
        return None

    def _routes(self, texts: Sequence[str], said: Slice, tally: Tally, most: int) -> str | None:
        if len(texts) != len(said.routes):
            return f"the paths of {len(said.routes)} texts where there are {len(texts)}"
        some = self._random.sample(range(len(texts)), min(most, len(texts)))
        begun = self._routing.begin([texts[i] for i in some])
        for number, ids in zip(some, begun, strict=True):
            if (len(ids) > self._prefix) != (said.routes[number, 0] != NOWHERE):
                return "a path for a text that is too short, or none for one that is not"
        return self._same(begun, [int(said.routes[i, 0]) for i in some], tally)

    def _same(self, begun: list[Indices], said: list[int], tally: Tally) -> str | None:
        """Whether these texts are on these paths."""
        if not begun:
            return None
        found = self._routing.paths_of(begun)
        checked = [(paths, path) for paths, path in zip(found.tolist(), said, strict=True) if paths[0] >= 0]
        tally.routed += len(checked)
        tally.wrong += sum(path not in paths for paths, path in checked)
        return f"{tally.wrong} of {tally.routed} texts on wrong paths" if tally.is_wrong else None


def _other_documents(here: Read, said: Slice) -> str | None:
    documents, is_last = here
    if (len(documents), is_last, digest_of(documents)) == (said.documents, said.is_last, said.digest):
        return None
    return f"other documents than those here ({said.documents} of them, here {len(documents)})"


def _read(noted: Path) -> dict[str, str]:
    try:
        found = json.loads(noted.read_text(encoding="utf-8"))
        return {str(peer): str(why) for peer, why in list(found.items())[-MOST_REFUSED:]}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError):
        log.warning("%s is damaged; whom it named is looked at again", noted)
        return {}
