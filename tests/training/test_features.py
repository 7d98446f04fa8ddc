from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from dipaco_swarm.errors import ManifestError
from dipaco_swarm.training.features import one_or_full, prefix_features, remembered_features, small_batch


@pytest.fixture(scope="module")
def network() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    return LlamaForCausalLM(config)


def prefixes(documents: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 50, size=(documents, 8))


def test_a_feature_is_the_mean_of_the_last_hidden_states(network: LlamaForCausalLM) -> None:
    batch = prefixes(3)
    with torch.no_grad():
        hidden = network(torch.from_numpy(batch), output_hidden_states=True).hidden_states[-1]
    features = prefix_features(network, batch)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, hidden.mean(1).numpy(), rtol=1e-5, atol=1e-6)


def test_a_feature_has_the_same_bits_whatever_its_neighbours_and_place(network: LlamaForCausalLM) -> None:
    documents = prefixes(21)
    together = prefix_features(network, documents, batch=8)
    alone = np.concatenate([prefix_features(network, documents[i : i + 1], batch=8) for i in range(21)])
    assert (together == alone).all()
    assert (prefix_features(network, documents[::-1].copy(), batch=8)[::-1] == together).all()


def test_another_batch_size_changes_no_more_than_rounding(network: LlamaForCausalLM) -> None:
    documents = prefixes(40)
    one, other = prefix_features(network, documents, batch=7), prefix_features(network, documents, batch=64)
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_changes_no_more_than_rounding(network: LlamaForCausalLM) -> None:
    documents = prefixes(40)
    on_gpu = prefix_features(deepcopy(network).to("cuda"), documents)
    np.testing.assert_allclose(prefix_features(network, documents), on_gpu, rtol=1e-3, atol=1e-4)


def test_no_documents_have_no_features(network: LlamaForCausalLM) -> None:
    assert prefix_features(network, prefixes(0)).shape == (0, 16)


def test_the_network_is_left_as_it_was(network: LlamaForCausalLM) -> None:
    network.train()
    prefix_features(network, prefixes(2))
    assert network.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())


def test_a_foreign_token_is_refused(network: LlamaForCausalLM) -> None:
    for token in (50, -1):
        with pytest.raises(ManifestError, match="the feature model has 50"):
            prefix_features(network, np.full((1, 8), token))


def test_remembered_features_are_computed_once_and_come_back_exactly(tmp_path: Path) -> None:
    asked = []

    def compute(documents: NDArray[np.int64]) -> NDArray[np.float32]:
        asked.append(len(documents))
        return (documents[:, :2] / 3).astype(np.float32)

    first = remembered_features(compute, tmp_path / "model")
    again = remembered_features(compute, tmp_path / "model")  # another peer, or the next stage
    expected = first(prefixes(5))
    assert (again(prefixes(5)) == expected).all()
    assert asked == [5]
    again(prefixes(5, seed=1))
    assert asked == [5, 5]
    for file in (tmp_path / "model").glob("*.npy"):
        file.write_bytes(file.read_bytes()[:20])  # the disk was full
    assert (again(prefixes(5)) == expected).all()
    assert asked == [5, 5, 5]


def test_a_prompt_alone_takes_one_row_and_many_documents_full_batches() -> None:
    assert [one_or_full(n) for n in (1, 2, 256, 5000)] == [1, 256, 256, 256]


def test_a_small_batch_holds_all_and_is_never_more_than_a_full_one() -> None:
    assert [small_batch(n) for n in (0, 1, 8, 9, 45, 250, 256, 257, 5000)] == [8, 8, 8, 16, 48, 256, 256, 256, 256]
