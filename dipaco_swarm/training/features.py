"""What the router reads: the mean hidden state of a document's first tokens (docs/paper.md#prefix-feature)."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dipaco_swarm.errors import ManifestError
from dipaco_swarm.training.encoding import kept_in

Prefixes = NDArray[np.int64]
Floats = NDArray[np.float32]

FULL_BATCH = 256
BATCH_STEP = 8


def small_batch(prefixes: int) -> int:
    """No larger than it has to be for so many: where last bits do not matter, a few cost little."""
    return min(FULL_BATCH, max(1, -(-prefixes // BATCH_STEP)) * BATCH_STEP)


def one_or_full(prefixes: int) -> int:
    """A prompt alone, for whose path somebody waits, takes one row and not 256; documents are routed as in training."""
    return 1 if prefixes == 1 else FULL_BATCH


def prefix_features(network: nn.Module, prefixes: Prefixes, batch: int = FULL_BATCH) -> Floats:
    """Mean over the prefix of the last hidden state of a transformers causal LM: (docs, tokens) -> fp32 (docs, hidden).

    `network`: fp32; only its base model runs (no output head), on its own device, without gradients and dropout; its
    mode is restored. `prefixes`: token ids, int64, the same number of tokens for every document. The last hidden
    state is what transformers returns: the last block's output after the final norm.

    The batch is always full (the last one is padded with copies of its first row, dropped afterwards), so that matrix
    products always have the same shape: on CPU a document's feature then has the same bits whatever its neighbours and
    place in the batch (checked in the tests). Another `batch`, number of threads or kind of device may change the last
    bits, as sums are taken in another order; see `Router.route` for what that means.

    Raises ManifestError when a token is not in the network's vocabulary.
    """
    base: Any = network.base_model  # of a PreTrainedModel: embedding, blocks and final norm
    device = next(network.parameters()).device
    vocabulary = base.get_input_embeddings().weight.shape[0]
    if prefixes.size and not 0 <= int(prefixes.min()) <= int(prefixes.max()) < vocabulary:
        raise ManifestError(
            f"a prefix has the token {int(prefixes.max())} but the feature model has {vocabulary}; tokenizer and model "
            "belong to different runs"
        )
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            chunks = [
                _features(base, torch.from_numpy(prefixes[start : start + batch]), batch, device)
                for start in range(0, len(prefixes), batch)
            ]
    finally:
        network.train(training)
    if not chunks:
        return np.zeros((0, base.config.hidden_size), dtype=np.float32)
    return np.concatenate(chunks)


def remembered_features(features: Callable[[Prefixes], Floats], folder: Path) -> Callable[[Prefixes], Floats]:
    """`features` with a cache on disk, by a digest of the prefixes: computed once for all stages, paths, local peers.

    The feature model of a run never changes (paper section 2.4), but each stage routes all documents anew, and so does
    a move to another path. Processes that share `folder` take turns: the first computes, the others read. `folder` must
    belong to one feature model: name it by the model's digest. It grows by 4 x hidden bytes a piece, too much for a
    source of hundreds of millions of documents. A damaged file is computed again. When the disk is full nothing more is
    cached.
    """

    keep = kept_in(folder, "the features of the documents")

    def remembered(prefixes: Prefixes) -> Floats:
        name = hashlib.sha256(repr(prefixes.shape).encode() + prefixes.astype("<i8").tobytes()).hexdigest()

        def write(file: BinaryIO, computed: Floats) -> None:
            np.save(file, computed, allow_pickle=False)

        return keep(name, lambda file: _load(file, len(prefixes)), lambda: features(prefixes), write)

    return remembered


def _load(file: Path, documents: int) -> Floats | None:
    try:
        array = np.load(file, allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):
        return None
    return array if array.dtype == np.float32 and array.ndim == 2 and len(array) == documents else None


def _features(base: Any, tokens: Tensor, batch: int, device: torch.device) -> Floats:
    count = len(tokens)
    padded = torch.cat([tokens, tokens[:1].expand(batch - count, -1)]) if count < batch else tokens
    hidden = base(input_ids=padded.to(device), use_cache=False).last_hidden_state  # (batch, tokens, hidden)
    mean: Floats = hidden.float().mean(dim=1)[:count].cpu().numpy()
    return mean
