"""The operator's side of a discriminative re-route: the sample is out; who has scored it, and do we believe it?

Each path is scored by a peer that trains it. Paths that nobody serves, and those whose peers take several times as long
as the node itself would, are scored by the node from its kept modules.
"""

import logging
from collections.abc import Collection, Mapping

import numpy as np
from pydantic import ValidationError

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.manifest import Manifest
from dipaco_swarm.swarm.interface import Swarm
from dipaco_swarm.training.bank import load_path
from dipaco_swarm.training.modules import PathModel
from dipaco_swarm.training.scoring import (
    AUDITED_DOCUMENTS,
    Scores,
    ScoreStatement,
    audit,
    score_sample,
    scores_from_bytes,
    topic_of,
)
from dipaco_swarm.training.shards import EvaluationSet

log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Peers may take this many times as long as the node itself would..."""
PATIENCE_FLOOR_SECONDS = 20.0
"""... and this long for everything that is not scoring."""
BLOB_SECONDS = 60.0


class ScoreCollection:
    """The scores of one sample, path by path, as they come in."""

    def __init__(
        self,
        manifest: Manifest,
        swarm: Swarm,
        sample: EvaluationSet,
        model: PathModel,
        states: Mapping[ModuleId, ModuleState],
    ) -> None:
        self._manifest = manifest
        self._table = PathTable(manifest.stage.table)
        self._prefix = manifest.config.router.prefix_tokens
        self._swarm = swarm
        self._sample = sample
        self._model = model
        self._states = states
        self._scores: dict[PathIndex, Scores] = {}
        self._refused: set[tuple[str, str]] = set()
        self._asked = self._swarm.clock.monotonic()
        self._seconds_for_a_path = 0.0

    @property
    def missing(self) -> list[PathIndex]:
        return [PathIndex(path) for path in range(self._table.num_paths) if path not in self._scores]

    def matrix(self) -> Scores:
        """All scores, float64 (documents, paths)."""
        return np.column_stack([self._scores[PathIndex(path)] for path in range(self._table.num_paths)])

    def collect(self, staffed: Collection[PathIndex]) -> None:
        """Take what peers have announced; score one path ourselves if nobody will."""
        for peer, statement in sorted(self._swarm.statements(topic_of(self._manifest), timeout=BLOB_SECONDS).items()):
            self._take(peer, statement)
        waited = self._swarm.clock.monotonic() - self._asked
        late = waited > PATIENCE_FLOOR_SECONDS + PATIENCE * self._seconds_for_a_path
        orphan = next((path for path in self.missing if late or path not in staffed), None)
        if orphan is not None:
            load_path(self._model, self._table, orphan, self._states)
            self._scores[orphan] = score_sample(self._model.network, self._sample, self._prefix)
            log.info("scored the routing sample under path %d, for which no peer did", orphan)

    def _take(self, peer: str, statement: bytes) -> None:
        """Accept a peer's scores of a path that has none yet, if they stand the audit."""
        try:
            said = ScoreStatement.model_validate_json(statement)
        except ValidationError:
            self._refuse(peer, "", "a statement that is not one")
            return
        path = PathIndex(said.path)
        if path not in self.missing or (peer, said.scores) in self._refused:
            return
        if not self._trains(peer, path):
            self._refuse(peer, said.scores, f"scores of path {path}, which it does not train")
            return
        pieces = len(self._sample.lengths)
        try:
            scores = scores_from_bytes(
                self._swarm.fetch_blob(said.scores, timeout=BLOB_SECONDS, limit=8 * pieces), pieces
            )
        except UnreachableError:
            return  # it may be on its way; asked again with the next look
        except ValueError as error:
            self._refuse(peer, said.scores, str(error))
            return
        if self._stands_audit(path, scores):
            self._scores[path] = scores
        else:
            self._refuse(peer, said.scores, f"scores that path {path} does not give")

    def _trains(self, peer: str, path: PathIndex) -> bool:
        stage = self._manifest.stage.index
        modules = self._table.modules_of(path)
        return any(s.peer == peer and s.path == path for m in modules for s in self._swarm.members(stage, m))

    def _stands_audit(self, path: PathIndex, scores: Scores) -> bool:
        load_path(self._model, self._table, path, self._states)
        started = self._swarm.clock.monotonic()
        stands = audit(scores, self._model.network, self._sample, self._prefix, self._manifest.revision)
        fraction = min(1.0, AUDITED_DOCUMENTS / len(scores))
        self._seconds_for_a_path = max(self._seconds_for_a_path, (self._swarm.clock.monotonic() - started) / fraction)
        return stands

    def _refuse(self, peer: str, scores: str, what: str) -> None:
        if (peer, scores) not in self._refused:
            self._refused.add((peer, scores))
            log.warning("ignored peer %s: it sent %s", peer[-8:], what)
