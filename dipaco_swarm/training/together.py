"""One path on several devices of a machine: data parallel, over torch.distributed's gloo.

The peer's own process (rank 0) keeps all that it has: swarm, rounds, optimizer, moments. Each further device has a
helper process (rank 1 and up) with a network and nothing else. In every inner step:

1. rank 0 tells each helper its rows of the batch, by a pipe, and broadcasts the parameters;
2. all make the gradient of their rows, as `Gradients` does on one device;
3. the gradients and losses are summed up at rank 0, which clips and steps as ever.

So parameters are the same bytes everywhere in each step, whatever a round, another stage or a checkpoint has put into
the model between two of them; and as a helper has nothing that is its own, one that ends takes nothing along: the step
is computed again without, and the helpers are started anew. On the way are the bytes that an all-reduce would send, and
moments are kept once. A path must fit on each device: a sharded one (FSDP2) is not done here.

gloo also where the devices are GPUs: gradients go through the machine's memory. nccl would be faster there, but a
process whose neighbour dies under nccl is ended as well, and the peer must live on.
"""

import logging
import math
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from torch import Tensor

from dipaco_swarm.events.helping import HelperFailed, HelperLost, HelpersAtWork
from dipaco_swarm.training.gradients import Gradients
from dipaco_swarm.training.helper import (
    READY,
    Group,
    HelperSettings,
    Place,
    help_in_process,
    read_gradients,
    room_for,
    write_gradients,
    write_parameters,
)
from dipaco_swarm.training.modules import PathModel

log = logging.getLogger(__name__)

AGAIN_SECONDS = 10.0
"""Helpers are started again so long after they were started last, at the earliest."""
END_SECONDS = 5.0


class Helper(Protocol):
    """A process that was started; or, in tests, a thread."""

    @property
    def pid(self) -> int | None: ...

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None: ...

    def kill(self) -> None: ...


Start = Callable[[Connection, HelperSettings, Place], Helper]


def start_process(pipe: Connection, settings: HelperSettings, place: Place) -> Helper:
    """A process of its own; it ends with ours, and closes its end of the pipe when it does."""
    context = multiprocessing.get_context("spawn")  # a copy of a process with threads would stand still
    process = context.Process(
        target=help_in_process, args=(pipe, settings, place), name=f"helper {place.rank}", daemon=True
    )
    process.start()
    pipe.close()
    return process


class Together:
    """`GradientMaker` of several devices: ours, and the helpers'. Constructing it starts nothing."""

    def __init__(
        self,
        model: PathModel,
        ours: Gradients,
        settings: HelperSettings,
        devices: Sequence[str],
        start: Start = start_process,
    ) -> None:
        """`ours`: of the device that `model` is on. `devices`: of the helpers."""
        self._model = model
        self._ours = ours
        self._settings = settings
        self._devices = tuple(devices)
        self._start = start
        self._crew: _Crew | None = None
        self._flat: Tensor | None = None
        self._started = -math.inf
        self._was_lost = False
        self._is_over = False
        """Whether no more helpers are started."""

    @property
    def helpers(self) -> tuple[int | None, ...]:
        """Their processes; empty while there are none, or they are not ready yet."""
        crew = self._crew
        return tuple(helper.pid for helper in crew.helpers) if crew is not None and crew.is_at_work else ()

    def make(self, batch: Tensor, stop: Callable[[], bool]) -> Tensor | None:
        """With whoever is ready: nobody waits for helpers that have just been started."""
        crew = self._ready()
        if crew is not None:
            try:
                return self._shared(crew, batch, stop)
            except _HelperGoneError as gone:
                self._lose(crew, gone)
                self._model.network.zero_grad()
        return self._ours.make(batch, stop)

    def await_helpers(self, timeout: float) -> bool:
        """Start them and wait until they are ready; whether they are."""
        until = time.monotonic() + timeout
        while (crew := self._ready()) is None and time.monotonic() < until:
            time.sleep(0.02)
        return crew is not None

    def close(self) -> None:
        if self._crew is not None:
            self._crew.end()
        self._crew, self._is_over = None, True

    def _ready(self) -> "_Crew | None":
        """The helpers, when they are; started first, when it is time for that."""
        if self._crew is None and not self._is_over and time.monotonic() - self._started >= AGAIN_SECONDS:
            self._started = time.monotonic()
            self._crew = _Crew(self._settings, self._devices, self._start)
        crew = self._crew
        if crew is None or crew.is_at_work:
            return crew
        try:
            if not crew.meets():
                return None
        except _HelperGoneError as gone:
            self._lose(crew, gone)
            return None
        log.info(HelpersAtWork((str(self._model.device), *self._devices), self._was_lost))
        return crew

    def _shared(self, crew: "_Crew", batch: Tensor, stop: Callable[[], bool]) -> Tensor | None:
        """One gradient by all of us. Raises _HelperGoneError."""
        parameters = list(self._model.network.parameters())
        first, *others = batch.chunk(len(self._devices) + 1)
        others += [batch[:0]] * (len(self._devices) - len(others))  # of a batch with fewer sequences than devices
        if self._flat is None:
            self._flat = room_for(parameters)
        flat = self._flat
        write_parameters(flat, parameters)
        crew.begin_step(others, len(batch), flat)
        loss = self._ours.part(first, len(batch), stop)
        if loss is None:
            crew.give_up_step()
        write_gradients(flat, parameters, loss)
        crew.sum_up(flat)
        if loss is None:
            return None
        read_gradients(flat, parameters)
        return flat[-1].to(loss.device, copy=True)

    def _lose(self, crew: "_Crew", gone: Exception) -> None:
        log.debug("a helper is lost: %s", gone)
        self._crew, self._was_lost = None, True
        crew.end()
        device, again = str(self._model.device), max(0.0, self._started + AGAIN_SECONDS - time.monotonic())
        if crew.failed is None:
            log.warning(HelperLost(device, again))
        else:  # it would fail again in the same way
            self._is_over = True
            log.warning(HelperFailed(device, crew.failed))


# ------------------------------------------------------------------------------------------------- rank 0's side of it


class _HelperGoneError(Exception):
    """A helper does not answer any more."""


@contextmanager
def _of_helpers() -> Iterator[None]:
    """Around what fails when a helper is gone: pipes with OSError or EOFError, gloo with RuntimeError."""
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        raise _HelperGoneError(str(error)) from error


class _Crew:
    """Helpers that were started together; when one is lost, all end."""

    def __init__(self, settings: HelperSettings, devices: Sequence[str], start: Start) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="dipaco-helpers-"))
        self._ranks = len(devices) + 1
        self._group: Group | None = None
        self._pipes: list[Connection] = []
        self.helpers: list[Helper] = []
        self.failed: str | None = None
        """Why a helper cannot go on, if one has said so."""
        for rank, device in enumerate(devices, 1):
            ours, theirs = multiprocessing.Pipe()
            self._pipes.append(ours)
            self.helpers.append(start(theirs, settings, Place(device, rank, self._ranks, self._meeting)))
        self._waited_for = list(self._pipes)

    @property
    def is_at_work(self) -> bool:
        return self._group is not None

    @property
    def _meeting(self) -> str:
        return str(self._folder / "meeting")

    def meets(self) -> bool:
        """Whether all are ready; never waits for one that is not. Raises _HelperGoneError."""
        with _of_helpers():
            for pipe in [each for each in self._waited_for if each.poll()]:
                self._hear(pipe)
                self._waited_for.remove(pipe)
            if self._waited_for:
                return False
            self._group = Group(self._meeting, 0, self._ranks)
            return True

    def begin_step(self, rows: Sequence[Tensor], sequences: int, parameters: Tensor) -> None:
        """Have each helper make the gradient of its rows."""
        with _of_helpers():
            for pipe, some in zip(self._pipes, rows, strict=True):
                pipe.send((some.numpy(), sequences))
            self._at_work.broadcast(parameters)

    def give_up_step(self) -> None:
        """Nobody needs what the helpers compute: they stop between two forward passes."""
        with _of_helpers():
            for pipe in self._pipes:
                pipe.send(None)

    def sum_up(self, flat: Tensor) -> None:
        with _of_helpers():
            self._at_work.sum_up(flat)

    def end(self) -> None:
        """Returns when they have ended."""
        self._group = None
        for pipe in self._pipes:
            with suppress(OSError, EOFError, _HelperGoneError):
                while pipe.poll():
                    self._hear(pipe)
            pipe.close()  # for who listens this is the end
        until = time.monotonic() + END_SECONDS
        for helper in self.helpers:
            helper.join(max(0.0, until - time.monotonic()))
            if helper.is_alive():
                helper.kill()
                helper.join(END_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _at_work(self) -> Group:
        assert self._group is not None, "they have not met"
        return self._group

    def _hear(self, pipe: Connection) -> None:
        """Raises _HelperGoneError, EOFError or OSError."""
        said = pipe.recv()
        if said != READY:
            self.failed = said
            raise _HelperGoneError(said)
