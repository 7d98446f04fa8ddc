import math

import pytest
import torch
from torch import Tensor

from dipaco_swarm.algorithm.outer import OuterGradient
from dipaco_swarm.algorithm.weight_decay import WeightDecay
from dipaco_swarm.errors import ManifestError
from dipaco_swarm.run.config import InnerConfig, LevelConfig, ModelConfig
from dipaco_swarm.training.inner import InnerTrainer, TrainingSettings, learning_rate_ratios
from dipaco_swarm.training.modules import PathModel, build_network, decay_places

TINY = ModelConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, max_position_embeddings=64
)
LEVELS = (LevelConfig(blocks=(0, 2), embedding=True), LevelConfig(blocks=(1,), head=True))
TOKENS = torch.arange(10)[None]


def path_model(model: ModelConfig = TINY, seed: int = 0) -> PathModel:
    return PathModel(build_network(model, 50, seed), LEVELS)


def logits_of(model: PathModel) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model.network(input_ids=TOKENS).logits
    return logits


def with_noise(model: PathModel) -> PathModel:
    """Away from the initial parameters, under which every model of this size says the same."""
    generator = torch.Generator().manual_seed(1)
    for level in range(model.num_levels):
        model.load(level, torch.randn(model.size(level), generator=generator) * 0.1)
    return model


def test_the_same_seed_builds_the_same_parameters_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    one, two, other = path_model(seed=7), path_model(seed=7), path_model(seed=8)
    assert torch.equal(one.vector(0), two.vector(0))
    assert not torch.equal(one.vector(0), other.vector(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_fresh_network_knows_nothing_and_its_blocks_pass_everything_on() -> None:
    network = build_network(TINY, 50, seed=0)
    output = network(input_ids=TOKENS, labels=TOKENS, output_hidden_states=True)
    assert output.loss.item() == pytest.approx(math.log(50), rel=1e-6)
    torch.testing.assert_close(output.hidden_states[1], output.hidden_states[0], rtol=0, atol=0)
    assert network.get_input_embeddings().weight.std().item() == pytest.approx(1.0, abs=0.1)
    query = network.model.layers[0].self_attn.q_proj.weight
    assert query.std().item() == pytest.approx(16**-0.5, abs=0.05)


def test_each_parameter_is_in_exactly_one_level() -> None:
    model = path_model()
    total = sum(parameter.numel() for parameter in model.network.parameters())
    assert model.num_levels == 2
    assert model.size(0) + model.size(1) == total


def test_a_vector_holds_the_parameters_of_its_level_in_order_of_their_names() -> None:
    model = path_model()
    names = [name for name, _ in model.network.named_parameters()]
    of_level = sorted(name for name in names if ".layers.1." in name or name.startswith(("lm_head", "model.norm")))
    by_name = dict(model.network.named_parameters())
    expected = torch.cat([by_name[name].detach().flatten() for name in of_level])
    assert torch.equal(model.vector(1), expected)


def test_a_vector_is_a_copy_and_loading_it_elsewhere_gives_the_same_model() -> None:
    model, other = with_noise(path_model()), path_model(seed=1)
    for level in range(2):
        other.load(level, model.vector(level))
    assert torch.equal(logits_of(model), logits_of(other))
    model.vector(0).zero_()
    assert torch.equal(logits_of(model), logits_of(other))


def test_loading_is_in_place_so_optimizers_keep_hold_of_the_parameters() -> None:
    model = path_model()
    before = list(model.network.parameters())
    model.load(0, torch.ones(model.size(0)))
    assert all(a is b for a, b in zip(before, model.network.parameters(), strict=True))
    assert torch.equal(model.vector(0), torch.ones(model.size(0)))


def test_what_is_added_is_added_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dipaco_swarm.algorithm.eager.PIECE", 100)  # of which most parameters have several
    model = with_noise(path_model())
    before, other = list(model.network.parameters()), model.vector(1)
    expected, way = model.vector(0), torch.randn(model.size(0))
    model.add(0, lambda here: way[here])
    assert torch.equal(model.vector(0), expected + way)
    assert torch.equal(model.vector(1), other)
    assert all(a is b for a, b in zip(before, model.network.parameters(), strict=True))


def test_a_vector_of_another_model_is_refused_with_both_sizes() -> None:
    model = path_model()
    with pytest.raises(ManifestError, match=rf"{model.size(0):,} parameters.*\[5\]"):
        model.load(0, torch.ones(5))


def test_a_tied_embedding_is_one_parameter_with_the_heads_learning_rate() -> None:
    tied = TINY.model_copy(update={"tie_word_embeddings": True})
    both_ends = (LevelConfig(blocks=(0,), embedding=True, head=True), LevelConfig(blocks=(1, 2)))
    model = PathModel(build_network(tied, 50, 0), both_ends)
    assert model.size(0) + model.size(1) == sum(parameter.numel() for parameter in model.network.parameters())
    model.load(0, model.vector(0) + 1.0)
    assert model.network.get_input_embeddings().weight is model.network.get_output_embeddings().weight
    assert {group.kind for group in model.parameter_groups()} == {"head", "rest"}
    loss = build_network(tied, 50, 0)(input_ids=TOKENS, labels=TOKENS).loss.item()
    assert loss == pytest.approx(math.log(50), rel=0.1)


def test_groups_hold_every_parameter_once_and_only_matrices_decay() -> None:
    groups = path_model().parameter_groups()
    names = [name for group in groups for name, _ in group.parameters]
    assert sorted(names) == sorted(name for name, _ in path_model().network.named_parameters())
    assert {(group.kind, group.decays) for group in groups} == {
        ("embedding", True),
        ("head", True),
        ("rest", True),
        ("rest", False),
    }
    assert all((parameter.ndim >= 2) == group.decays for group in groups for _, parameter in group.parameters)


def test_what_weight_decay_takes_is_known_without_the_model() -> None:
    """An embedding of which only some rows are used: the others move by weight decay alone."""
    config = InnerConfig(learning_rate=1e-2, embedding_learning_rate_ratio=3.0, warmup_steps=0, batch_sequences=1)
    model, vocabulary = path_model(), path_model().network.config.vocab_size
    places = decay_places(TINY, LEVELS, vocabulary, learning_rate_ratios(config))
    assert [level[-1][0] for level in places] == [model.size(level) for level in range(2)]
    before = model.vector(0)
    trainer = InnerTrainer(model, config, TrainingSettings(threads=1))
    trainer.train(iter([TOKENS] * 5), 5)
    decay = WeightDecay(trainer.decay_of_step * 5, places[0])
    rows = slice(*_rows_of_the_embedding(model))
    with_it, without = (OuterGradient(before, model.vector(0), each)[rows] for each in (WeightDecay(), decay))
    unused = torch.ones(vocabulary, dtype=torch.bool)
    unused[TOKENS[0]] = False
    left, taken = (torch.linalg.vector_norm(each.view(vocabulary, -1)[unused]) for each in (without, with_it))
    assert left < 0.01 * taken


def _rows_of_the_embedding(model: PathModel) -> tuple[int, int]:
    """Where the embedding lies in its level."""
    start = 0
    for name, parameter in model.named(0).items():
        if "embed_tokens" in name:
            return start, start + parameter.numel()
        start += parameter.numel()
    raise AssertionError("there is an embedding")


@pytest.mark.parametrize("model_type", ["mistral", "qwen2", "qwen3", "gemma2", "gpt_neox"])
def test_other_llama_style_architectures_can_be_cut_too(model_type: str) -> None:
    model = path_model(TINY.model_copy(update={"model_type": model_type}))
    assert model.size(0) > 0
    other = path_model(TINY.model_copy(update={"model_type": model_type}), seed=1)
    with_noise(model)
    for level in range(2):
        other.load(level, model.vector(level))
    assert torch.equal(logits_of(model), logits_of(other))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "no-such-model"}, 'model.model_type="no-such-model" is not known'),
        ({"model_type": "t5"}, 'model.model_type="t5" is not a causal language model'),
        ({"model_type": "gpt2"}, 'model.model_type="gpt2" builds GPT2LMHeadModel'),
        ({"extra": {"rms_norm_epps": 1e-5}}, "model.extra has rms_norm_epps"),
        ({"extra": {"rms_norm_eps": "small"}}, "rms_norm_eps"),
        ({"extra": {"hidden_act": "none"}}, r"cannot build \"llama\" .*KeyError.*check model.extra"),
        ({"extra": {"head_dim": 0}}, "ZeroDivisionError"),
        ({"extra": {"vocab_size": 7}}, "model.extra has vocab_size, which the run sets elsewhere"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused_in_words(change: dict[str, object], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        build_network(TINY.model_copy(update=change), 50, 0)


def test_extra_fields_reach_the_architecture() -> None:
    network = build_network(TINY.model_copy(update={"extra": {"rms_norm_eps": 0.5, "head_dim": 4}}), 50, 0)
    assert network.config.rms_norm_eps == 0.5
    assert network.model.layers[0].self_attn.q_proj.weight.shape == (8, 16)


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ((LevelConfig(blocks=(0, 1, 2), embedding=True),), "in none or in several: lm_head.weight"),
        ((LevelConfig(blocks=(0, 1, 2), embedding=True, head=True), LevelConfig(blocks=(1,))), "in none or in several"),
        ((LevelConfig(blocks=(0, 1, 2, 3), embedding=True, head=True),), "block 3, but the model has blocks 0 to 2"),
        ((LevelConfig(blocks=(0, 1, 2), embedding=True, head=True), LevelConfig()), r"levels\[1\] holds no parameters"),
    ],
)
def test_levels_that_do_not_divide_the_model_are_refused(levels: tuple[LevelConfig, ...], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        PathModel(build_network(TINY, 50, 0), levels)
