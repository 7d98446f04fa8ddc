"""Tiny checkpoints of the families that runs start from, as their makers would save them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, processors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from dipaco_swarm.training.tokenizer import train_tokenizer

TEXT = "the path of a document, the document of a path\n\tunbent by spaces, or stops. " * 4
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR_ROPE = {"rope_type": "linear", "factor": 2.0}
TOKENS = 300
PADDED = 320

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "rope_scaling": LLAMA3_ROPE, "rope_theta": 500000.0, "attention_bias": True},
    "llama-3.2": {"num_key_value_heads": 1, "rope_scaling": LLAMA3_ROPE, "tie_word_embeddings": True, "head_dim": 8},
    "smollm2": {"num_key_value_heads": 1, "tie_word_embeddings": True, "rope_theta": 100000.0, "vocab_size": TOKENS},
    "smollm3": {"num_key_value_heads": 2, "no_rope_layers": [1, 0, 1, 0]},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 8, "head_dim": 6},
    "qwen2": {"num_key_value_heads": 2, "rope_scaling": YARN_ROPE, "tie_word_embeddings": True, "rope_theta": 1e6},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 12, "rope_scaling": YARN_ROPE, "tie_word_embeddings": False},
    "gemma": {"num_key_value_heads": 1, "head_dim": 12, "hidden_activation": "gelu_pytorch_tanh"},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 12, "query_pre_attn_scalar": 10, "sliding_window": 8},
    "gemma3_text": {"num_key_value_heads": 1, "head_dim": 12, "sliding_window": 8, "rope_scaling": LINEAR_ROPE},
}
"""What is odd about each; all of them have a padded vocabulary unless they say so."""
MODEL_TYPE = {"llama-3.2": "llama", "smollm2": "llama"}


def save_checkpoint(folder: Path, family: str = "llama", **changes: object) -> PreTrainedModel:
    """A model with random parameters and its tokenizer, saved as transformers saves them; returns the model."""
    config = AutoConfig.for_model(
        MODEL_TYPE.get(family, family),
        **{
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "vocab_size": PADDED,
            "bos_token_id": 1,
            "eos_token_id": 0,
            "pad_token_id": None,
            **FAMILIES[family],
            **changes,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network: PreTrainedModel = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
    network.eval().save_pretrained(folder)
    save_tokenizer(folder, begins=family.startswith(("llama", "gemma", "mistral")))
    return network


def save_tokenizer(folder: Path, *, begins: bool, names: Mapping[str, str] | None = None) -> None:
    """A tokenizer whose texts end with <eos>, and begin with <bos> where `begins`."""
    tokenizer = Tokenizer.from_str(train_tokenizer([TEXT], TOKENS - 2).decode())
    tokenizer.add_special_tokens(["<bos>", "<end>"])
    if begins:
        bos = ("<bos>", tokenizer.token_to_id("<bos>"))
        tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[bos])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **(names or {"bos_token": "<bos>", "eos_token": "<end>"})
    ).save_pretrained(folder)
