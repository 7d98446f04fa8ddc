"""What a volunteer's program asks of the training on its machine: `training_workbench.py`, or a simulation of it."""

from collections.abc import Callable
from typing import Protocol

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.events.event import Event
from dipaco_swarm.path_in_training import Trainable, Trainer
from dipaco_swarm.peer.snapshots import LossOf
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.training.inner import Batches

Fetch = Callable[[str], bytes]
"""A blob by its digest."""
Tell = Callable[[Event], None]
"""Reports how far it has come."""


class Bench(Protocol):
    """One path, ready to be trained: its model, its optimizer and its shard."""

    @property
    def model(self) -> Trainable: ...

    @property
    def trainer(self) -> Trainer: ...

    def batches(self, seed: int, consumed: int) -> Batches:
        """Batches of the shard without end, int64 (batch_sequences, sequence_length), after the first `consumed`.

        None where the next one is not there yet. `seed`: of the order in which the shard is read.
        """
        ...

    def scores(self, sample: bytes) -> bytes:
        """Scores of the operator's routing sample under what the model has now, both as blobs.

        Raises ManifestError when the sample does not fit the run.
        """
        ...

    def loss_on_slice(self, max_sequences: int) -> LossOf | None:
        """How early stopping scores the path: on so many held-out sequences of its shard; None where there are none."""
        ...


class Workbench(Protocol):
    """The training of this machine."""

    def prepare(
        self, manifest: Manifest, path: PathIndex, peer: str, fetch: Fetch, tell: Tell, stop: Callable[[], bool]
    ) -> Bench:
        """Get ready to train a path of the manifest's stage; the model holds the run's fresh parameters.

        `peer`: our name; peers of other names may begin elsewhere in the documents. What was prepared before is
        closed.

        Raises Stopped when `stop` says so, ManifestError or DataError when the run's files or data cannot be used, and
        whatever `fetch` raises.
        """
        ...

    def close(self) -> None:
        """Nothing is trained for now: end whatever works beside training. It may be prepared again."""
        ...
