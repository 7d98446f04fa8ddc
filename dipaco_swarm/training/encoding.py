"""Documents as token ids, cached on disk: each stage reads the same documents, and only their paths are new."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dipaco_swarm.errors import cannot_write
from dipaco_swarm.files import locked, replace_whole
from dipaco_swarm.training.tokenizer import begin_of_text_ids, without_panics

log = logging.getLogger(__name__)

T = TypeVar("T")

Indices = NDArray[np.int64]
Encode = Callable[[Sequence[str]], list[Indices]]


def encoder(tokenizer: Tokenizer) -> Encode:
    """Texts -> token ids, without special tokens but for what stands before every text."""
    begin = begin_of_text_ids(tokenizer)

    def encode(texts: Sequence[str]) -> list[Indices]:
        with without_panics():
            encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array([*begin, *encoding.ids], dtype=np.int64) for encoding in encodings]

    return encode


def remembered_encoding(encode: Encode, folder: Path) -> Encode:
    """`encode` with a cache on disk, by a digest of the texts: computed once for all stages, paths and local peers.

    Processes that share `folder` take turns: the first computes, the others read. `folder` must belong to one
    tokenizer: name it by its digest. It grows by 4 bytes a token. A damaged file is computed again. When the disk is
    full nothing more is cached.
    """
    keep = kept_in(folder, "the tokens of the documents")

    def remembered(texts: Sequence[str]) -> list[Indices]:
        if not texts:
            return []

        def write(file: BinaryIO, computed: list[Indices]) -> None:
            np.save(file, np.array([len(ids) for ids in computed], dtype=np.int64), allow_pickle=False)
            np.save(file, np.concatenate(computed).astype(np.uint32), allow_pickle=False)

        return keep(_digest(texts), lambda file: _load(file, len(texts)), lambda: encode(texts), write)

    return remembered


class Keep(Protocol):
    """The cached value of a name; computed, and cached, where there is none."""

    def __call__(
        self,
        name: str,
        load: Callable[[Path], T | None],
        compute: Callable[[], T],
        write: Callable[[BinaryIO, T], None],
    ) -> T: ...


def kept_in(folder: Path, what: str) -> Keep:
    """A cache folder that several processes share, one at a time. A full disk costs recomputation, nothing else.

    `what`: what is cached, in words for the message about a full disk, which names the parent folder.
    """
    said = False

    def keep(
        name: str, load: Callable[[Path], T | None], compute: Callable[[], T], write: Callable[[BinaryIO, T], None]
    ) -> T:
        nonlocal said
        file = folder / f"{name}.npy"
        computed: T | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder):
                known = load(file)
                if known is not None:
                    return known
                fresh = computed = compute()

                def fill(unfinished: Path) -> None:
                    with open(unfinished, "wb") as whole:
                        write(whole, fresh)

                replace_whole(file, fill, durable=False)
        except OSError as error:
            if not said:
                log.warning("%s; until then they are made anew", cannot_write(what, folder.parent, error))
                said = True
        return compute() if computed is None else computed

    return keep


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
