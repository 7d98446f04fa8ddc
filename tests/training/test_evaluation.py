import math

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.run.config import ModelConfig
from dipaco_swarm.training.evaluation import (
    Score,
    evaluate,
    evaluate_rerouted,
    evaluate_routed,
    sequence_log_likelihoods,
    token_log_likelihoods,
    window_paths,
)
from dipaco_swarm.training.modules import build_network
from dipaco_swarm.training.pieces import EvaluationSet

VOCABULARY = 50
TINY = ModelConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64
)
LENGTHS = torch.tensor([12, 7, 4, 12, 9])


def opinionated_network(seed: int) -> PreTrainedModel:
    network = build_network(TINY, VOCABULARY, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return network


def tokens() -> Tensor:
    return torch.randint(VOCABULARY, (5, 12), generator=torch.Generator().manual_seed(3))


def pieces() -> EvaluationSet:
    return EvaluationSet(tokens().numpy(), LENGTHS.numpy(), ("prose", "code", "prose", "code", "licence"))


def slow_log_likelihood(network: PreTrainedModel, ids: Tensor, skip: int) -> float:
    """By the book: one sequence, all logits, one target at a time."""
    with torch.no_grad():
        log_probs = network(input_ids=ids[None]).logits[0].log_softmax(-1)
    return float(sum(log_probs[t - 1, ids[t]].item() for t in range(max(skip, 1), len(ids))))


@pytest.mark.parametrize("skip", [0, 1, 5])
def test_only_targets_after_the_prefix_and_within_the_length_count(skip: int) -> None:
    network = opinionated_network(0)
    sums, counts = sequence_log_likelihoods(network, tokens(), LENGTHS, skip, batch=2)
    expected = [slow_log_likelihood(network, row[:n], skip) for row, n in zip(tokens(), LENGTHS.tolist(), strict=True)]
    torch.testing.assert_close(sums, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    assert counts.tolist() == [max(0, n - max(skip, 1)) for n in LENGTHS.tolist()]


def test_scores_agree_with_the_loss_of_transformers() -> None:
    network = opinionated_network(0)
    sums, counts = sequence_log_likelihoods(network, tokens(), torch.full((5,), 12), skip=0)
    loss = network(input_ids=tokens(), labels=tokens()).loss.item()
    assert -(sums.sum() / counts.sum()).item() == pytest.approx(loss, rel=1e-5)


def test_what_lies_behind_the_end_is_never_read() -> None:
    network = opinionated_network(0)
    behind = torch.arange(12) >= LENGTHS[:, None]
    for filler in (-100, 10_000):
        padded = tokens().masked_fill(behind, filler)
        sums, _ = sequence_log_likelihoods(network, padded, LENGTHS, skip=2)
        torch.testing.assert_close(sums, sequence_log_likelihoods(network, tokens(), LENGTHS, skip=2)[0])


def test_token_scores_sit_at_their_targets() -> None:
    scores = token_log_likelihoods(opinionated_network(0), tokens(), LENGTHS, skip=3)
    assert scores.shape == (5, 12)
    scored = (torch.arange(12) >= 3) & (torch.arange(12) < LENGTHS[:, None])
    assert torch.equal(scores < 0, scored)


def test_nothing_to_score_is_no_tokens() -> None:
    sums, counts = sequence_log_likelihoods(opinionated_network(0), tokens(), LENGTHS, skip=12)
    assert (sums.tolist(), counts.tolist()) == ([0.0] * 5, [0] * 5)


def test_evaluating_leaves_the_network_in_its_mode_and_without_gradients() -> None:
    network = opinionated_network(0).train()
    evaluate(network, pieces(), skip=2)
    assert network.training
    assert all(parameter.grad is None for parameter in network.parameters())


def test_scores_add_up_and_know_their_perplexity() -> None:
    score = Score(-2 * math.log(8), 2) + Score(-math.log(27), 1)
    assert score.tokens == 3
    assert score.perplexity == pytest.approx((8 * 8 * 27) ** (1 / 3))
    assert score.loss == pytest.approx(math.log(score.perplexity))
    assert math.isnan(Score().perplexity)
    assert Score(-1e6, 1).perplexity == math.inf


def test_an_untrained_model_has_the_perplexity_of_its_vocabulary() -> None:
    by_domain = evaluate(build_network(TINY, VOCABULARY, 0), pieces(), skip=2)
    assert list(by_domain) == ["code", "licence", "prose"]
    assert [score.tokens for score in by_domain.values()] == [15, 7, 12]
    assert all(score.perplexity == pytest.approx(VOCABULARY, rel=1e-5) for score in by_domain.values())


def test_routed_evaluation_scores_each_piece_on_its_own_path() -> None:
    networks = {PathIndex(path): opinionated_network(path) for path in (0, 1, 2)}
    asked: list[PathIndex] = []

    def load_path(path: PathIndex) -> PreTrainedModel:
        asked.append(path)
        return networks[path]

    routed = evaluate_routed(pieces(), np.array([2, 0, 2, 0, 0]), load_path, skip=2)

    assert asked == [0, 2]  # nothing was routed to path 1
    own = [slow_log_likelihood(networks[PathIndex(path)], tokens()[row, : LENGTHS[row]], 2)
           for row, path in enumerate([2, 0, 2, 0, 0])]  # fmt: skip
    assert routed.by_path[PathIndex(2)].log_likelihood == pytest.approx(own[0] + own[2])
    assert routed.by_domain["code"].log_likelihood == pytest.approx(own[1] + own[3])
    assert routed.total.log_likelihood == pytest.approx(sum(own))
    assert routed.total.tokens == sum(score.tokens for score in routed.by_domain.values()) == 34


def test_the_first_window_belongs_to_the_prefix_router_and_later_ones_to_what_was_chosen_before_them() -> None:
    choices = np.arange(24).reshape(2, 12)
    paths = window_paths(np.array([50, 60]), choices, skip=3, window=4)
    assert paths[0].tolist() == [50] * 7 + [6] * 4 + [10]  # windows of tokens 3-6, 7-10, 11
    assert paths[1].tolist() == [60] * 7 + [18] * 4 + [22]
    one = window_paths(np.array([50, 60]), choices, skip=3, window=1)
    assert one[0].tolist() == [50] * 4 + list(range(3, 11))
    assert choices.tolist() == np.arange(24).reshape(2, 12).tolist()


def test_rerouted_evaluation_scores_every_token_under_its_own_path_with_all_the_text_before_it() -> None:
    networks = {PathIndex(path): opinionated_network(path) for path in (0, 1, 2)}
    asked: list[PathIndex] = []

    def load_path(path: PathIndex) -> PreTrainedModel:
        asked.append(path)
        return networks[path]

    paths = np.random.default_rng(0).integers(0, 3, (5, 12))
    paths[:, 4] = 2
    found = evaluate_rerouted(pieces(), paths, load_path, skip=2, batch=2)

    assert asked == [0, 1, 2]
    expected = {path: Score() for path in networks}
    domains = dict.fromkeys(("code", "licence", "prose"), Score())
    for row, length, domain in zip(range(5), LENGTHS.tolist(), pieces().domains, strict=True):
        for t in range(2, length):
            path, ids = PathIndex(int(paths[row, t])), tokens()[row]
            with torch.no_grad():
                logits = networks[path](input_ids=ids[None, :t]).logits[0, -1]
            score = Score(float(logits.log_softmax(-1)[ids[t]]), 1)
            expected[path] += score
            domains[domain] += score
    for mine, theirs in ((found.by_path, expected), (found.by_domain, domains)):
        assert list(mine) == list(theirs)
        assert {key: score.tokens for key, score in mine.items()} == {k: score.tokens for k, score in theirs.items()}
        for key, score in mine.items():
            assert score.log_likelihood == pytest.approx(theirs[key].log_likelihood, rel=1e-5)  # type: ignore[index]
    assert found.total.tokens == 34


def test_rerouting_that_never_changes_its_mind_is_routed_evaluation() -> None:
    networks = {PathIndex(path): opinionated_network(path) for path in (0, 1)}
    first = np.array([1, 0, 1, 1, 0])
    constant = np.repeat(first[:, None], 12, axis=1)
    rerouted = evaluate_rerouted(pieces(), window_paths(first, constant, 2, 3), networks.__getitem__, skip=2)
    assert rerouted == evaluate_routed(pieces(), first, networks.__getitem__, skip=2)


def test_the_oracle_of_single_tokens_is_at_least_as_good_as_any_path() -> None:
    networks = {PathIndex(path): opinionated_network(path) for path in (0, 1)}
    scores = [token_log_likelihoods(network, tokens(), LENGTHS, skip=2) for network in networks.values()]
    oracle = torch.stack(scores).argmax(0).numpy()
    best = evaluate_rerouted(pieces(), oracle, networks.__getitem__, skip=2).total.log_likelihood
    assert best == pytest.approx(float(torch.stack(scores).amax(0).sum()), rel=1e-5)
    for path in networks:
        alone = evaluate_routed(pieces(), np.full(5, path), networks.__getitem__, skip=2)
        assert best > alone.total.log_likelihood
