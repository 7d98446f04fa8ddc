from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import UsageError
from dipaco_swarm.run.config import ModelConfig
from dipaco_swarm.training.inference import Sampling, generate, generate_rerouted, generate_tokens
from dipaco_swarm.training.modules import build_network

VOCABULARY, POSITIONS = 50, 16
TINY = ModelConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=POSITIONS
)
PROMPT = [3, 1, 4, 1, 5]
GREEDY = Sampling(temperature=0)


def opinionated_network(seed: int = 0) -> PreTrainedModel:
    network = build_network(TINY, VOCABULARY, seed=0)
    generator = torch.Generator().manual_seed(seed)
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


# -------------------------------------------------------------------------------------------------- routed every window


class TwoPaths:
    """One network that is filled with path 0 or path 1, as in use, and a count of what it computes."""

    def __init__(self) -> None:
        self.weights = [opinionated_network(path).state_dict() for path in (0, 1)]
        self.network = opinionated_network()
        self.loaded: list[int] = []
        self.computed: list[int] = []
        self.network.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self.computed.append(kwargs["input_ids"].shape[1])

    def load(self, path: PathIndex) -> PreTrainedModel:
        self.loaded.append(path)
        self.network.load_state_dict(self.weights[path])
        return self.network


def by_length(ids: Sequence[int]) -> PathIndex:
    """A router that stays, switches, stays and switches back, for a prompt of 5 and windows of 3."""
    return PathIndex({8: 0, 11: 1, 14: 1}.get(len(ids), 0))


def test_rerouted_text_is_what_it_is_without_any_cache_token_by_token() -> None:
    apart, ids = [opinionated_network(path) for path in (0, 1)], list(PROMPT)
    for i in range(11):
        path = PathIndex(0) if i < 3 else by_length(ids[: 5 + i // 3 * 3])
        ids.append(likeliest_next(apart[path], ids))
    paths = TwoPaths()
    new = generate_rerouted(PathIndex(0), by_length, paths.load, 3, PROMPT, GREEDY, dice())
    assert list(islice(new, 11)) == ids[5:]
    assert paths.loaded == [0, 1]
    assert generate(apart[0], PROMPT, 11, GREEDY, dice()) != ids[5:]  # the switch made a difference


def test_the_cache_is_kept_while_the_path_stays_and_made_anew_when_it_changes() -> None:
    paths = TwoPaths()
    switching = generate_rerouted(PathIndex(0), by_length, paths.load, 3, PROMPT, GREEDY, dice())
    assert len(list(islice(switching, 11))) == 11
    # windows of 3: path 0 reads the prompt of 5; stays; path 1 reads all 11 tokens; stays
    assert paths.computed == [5, 1, 1, 1, 1, 1, 11, 1, 1, 1, 1]


@pytest.mark.parametrize("window", [1, 3, 100])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.5, top_k=20)], ids=["greedy", "drawn"])
def test_rerouting_that_never_changes_its_mind_is_plain_generation(window: int, sampling: Sampling) -> None:
    """Beyond the model's positions as well."""
    plain = list(islice(generate_tokens(opinionated_network(1), PROMPT, sampling, dice()), 30))
    always = lambda ids: PathIndex(1)  # noqa: E731
    new = generate_rerouted(PathIndex(1), always, TwoPaths().load, window, PROMPT, sampling, dice())
    assert list(islice(new, 30)) == plain


def test_the_router_reads_the_whole_text_after_every_window() -> None:
    read: list[list[int]] = []

    def choose(ids: Sequence[int]) -> PathIndex:
        read.append(list(ids))
        return PathIndex(0)

    new = generate_rerouted(PathIndex(0), choose, TwoPaths().load, 4, PROMPT, GREEDY, dice())
    text = PROMPT + list(islice(new, 13))
    assert read == [text[:9], text[:13], text[:17]]


def test_the_stop_token_ends_rerouted_text_too() -> None:
    plain = generate(opinionated_network(), PROMPT, 8, GREEDY, dice())
    for stop in plain:
        new = generate_rerouted(
            PathIndex(0), lambda ids: PathIndex(0), TwoPaths().load, 2, PROMPT, GREEDY, dice(), stop
        )
        assert list(new) == plain[: plain.index(stop)]


def test_a_switch_beyond_the_models_positions_goes_on_from_the_end_of_the_text() -> None:
    def always_other(ids: Sequence[int]) -> PathIndex:
        return PathIndex(len(ids) // 10 % 2)

    new = generate_rerouted(PathIndex(0), always_other, TwoPaths().load, 10, PROMPT, GREEDY, dice())
    text = PROMPT + list(islice(new, 41))
    after = likeliest_next(opinionated_network(always_other(text[:35])), text[35 - POSITIONS : 35])
    assert always_other(text[:35]) != always_other(text[:25])
    assert text[35] == after
