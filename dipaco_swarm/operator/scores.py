"""The operator's side of a discriminative re-route: the sample is out; who has scored it, and do we believe it?

Each path is scored by the peers that train it, share by share. Paths that nobody serves, and those whose peers take
several times as long as most others, or as their speed lets expect, are scored by the node from its kept modules: some
pieces at a time, so that what a peer announces meanwhile is taken.
"""

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import median

import numpy as np

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.state import ModuleState, vector_from_bytes
from dipaco_swarm.operator.workshop import Fetch, PathScorer, States
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.interface import PeerName, Swarm
from dipaco_swarm.swarm.statements import StatementCollector
from dipaco_swarm.training.scoring import (
    BYTES_OF_A_SCORE,
    SHARES,
    Scores,
    ScoreStatement,
    pieces_of,
    rows_of_shares,
    scores_from_bytes,
    topic_of,
)

log = logging.getLogger(__name__)

PATIENCE = 3.0
"""A path's peers may take this many times as long as most..."""
PATIENCE_FLOOR_SECONDS = 20.0
"""... and this long for everything that is not scoring."""
FORWARD_SPEED = 3.0
"""So many tokens are scored in the time of one that is trained."""
BESIDE_SHARE = 0.1
"""Of a processor that training wants as well: what a thread of low priority has of it (`machine/beside.py`)."""
STAGE_SHARE = 0.1
"""Of the time of a stage, scoring may take; a sample is cut to what can be scored in it."""
FEW_PIECES = 80
"""A path; of fewer a classifier learns less than the clustering knew that it replaces."""
LOOK_SECONDS = 10.0
"""The node looks up from scoring so often, to hear what has come..."""
PIECES_AT_ONCE = 64
"""... between so many pieces."""
CEILING_SECONDS = 4 * 3600.0
"""However slow most say that they are, before anything has come: a peer may say what it likes."""
UNKNOWN_SECONDS = 60.0
"""For a path whose peers do not say how fast they are."""
BLOB_SECONDS = 60.0


class StatesThen(Mapping[ModuleId, ModuleState]):
    """What modules were when their stage was done: read where they are used, as there may be many."""

    def __init__(self, params: Mapping[str, str], fetch: Fetch) -> None:
        """`params`: blob of the parameters of each module, as the manifest has them."""
        self._params = {ModuleId.parse(module): digest for module, digest in params.items()}
        self._fetch = fetch

    def __getitem__(self, module: ModuleId) -> ModuleState:
        return ModuleState.seed(vector_from_bytes(self._fetch(self._params[module])))

    def __iter__(self) -> Iterator[ModuleId]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)


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
        """What is believed so far, nan where there is nothing: float64 (documents,)."""
        self._asked = self._clock.monotonic()
        every = frozenset(share for share in range(SHARES) if pieces_of(share, scorer.pieces))
        self._lacks = {PathIndex(path): set(every) for path in range(self._table.num_paths)}
        """The shares of which a path has no scores yet."""
        self._came: dict[PathIndex, float] = {}
        """Seconds after which all scores of a path had come from its peers."""
        self._looked_at: dict[PeerName, str] = {}
        """What each peer has said last, where that has nothing more for us."""
        self._doing = ""

    @property
    def activity(self) -> str:
        """For people."""
        return f"collecting scores, {len(self.missing)} of {self._table.num_paths} paths to come{self._doing}"

    @property
    def missing(self) -> list[PathIndex]:
        return [path for path, lacks in self._lacks.items() if lacks]

    def matrix(self) -> Scores:
        """All scores, float64 (documents, paths)."""
        return np.column_stack([self._scores[PathIndex(path)] for path in range(self._table.num_paths)])

    def collect(self, staffed: Mapping[PathIndex, float]) -> None:
        """Take what peers have announced; score some pieces of a path ourselves if nobody will.

        `staffed`: the paths that somebody trains, and how fast they score, in tokens a second.
        """
        began, missing = self._clock.monotonic(), self.missing
        heard = self._statements.heard(wanted=lambda said: said.path in missing)
        self._looked_at = {peer: self._looked_at[peer] for peer, _ in heard if peer in self._looked_at}
        for peer, said in heard:
            if self._clock.monotonic() - began >= LOOK_SECONDS:
                break  # whoever sends slowly, however many names it has, holds up no more than the next look
            if self._looked_at.get(peer) != said.blob:
                self._take(peer, said)
        waited = self._clock.monotonic() - self._asked
        late = waited > PATIENCE_FLOOR_SECONDS + PATIENCE * self._usual_seconds(staffed)
        orphan = next((path for path in self.missing if late or path not in staffed), None)
        if orphan is not None:
            self._score(orphan)

    def _usual_seconds(self, staffed: Mapping[PathIndex, float]) -> float:
        """How long most paths take: as they did, when half of them are here; before that as their speed says."""
        if 2 * len(self._came) >= len(staffed):
            return median(self._came.values()) if self._came else 0.0
        tokens = self._scorer.tokens
        usual = median(tokens / speed if speed else UNKNOWN_SECONDS for speed in staffed.values())
        return min(CEILING_SECONDS, usual)

    def _score(self, path: PathIndex) -> None:
        """Score a path ourselves, as far as we get until it is time to look up."""
        pieces, began = self._scorer.pieces, self._clock.monotonic()
        while self._clock.monotonic() - began < LOOK_SECONDS:
            if not self._lacks[path]:
                self._doing = ""
                log.info("scored what no peer did of the routing sample under path %d", path)
                return
            self._doing = f"; scoring path {path}, {100 - 100 * len(self._lacks[path]) / SHARES:.0f} %"
            share = min(self._lacks[path])
            part, scores = pieces_of(share, pieces), self._scores_of(path)
            first = part.start + int(np.argmax(np.isnan(scores[part.start : part.stop])))
            some = range(first, min(part.stop, first + PIECES_AT_ONCE))
            scores[some.start : some.stop] = self._scorer.score(path, self._states, some)
            if some.stop == part.stop:
                self._lacks[path].discard(share)

    def _take(self, peer: PeerName, said: ScoreStatement) -> None:
        """Accept a peer's scores of shares that have none yet, if they stand the audit."""
        path, pieces = PathIndex(said.path), self._scorer.pieces
        wanted = said.scored & self._lacks[path]
        if not wanted:
            self._looked_at[peer] = said.blob
            return
        rows = rows_of_shares(said.scored, pieces)
        read = partial(scores_from_bytes, documents=len(rows))
        fetched = self._statements.fetch(peer, said, read, timeout=BLOB_SECONDS, limit=BYTES_OF_A_SCORE * len(rows))
        if fetched is None:
            return
        self._looked_at[peer] = said.blob
        new = np.isin(rows, rows_of_shares(wanted, pieces))
        scores, rows = fetched[0][new], rows[new]
        if not self._scorer.believes(path, self._states, scores, rows):
            self._statements.refuse(peer, said, "the path does not give them")
            return
        self._statements.accept(peer)
        self._scores_of(path)[rows] = scores
        self._lacks[path] -= wanted
        if not self._lacks[path]:
            self._came[path] = self._clock.monotonic() - self._asked

    def _scores_of(self, path: PathIndex) -> Scores:
        return self._scores.setdefault(path, np.full(self._scorer.pieces, np.nan))


def staffed_paths(swarm: Swarm, manifest: Manifest) -> dict[PathIndex, float]:
    """The paths of the manifest's stage that somebody trains (whom we know, if we know any), and how fast all of them
    score: tokens a second; 0 where nobody says."""
    table, speeds = PathTable(manifest.stage.table), dict[PathIndex, dict[PeerName, float]]()
    of: dict[PeerName, tuple[PathIndex, float]] = {}  # one path a peer, whatever it says under other modules
    for module in table.modules:
        for said in swarm.members(manifest.stage.index, module):
            if said.path is not None and said.path < table.num_paths and said.known:
                of[said.peer] = said.path, said.tokens_per_second
    for peer, (path, speed) in of.items():
        speeds.setdefault(path, {})[peer] = speed
    share = BESIDE_SHARE if manifest.trains_on else 1.0
    return {path: FORWARD_SPEED * share * sum(of_path.values()) for path, of_path in speeds.items()}


def pieces_to_score(staffed: Mapping[PathIndex, float], paths: int, seconds: float | None, tokens: float) -> int:
    """How many pieces a sample may have, so that every path's peers have scored them after some time.

    `staffed`: as above; paths that nobody trains, or whose peers do not say how fast they are, are left out. `paths`:
    of the stage. `seconds`: that a stage takes; None: nobody knows. `tokens`: of a piece, on average.
    """
    speeds = [speed for speed in staffed.values() if speed]
    if seconds is None or not speeds:
        return FEW_PIECES * paths
    return max(FEW_PIECES * paths, int(STAGE_SHARE * seconds * median(speeds) / tokens))
