"""From a stage to the next one: what is left behind, and what comes along."""

import hashlib
from collections.abc import Callable, Mapping

from torch import Tensor

from dipaco_swarm.algorithm.state import vector_to_bytes
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.keeping import Keeping
from dipaco_swarm.peer.surroundings import Surroundings


class StageMove:
    """A volunteer's last minutes in a stage."""

    def __init__(self, around: Surroundings, keeping: Keeping) -> None:
        self._around = around
        self._keeping = keeping
        self._ours: Mapping[str, Tensor] = {}
        """What the stage left here that the next one may begin with, by its digest."""

    def leave(self, peer: PathInTraining) -> None:
        """A stage is over: nobody asks for its modules, and its checkpoints are the last that the next one looks at."""
        self._keeping.save(peer)
        states = [*peer.base.values(), *peer.left_behind.values()]
        vectors = [vector for state in states for vector in (state.params, state.momentum)]
        self._ours = {hashlib.sha256(vector_to_bytes(vector)).hexdigest(): vector for vector in vectors}
        for module in {*peer.left_behind, *peer.modules}:
            self._around.swarm.release(peer.stage, module)
        self._keeping.forget_before(peer.stage)

    def fetching(self) -> Callable[[str], bytes]:
        """Fetches what a stage begins with: from here, where it is the last version of the one before. Used once."""
        ours, self._ours = self._ours, {}

        def fetch(digest: str) -> bytes:
            vector = ours.get(digest)
            return self._around.fetch(digest) if vector is None else vector_to_bytes(vector)

        return fetch
