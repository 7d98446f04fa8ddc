"""A process that makes gradients for another one: see `together.py`, which starts it.

It has a network, and no optimizer, no moments, no documents and no run. Parameters and rows come in each step.
"""

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from dipaco_swarm.errors import SwarmError
from dipaco_swarm.run.config import LevelConfig, ModelConfig
from dipaco_swarm.training.gradients import Gradients, Passes
from dipaco_swarm.training.modules import PathModel, build_network

LOOPBACK = "127.0.0.1"
MEETING_SECONDS = 30.0
"""For helpers that are ready, to find each other."""
STEP_SECONDS = 120.0
"""So long one is waited for after the others: a helper that stands still is taken for dead."""
MOST_WORDS = 200
READY = "ready"


@dataclass(frozen=True)
class HelperSettings:
    """What a helper builds its network from, and how it computes."""

    model: ModelConfig
    vocabulary: int
    levels: tuple[LevelConfig, ...]
    passes: Passes
    threads: int | None

    def path_model(self, device: str) -> PathModel:
        """With parameters that the first step replaces."""
        model = PathModel(build_network(self.model, self.vocabulary, 0), self.levels)
        model.to(device)
        model.network.train()
        return model


@dataclass(frozen=True)
class Place:
    """Where a helper works, and where it meets the others."""

    device: str
    rank: int
    ranks: int
    meeting: str
    """A file that none of them has used before."""


def help_out(pipe: Connection, settings: HelperSettings, place: Place) -> None:
    """Make gradients of the rows that are sent, until whoever sends them has ended or closed the pipe."""
    with closing(pipe), suppress(OSError, EOFError, _OthersGoneError):
        try:
            _help_out(pipe, settings, place)
        except (SwarmError, RuntimeError) as error:  # of this device: it would come again
            pipe.send(" ".join(str(error).split())[:MOST_WORDS])


def _help_out(pipe: Connection, settings: HelperSettings, place: Place) -> None:
    """Raises what a device that cannot compute does; OSError, EOFError or _OthersGoneError in the end."""
    model = settings.path_model(place.device)
    gradients = Gradients(model, settings.passes)
    parameters = list(model.network.parameters())
    flat = room_for(parameters)
    pipe.send(READY)
    with _of_others():
        group = Group(place.meeting, place.rank, place.ranks)
    while True:
        if (said := pipe.recv()) is None:
            continue  # a step was given up, and our part of it was done
        rows, sequences = said
        with _of_others():
            group.broadcast(flat)
        read_parameters(flat, parameters)
        model.network.zero_grad()
        loss = gradients.part(torch.from_numpy(rows), sequences, pipe.poll)
        write_gradients(flat, parameters, loss)
        with _of_others():
            group.sum_up(flat)


class _OthersGoneError(Exception):
    """The peer, or another helper, has ended."""


@contextmanager
def _of_others() -> Iterator[None]:
    """Around what gloo says of others with the error that a device has for itself."""
    try:
        yield
    except RuntimeError as error:
        raise _OthersGoneError from error


def help_in_process(pipe: Connection, settings: HelperSettings, place: Place) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl+C goes to us as well; the peer says when it is over
        signal.signal(number, signal.SIG_IGN)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    help_out(pipe, settings, place)


# -------------------------------------------------------------------------------------------------- for both sides


class Group:
    """Those who meet in a file, on this machine alone."""

    def __init__(self, meeting: str, rank: int, ranks: int) -> None:
        """Waits for the others. Raises RuntimeError when somebody does not come."""
        distributed: Any = torch.distributed  # its types lack what comes from C++
        store, gloo = distributed.FileStore(meeting, ranks), distributed.ProcessGroupGloo
        store.set_timeout(timedelta(seconds=MEETING_SECONDS))
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=LOOPBACK)]
        options._timeout = timedelta(seconds=STEP_SECONDS)
        self._gloo = gloo(store, rank, ranks, options)

    def broadcast(self, flat: Tensor) -> None:
        """Rank 0's numbers to all. Raises RuntimeError when somebody is gone."""
        self._gloo.broadcast(flat, 0).wait()

    def sum_up(self, flat: Tensor) -> None:
        """The sum of all to all. Raises RuntimeError when somebody is gone."""
        self._gloo.allreduce(flat).wait()


def room_for(parameters: Sequence[nn.Parameter]) -> Tensor:
    """For all of them, one after the other, and the loss: fp32 (numbers + 1,). A GPU reads it where it is."""
    size = sum(parameter.numel() for parameter in parameters) + 1
    return torch.empty(size, dtype=torch.float32, pin_memory=parameters[0].is_cuda)


def _places(flat: Tensor, parameters: Sequence[nn.Parameter]) -> Iterator[tuple[Tensor, nn.Parameter]]:
    """Each parameter with its place in `flat`, which has its shape."""
    sizes = [parameter.numel() for parameter in parameters]
    for place, parameter in zip(torch.split(flat[:-1], sizes), parameters, strict=True):
        yield place.view_as(parameter), parameter


def write_parameters(flat: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    for place, parameter in _places(flat, parameters):
        place.copy_(parameter.detach())


def read_parameters(flat: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    for place, parameter in _places(flat, parameters):
        parameter.detach().copy_(place)


def write_gradients(flat: Tensor, parameters: Sequence[nn.Parameter], loss: Tensor | None) -> None:
    """And the loss at the end; None: there is none, and nobody looks at the gradients."""
    for place, parameter in _places(flat, parameters):
        if parameter.grad is None:  # a part without rows
            place.zero_()
        else:
            place.copy_(parameter.grad)
    flat[-1] = 0.0 if loss is None else loss


def read_gradients(flat: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    for place, parameter in _places(flat, parameters):
        if parameter.grad is not None:
            parameter.grad.copy_(place)
