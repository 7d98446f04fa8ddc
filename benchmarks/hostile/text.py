"""Real text for a small model: the documents that every Python installation has, by domain."""

import hashlib
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.training.documents import read_documents, split_of
from dipaco_swarm.training.tokenizer import end_of_text_id, load_tokenizer, train_tokenizer

Sequences = NDArray[np.int64]
"""(sequences, LENGTH)."""
VOCABULARY = 1024
LENGTH = 64
DOMAINS = ("stdlib", "c++", "stubs", "packages", "tests")
DOCUMENTS = 6000
"""Read, of all domains."""
TOKENIZER_DOCUMENTS = 600
MOST = 12_000
"""Sequences of a domain."""
HELD_OUT = 96
"""Sequences of a domain, of documents that nobody trains on."""


@dataclass(frozen=True, eq=False)
class Text:
    """Each by domain."""

    train: Mapping[str, Sequences]
    held_out: Mapping[str, Sequences]


def read_text(folder: Path) -> Text:
    """Read it, or find it read; kept in `folder`.

    Raises DataError where this Python has nothing of a domain.
    """
    key = hashlib.sha256(f"{VOCABULARY} {LENGTH} {DOMAINS} {DOCUMENTS} {MOST} {HELD_OUT}".encode()).hexdigest()[:16]
    file = folder / f"text-{key}.npz"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(file, allow_pickle=False, **_read())
    with np.load(file) as arrays:
        train = {domain: arrays[f"train-{domain}"].astype(np.int64) for domain in DOMAINS}
        held_out = {domain: arrays[f"held-{domain}"].astype(np.int64) for domain in DOMAINS}
    return Text(train, held_out)


def _read() -> dict[str, NDArray[np.uint16]]:
    data = DataConfig(source="python", holdout=0.05)
    documents = [d for d in islice(read_documents(data), DOCUMENTS) if d.domain in DOMAINS]
    there = {document.domain for document in documents}
    if lacking := [domain for domain in DOMAINS if domain not in there]:
        raise DataError(
            f"the Python at {sys.prefix} has no {', '.join(lacking)} among its sources, and this benchmark trains on "
            f"{', '.join(DOMAINS)}; run it with the project's own environment (`make` builds one in .venv)"
        )
    texts = (d.text for d in documents if split_of(d.text, data) == "train")
    tokenizer = load_tokenizer(train_tokenizer(islice(texts, TOKENIZER_DOCUMENTS), VOCABULARY))
    end = end_of_text_id(tokenizer)
    ids: dict[tuple[str, str], list[int]] = defaultdict(list)
    for document in documents:
        split = "held" if split_of(document.text, data) == "holdout" else "train"
        if len(ids[split, document.domain]) < LENGTH * MOST:
            ids[split, document.domain] += [*tokenizer.encode(document.text).ids, end]
    found = {}
    for (split, domain), tokens in ids.items():
        count = min(len(tokens) // LENGTH, HELD_OUT if split == "held" else MOST)
        rows = np.array(tokens, dtype=np.uint16)[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH)
        found[f"{split}-{domain}"] = rows[np.linspace(0, len(rows) - 1, count).astype(int)]
    return found
