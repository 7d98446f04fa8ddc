"""Inner training: steps of the inner optimizer (AdamW) on one path's shard, between two outer rounds.

The run decides what a step computes (`InnerConfig`); this machine decides how (`TrainingSettings`): device,
micro-batch, precision of the activations and of the optimizer's moments. On the CPU, equal parameters, batches and
threads give equal bytes. Nothing here knows of rounds or peers.
"""

import ctypes
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor, nn

from dipaco_swarm.algorithm.doubts import Place, Trial
from dipaco_swarm.errors import DataError, TrainingError, UsageError
from dipaco_swarm.run.config import InnerConfig
from dipaco_swarm.training.bending import TRIED, bends
from dipaco_swarm.training.gradients import GradientMaker, Gradients, Passes
from dipaco_swarm.training.modules import PathModel

log = logging.getLogger(__name__)

Batches = Iterator[Tensor | None]
"""Training batches, int64 (batch_sequences, sequence_length). None: the next one is not there yet; asked again, after a
moment of waiting, it may be."""


@dataclass(frozen=True)
class TrainingSettings:
    """How this machine trains. Never sent to anybody; None means what suits the device."""

    device: str = "cpu"
    threads: int | None = None
    """CPU threads of torch, for the whole process; None leaves them as they are."""
    micro_batch: int | None = None
    """Sequences in one forward pass; None tries the whole batch. Halved when the device's memory is too small."""
    autocast: bool | None = None
    """bf16 activations; None: on CUDA devices that have bf16, and where `rounding.py` has seen that they pay."""
    helpers: tuple[str, ...] = ()
    """Devices beside that one, of its kind, each with a process that computes its part of each step."""
    eight_bit: bool | None = None
    """bitsandbytes' 8-bit AdamW instead of torch's; None: on CUDA."""
    recompute: bool = False
    """Activations are computed again in the backward pass; otherwise only on a device that runs out of memory."""
    compiled: bool = False
    """By torch.compile."""

    def __post_init__(self) -> None:
        for name, value in (("threads", self.threads), ("micro_batch", self.micro_batch)):
            if value is not None and value < 1:
                raise UsageError(f"{name}={value} must be at least 1; leave it out for what suits the device")

    def passes(self, batch_sequences: int) -> Passes:
        """How those over a batch of so many sequences are computed."""
        micro_batch = self.micro_batch or batch_sequences
        return Passes(micro_batch, self.uses_autocast, self.recompute, self.compiled)

    @property
    def uses_autocast(self) -> bool:
        if self.autocast is not None:
            return self.autocast
        return self._on_cuda and torch.cuda.is_bf16_supported(including_emulation=False)

    @property
    def uses_eight_bit(self) -> bool:
        return self._on_cuda if self.eight_bit is None else self.eight_bit

    @property
    def _on_cuda(self) -> bool:
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class StepReport:
    """One inner step that was just taken."""

    step: int
    """Steps of the path so far, this one included."""
    loss: float
    """Mean cross-entropy of the step's batch before the step, in nats per token."""
    learning_rate: float
    tokens: int
    seconds: float


@dataclass(frozen=True)
class TrainReport:
    """What a call of `train` did."""

    steps: int
    tokens: int
    """Tokens in the batches that were trained on."""
    loss: float
    """Mean over the steps, in nats per token; nan without steps."""
    seconds: float


@dataclass(frozen=True, eq=False)
class InnerState:
    """What the inner optimizer carries from step to step."""

    steps_done: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """OPTIMIZER/PARAMETER/MOMENT -> tensor on the CPU. Empty: moments start afresh, the schedule goes on."""


def learning_rate_at(config: InnerConfig, step: int) -> float:
    """The base learning rate of a path's step number `step`, counted from 0 over all stages.

    Linear warm-up to `learning_rate`, then a cosine that ends at `schedule_steps` with `final_learning_rate_ratio` of
    it and stays there (paper table 4).
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    length = max(1, config.schedule_steps - config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps) / length)
    floor = config.final_learning_rate_ratio
    return config.learning_rate * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done)))


def learning_rate_ratios(config: InnerConfig) -> dict[str, float]:
    """By the kind of a `ParameterGroup`."""
    return {"embedding": config.embedding_learning_rate_ratio, "head": config.head_learning_rate_ratio, "rest": 1.0}


class InnerTrainer:
    """The inner optimizer of one path, and the loop that drives it.

    The model's parameters may be replaced between calls (`PathModel.load`): the optimizer keeps its moments.
    """

    def __init__(
        self,
        model: PathModel,
        config: InnerConfig,
        settings: TrainingSettings,
        gradients: GradientMaker | None = None,
    ) -> None:
        """`gradients`: who makes them; None: the device of the settings alone."""
        self.model = model
        self.config = config
        self.settings = settings
        self._steps_done = 0
        self._gradients = gradients or Gradients(model, settings.passes(config.batch_sequences))
        self._optimizer: torch.optim.Optimizer | None = None
        self._interrupted: Tensor | None = None
        self._last: Tensor | None = None
        """The batch of the last step."""

    @property
    def steps_done(self) -> int:
        """Inner steps of the path so far: the clock of the learning rate."""
        return self._steps_done

    @property
    def decay_of_step(self) -> float:
        """The amount of weight decay in an inner step now, at the base learning rate."""
        return self.config.weight_decay * learning_rate_at(self.config, max(0, self._steps_done - 1))

    def skip_to(self, steps: int) -> None:
        """Advance the schedule to `steps`, never back: other peers trained this path meanwhile."""
        self._steps_done = max(self._steps_done, steps)

    def train(
        self,
        batches: Batches,
        steps: int,
        *,
        stop: Callable[[], bool] = lambda: False,
        on_step: Callable[[StepReport], None] | None = None,
    ) -> TrainReport:
        """Take up to `steps` inner steps, one batch each: int64 of shape (batch_sequences, sequence_length).

        `stop` is asked before every micro-batch, and while a batch is not there yet. A step it interrupts has changed
        nothing, and its batch is the first of the next call. Raises DataError when the batches run out, and
        TrainingError when the loss is no longer finite (the step is not taken) or when the device cannot hold even one
        sequence.
        """
        optimizer = self._ready()
        self.model.network.train()
        started = perf_counter()
        taken, tokens, losses = 0, 0, 0.0
        while taken < steps and not stop():
            batch = self._next(batches)
            if batch is None:
                continue
            report = self._step(optimizer, batch, stop)
            if report is None:
                break
            self._last = batch
            taken, tokens, losses = taken + 1, tokens + report.tokens, losses + report.loss
            if on_step is not None:
                on_step(report)
        return TrainReport(taken, tokens, losses / taken if taken else math.nan, perf_counter() - started)

    def bends(self, level: int, ways: Sequence[Iterable[Place]], stop: Callable[[], bool]) -> list[Trial]:
        """How much each of these ways of a level's parameters bends the loss; none before the first step."""
        return [] if self._last is None else bends(self.model, level, ways, self._last[:TRIED], stop)

    def state(self, *, copy: bool = True) -> InnerState:
        """The optimizer's moments, on the CPU, and the step count.

        `copy`: without one, the next step may change the moments.
        """
        optimizer = self._ready()
        tensors = {}
        for name, parameter in self._parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                # bitsandbytes counts its steps in an int, torch in a tensor
                moment = value.detach().to("cpu", copy=copy) if isinstance(value, Tensor) else torch.tensor(value)
                tensors[f"{type(optimizer).__name__}/{name}/{key}"] = moment
        return InnerState(self._steps_done, tensors)

    def load_state(self, state: InnerState) -> None:
        """Go on from `state`. Moments of the other kind of optimizer (8-bit or not) cannot be used and are dropped."""
        optimizer = self._ready()
        kind = type(optimizer).__name__
        kept: dict[str, dict[str, Tensor | int]] = {}
        for full_name, tensor in state.tensors.items():
            made_by, name, key = full_name.split("/")
            if made_by == kind:
                on_device = tensor.to(self.model.device, copy=True)
                kept.setdefault(name, {})[key] = int(tensor) if tensor.dtype == torch.int64 else on_device
        if state.tensors and not kept:
            log.warning("the saved moments are not %s's: the inner optimizer starts with fresh ones", kind)
        optimizer.state.clear()
        for name, parameter in self._parameters():
            if name in kept:
                optimizer.state[parameter] = kept[name]
        self._steps_done = state.steps_done
        self._interrupted = None

    def close(self) -> None:
        """End what works for it; it trains no more."""
        self._gradients.close()

    # one step --------------------------------------------------------------------------------------------------------

    def _step(self, optimizer: torch.optim.Optimizer, batch: Tensor, stop: Callable[[], bool]) -> StepReport | None:
        """Gradients, clipping, AdamW. None when `stop` interrupted it."""
        started = perf_counter()
        total = self._gradients.make(batch, stop)
        if total is None:
            optimizer.zero_grad()
            self._interrupted = batch
            return None
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.config.gradient_clip)
        # The one place that waits for the device. It comes before the optimizer, so that what is not finite stays out
        # of parameters and moments.
        loss, length = torch.stack((total, norm)).tolist()
        if not (math.isfinite(loss) and math.isfinite(length)):
            optimizer.zero_grad()
            raise TrainingError(
                f"inner step {self._steps_done} has loss {loss} and gradient norm {length}, which are not finite; the "
                "step was not taken. Go back to the last agreed version; if it happens again, the run's "
                "inner.learning_rate is too large for this shard"
            )
        rate = learning_rate_at(self.config, self._steps_done)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["ratio"]
        optimizer.step()
        optimizer.zero_grad()
        self._steps_done += 1
        return StepReport(self._steps_done, loss, rate, batch.numel(), perf_counter() - started)

    # the optimizer ---------------------------------------------------------------------------------------------------

    def _ready(self) -> torch.optim.Optimizer:
        """The optimizer; made when it is first needed, with the model on its device by then."""
        if self._optimizer is None:
            if self.settings.threads is not None:
                torch.set_num_threads(self.settings.threads)
            if self.settings.device == "cpu":
                _keep_freed_memory()
            self.model.to(self.settings.device)
            self._optimizer = _make_optimizer(self.model, self.config, eight_bit=self.settings.uses_eight_bit)
        return self._optimizer

    def _next(self, batches: Batches) -> Tensor | None:
        """The next batch; None when it is not there yet."""
        batch, self._interrupted = self._interrupted, None
        if batch is not None:
            return batch
        try:
            return next(batches)
        except StopIteration:
            raise DataError(
                f"the path's shard ran out of batches at inner step {self._steps_done}; check that documents of this "
                "path are left in the run's data"
            ) from None

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for group in self.model.parameter_groups():
            yield from group.parameters


def _make_optimizer(model: PathModel, config: InnerConfig, *, eight_bit: bool) -> torch.optim.Optimizer:
    """AdamW over the model's parameter groups; `ratio` of a group multiplies the learning rate."""
    ratios = learning_rate_ratios(config)
    groups = [
        {
            "params": [parameter for _, parameter in group.parameters],
            "ratio": ratios[group.kind],
            "weight_decay": config.weight_decay if group.decays else 0.0,
        }
        for group in model.parameter_groups()
    ]
    betas = (config.beta1, config.beta2)
    if not eight_bit:
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=True)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # else it misses kernels for 4 bits, which nobody wants
    import bitsandbytes  # takes a second, and few machines without CUDA need it

    # Rows of an embedding get gradients of very different sizes, which blocks of 8-bit moments do not survive. The
    # manager knows parameters by their `id`, which may have been that of an embedding that a peer has moved away from.
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    for group in model.parameter_groups():
        for _, parameter in group.parameters:
            manager.override_config(parameter, "optim_bits", 32 if group.kind == "embedding" else 8)
    optimizer: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(groups, lr=config.learning_rate, betas=betas)
    return optimizer


def _keep_freed_memory() -> None:
    """Let glibc keep what torch frees, instead of asking the kernel for zeroed pages in every step.

    Activations of a few MB are freed and wanted again at once. Keeping them makes a step of 4 x 256 tokens at width 64
    about 8 % faster, and its time no longer depends on the order of frees. Tensors above 32 MB still go back.
    """
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of <malloc.h>
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):  # musl has no mallopt
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 512 << 20)
