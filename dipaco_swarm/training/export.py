"""A path, or the whole routed model, as a folder that needs nothing of this project.

    a path            AutoModelForCausalLM.from_pretrained(folder)
    the whole model   dipaco_model.py in the folder: the modules by their names, no module twice, and the router

Folders load in transformers 4.57 and in 5: where the two write a configuration differently, both ways are written.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from dipaco_swarm.errors import UsageError
from dipaco_swarm.files import new_folder
from dipaco_swarm.training import dipaco_model
from dipaco_swarm.training.card import Card
from dipaco_swarm.training.modules import PathModel
from dipaco_swarm.training.tokenizer import begin_of_text_ids, end_of_text_id, load_tokenizer, with_marks

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
READABLE = 0o644
"""What comes out is for everybody; safetensors writes files for their owner alone."""


@dataclass(frozen=True)
class Routed:
    """What a whole model has beside its modules."""

    paths: Sequence[Sequence[str]]
    """The module of each path at each level, by its name."""
    prefix_tokens: int
    sequence_length: int
    router: bytes | None = None
    """Arrays of a router that takes the nearest path, as safetensors; None: there is one path."""
    features: PreTrainedModel | None = None
    """What the router reads with."""
    window_router: bytes | None = None
    window: int | None = None
    """Tokens that its choices were trained for."""


def export_path(model: PathModel, tokenizer_json: bytes, out: Path, card: Card, dtype: str = "fp32") -> None:
    """Write the path as the folder `out`, which appears whole or not at all.

    `tokenizer_json`: the run's tokenizer as it is published. `dtype`: fp32 or bf16. Raises UsageError when `out` exists
    and is not an empty folder, or cannot be written, and ManifestError when the tokenizer cannot be read.
    """
    with _new_export(out) as folder:
        fill_path(folder, model, tokenizer_json, card.markdown(out.name), dtype)


def export_each(
    paths: Iterator[tuple[str, PathModel, Card]], tokenizer_json: bytes, out: Path, dtype: str = "fp32"
) -> None:
    """Write each of some paths as a folder in `out`. A model is not used after the next one was taken."""
    with _new_export(out) as folder:
        for name, model, card in paths:
            (folder / name).mkdir()
            fill_path(folder / name, model, tokenizer_json, card.markdown(f"{out.name}/{name}"), dtype)


def export_routed(
    model: PathModel,
    modules: Iterator[tuple[str, int, Tensor]],
    routed: Routed,
    tokenizer_json: bytes,
    out: Path,
    card: Card,
    dtype: str = "fp32",
) -> None:
    """Write the whole model as the folder `out`. `modules`: the name, level and vector of each; `model` is overwritten.

    The router and what it reads with stay in fp32, so that every text has the path that it has in the run.
    """
    with _new_export(out) as folder:
        _fill_common(folder, model.network, tokenizer_json, card.markdown(out.name), dtype)
        (folder / "modules").mkdir()
        for name, level, vector in modules:
            model.load(level, vector)
            _save(folder / "modules" / f"{name}.safetensors", model.named(level), dtype)
        layout = _fill_router(folder, routed)
        layout["end_of_text"] = end_of_text_id(load_tokenizer(tokenizer_json))
        _write_json(folder / dipaco_model.LAYOUT, layout)
        shutil.copyfile(str(dipaco_model.__file__), folder / "dipaco_model.py")


def difference_of_logits(model: PathModel, folder: Path, tokens: NDArray[np.int64]) -> float:
    """Load an exported folder as anybody would; the largest difference of its logits from the path's own.

    `tokens`: (sequences, length).
    """
    with without_progress_bars():
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.from_numpy(tokens)
    was_training = model.network.training
    model.network.eval()
    try:
        with torch.inference_mode():
            ours, theirs = model.network(input_ids=ids).logits, loaded(input_ids=ids).logits
    finally:
        model.network.train(was_training)
    return float((ours - theirs).abs().max())


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """transformers draws one even for a file that is written in a blink."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


# --------------------------------------------------------------------------------------------------- parts of a folder


@contextmanager
def _new_export(out: Path) -> Iterator[Path]:
    """A folder to fill, which appears whole or not at all, readable for everybody."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} exists and is not an empty folder; name a new one, nothing is overwritten")
    try:
        with new_folder(out) as unfinished:
            yield unfinished
            for path in unfinished.rglob("*"):
                path.chmod(0o755 if path.is_dir() else READABLE)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error}; choose another folder or make room") from error


def fill_path(folder: Path, model: PathModel, tokenizer_json: bytes, card: str, dtype: str) -> None:
    """Weights, configuration, tokenizer and card of one path."""
    _fill_common(folder, model.network, tokenizer_json, card, dtype)
    named = {name: tensor for level in range(model.num_levels) for name, tensor in model.named(level).items()}
    _save(folder / "model.safetensors", named, dtype)


def _fill_common(folder: Path, network: PreTrainedModel, tokenizer_json: bytes, card: str, dtype: str) -> None:
    tokenizer = load_tokenizer(tokenizer_json)
    end = end_of_text_id(tokenizer)
    begin = begin_of_text_ids(tokenizer)
    names = [str(tokenizer.id_to_token(token)) for token in (*begin, end)]
    ours = load_tokenizer(with_marks(tokenizer, names[:-1], None))  # whoever goes on from a text wants no end in it
    positions: int = network.config.max_position_embeddings
    special = {"eos_token": names[-1], "pad_token": names[-1], **({"bos_token": names[0]} if begin else {})}
    PreTrainedTokenizerFast(
        tokenizer_object=ours, model_max_length=positions, clean_up_tokenization_spaces=False, **special
    ).save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    # transformers 4 knows neither the class that 5 writes, nor that there are no token types
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
    _write_json(folder / "tokenizer_config.json", settings)
    network.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    special_ids = {"bos_token_id": begin[0] if begin else None, "eos_token_id": end}
    architecture = {"architectures": [type(network).__name__], "dtype": str(DTYPES[dtype]).removeprefix("torch.")}
    _write_json(folder / "config.json", {**config, **architecture, **special_ids, **_older_names(config)})
    GenerationConfig(**special_ids, pad_token_id=end).save_pretrained(folder)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _older_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers 4 reads of a configuration that 5 wrote: how it knows positions."""
    found: dict[str, Any] = {}
    rope = config.get("rope_parameters") or {}
    if isinstance(rope.get("sliding_attention"), dict):
        found["rope_local_base_freq"] = rope["sliding_attention"].get("rope_theta")
        rope = rope.get("full_attention") or {}
    if "rope_theta" in rope:
        found["rope_theta"] = rope["rope_theta"]
        scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
        found["rope_scaling"] = scaling if scaling.get("rope_type", "default") != "default" else None
    return found


def _fill_router(folder: Path, routed: Routed) -> dict[str, Any]:
    """The files of the router; returns what `dipaco.json` says of them."""
    layout: dict[str, Any] = {
        "format": dipaco_model.FORMAT,
        "paths": [[f"modules/{name}.safetensors" for name in row] for row in routed.paths],
        "prefix_tokens": routed.prefix_tokens,
        "sequence_length": routed.sequence_length,
        "router": None,
        "features": None,
        "window_router": None,
        "window": routed.window,
    }
    if routed.router is not None and routed.features is not None:
        layout |= {"router": "router.safetensors", "features": "features.safetensors"}
        (folder / "router.safetensors").write_bytes(routed.router)
        _save(folder / "features.safetensors", dict(routed.features.base_model.named_parameters()), "fp32")
    if routed.window_router is not None:
        layout["window_router"] = "window-router.safetensors"
        (folder / "window-router.safetensors").write_bytes(routed.window_router)
    return layout


def _save(file: Path, tensors: Mapping[str, Tensor], dtype: str) -> None:
    cast = {name: tensor.detach().to(DTYPES[dtype]).contiguous() for name, tensor in tensors.items()}
    save_file(cast, file, {"format": "pt"})


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
