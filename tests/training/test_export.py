import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dipaco_swarm.errors import ManifestError, UsageError
from dipaco_swarm.run.config import AboutConfig, LevelConfig, ModelConfig
from dipaco_swarm.training.card import Card
from dipaco_swarm.training.export import export_path
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.tokenizer import load_tokenizer, train_tokenizer

TINY = ModelConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64
)
TEXT = "the path of a document, the document of a path\n\tunbent  by spaces , or stops ."
TOKENIZER = train_tokenizer([TEXT], 300)


def card(what: str = "A path.") -> Card:
    return Card(AboutConfig(), None, what)


def path_model() -> PathModel:
    model = PathModel(build_network(TINY, 300, 0), (LevelConfig(blocks=(0, 1), embedding=True, head=True),))
    model.load(0, torch.randn(model.size(0), generator=torch.Generator().manual_seed(0)) * 0.2)
    return model


def test_transformers_reads_an_export_and_computes_the_very_same_logits(tmp_path: Path) -> None:
    model, out = path_model(), tmp_path / "path-37"
    export_path(model, TOKENIZER, out, card("Path 37 of the run demo."))
    loaded = AutoModelForCausalLM.from_pretrained(out)
    ids = torch.arange(24).view(2, 12)
    model.network.eval()
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, model.network(input_ids=ids).logits)


def test_the_exported_tokenizer_is_the_runs(tmp_path: Path) -> None:
    export_path(path_model(), TOKENIZER, tmp_path / "out", card())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer(TEXT)["input_ids"] == load_tokenizer(TOKENIZER).encode(TEXT).ids
    assert tokenizer.decode(tokenizer(TEXT)["input_ids"]) == TEXT
    assert tokenizer.eos_token == "<|endoftext|>"


def test_generation_of_an_export_ends_with_the_document(tmp_path: Path) -> None:
    export_path(path_model(), TOKENIZER, tmp_path / "out", card())
    generation = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config
    assert generation.eos_token_id == load_tokenizer(TOKENIZER).token_to_id("<|endoftext|>")


def test_the_folder_is_ordinary(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "path-37"
    export_path(path_model(), TOKENIZER, out, card("Path 37 of the run demo, at version 12."))
    files = {file.name for file in out.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"} <= files
    assert json.loads((out / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    said = (out / "README.md").read_text()
    assert said.startswith("---\n")
    assert "# path-37\n\nPath 37 of the run demo, at version 12." in said
    assert [entry.name for entry in out.parent.iterdir()] == ["path-37"]  # no temporary folder is left


def test_an_empty_folder_is_filled_and_a_full_one_is_left_alone(tmp_path: Path) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    full.mkdir()
    (full / "thesis.txt").write_text("years of work")
    export_path(path_model(), TOKENIZER, empty, card())
    assert (empty / "config.json").exists()
    for taken in (full, full / "thesis.txt"):
        with pytest.raises(UsageError, match="is not an empty folder"):
            export_path(path_model(), TOKENIZER, taken, card())
    assert [file.name for file in full.iterdir()] == ["thesis.txt"]


def test_a_failed_export_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="tokenizer cannot be read"):
        export_path(path_model(), b"not a tokenizer", tmp_path / "out", card())
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        export_path(path_model(), TOKENIZER, tmp_path / "file" / "out", card())
