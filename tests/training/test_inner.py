import logging
import math
import shutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dipaco_swarm.errors import DataError, TrainingError, UsageError
from dipaco_swarm.run.config import InnerConfig, LevelConfig, ModelConfig
from dipaco_swarm.training.gradients import Gradients, Passes, head_is_separate, piece_logits
from dipaco_swarm.training.inner import InnerState, InnerTrainer, StepReport, TrainingSettings, learning_rate_at
from dipaco_swarm.training.modules import PathModel, build_network

VOCABULARY = 50
TINY = ModelConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64
)
LEVELS = (LevelConfig(blocks=(0,), embedding=True), LevelConfig(blocks=(1,), head=True))
ONE_LEVEL = (LevelConfig(blocks=(0, 1), embedding=True, head=True),)
CONFIG = InnerConfig(
    learning_rate=1e-2,
    embedding_learning_rate_ratio=3.0,
    head_learning_rate_ratio=2.0,
    warmup_steps=2,
    schedule_steps=10,
    batch_sequences=4,
)


def path_model() -> PathModel:
    return PathModel(build_network(TINY, VOCABULARY, seed=0), LEVELS)


def batches(start: int = 0) -> Iterator[Tensor]:
    """The same endless batches for everyone; `start` have been consumed."""
    while True:
        generator = torch.Generator().manual_seed(start)
        yield torch.randint(VOCABULARY, (CONFIG.batch_sequences, 12), generator=generator)
        start += 1


def trained(steps: int, **settings: Any) -> tuple[InnerTrainer, PathModel]:
    model = path_model()
    trainer = InnerTrainer(model, CONFIG, TrainingSettings(**settings))
    trainer.train(batches(), steps)
    return trainer, model


def assert_equal_bytes(one: PathModel, other: PathModel) -> None:
    for level in range(one.num_levels):
        assert torch.equal(one.vector(level), other.vector(level))


def test_the_learning_rate_warms_up_then_follows_a_cosine_and_stays_at_its_end() -> None:
    config = InnerConfig(learning_rate=2.0, warmup_steps=4, schedule_steps=14, final_learning_rate_ratio=0.1)
    rates = [learning_rate_at(config, step) for step in range(20)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[4] == 2.0
    assert rates[9] == pytest.approx(2.0 * 0.55)  # half-way between 1 and 0.1
    assert rates[14:] == [pytest.approx(0.2)] * 6
    assert learning_rate_at(InnerConfig(learning_rate=2.0, warmup_steps=0), 0) == 2.0


def test_training_is_adamw_on_the_models_own_loss() -> None:
    model, reference = path_model(), path_model().network
    matrices = [p for p in reference.model.layers.parameters() if p.ndim == 2]
    gains = [p for p in reference.parameters() if p.ndim == 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices},
        {"params": gains, "weight_decay": 0.0},
        {"params": [reference.model.embed_tokens.weight]},
        {"params": [reference.lm_head.weight]},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        betas=(CONFIG.beta1, CONFIG.beta2),
        weight_decay=CONFIG.weight_decay,
    )
    losses = []
    for step, batch in zip(range(6), batches(), strict=False):
        loss = reference(input_ids=batch, labels=batch).loss  # transformers shifts the labels itself
        loss.backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), CONFIG.gradient_clip)
        for group, ratio in zip(optimizer.param_groups, (1.0, 1.0, 3.0, 2.0), strict=True):
            group["lr"] = learning_rate_at(CONFIG, step) * ratio
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    report = InnerTrainer(model, CONFIG, TrainingSettings()).train(batches(), 6)

    assert report.loss == pytest.approx(sum(losses) / 6, rel=1e-5)
    for (name, ours), theirs in zip(model.network.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=name)


def test_equal_batches_give_equal_bytes() -> None:
    assert_equal_bytes(trained(5)[1], trained(5)[1])


@pytest.mark.parametrize("eight_bit", [False, True])
def test_going_on_from_a_saved_state_gives_the_bytes_of_never_having_stopped(eight_bit: bool) -> None:
    first, model = trained(3, eight_bit=eight_bit)
    saved, vectors = first.state(), [model.vector(level) for level in range(2)]
    resumed = path_model()
    for level, vector in enumerate(vectors):
        resumed.load(level, vector)
    second = InnerTrainer(resumed, CONFIG, TrainingSettings(eight_bit=eight_bit))
    second.load_state(saved)
    assert second.steps_done == 3
    second.train(batches(start=3), 3)
    assert second.steps_done == 6
    assert_equal_bytes(resumed, trained(6, eight_bit=eight_bit)[1])


def test_a_saved_state_is_a_copy() -> None:
    trainer, _ = trained(1)
    state = trainer.state()
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    trainer.train(batches(), 1)
    assert all(torch.equal(before[name], tensor) for name, tensor in state.tensors.items())


def test_eight_bit_moments_are_small_but_not_those_of_the_embedding() -> None:
    big = PathModel(build_network(TINY.model_copy(update={"intermediate_size": 256}), 300, seed=0), LEVELS)
    from bitsandbytes.optim import GlobalOptimManager  # takes a second

    for parameter in big.network.parameters():  # where the embedding of an earlier path was in memory
        GlobalOptimManager.get_instance().override_config(parameter, "optim_bits", 32)
    trainer = InnerTrainer(big, CONFIG, TrainingSettings(eight_bit=True))
    trainer.train(batches(), 1)
    moments = {name: tensor.dtype for name, tensor in trainer.state().tensors.items() if name.endswith("/state1")}
    assert moments["AdamW8bit/model.layers.0.mlp.up_proj.weight/state1"] == torch.uint8
    assert moments["AdamW8bit/model.embed_tokens.weight/state1"] == torch.float32


def test_moments_of_another_kind_of_optimizer_are_dropped_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    saved = trained(2, eight_bit=True)[0].state()
    trainer = InnerTrainer(path_model(), CONFIG, TrainingSettings())
    trainer.load_state(saved)
    assert trainer.steps_done == 2
    assert trainer.state().tensors == {}
    assert "fresh ones" in caplog.text


def test_an_empty_state_starts_moments_afresh_and_keeps_the_schedule() -> None:
    trainer, _ = trained(3)
    trainer.load_state(InnerState(7))
    assert (trainer.steps_done, trainer.state().tensors) == (7, {})


def test_the_schedule_goes_on_from_where_others_have_come_and_never_back() -> None:
    trainer, _ = trained(3)
    trainer.skip_to(8)
    rates: list[float] = []
    trainer.train(batches(), 1, on_step=lambda report: rates.append(report.learning_rate))
    assert rates == [learning_rate_at(CONFIG, 8)]
    trainer.skip_to(2)
    assert trainer.steps_done == 9


def test_micro_batches_add_up_to_the_batch() -> None:
    whole, split = trained(3)[1], trained(3, micro_batch=3)[1]  # 3 + 1 sequences
    for level in range(2):
        torch.testing.assert_close(split.vector(level), whole.vector(level), rtol=1e-3, atol=1e-5)


def test_reports_count_what_was_done() -> None:
    trainer = InnerTrainer(path_model(), CONFIG, TrainingSettings())
    steps: list[StepReport] = []
    first = trainer.train(batches(), 2, on_step=steps.append)
    second = trainer.train(batches(2), 1, on_step=steps.append)
    assert [report.step for report in steps] == [1, 2, 3]
    assert steps[0].loss == pytest.approx(math.log(VOCABULARY))
    assert [report.learning_rate for report in steps] == [0.005, 0.01, 0.01]
    assert (first.steps, first.tokens, second.steps, second.tokens) == (2, 2 * 48, 1, 48)
    assert first.loss == pytest.approx((steps[0].loss + steps[1].loss) / 2)
    assert 0 < first.seconds < 60


def test_stopping_ends_before_the_next_step() -> None:
    trainer = InnerTrainer(path_model(), CONFIG, TrainingSettings())
    report = trainer.train(batches(), 100, stop=lambda: trainer.steps_done == 2)
    assert (report.steps, trainer.steps_done) == (2, 2)
    nothing = trainer.train(batches(), 100, stop=lambda: True)
    assert (nothing.steps, nothing.tokens) == (0, 0)
    assert math.isnan(nothing.loss)


def test_stopping_within_a_step_takes_nothing_and_loses_no_batch() -> None:
    trainer = InnerTrainer(path_model(), CONFIG, TrainingSettings(micro_batch=1))
    answers = iter([False, False, True])  # before the step, after its first and its second micro-batch
    source = batches()
    before = trainer.model.vector(0)
    assert trainer.train(source, 5, stop=lambda: next(answers)).steps == 0
    assert torch.equal(trainer.model.vector(0), before)
    trainer.train(source, 3)
    assert_equal_bytes(trainer.model, trained(3, micro_batch=1)[1])


def test_a_loss_that_is_not_finite_is_refused_and_leaves_parameters_and_moments_alone() -> None:
    trainer, model = trained(2)
    with torch.no_grad():
        model.network.lm_head.weight[3, 3] = math.inf
    before, moments = model.vector(0), trainer.state().tensors
    with pytest.raises(TrainingError, match=r"inner step 2 has loss (nan|inf).*step was not taken"):
        trainer.train(batches(), 1)
    assert trainer.steps_done == 2
    assert torch.equal(model.vector(0), before)
    assert all(torch.equal(moments[name], tensor) for name, tensor in trainer.state().tensors.items())
    assert all(parameter.grad is None for parameter in model.network.parameters())


def test_batches_that_run_out_are_a_mistake_in_the_data() -> None:
    trainer = InnerTrainer(path_model(), CONFIG, TrainingSettings())
    with pytest.raises(DataError, match="ran out of batches at inner step 1"):
        trainer.train(iter([next(batches())]), 2)


def with_room_for(model: PathModel, sequences: int, *, recomputing: int) -> list[int]:
    """Make the network run out of memory above so many sequences; returns the list of the attempts' sizes."""
    attempts: list[int] = []

    def check(network: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        attempts.append(len(kwargs["input_ids"]))
        room = recomputing if model.network.is_gradient_checkpointing else sequences
        if attempts[-1] > room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    model.network.register_forward_pre_hook(check, with_kwargs=True)
    return attempts


def test_out_of_memory_halves_the_micro_batch_and_the_step_is_the_same(caplog: pytest.LogCaptureFixture) -> None:
    model = path_model()
    attempts = with_room_for(model, 1, recomputing=1)
    with caplog.at_level(logging.WARNING):
        report = InnerTrainer(model, CONFIG, TrainingSettings()).train(batches(), 2)
    assert attempts == [4, 2, 1, 1, 1, 1, 1, 1, 1, 1]  # found once, kept for the second step
    assert report.steps == 2
    assert len(caplog.records) == 2
    assert_equal_bytes(model, trained(2, micro_batch=1)[1])


def test_at_one_sequence_activations_are_recomputed_and_the_result_is_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = path_model()
    attempts = with_room_for(model, 0, recomputing=1)
    InnerTrainer(model, CONFIG, TrainingSettings(micro_batch=1)).train(batches(), 1)
    assert attempts == [1, 1, 1, 1, 1]
    assert "recomputing activations" in caplog.text
    assert_equal_bytes(model, trained(1, micro_batch=1)[1])


def test_a_device_without_room_for_one_sequence_is_told_so() -> None:
    model = path_model()
    with_room_for(model, 0, recomputing=0)
    with pytest.raises(TrainingError, match="cpu has too little memory for one sequence"):
        InnerTrainer(model, CONFIG, TrainingSettings()).train(batches(), 1)


@pytest.mark.parametrize("setting", ["threads", "micro_batch"])
def test_settings_below_one_are_refused(setting: str) -> None:
    with pytest.raises(UsageError, match=f"{setting}=0 must be at least 1"):
        TrainingSettings(**{setting: 0})  # type: ignore[arg-type]


def test_autocast_is_a_choice_and_changes_only_the_rounding() -> None:
    exact, rounded = trained(1)[1], trained(1, autocast=True)[1]
    assert rounded.network.dtype == torch.float32
    assert 0 < F.mse_loss(rounded.vector(1), exact.vector(1)) < 1e-3


def test_recomputed_activations_give_the_same_bytes() -> None:
    assert_equal_bytes(trained(3, recompute=True)[1], trained(3)[1])
    assert trained(1, recompute=True)[1].network.is_gradient_checkpointing


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.timeout(600)
def test_a_compiled_network_trains_the_same() -> None:
    compiled, plain = trained(3, compiled=True)[1], trained(3)[1]
    for level in range(2):
        torch.testing.assert_close(compiled.vector(level), plain.vector(level), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tied", [False, True], ids=["head", "tied head"])
def test_logits_in_pieces_give_the_loss_and_the_gradient_of_the_whole(
    tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, batch = TINY.model_copy(update={"tie_word_embeddings": tied}), next(batches())

    def gradient() -> tuple[Tensor, PathModel]:
        model = PathModel(build_network(tiny, VOCABULARY, seed=0), LEVELS if not tied else ONE_LEVEL)
        loss = Gradients(model, Passes(3)).make(batch, lambda: False)  # 3 sequences, and 1
        assert loss is not None
        return loss, model

    heads: list[int] = []
    whole_loss, whole = gradient()
    monkeypatch.setattr("dipaco_swarm.training.gradients.PIECE_LOGITS", 10 * VOCABULARY)
    monkeypatch.setattr(torch.nn.Linear, "forward", watched_head(heads, torch.nn.Linear.forward))
    loss, model = gradient()
    assert heads.count(10) == 4  # 36 positions in pieces of 10 and one of 6, then 12 of them: 10 and 2
    assert heads.count(6) == heads.count(2) == 1
    torch.testing.assert_close(loss, whole_loss)
    for ours, theirs in zip(model.network.parameters(), whole.network.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("gib", "logits"), [(2, 1 << 24), (8, 22_369_621), (24, 67_108_864), (140, 391_468_373)])
def test_on_a_gpu_a_piece_of_logits_is_of_a_share_of_its_memory(
    gib: int, logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=gib << 30))
    assert piece_logits(torch.device("cuda")) == logits
    assert piece_logits(torch.device("cpu")) == 1 << 24


def watched_head(seen: list[int], forward: Any) -> Any:
    """A linear layer's forward pass that notes how many positions are made into logits."""

    def watched(layer: torch.nn.Linear, states: Tensor) -> Any:
        if layer.out_features == VOCABULARY and states.ndim == 2:
            seen.append(len(states))
        return forward(layer, states)

    return watched


def test_a_network_that_scales_its_logits_is_not_cut_before_them() -> None:
    cohere = TINY.model_copy(
        update={"model_type": "cohere", "extra": {"logit_scale": 0.25}, "tie_word_embeddings": True}
    )
    scaled = build_network(cohere, VOCABULARY, seed=0)
    assert not head_is_separate(scaled)
    assert head_is_separate(path_model().network)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_trains_with_small_moments_and_half_precision_and_resumes() -> None:
    trainer, model = trained(3, device="cuda")
    report = trainer.train(batches(3), 2)
    assert math.isfinite(report.loss)
    assert model.vector(0).device.type == "cpu"
    resumed = InnerTrainer(model, CONFIG, TrainingSettings(device="cuda"))
    resumed.load_state(trainer.state())
    assert math.isfinite(resumed.train(batches(5), 1).loss)
