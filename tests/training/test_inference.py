from itertools import islice
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from dipaco_swarm.errors import UsageError
from dipaco_swarm.manifest import ModelConfig
from dipaco_swarm.training.inference import Sampling, generate, generate_tokens
from dipaco_swarm.training.modules import build_network

VOCABULARY, POSITIONS = 50, 16
TINY = ModelConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=POSITIONS
)
PROMPT = [3, 1, 4, 1, 5]
GREEDY = Sampling(temperature=0)


def opinionated_network() -> PreTrainedModel:
    network = build_network(TINY, VOCABULARY, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return network


def dice(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def likeliest_next(network: PreTrainedModel, ids: list[int]) -> int:
    with torch.no_grad():
        return int(network(input_ids=torch.tensor([ids])).logits[0, -1].argmax())


def test_the_cache_changes_nothing_but_the_speed() -> None:
    network = opinionated_network()
    ids = list(PROMPT)
    for _ in range(10):
        ids.append(likeliest_next(network, ids))
    assert generate(network, PROMPT, 10, GREEDY, dice()) == ids[5:]


def test_each_token_is_computed_once() -> None:
    network = opinionated_network()
    computed: list[int] = []

    def count(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        computed.append(kwargs["input_ids"].shape[1])

    network.register_forward_pre_hook(count, with_kwargs=True)
    generate(network, PROMPT, 4, GREEDY, dice())
    assert computed == [5, 1, 1, 1]


def test_tokens_come_one_by_one_as_they_are_drawn() -> None:
    seen: list[int] = []
    new = generate(opinionated_network(), PROMPT, 6, GREEDY, dice(), on_token=seen.append)
    assert seen == new
    assert list(islice(generate_tokens(opinionated_network(), PROMPT, GREEDY, dice()), 6)) == new


def test_going_on_from_what_there_is_equals_never_having_stopped() -> None:
    """What re-routing every few tokens relies on."""
    network = opinionated_network()
    first = generate(network, PROMPT, 4, GREEDY, dice())
    second = generate(network, PROMPT + first, 4, GREEDY, dice())
    assert first + second == generate(network, PROMPT, 8, GREEDY, dice())


def test_the_stop_token_ends_the_text_and_is_not_part_of_it() -> None:
    network = opinionated_network()
    new = generate(network, PROMPT, 8, GREEDY, dice())
    stop = new[-1]
    assert generate(network, PROMPT, 8, GREEDY, dice(), stop_token=stop) == new[: new.index(stop)]


def test_equal_generators_draw_equal_texts() -> None:
    network, warm = opinionated_network(), Sampling(temperature=2.0, top_k=None)
    one, same, other = (generate(network, PROMPT, 10, warm, dice(seed)) for seed in (0, 0, 1))
    assert one == same != other


def test_top_k_of_one_is_greedy_and_top_k_bounds_the_choice() -> None:
    network = opinionated_network()
    assert generate(network, PROMPT, 5, Sampling(5.0, top_k=1), dice()) == generate(network, PROMPT, 5, GREEDY, dice())
    with torch.no_grad():
        likeliest = set(network(input_ids=torch.tensor([PROMPT])).logits[0, -1].topk(3).indices.tolist())
    drawn = {generate(network, PROMPT, 1, Sampling(50.0, top_k=3), dice(seed))[0] for seed in range(30)}
    assert drawn == likeliest


def test_draws_follow_the_models_probabilities() -> None:
    network = build_network(TINY, 2, seed=0)
    with torch.no_grad():
        network.model.norm.weight.fill_(0.0)  # logits of zero: a fair coin
    drawn = [generate(network, [0], 1, Sampling(1.0, None), dice(seed))[0] for seed in range(100)]
    assert 30 < sum(drawn) < 70


def test_text_goes_on_beyond_the_models_positions() -> None:
    network = opinionated_network()
    ids = list(PROMPT)
    window = list(ids)
    for _ in range(30):
        if len(window) > POSITIONS:
            window = ids[-POSITIONS // 2 :]
        token = likeliest_next(network, window)
        ids.append(token)
        window = [*window, token]
    assert generate(network, PROMPT, 30, GREEDY, dice()) == ids[5:]


def test_a_prompt_longer_than_the_models_positions_counts_with_its_end() -> None:
    network = opinionated_network()
    prompt = [token % VOCABULARY for token in range(40)]
    assert generate(network, prompt, 1, GREEDY, dice()) == [likeliest_next(network, prompt[-POSITIONS:])]


def test_impossible_wishes_are_refused_in_words() -> None:
    with pytest.raises(UsageError, match="the prompt is empty"):
        generate(opinionated_network(), [], 1, GREEDY, dice())
    with pytest.raises(UsageError, match="temperature -1 is negative"):
        Sampling(temperature=-1)
    with pytest.raises(UsageError, match="top_k 0 leaves no token"):
        Sampling(top_k=0)
