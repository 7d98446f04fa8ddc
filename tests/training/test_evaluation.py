import math

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.manifest import ModelConfig
from dipaco_swarm.training.evaluation import (
    Score,
    evaluate,
    evaluate_routed,
    sequence_log_likelihoods,
    token_log_likelihoods,
)
from dipaco_swarm.training.modules import build_network
from dipaco_swarm.training.shards import EvaluationSet

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
