"""A run file or tokenizer that is made to exhaust a volunteer's machine is refused before anything is allocated."""

import json
import time

import pytest
from pydantic import ValidationError

from dipaco_swarm.errors import ManifestError
from dipaco_swarm.run.model import LevelConfig, ModelConfig, levels_problem
from dipaco_swarm.run.stage import StageConfig
from dipaco_swarm.run.table import path_table_problem
from dipaco_swarm.training.modules import buffer_bytes
from dipaco_swarm.training.tokenizer import END_OF_TEXT, load_tokenizer, train_tokenizer

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}


def test_a_module_number_without_those_before_it_is_found_without_counting_to_it() -> None:
    began = time.process_time()
    assert path_table_problem([[0], [10**12]]) == (
        "level 0 has no module 1 but has 1000000000000; number them 0, 1, 2, ... without gaps"
    )
    assert time.process_time() - began < 1.0


def test_more_paths_than_can_be_named_are_refused_before_a_table_is_made_of_them() -> None:
    with pytest.raises(ValidationError, match="10,000,000,000 paths; at most"):
        StageConfig.model_validate({"router": "product-k-means", "modules": (100_000, 100_000), "rounds": 1})


def test_blocks_are_counted_once() -> None:
    with pytest.raises(ValidationError, match="num_hidden_layers"):
        ModelConfig.model_validate(SMALL | {"num_hidden_layers": 3 * 10**8})
    level = LevelConfig(blocks=(0, 1, *([5] * 200_000)), embedding=True, head=True)
    began = time.process_time()
    problem = levels_problem(ModelConfig.model_validate(SMALL), [level])
    assert problem is not None
    assert "the model has no [5]; twice: [5]" in problem
    assert time.process_time() - began < 2.0


def with_steps(**steps: object) -> bytes:
    said = json.loads(train_tokenizer(["a b c"] * 10, 300))
    return json.dumps(said | steps).encode()


def replacing(content: str, times: int, pattern: object) -> dict[str, object]:
    step = {"type": "Replace", "pattern": pattern, "content": content}
    return {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [step] * times}]}


@pytest.mark.parametrize("pattern", [{"String": "b"}, {"Regex": "b*"}])
@pytest.mark.parametrize("place", ["normalizer", "decoder"])
def test_a_tokenizer_that_makes_a_text_endless_is_refused(pattern: object, place: str) -> None:
    """2 kB of it, and the library ends the process, for there is no memory left."""
    with pytest.raises(ManifestError, match=r"may make a text .* times as long"):
        load_tokenizer(with_steps(**{place: replacing("b" * 10, 12, pattern)}))


def test_tokenizers_as_they_are_in_use_are_taken() -> None:
    marks = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]}
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    marks["normalizers"].append(space)  # type: ignore[attr-defined]
    assert load_tokenizer(with_steps(normalizer=marks)).token_to_id(END_OF_TEXT) is not None
    long = {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]}
    load_tokenizer(with_steps(normalizer=long))


def test_what_a_network_has_beside_its_parameters_is_known_before_it_is_made() -> None:
    """Positions of xglm are a table that nobody trains: a volunteer was told of half a GB, and 128 were asked for."""
    large = ModelConfig.model_validate(SMALL | {"model_type": "xglm", "max_position_embeddings": 10**9})
    assert buffer_bytes(large, 1024) > 200 * 10**9
    assert buffer_bytes(ModelConfig.model_validate(SMALL), 1024) < 10_000
