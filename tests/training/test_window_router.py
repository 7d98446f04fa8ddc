"""The window router: its targets by hand, that it learns what can be learned, and what a damaged one is told."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import ManifestError, TrainingError
from dipaco_swarm.run.config import (
    DataConfig,
    LevelConfig,
    ModelConfig,
    ReroutingConfig,
    RouterConfig,
    RunConfig,
)
from dipaco_swarm.run.stage import StageConfig
from dipaco_swarm.training.evaluation import token_log_likelihoods
from dipaco_swarm.training.gradients import IGNORED
from dipaco_swarm.training.modules import build_network
from dipaco_swarm.training.pieces import EvaluationSet
from dipaco_swarm.training.window_router import (
    WindowRouter,
    train_window_router,
    window_router_from_bytes,
    window_router_to_bytes,
    window_targets,
)

VOCABULARY, LENGTH, PREFIX, WINDOW = 20, 24, 4, 3
WITH_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def config(**rerouting: float) -> RunConfig:
    rules = {"window": WINDOW, "steps": 150, "learning_rate": 3e-3, "batch_sequences": 8, **rerouting}
    return RunConfig(
        name="small",
        model=ModelConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=32
        ),
        levels=(LevelConfig(blocks=(0,), embedding=True, head=True),),
        data=DataConfig(source="python", sequence_length=LENGTH),
        router=RouterConfig(prefix_tokens=PREFIX),
        rerouting=ReroutingConfig.model_validate(rules),
        stages=(StageConfig(router="single", rounds=1), StageConfig(router="k-means", modules=(2,), rounds=1)),
    )


def untrained(settings: RunConfig | None = None, paths: int = 2) -> WindowRouter:
    return WindowRouter(build_network((settings or config()).model, VOCABULARY, seed=0), paths)


# ------------------------------------------------------------------------------------------------------------- targets


def test_targets_are_the_paths_that_predict_the_next_window_best() -> None:
    # tokens 2, 3, 4, 5 are scored (prefix 2); the second text has 5 tokens
    first = torch.tensor([[0, 0, -1, -1, -9, -1], [0, 0, -2, -2, -2, 0.0]])
    second = torch.tensor([[0, 0, -3, -2, -1, -2], [0, 0, -2, -3, -1, 0.0]])
    targets = window_targets(iter([first, second]), torch.tensor([6, 5]), prefix_tokens=2, window=2)
    # text 0: at 1 -2 : -5, at 2 -10 : -3, at 3 -10 : -3, at 4 (one token left) -1 : -2
    # text 1: at 1 -4 : -5, at 2 -4 : -4 is a tie, at 3 (one token left) -2 : -1; at 4 nothing follows
    x = IGNORED
    assert targets.tolist() == [[x, 0, 1, 1, 0, x], [x, 0, 0, 1, x, x]]


def test_a_long_window_looks_to_the_end_of_the_text() -> None:
    scores = [torch.randn(3, 9, generator=torch.Generator().manual_seed(path)) for path in range(4)]
    lengths = torch.full((3,), 9)
    targets = window_targets(scores, lengths, prefix_tokens=1, window=1000)
    to_the_end = torch.stack([s.flip(1).cumsum(1).flip(1) for s in scores])  # from each token on
    assert torch.equal(targets[:, :-1], to_the_end.argmax(0)[:, 1:])


def test_a_score_that_is_no_number_wins_nothing() -> None:
    broken, fine = torch.full((1, 4), torch.nan), torch.tensor([[0, -5, -5, -5.0]])
    assert window_targets([broken, fine], torch.tensor([4]), 1, 2).tolist() == [[1, 1, 1, IGNORED]]


# ------------------------------------------------------------------------------------------------------------ learning


def specialist(favourites: range) -> PreTrainedModel:
    """A path that expects one class of tokens, whatever came before."""
    network = build_network(config().model, VOCABULARY, seed=1)
    with torch.no_grad():
        head = network.get_output_embeddings().weight.zero_()
        head[favourites.start : favourites.stop] = 0.3
        network.model.norm.weight.fill_(1.0)
        network.get_input_embeddings().weight.fill_(1.0)  # every hidden state is the same, and positive
    return network


def sample(texts: int, seed: int) -> EvaluationSet:
    """Texts that change their class of tokens (0-9 or 10-19) in runs of eight, so the last token tells the next."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 2, (texts, LENGTH // 8)).repeat(8, axis=1)
    lengths = rng.integers(LENGTH - 4, LENGTH + 1, texts)
    return EvaluationSet(rng.integers(0, 10, (texts, LENGTH)) + 10 * classes, lengths, ("",) * texts)


PATHS = {PathIndex(0): range(10), PathIndex(1): range(10, 20)}


def trained(device: str = "cpu", **rerouting: float) -> WindowRouter:
    settings = config(**rerouting)
    router = untrained(settings).to(device)
    train_window_router(router, sample(64, seed=0), lambda path: specialist(PATHS[path]).to(device), settings)
    return router


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, WITH_CUDA])])
def test_the_router_learns_which_path_likes_what_comes_next(device: str) -> None:
    new = sample(50, seed=1)
    tokens = torch.from_numpy(new.tokens)
    followed_by_itself = np.arange(LENGTH) % 8 < 5  # where the next three tokens are of the run's class
    asked = followed_by_itself & (np.arange(LENGTH) >= PREFIX) & (np.arange(LENGTH) < new.lengths[:, None] - 1)
    best = new.tokens >= 10
    right = (trained(device).choices(tokens).numpy() == best)[asked].mean()
    assert right > 0.97
    assert ((untrained().choices(tokens).numpy() == best)[asked]).mean() < 0.7


def test_the_router_is_kept_as_it_was_when_it_did_best_on_pieces_it_had_not_seen() -> None:
    """Classes that change at every token cannot be foreseen: what is learned of them is luck, and is lost again."""
    noise = EvaluationSet(np.random.default_rng(0).integers(0, 20, (64, LENGTH)), np.full(64, LENGTH), ("",) * 64)
    unseen = torch.arange(9, 64, 10)
    tokens, lengths = torch.from_numpy(noise.tokens)[unseen], torch.full((6,), LENGTH)
    scores = [token_log_likelihoods(specialist(of_path), tokens, lengths, PREFIX) for of_path in PATHS.values()]
    targets = window_targets(scores, lengths, PREFIX, WINDOW)
    router, found = untrained(), []

    def right() -> float:
        return float((router.choices(tokens) == targets).sum() / (targets != IGNORED).sum())

    rules = config(steps=20, learning_rate=1e-2)  # it is looked at after each of them
    result = train_window_router(
        router, noise, lambda path: specialist(PATHS[path]), rules, lambda share: found.append(right())
    )
    assert result == pytest.approx(right())
    assert result == pytest.approx(max(found[5:]))  # two passes a path of scoring, and one that has learned nothing yet


def test_a_choice_depends_on_nothing_that_comes_later() -> None:
    router = trained(steps=5)
    tokens = torch.from_numpy(sample(6, seed=2).tokens)
    choices = router.choices(tokens)
    for t in (PREFIX, 11, LENGTH - 1):
        assert torch.equal(router.choices(tokens[:, : t + 1])[:, -1], choices[:, t])
        assert router.choose(tokens[0, : t + 1].tolist()) == int(choices[0, t])


def test_a_text_longer_than_the_models_positions_counts_with_its_end() -> None:
    router = trained()  # the model has 32 positions
    assert [router.choose([15] * 50 + [1] * 30), router.choose([1] * 50 + [15] * 30)] == [0, 1]


def test_the_same_sample_and_seed_give_the_same_bytes() -> None:
    one, same = (window_router_to_bytes(trained(steps=5)) for _ in range(2))
    assert one == same
    assert window_router_to_bytes(trained(steps=6)) != one


def test_each_path_is_loaded_once_and_progress_ends_at_one() -> None:
    asked: list[int] = []
    seen: list[float] = []

    def load_path(path: PathIndex) -> PreTrainedModel:
        asked.append(path)
        return specialist(PATHS[path])

    train_window_router(untrained(), sample(10, seed=0), load_path, config(steps=2), seen.append)
    assert asked == [0, 1]
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)


def test_at_most_max_documents_are_scored() -> None:
    seen: list[float] = []
    rules = config(steps=1, max_documents=4)
    many = sample(40, seed=0)
    cut = EvaluationSet(many.tokens[:4], many.lengths[:4], many.domains[:4])
    routers = [untrained(), untrained()]
    for router, pieces in zip(routers, (cut, many), strict=True):
        train_window_router(router, pieces, lambda path: specialist(PATHS[path]), rules, seen.append)
    assert window_router_to_bytes(routers[0]) == window_router_to_bytes(routers[1])
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


def test_it_can_be_interrupted_while_scoring_and_while_learning() -> None:
    class Enough(Exception):
        pass

    for at in (0.01, 0.9):

        def stop(share: float, at: float = at) -> None:
            if share > at:
                raise Enough

        with pytest.raises(Enough):
            train_window_router(untrained(), sample(8, 0), lambda p: specialist(PATHS[p]), config(steps=4), stop)


def test_a_learning_rate_that_is_too_large_is_said_in_words() -> None:
    with pytest.raises(TrainingError, match=r"window router.*not finite.*\[rerouting\], 1e\+30, is too large"):
        trained(learning_rate=1e30)


# ---------------------------------------------------------------------------------------------------------- as a blob


def test_a_router_survives_its_bytes() -> None:
    router = trained(steps=3)
    again = window_router_from_bytes(window_router_to_bytes(router), config(), VOCABULARY, num_paths=2)
    tokens = torch.from_numpy(sample(4, seed=3).tokens)
    with torch.no_grad():
        assert torch.equal(router(tokens), again(tokens))


def damaged() -> Iterator[tuple[bytes, str]]:
    whole = window_router_to_bytes(untrained())
    tensors = load(whole)
    head = tensors["head.weight"]
    yield whole[:100], "not a safetensors file"
    yield b"", "not a safetensors file"
    yield save({name: tensor for name, tensor in tensors.items() if name != "head.bias"}), "head.bias as None"
    yield save({**tensors, "more": torch.ones(1)}), "more as"
    yield save({**tensors, "head.weight": head[:1].clone()}), "head.weight as"
    yield save({**tensors, "head.weight": head.double()}), "float64"
    yield save({**tensors, "head.weight": _with_nan(head)}), "not finite"


def _with_nan(tensor: Tensor) -> Tensor:
    return tensor.clone().index_fill_(0, torch.tensor([0]), torch.nan)


@pytest.mark.parametrize(("data", "reason"), list(damaged()), ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_no_router_of_this_run_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ManifestError, match=reason):
        window_router_from_bytes(data, config(), VOCABULARY, num_paths=2)


def test_a_router_of_another_stage_is_refused() -> None:
    with pytest.raises(ManifestError, match="another stage"):
        window_router_from_bytes(window_router_to_bytes(untrained(paths=3)), config(), VOCABULARY, num_paths=2)
