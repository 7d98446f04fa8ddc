"""Documents as token ids, kept on disk: each stage cuts the same documents again, and only their paths are new."""

import fcntl
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Indices = NDArray[np.int64]
Encode = Callable[[Sequence[str]], list[Indices]]


def encoder(tokenizer: Tokenizer) -> Encode:
    """Texts -> token ids, without special tokens."""

    def encode(texts: Sequence[str]) -> list[Indices]:
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    return encode


def remembered_encoding(encode: Encode, folder: Path) -> Encode:
    """`encode`, kept on disk by what it was asked: one computation for all stages, paths, and peers of a machine.

    Peers that share `folder` and ask the same at the same time take turns, and all but the first read. `folder` must
    belong to one tokenizer: name it by its digest. It grows by 4 bytes a token. A torn file is computed again.
    """

    def remembered(texts: Sequence[str]) -> list[Indices]:
        if not texts:
            return []
        name = _digest(texts)
        file, temporary = folder / f"{name}.npy", folder / f"{name}.tmp"
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:  # lets go by itself when its process dies
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = _load(file, len(texts))
            if known is not None:
                return known
            computed = encode(texts)
            with open(temporary, "wb") as whole:
                np.save(whole, np.array([len(ids) for ids in computed], dtype=np.int64), allow_pickle=False)
                np.save(whole, np.concatenate(computed).astype(np.uint32), allow_pickle=False)
            os.replace(temporary, file)
        return computed

    return remembered


def _digest(texts: Sequence[str]) -> str:
    name = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        name.update(len(data).to_bytes(8, "big") + data)
    return name.hexdigest()


def _load(file: Path, documents: int) -> list[Indices] | None:
    try:
        with open(file, "rb") as whole:
            lengths, ids = np.load(whole, allow_pickle=False), np.load(whole, allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):
        return None
    if len(lengths) != documents or lengths.sum() != len(ids):
        return None
    return list(np.split(ids.astype(np.int64), np.cumsum(lengths)[:-1]))
