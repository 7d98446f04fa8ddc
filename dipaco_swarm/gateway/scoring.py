"""`dipaco-swarm eval --run ADDRESS --ask-peers`: documents are scored by who trains their path; a sample is checked.

Nothing of the model is downloaded but the router. Of each peer the first score and one in ten is asked of another peer
that has the very states that were named; where the two differ, or nobody else has them and the path is small, this
machine fetches these states and looks for itself. What a liar has scored is scored again by others.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.client.sources import run_in_swarm, visit
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.client.visits import Tell, held_out
from dipaco_swarm.dashboard.views import Evaluation, PathScore
from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.gateway.asked import Origin, SilentError
from dipaco_swarm.gateway.checking import SHARE, SMALL_BYTES, StateOf, states_into
from dipaco_swarm.gateway.live import state_of
from dipaco_swarm.gateway.own_paths import OwnPaths
from dipaco_swarm.gateway.peers import Peers, PeerWriter
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.swarm.interface import PeerName, Swarm
from dipaco_swarm.training.evaluation import Score
from dipaco_swarm.training.pieces import EvaluationSet
from dipaco_swarm.training.writing import think

log = logging.getLogger(__name__)

AT_ONCE = 3
"""Documents that are asked about at the same time: one fewer than a peer takes of one asker, as it may still count the
last one when we have its answer."""
TOLERANCE = 0.01
"""Nats a token, in the mean, that scores of other processors may differ by: 1 % of a perplexity."""


@dataclass(frozen=True)
class Piece:
    """A piece of a document, on its path."""

    path: PathIndex
    text: tuple[int, ...]


@dataclass(frozen=True)
class Opinion:
    """What somebody says of a piece."""

    piece: Piece
    logprobs: tuple[float, ...]
    """Of each token but the first, which nothing comes before."""
    origin: Origin

    def agrees(self, logprobs: Sequence[float]) -> bool:
        """Whether this is what the path thinks, up to the rounding of another processor."""
        return float(np.abs(np.subtract(self.logprobs, logprobs)).mean()) <= TOLERANCE


class PeerScores:
    """Scores of pieces by peers of a run, and by this machine where no peer answers."""

    def __init__(
        self,
        run: TrainedRun,
        writers: Callable[[PathIndex], Iterator[PeerWriter]],
        state_of: StateOf,
        liars: set[PeerName],
        tell: Tell,
    ) -> None:
        """`writers`: peers of a path that are no liars. `liars`: whoever is found out is added to it."""
        self._run = run
        self._writers = writers
        self._state_of = state_of
        self._liars = liars
        self._tell = tell
        self._own = OwnPaths(run)
        self._alone: set[PathIndex] = set()
        self.checked = 0
        """Scores that somebody else has agreed with, or this machine."""

    def of(self, pieces: Sequence[Piece]) -> list[Opinion]:
        """An opinion of each piece; none of a liar's is left. Raises UnreachableError when nobody can say."""
        found: dict[Piece, Opinion] = {}
        while missing := [piece for piece in dict.fromkeys(pieces) if piece not in found]:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                found.update(zip(missing, pool.map(self._ask, missing), strict=True))
            self._check([found[piece] for piece in missing])
            found = {piece: said for piece, said in found.items() if said.origin.by not in self._liars}
        return [found[piece] for piece in pieces]

    def _ask(self, piece: Piece) -> Opinion:
        for writer in self._writers(piece.path):
            if (opinion := _asked(writer, piece)) is not None:
                return opinion
        if piece.path not in self._alone:
            self._alone.add(piece.path)
            self._tell(f"no peer answers for path {piece.path} now; this machine fetches it and scores for itself")
        try:
            thoughts, origin = self._own.think(piece.path, piece.text, 0)
        except SilentError as error:
            raise UnreachableError(str(error)) from None
        return Opinion(piece, tuple(thought.logprob or 0.0 for thought in thoughts[1:]), origin)

    def _check(self, opinions: Sequence[Opinion]) -> None:
        """The first of each peer, and one in ten of the others."""
        met: set[str] = set()
        for opinion in opinions:
            by = opinion.origin.by
            if not by or by in self._liars or (by in met and random.random() > SHARE):
                continue
            met.add(by)
            other = self._second_opinion(opinion)
            if other is not None and opinion.agrees(other.logprobs):
                self.checked += 1
                continue
            for each in (opinion, other):
                if each is not None:
                    self._look(each, because_they_differ=other is not None)

    def _second_opinion(self, opinion: Opinion) -> Opinion | None:
        """Of another peer with the same states."""
        for writer in self._writers(opinion.piece.path):
            if writer.name != opinion.origin.by:
                other = _asked(writer, opinion.piece)
                if other is not None and other.origin.modules == opinion.origin.modules:
                    return other
        return None

    def _look(self, opinion: Opinion, *, because_they_differ: bool) -> None:
        """Score with the states that were named, and remember who has said something else."""
        model, piece = self._run.model(), opinion.piece
        if (
            not because_they_differ
            and 8 * sum(parameter.numel() for parameter in model.network.parameters()) > SMALL_BYTES
        ):
            return
        why = states_into(model, self._run.table.modules_of(piece.path), opinion.origin, self._state_of)
        if why is None:
            return  # nobody has them any more
        self.checked += 1
        truth = [thought.logprob or 0.0 for thought in think(model.network, piece.text)[1:]] if not why else []
        if why or not opinion.agrees(truth):
            name = PeerName(opinion.origin.by)
            self._liars.add(name)
            self._tell(f"peer {name[-8:]} is asked nothing more: {why or 'its scores are not those of its path'}")


def _asked(writer: PeerWriter, piece: Piece) -> Opinion | None:
    try:
        thoughts, origin = writer.think(piece.path, piece.text, 0)
    except SilentError as error:
        log.debug("%s", error)
        return None
    return Opinion(piece, tuple(thought.logprob or 0.0 for thought in thoughts[1:]), origin)


def evaluate_by_peers(address: RunAddress, data: str | None, tell: Tell) -> Evaluation:
    """Routed perplexity per path and in all, as `client.visits.evaluate`, of the states that peers have when they are
    asked. Raises UnreachableError when nobody can say what a path thinks."""
    with visit(address) as (swarm, manifest):
        run = run_in_swarm(swarm, manifest, address.fingerprint)
        return scored(run, swarm, held_out(run, data), data, tell)


def scored(run: TrainedRun, swarm: Swarm, pieces: EvaluationSet, data: str | None, tell: Tell) -> Evaluation:
    """These pieces, by peers. `data`: where they are from; None: from the run."""
    manifest, liars = run.manifest, set[PeerName]()
    peers = Peers(swarm, manifest.stage.index, run.table, liars)
    prefix = manifest.rules.router.prefix_tokens
    paths = run.routing().paths(pieces.tokens[:, :prefix])
    texts = [
        Piece(PathIndex(int(path)), tuple(map(int, tokens[:length])))
        for path, tokens, length in zip(paths, pieces.tokens, pieces.lengths, strict=True)
    ]
    scores = PeerScores(run, peers.writers, state_of(swarm, run), liars, tell)
    by_path: dict[PathIndex, Score] = {}
    opinions = scores.of(texts)
    for said in opinions:
        logprobs = said.logprobs[max(prefix, 1) - 1 :]
        path = said.piece.path
        by_path[path] = by_path.get(path, Score()) + Score(float(np.sum(logprobs, dtype=np.float64)), len(logprobs))
    of_peers = sum(bool(said.origin.by) for said in opinions)
    askeds = len({said.origin.by for said in opinions if said.origin.by})
    tell(f"{of_peers} of {len(texts)} documents scored by {askeds} peers; {scores.checked} scores were checked")
    counts = Counter(piece.path for piece in texts)
    return Evaluation(
        run=manifest.rules.name,
        stage=manifest.stage.index,
        data=(data or f"held-out documents of {manifest.rules.data.called}") + ", scored by peers",
        prefix_tokens=prefix,
        paths=tuple(PathScore(path, counts[path], of.tokens, of.loss) for path, of in sorted(by_path.items())),
    )
