"""A volunteer's part in a re-route: score the operator's routing sample under its path, and offer the scores."""

from dipaco_swarm.errors import HomeError
from dipaco_swarm.events.volunteer import CannotWrite, Scored
from dipaco_swarm.peer.entering import Post
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.training.scoring import BYTES_OF_A_SCORE, ScoreStatement, topic_of

AGAIN_SECONDS = 10.0
"""After a full disk."""


class Scoring:
    """Scores each routing sample once."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._scored: str | None = None
        """The routing sample that we have scored last."""

    def is_wanted(self, newest: Manifest) -> bool:
        """Whether the operator asks for scores of a sample, and ours are not out yet."""
        return newest.scoring not in (None, self._scored)

    def score(self, post: Post, newest: Manifest) -> None:
        """Score the sample under the agreed modules of our path. Raises Stopped when asked to stop meanwhile."""
        assert newest.scoring is not None, "nobody asked for scores"
        around, peer = self._around, post.peer
        self._scored = newest.scoring
        sample = around.fetch(newest.scoring)
        for module, state in peer.base.items():
            peer.model.load(module.level, state.params)
        scores = post.bench.scores(sample)
        try:
            digest = around.swarm.put_blob(scores)
        except HomeError as error:
            around.notices.failing("scores", CannotWrite(error=str(error), again_seconds=AGAIN_SECONDS))
            self._scored = None
            around.stop.wait(AGAIN_SECONDS)
            return
        statement = ScoreStatement(path=peer.path, scores=digest)
        around.swarm.publish(topic_of(newest), statement.to_bytes())
        around.screen.event(Scored(len(scores) // BYTES_OF_A_SCORE, peer.path))
