"""The texts of our path, slice after slice: of what others have routed where there is any, else routed here."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random, SystemRandom

import numpy as np

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.training.documents import Portion
from dipaco_swarm.training.encoding import Indices
from dipaco_swarm.training.reading.cheap import CheapRouting
from dipaco_swarm.training.reading.places import TOGETHER
from dipaco_swarm.training.reading.shared.belief import NOT_HERE, Belief
from dipaco_swarm.training.reading.shared.inbox import Claim, Inbox, Part
from dipaco_swarm.training.reading.shared.ledger import Ledger, Use, bits_of
from dipaco_swarm.training.reading.shared.shelf import Shelf
from dipaco_swarm.training.reading.shared.slices import (
    ALL,
    NOWHERE,
    EndedError,
    Read,
    Slice,
    Slices,
    Trained,
    slice_with,
    slices_in,
)
from dipaco_swarm.training.reading.shared.subject import LEDGER, REFUSED
from dipaco_swarm.training.tokenizer import stored_as

log = logging.getLogger(__name__)

AWAIT_SECONDS = 10.0
"""Who finds all that is left in the hands of others waits so long for the next part of it, and then routes itself."""

Say = Callable[[dict[str, object]], None]


@dataclass(frozen=True)
class Terms:
    """What decides what is routed, and what of it is kept for others."""

    path: PathIndex
    paths: int
    """Of the stage."""
    start: int
    """The portion that this peer begins with."""
    peer: str
    tokens: bool
    """Whether tokens are kept for others, or routes alone."""
    vocabulary: int
    """Token ids are below that."""
    shelf_bytes: int
    """That may be kept for others."""


@dataclass(frozen=True)
class Gain:
    """What a slice brings."""

    texts: list[Indices]
    """Of our path: token ids, int64."""
    documents: int
    characters: int
    routed: int
    """Texts of all paths."""


class SharedSupply:
    """Goes through the corpus once, in the order of the ledger."""

    def __init__(
        self,
        terms: Terms,
        ours: Slices,
        slices: Slices,
        trained: Trained,
        routing: CheapRouting,
        shelf: Shelf,
        ledger: Ledger,
        inbox: Inbox,
        belief: Belief,
        say: Say,
    ) -> None:
        """`ours`: reads what is routed here: its portions stay open until we go on with them. `slices`: the rest."""
        self._terms = terms
        self._slices_of_ours = ours
        self._slices = slices
        self._trained = trained
        self._routing = routing
        self._shelf = shelf
        self._ledger = ledger
        self._inbox = inbox
        self._belief = belief
        self._say = say
        self._part: tuple[Part, list[Slice]] | None = None
        """What is being used of others, and what is left of it."""
        self._ours: list[int] = []
        """Portions that we route, in turns."""
        self._waited = False
        """Whether nothing right has come of others since we waited for it, or something wrong has."""

    def tell_all(self) -> None:
        """Say what there was before this program was started."""
        for portion in self._shelf.spans:
            self._say_routed(portion)
        for portion, done in self._ledger.done.items():
            self._say({"used": [portion, done, portion in self._ledger.through]})
        for peer in self._belief.refused:
            self._say({"refused": peer})

    def next(self, place: int) -> Gain | None:
        """What the slice at a place of the ledger brings; None after the last one of the corpus.

        Raises DataError when documents cannot be read, OSError when the disk is full.
        """
        if place < len(self._ledger):
            return self._again(self._ledger.uses[place])
        while True:
            for found in (self._from_shelf, self._from_others):
                gain = found()
                if gain is not None:
                    return gain
            if not self._route():
                return None

    def _again(self, use: Use) -> Gain:
        """From the documents: it was used before."""
        try:
            texts, _ = self._read(use.portion, use.number)
        except EndedError:
            if not use.by:
                raise
            texts = []  # who routed it had made it up, and nobody had looked
        wanted = [texts[i] for i in use.numbers.tolist() if i < len(texts)]
        return Gain(_long(self._routing.whole(wanted)), use.documents, use.characters, use.texts)

    # ----------------------------------------------------------------------------------------------- of ours, others'

    def _from_shelf(self) -> Gain | None:
        """What we have routed and not used: a moment ago, on another path, or before we were killed."""
        for portion, span in self._shelf.spans.items():
            number = self._ledger.done.get(portion, 0)
            if span.first <= number < span.end and (said := self._shelf.read(portion, number)) is not None:
                return self._used(portion, number, said, None, "")
        return None

    def _from_others(self) -> Gain | None:
        while True:
            if self._part is None:
                part = self._inbox.take()
                if part is None:
                    return None
                self._part = part, self._opened(part)
            part, left = self._part
            number = self._ledger.done.get(part.portion, 0)
            left[:] = left[max(0, number - part.number) :] if part.number <= number else []
            if not left or part.portion in self._ledger.through or part.peer in self._belief.refused:
                self._part = None
                self._say({"taken": Path(part.file).name})
                continue
            said = left.pop(0)
            self._part = Part(part.file, part.peer, part.portion, number + 1), left
            gain = self._looked_at(part, number, said)
            self._waited = gain is None  # names are free: after each one that lies we go on by ourselves
            return gain

    def _opened(self, part: Part) -> list[Slice]:
        file = Path(part.file)
        try:
            found = slices_in(file.read_bytes(), self._terms.paths, self._terms.vocabulary)
        except (ValueError, FileNotFoundError) as error:  # it was whole when it came
            self._refuse(part, f"something that {error}")
            return []
        finally:
            file.unlink(missing_ok=True)
        return found

    def _looked_at(self, part: Part, number: int, said: Slice) -> Gain | None:
        """What a slice of somebody else brings, if it stands being looked at."""
        if not self._terms.tokens:
            said = said.without_tokens()  # all documents are read here anyway, so nobody has to be believed
        if said.has_tokens_of(self._terms.path):
            problem, texts = self._belief.problem(part.peer, part.portion, number, said, self._terms.paths), None
        else:
            problem, texts = self._compared(part, number, said)
        if problem is not None:
            self._refuse(part, problem)
            return None
        return self._used(part.portion, number, said, texts, part.peer)

    def _compared(self, part: Part, number: int, said: Slice) -> tuple[str | None, list[str]]:
        """What is wrong with a slice without tokens, and its texts."""
        try:
            texts, here = self._read(part.portion, number)
        except EndedError:
            return NOT_HERE, []
        return self._belief.compared(part.peer, here, texts, said), texts

    def _refuse(self, part: Part, problem: str) -> None:
        self._belief.refuse(part.peer, problem)
        self._say({"refused": part.peer, "portion": part.portion, "why": problem})

    def _used(self, portion: int, number: int, said: Slice, texts: Sequence[str] | None, by: str) -> Gain:
        """`texts`: of the slice, where they are at hand."""
        path = self._terms.path
        numbers = said.numbers_of(path)
        if said.has_tokens_of(path):
            ours = said.texts_of(path)
        else:
            if texts is None:
                texts, _ = self._read(portion, number)
            ours = self._routing.whole([texts[i] for i in numbers.tolist() if i < len(texts)])
        bits, count = bits_of(numbers, len(said.routes)), len(said.routes)
        self._ledger.add(Use(portion, number, said.documents, said.characters, said.is_last, count, bits, by))
        self._say({"used": [portion, number + 1, said.is_last]})
        return Gain(_long(ours), said.documents, said.characters, count)

    def _read(self, portion: int, number: int) -> tuple[list[str], Read]:
        """The texts of a slice, and its documents. Raises EndedError, and DataError."""
        here = self._slices.read(portion, number)
        return self._texts_of(here), here

    def _texts_of(self, here: Read) -> list[str]:
        return self._routing.texts_of([document for document in here[0] if self._trained(document)])

    # -------------------------------------------------------------------------------------------------- routed here

    def _route(self) -> bool:
        """Route the next slice, for us and for others; False: all of the corpus was used."""
        portion = self._to_route()
        if portion is None:
            return False
        if portion not in self._ours and not self._waited:  # all that is left is somebody's: it should come
            self._waited = not self._inbox.wait(AWAIT_SECONDS)
            return True
        number, span = self._ledger.done.get(portion, 0), self._shelf.spans.get(portion)
        if span is not None and span.end != number:  # we had left it to somebody who is gone now, or it is of old
            self._shelf.drop(portion)
        try:
            documents, is_last = here = self._slices_of_ours.read(portion, number)
        except EndedError:
            if not self._ledger.by.get(portion):
                raise
            log.warning("peer %s said more of a portion than there is", self._ledger.by[portion][-8:])
            self._ledger.end(portion)
            self._say({"used": [portion, number, True]})
            return True
        texts = self._texts_of(here)
        found = self._routing.paths_of(self._routing.begin(texts))
        routes = np.where(found < 0, NOWHERE, found).astype(np.uint16)
        scope, dtype = (ALL if self._terms.tokens else self._terms.path), stored_as(self._terms.vocabulary)
        said = slice_with(documents, is_last, routes, scope, [], dtype)
        whole = self._routing.whole([texts[i] for i in said.numbers_of(scope)])
        said = slice_with(documents, is_last, routes, scope, whole, dtype)
        self._shelf.add(portion, number, said)
        self._say_routed(portion)
        for gone in self._shelf.make_room(self._terms.shelf_bytes):
            self._say({"gone": gone})
        return True

    def _to_route(self) -> int | None:
        """The portion to go on with: the one of ours that is least far; else the next one, which is somebody's."""
        claims, through = self._inbox.claims(), self._ledger.through
        self._ours = [p for p in self._ours if p not in through and not self._is_lost(p, claims)]
        count = len(self._slices.portions)
        open_ones = [p for p in ((self._terms.start + i) % count for i in range(count)) if p not in through]
        free = (p for p in open_ones if p not in claims and p not in self._ours)
        self._ours += islice(free, max(0, TOGETHER - len(self._ours)))
        if self._ours:
            return min(self._ours, key=lambda p: self._ledger.done.get(p, 0))
        return open_ones[0] if open_ones else None

    def _is_lost(self, portion: int, claims: dict[int, list[Claim]]) -> bool:
        """Whether somebody else is further in our portion; of two that are as far, the first by name goes on."""
        span = self._shelf.spans.get(portion)
        ours = span.end if span is not None else 0
        others = claims.get(portion, [])
        return any(c.end < 0 or c.end > ours or (c.end == ours and c.peer < self._terms.peer) for c in others)

    def _say_routed(self, portion: int) -> None:
        span = self._shelf.spans[portion]
        self._say({"routed": [portion, span.first, span.end, span.is_whole]})


def _long(texts: Sequence[Indices]) -> list[Indices]:
    """Without those that turned out too short."""
    return [ids for ids in texts if len(ids)]


def shared_supply(
    terms: Terms,
    prefix_tokens: int,
    portions: Sequence[Portion],
    routing: CheapRouting,
    trained: Trained,
    shelf: Shelf,
    folder: Path,
    inbox: Inbox,
    say: Say,
    random: Random | None = None,
) -> SharedSupply:
    """The supply of a stream in `folder`, as it was left. `portions`: in the run's order. Raises OSError."""
    shelf.look()
    ours, slices = Slices(portions, routing.work), Slices(portions, routing.work)
    chance = random or SystemRandom()
    belief = Belief(routing, slices, trained, terms.path, prefix_tokens, folder / REFUSED, chance)
    ledger = Ledger(folder / LEDGER)
    supply = SharedSupply(terms, ours, slices, trained, routing, shelf, ledger, inbox, belief, say)
    supply.tell_all()
    return supply
