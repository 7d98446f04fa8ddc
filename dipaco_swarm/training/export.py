"""A path as an ordinary transformers folder: weights, configuration, tokenizer, model card.

Whoever has the folder needs nothing of this project: `AutoModelForCausalLM.from_pretrained(folder)`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from dipaco_swarm.errors import UsageError
from dipaco_swarm.files import new_folder
from dipaco_swarm.training.modules import PathModel
from dipaco_swarm.training.tokenizer import end_of_text_id, load_tokenizer

CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- dipaco-swarm
---

# {title}

{description}

This is one path of a DiPaCo model that volunteers trained together with dipaco-swarm: {parameters:,} parameters,
{model_type} architecture, {positions:,} positions. A path is at its best on documents like those of its shard; the
whole model chooses among its paths by the first tokens of a document.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
inputs = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))
```
"""


def export_path(model: PathModel, tokenizer_json: bytes, out: Path, description: str) -> None:
    """Write the path as the folder `out`, which appears whole or not at all.

    `tokenizer_json`: the run's tokenizer as it is published. `description`: Markdown for the model card; it should say
    which run, path and versions these are. Raises UsageError when `out` exists and is not an empty folder, or cannot be
    written, and ManifestError when the tokenizer cannot be read.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} exists and is not an empty folder; name a new one, nothing is overwritten")
    try:
        with new_folder(out) as unfinished:
            _fill(unfinished, model, tokenizer_json, out.name, description)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error}; choose another folder or make room") from error


def difference_of_logits(model: PathModel, folder: Path, tokens: NDArray[np.int64]) -> float:
    """Load an exported folder as anybody would; the largest difference of its logits from the path's own.

    `tokens`: (sequences, length).
    """
    with _without_progress_bars():
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
def _without_progress_bars() -> Iterator[None]:
    """transformers draws one even for a file that is written in a blink."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _fill(folder: Path, model: PathModel, tokenizer_json: bytes, title: str, description: str) -> None:
    tokenizer = load_tokenizer(tokenizer_json)
    end_of_text = end_of_text_id(tokenizer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=tokenizer.id_to_token(end_of_text),
        model_max_length=model.network.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
    with _without_progress_bars():
        model.network.save_pretrained(folder)
    # generation ends with the document; our own network carries no special tokens
    GenerationConfig(eos_token_id=end_of_text, pad_token_id=end_of_text).save_pretrained(folder)
    card = CARD.format(
        title=title,
        description=description.strip(),
        parameters=sum(model.size(level) for level in range(model.num_levels)),
        model_type=model.network.config.model_type,
        positions=model.network.config.max_position_embeddings,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
