"""What a volunteer's program asks of the training on its machine: `training_workbench.py`, or a simulation of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.events.event import Event
from dipaco_swarm.path_in_training import Trainable, Trainer
from dipaco_swarm.peer.snapshots import LossOf
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.training.inner import Batches
from dipaco_swarm.training.reading.shared.exchange import Others
from dipaco_swarm.training.scoring import Scores

Fetch = Callable[[str], bytes]
"""A blob by its digest."""
Tell = Callable[[Event], None]
"""Reports how far it has come."""


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Preparation:
    """What is to be made ready for training, and with what."""

    manifest: Manifest
    """Its stage is meant."""
    path: PathIndex
    peer: str
    """Our name; peers of other names may begin elsewhere in the documents."""
    fetch: Fetch
    tell: Tell
    others: Others | None = None
    """Who may have routed some of the documents; None: nobody."""
    stop: Callable[[], bool] = _never


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

    def scorer(self, sample: bytes, params: Sequence[Tensor]) -> "Scorer":
        """Scores the operator's routing sample, a blob, under a path with these parameters: fp32 (parameters,) a level.

        It works beside training, in another thread and on another network. Raises ManifestError when the sample does
        not fit the run.
        """
        ...

    def loss_on_slice(self, max_sequences: int) -> LossOf | None:
        """How early stopping scores the path: on so many held-out sequences of its shard; None where there are none."""
        ...


class Scorer(Protocol):
    """A routing sample and a path."""

    @property
    def pieces(self) -> int:
        """Documents of the sample."""
        ...

    def score(self, pieces: range) -> Scores:
        """Log-likelihoods of these pieces in nats: float64 (len(pieces),)."""
        ...


class Workbench(Protocol):
    """The training of this machine."""

    def sizes(self, manifest: Manifest, fetch: Fetch) -> Sequence[int]:
        """Parameters of a module of each level. From any thread. Raises as `prepare`."""
        ...

    def prepare(self, wanted: Preparation) -> Bench:
        """Get ready to train a path of a stage; the model holds the run's fresh parameters.

        What was prepared before is closed.

        Raises Stopped when asked to stop, ManifestError or DataError when the run's files or data cannot be used, and
        whatever `fetch` raises.
        """
        ...

    def prepare_next(self, wanted: Preparation) -> Bench:
        """The same for a stage that is to come, while another bench is trained on; in another thread. `begin` follows,
        or another `prepare`."""
        ...

    def begin(self, bench: Bench) -> None:
        """Train on what was prepared as the next one. What was trained on before is closed."""
        ...

    def rest(self, *, resting: bool) -> None:
        """Have whatever works beside training do nothing from now on, or go on. Returns at once."""
        ...

    def close(self) -> None:
        """Nothing is trained for now: end whatever works beside training. It may be prepared again."""
        ...
