"""The operator's side of a discriminative re-route: the sample is out; who has scored it, and do we believe it?

Each path is scored by a peer that trains it. Paths that nobody serves, and those whose peers take several times as long
as the node itself would, are scored by the node from its kept modules.
"""

import logging
from collections.abc import Collection
from functools import partial

import numpy as np

from dipaco_swarm.algorithm.paths import PathIndex, PathTable
from dipaco_swarm.operator.workshop import PathScorer, States
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.interface import PeerName, Swarm
from dipaco_swarm.swarm.statements import StatementCollector
from dipaco_swarm.training.scoring import (
    AUDITED_DOCUMENTS,
    BYTES_OF_A_SCORE,
    Scores,
    ScoreStatement,
    scores_from_bytes,
    topic_of,
)

log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Peers may take this many times as long as the node itself would..."""
PATIENCE_FLOOR_SECONDS = 20.0
"""... and this long for everything that is not scoring."""
BLOB_SECONDS = 60.0


class ScoreCollection:
    """The scores of one sample, path by path, as they come in."""

    def __init__(self, manifest: Manifest, swarm: Swarm, scorer: PathScorer, states: States) -> None:
        self._table = PathTable(manifest.stage.table)
        self._clock = swarm.clock
        self._scorer = scorer
        self._states = states
        self._statements = StatementCollector(
            swarm,
            manifest.stage.index,
            self._table,
            topic_of(manifest),
            ScoreStatement.model_validate_json,
            "scores",
        )
        self._scores: dict[PathIndex, Scores] = {}
        self._asked = self._clock.monotonic()
        self._seconds_for_a_path = 0.0

    @property
    def missing(self) -> list[PathIndex]:
        return [PathIndex(path) for path in range(self._table.num_paths) if path not in self._scores]

    def matrix(self) -> Scores:
        """All scores, float64 (documents, paths)."""
        return np.column_stack([self._scores[PathIndex(path)] for path in range(self._table.num_paths)])

    def collect(self, staffed: Collection[PathIndex]) -> None:
        """Take what peers have announced; score one path ourselves if nobody will."""
        for peer, said in self._statements.heard(wanted=lambda said: said.path in self.missing):
            if said.path in self.missing:
                self._take(peer, said)
        waited = self._clock.monotonic() - self._asked
        late = waited > PATIENCE_FLOOR_SECONDS + PATIENCE * self._seconds_for_a_path
        orphan = next((path for path in self.missing if late or path not in staffed), None)
        if orphan is not None:
            self._scores[orphan] = self._scorer.score(orphan, self._states)
            log.info("scored the routing sample under path %d, for which no peer did", orphan)

    def _take(self, peer: PeerName, said: ScoreStatement) -> None:
        """Accept a peer's scores of a path that has none yet, if they stand the audit."""
        path, pieces = PathIndex(said.path), self._scorer.pieces
        read = partial(scores_from_bytes, documents=pieces)
        fetched = self._statements.fetch(peer, said, read, timeout=BLOB_SECONDS, limit=BYTES_OF_A_SCORE * pieces)
        if fetched is None:
            return
        scores, _ = fetched
        if self._stands_audit(path, scores):
            self._scores[path] = scores
        else:
            self._statements.refuse(peer, said, "the path does not give them")

    def _stands_audit(self, path: PathIndex, scores: Scores) -> bool:
        started = self._clock.monotonic()
        stands = self._scorer.believes(path, self._states, scores)
        fraction = min(1.0, AUDITED_DOCUMENTS / len(scores))
        seconds = (self._clock.monotonic() - started) / fraction
        self._seconds_for_a_path = max(self._seconds_for_a_path, seconds)
        return stands
