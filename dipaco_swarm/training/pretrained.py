"""A model of the world as the beginning of a run: its configuration, its tokenizer, its parameters.

    checkpoint --described--> ModelConfig, for the manifest     --tokenizer--> tokenizer.json     --network--> seeds

A checkpoint is a folder in the format of transformers or a name on the Hugging Face hub; an exported path of another
run is one as well. Only the bootstrap node reads it: peers get its parameters as seeds, by the digests in the manifest.
No code of a checkpoint is ever run, and only safetensors are read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from dipaco_swarm.errors import RunFileError
from dipaco_swarm.run.config import ModelConfig, RunConfig
from dipaco_swarm.run.problems import explain
from dipaco_swarm.training.modules import NO_SPECIAL_TOKENS, build_network, known_fields
from dipaco_swarm.training.tokenizer import END_OF_TEXT_NAMES, tokenizer_from_path, vocabulary_size, with_marks

NOT_OF_THE_NETWORK = {
    *NO_SPECIAL_TOKENS,
    *("architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "_name_or_path", "auto_map"),
    *("id2label", "label2id", "problem_type", "return_dict", "output_attentions", "output_hidden_states"),
    *("chunk_size_feed_forward", "is_encoder_decoder", "_attn_implementation", "model_type"),
}
"""What a configuration says beside the network's arithmetic."""
NAMED = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("max_position_embeddings", "tie_word_embeddings", "vocab_size"),
)
"""What `ModelConfig` has names for."""
TOKENS_COMPARED = 16


def resolved(config: RunConfig, known: RunConfig | None = None) -> RunConfig:
    """The run file with what its checkpoint says of the network; the same one when there is nothing to read.

    `known`: as it was published; what it says of the same checkpoint is taken, and nothing is read again. Raises
    RunFileError when the checkpoint cannot be read, or does not suit the rest of the run file.
    """
    if config.model.is_described:
        return config
    is_known = known is not None and config.model.same_origin(known.model)
    model = known.model if known is not None and is_known else described(config.model)
    try:
        return RunConfig.model_validate_json(config.model_copy(update={"model": model}).model_dump_json())
    except ValidationError as error:
        raise RunFileError(f"with the model of {model.checkpoint}: {explain(error)}") from None


def described(model: ModelConfig) -> ModelConfig:
    """What the checkpoint says of its network, whole. Raises RunFileError when it cannot be read, or does not suit."""
    config = _configuration(model)
    fields = config.to_dict()
    missing = [name for name in NAMED if name not in ("num_key_value_heads",) and fields.get(name) is None]
    if missing:
        raise RunFileError(
            f"model.from={_quoted(model)} is a {config.model_type}, whose configuration has no {', '.join(missing)}; "
            "a path is a text model in one piece, such as llama, mistral, qwen2, qwen3 or gemma2"
        )
    if "quantization_config" in fields:
        raise RunFileError(f"model.from={_quoted(model)} is quantised; name the model that it was made of")
    tied = fields["tie_word_embeddings"] if model.tie_word_embeddings is None else model.tie_word_embeddings
    wanted = known_fields(config.model_type) - {*NOT_OF_THE_NETWORK, *NAMED}
    extra = {name: value for name, value in fields.items() if name in wanted}
    return ModelConfig.model_validate(
        {
            "from": model.checkpoint,
            # what a name means may change; what was read first is what the run is made of
            "revision": getattr(config, "_commit_hash", None) or model.revision,
            "model_type": config.model_type,
            **{name: fields.get(name) for name in NAMED},
            "tie_word_embeddings": bool(tied),
            "extra": extra,
        }
    )


def existing_tokenizer(config: RunConfig) -> bytes | None:
    """The tokenizer that a run is given, by its checkpoint or its run file; None: one is to be trained.

    Raises RunFileError, DataError or ManifestError when it cannot be used.
    """
    if config.model.checkpoint is not None:
        return tokenizer_of(config.model)
    return None if config.tokenizer.path is None else tokenizer_from_path(config.tokenizer.path)


def tokenizer_of(model: ModelConfig) -> bytes:
    """The checkpoint's tokenizer, which puts around a text what stands around documents that the model was trained on.

    Raises RunFileError when there is none that a run can use.
    """
    with _reading(model, "tokenizer"):
        tokenizer: Any = AutoTokenizer.from_pretrained(_place(model), revision=model.revision or "main")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise RunFileError(f"model.from={_quoted(model)} has no tokenizer.json, which peers need; choose another model")
    end = tokenizer.eos_token or next(
        (name for name in END_OF_TEXT_NAMES if backend.token_to_id(name) is not None), None
    )
    if end is None:
        raise RunFileError(
            f"the tokenizer of model.from={_quoted(model)} does not say which token ends a text (eos_token)"
        )
    bare, full = (tokenizer("a", add_special_tokens=added)["input_ids"] for added in (False, True))
    before: list[int] = next((full[:i] for i in range(len(full)) if full[i : i + len(bare)] == bare), [])
    if vocabulary_size(backend) > (model.vocab_size or 0):
        raise RunFileError(
            f"the tokenizer of model.from={_quoted(model)} has {vocabulary_size(backend):,} tokens and its embedding "
            f"{model.vocab_size or 0:,} rows; the files do not belong together"
        )
    backend.no_padding()
    backend.no_truncation()
    return with_marks(backend, tokenizer.convert_ids_to_tokens(before), end)


def pretrained_network(model: ModelConfig, vocab_size: int) -> PreTrainedModel:
    """The network that everybody builds of the manifest, fp32, with the checkpoint's parameters; checked to agree.

    Raises RunFileError when the checkpoint cannot be read, lacks parameters, or computes something else.
    """
    with _reading(model, "parameters"):
        theirs, found = AutoModelForCausalLM.from_pretrained(
            _place(model),
            revision=model.revision or "main",
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    if lost := sorted({*found["missing_keys"], *map(str, found["mismatched_keys"])}):
        raise RunFileError(f"model.from={_quoted(model)} lacks {len(lost)} parameters, such as {lost[0]}; is it whole?")
    state = theirs.state_dict()
    ours = build_network(model, vocab_size, seed=0)
    if not model.tie_word_embeddings and theirs.config.tie_word_embeddings:
        head = next(name for name, tensor in ours.named_parameters() if tensor is ours.get_output_embeddings().weight)
        state[head] = theirs.get_input_embeddings().weight
    try:
        missing, unexpected = ours.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise RunFileError(f"model.from={_quoted(model)} is not what the run file says of it: {error}") from None
    tied = {name for name in ours.state_dict() if name not in dict(ours.named_parameters())}
    if wrong := sorted({*missing, *unexpected} - tied):
        raise RunFileError(f"model.from={_quoted(model)} has other parameters than its configuration says: {wrong[0]}")
    _check_agreement(model, ours, theirs)
    return ours


def _check_agreement(model: ModelConfig, ours: PreTrainedModel, theirs: PreTrainedModel) -> None:
    """Both must say the same, or what is published is not the checkpoint: a field of its configuration was lost."""
    tokens = torch.arange(TOKENS_COMPARED)[None] % theirs.get_input_embeddings().weight.shape[0]
    with torch.inference_mode():
        logits = [network.eval()(input_ids=tokens).logits for network in (ours, theirs)]
    if not torch.equal(*logits):
        raise RunFileError(
            f"model.from={_quoted(model)}: the network that the run would build differs from the checkpoint by up to "
            f"{float((logits[0] - logits[1]).abs().max()):.3g} in its logits; this kind of model cannot be used yet"
        )


def _configuration(model: ModelConfig) -> PreTrainedConfig:
    with _reading(model, "configuration"):
        return AutoConfig.from_pretrained(_place(model), revision=model.revision or "main", trust_remote_code=False)


@contextmanager
def _reading(model: ModelConfig, what: str) -> Iterator[None]:
    """Words for what goes wrong in the hub's libraries; no progress bars in between."""
    if (problem := model.folder_problem) is not None:
        raise RunFileError(f"model.from: {problem}")
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().split("\n")[0].rstrip(".")
        raise RunFileError(
            f"model.from={_quoted(model)}: the {what} of this model cannot be read: {first}; give a folder that "
            "transformers can load or the name of a model on the Hugging Face hub (HF_TOKEN for a gated one)"
        ) from None
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _place(model: ModelConfig) -> str:
    """A folder if there is one of this name; else what the hub is asked for."""
    folder = Path(str(model.checkpoint)).expanduser()
    return str(folder) if folder.is_dir() else str(model.checkpoint)


def _quoted(model: ModelConfig) -> str:
    return f'"{model.checkpoint}"' + (f" at {model.revision}" if model.revision else "")
