"""What a volunteer's program asks of the training on its machine: `training_workbench.py`, or a simulation of it."""

from collections.abc import Callable, Iterator
from typing import Protocol

from torch import Tensor

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.events.event import Event
from dipaco_swarm.path_in_training import Trainable, Trainer
from dipaco_swarm.peer.snapshots import LossOf
from dipaco_swarm.run.manifest import Manifest

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

    def batches(self, seed: int, consumed: int) -> Iterator[Tensor]:
        """Batches of the shard without end, int64 (batch_sequences, sequence_length), after the first `consumed`.

        `seed`: of the order in which the shard is read.
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

    def prepare(self, manifest: Manifest, path: PathIndex, fetch: Fetch, tell: Tell, stop: Callable[[], bool]) -> Bench:
        """Get ready to train a path of the manifest's stage; the model holds the run's fresh parameters.

        Raises Stopped when `stop` says so, ManifestError or DataError when the run's files or data cannot be used, and
        whatever `fetch` raises.
        """
        ...
