import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from dipaco_swarm.algorithm.state import vector_from_bytes, vector_to_bytes
from dipaco_swarm.errors import ManifestError, RunFileError
from dipaco_swarm.operator.training_workshop import TrainingWorkshop
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.training.encoding import encoder
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.pretrained import pretrained_network, resolved, tokenizer_of
from dipaco_swarm.training.tokenizer import end_of_text_id, load_tokenizer, prompt_ids, vocabulary_size
from tests.training.checkpoints import FAMILIES, PADDED, TEXT, TOKENS, save_checkpoint, save_tokenizer

SPLIT = [{"blocks": [0, 1], "embedding": True}, {"blocks": [2, 3], "head": True}]
BOTH_ENDS = [{"embedding": True, "head": True}, {"blocks": [0, 1]}, {"blocks": [2, 3]}]
IDS = torch.arange(48).view(2, 24) * 5


def run_of(folder: Path, levels: object = SPLIT, **model: object) -> RunConfig:
    """A run file as its operator would write it, not resolved."""
    values = {
        "name": "from-a-model",
        "model": {"from": str(folder), **model},
        "levels": levels,
        "data": {"source": "python", "sequence_length": 48},
        "stages": [{"router": "single", "rounds": 1}],
    }
    return RunConfig.model_validate_json(json.dumps(values))


@pytest.mark.parametrize("family", FAMILIES)
def test_before_the_first_step_a_path_says_what_the_checkpoint_says(family: str, tmp_path: Path) -> None:
    """Through the manifest's text and the seeds' bytes, as peers get them."""
    checkpoint = save_checkpoint(tmp_path / "theirs", family)
    tied = checkpoint.config.tie_word_embeddings
    config = resolved(run_of(tmp_path / "theirs", BOTH_ENDS if tied else SPLIT))
    workshop = TrainingWorkshop(config)
    tokenizer = tokenizer_of(config.model)
    seeds = [vector_to_bytes(seed) for seed in workshop.first_seeds(tokenizer)]
    heard = RunConfig.model_validate_json(config.model_dump_json())
    assert heard == config
    path = PathModel(build_network(heard.model, vocabulary_size(load_tokenizer(tokenizer)), 7), heard.levels)
    for level, seed in enumerate(seeds):
        path.load(level, vector_from_bytes(seed))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(input_ids=IDS).logits
        assert torch.equal(path.network(input_ids=IDS).logits, expected)
        assert torch.equal(checkpoint(input_ids=IDS).logits, expected)
    assert expected.shape[-1] == FAMILIES[family].get("vocab_size", PADDED)


def test_a_checkpoint_in_bf16_is_trained_in_fp32(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "fp32").to(torch.bfloat16).save_pretrained(tmp_path / "bf16")
    save_tokenizer(tmp_path / "bf16", begins=True)
    network = pretrained_network(resolved(run_of(tmp_path / "bf16")).model, TOKENS)
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}


def test_an_untied_head_begins_as_a_copy_of_the_embedding(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, "smollm2")
    config = resolved(run_of(tmp_path, SPLIT, tie_word_embeddings=False))
    network = pretrained_network(config.model, TOKENS)
    assert network.get_input_embeddings().weight is not network.get_output_embeddings().weight
    with torch.inference_mode():
        assert torch.equal(network(input_ids=IDS).logits, checkpoint(input_ids=IDS).logits)
    assert len(PathModel(network, config.levels).levels) == 2


def test_tied_ends_in_two_levels_are_refused_with_levels_that_work(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "smollm2")
    with pytest.raises(RunFileError) as error:
        resolved(run_of(tmp_path))
    assert "then blocks = [0, 1]; blocks = [2, 3], with modules = [1, 2, 2]" in str(error.value)
    assert "tie_word_embeddings = false: the head becomes a copy, 4,800 parameters more" in str(error.value)
    assert len(resolved(run_of(tmp_path, BOTH_ENDS)).levels) == 3


def test_what_a_network_is_not_made_of_stays_out_of_the_manifest(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    file = tmp_path / "config.json"
    odd = {"auto_map": {"AutoModelForCausalLM": "evil.Model"}, "attn_implementation": "who/knows", "made_by": "us"}
    file.write_text(json.dumps({**json.loads(file.read_text()), **odd}))
    model = resolved(run_of(tmp_path)).model
    assert not set(odd) & set(model.extra)
    for name, value in odd.items():
        lie = model.model_copy(update={"extra": {**model.extra, name: value}})
        with pytest.raises(ManifestError, match=f"model.extra has {name}"):
            build_network(lie, TOKENS, 0)


def test_what_was_published_is_not_read_again(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "theirs")
    written = run_of(tmp_path / "theirs")
    known = resolved(written)
    (tmp_path / "theirs").rename(tmp_path / "moved")
    assert resolved(written, known) == known
    with pytest.raises(RunFileError, match="there is no folder"):
        resolved(written)
    with pytest.raises(RunFileError, match="there is no folder"):
        resolved(run_of(tmp_path / "theirs", revision="another"), known)


# ----------------------------------------------------------------------------------------------------------- tokenizer


def test_texts_begin_and_end_as_the_model_is_used_to(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    tokenizer = load_tokenizer(tokenizer_of(resolved(run_of(tmp_path)).model))
    begin, end = tokenizer.token_to_id("<bos>"), tokenizer.token_to_id("<end>")
    assert end_of_text_id(tokenizer) == end
    plain = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert encoder(tokenizer)([TEXT])[0].tolist() == [begin, *plain] == prompt_ids(tokenizer, TEXT)
    assert prompt_ids(tokenizer, "") == []


def test_a_model_whose_texts_begin_with_nothing_keeps_it_so(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "qwen3")
    tokenizer = load_tokenizer(tokenizer_of(resolved(run_of(tmp_path)).model))
    assert end_of_text_id(tokenizer) == tokenizer.token_to_id("<end>")
    assert prompt_ids(tokenizer, TEXT) == tokenizer.encode(TEXT, add_special_tokens=False).ids


def test_without_a_word_on_it_a_text_ends_with_a_token_that_others_use(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    save_tokenizer(tmp_path, begins=False, names={"bos_token": "<bos>"})
    tokenizer = load_tokenizer(tokenizer_of(resolved(run_of(tmp_path)).model))
    assert end_of_text_id(tokenizer) == tokenizer.token_to_id("<|endoftext|>")


def test_a_tokenizer_with_more_tokens_than_rows_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, vocab_size=200)
    with pytest.raises(RunFileError, match=r"has \d+ tokens and its embedding 200 rows"):
        tokenizer_of(resolved(run_of(tmp_path)).model)


# ------------------------------------------------------------------------------------------------------------- mistakes


def test_a_model_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFileError, match=r'model.from="\S*empty".*configuration.*cannot be read.*HF_TOKEN'):
        resolved(run_of(tmp_path / "empty"))


def test_a_checkpoint_without_all_of_its_parameters_is_refused(tmp_path: Path) -> None:
    network = save_checkpoint(tmp_path)
    state = {name: tensor for name, tensor in network.state_dict().items() if "layers.2.mlp.up" not in name}
    network.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(RunFileError, match=r"lacks 1 parameters, such as model.layers.2.mlp.up_proj.weight"):
        pretrained_network(resolved(run_of(tmp_path)).model, TOKENS)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    network = save_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(RunFileError, match="parameters of this model cannot be read"):
        pretrained_network(resolved(run_of(tmp_path)).model, TOKENS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "is quantised"),
        ({"model_type": "t5"}, "t5"),
        ({"model_type": "never-heard-of"}, "cannot be read"),
        ({"max_position_embeddings": 32}, "data.sequence_length=48 is longer than model.max_position_embeddings=32"),
        ({"num_hidden_layers": 5}, r"no level has \[4\]"),
    ],
)
def test_a_checkpoint_that_does_not_suit_is_refused_in_words(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(RunFileError, match=words):
        resolved(run_of(tmp_path))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"from": "m", "hidden_size": 8}, "hidden_size: the checkpoint says it; leave it out beside `from`"),
        ({"from": "m", "extra": {"head_dim": 8}}, "extra: the checkpoint says it"),
        ({"from": "m", "tie_word_embeddings": True}, "tie_word_embeddings=true: the checkpoint says whether"),
        ({"from": ""}, "at least 1 character"),
        ({"from": 7}, "valid string"),
        ({"revision": "main"}, "required, unless `from` names a checkpoint"),
    ],
)
def test_a_bad_word_on_the_model_is_refused(model: dict[str, object], words: str) -> None:
    values = run_of(Path("m")).model_dump(mode="json") | {"model": model}
    with pytest.raises(ValueError, match=words):
        RunConfig.model_validate_json(json.dumps(values))


def test_a_tokenizer_beside_a_checkpoint_is_refused() -> None:
    values = run_of(Path("m")).model_dump(mode="json") | {"tokenizer": {"vocab_size": 400}, "model": {"from": "m"}}
    with pytest.raises(ValueError, match="the model starts from m, and has its tokenizer"):
        RunConfig.model_validate_json(json.dumps(values))
