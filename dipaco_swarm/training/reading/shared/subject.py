"""Whether the corpus is routed together with others, and with whom: with those for whom everything is the same."""

import hashlib
from collections.abc import Sequence

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.training.documents import Portion
from dipaco_swarm.training.reading.store import BlockStore

LEDGER = "ledger.jsonl"
"""In the folder of a stream."""
REFUSED = "refused.json"
SHELF_PART = 4
"""What is kept for others may take one part of so many of `--disk`."""


def is_shared(shares: str, store: BlockStore, portions: int) -> bool:
    """Whether a stream of several paths takes what others have routed. One that was begun alone goes on alone."""
    if shares == "nothing" or portions < 2:
        return False
    return (store.folder / LEDGER).exists() or (store.place(1) is None and not _has_begun(store))


def _has_begun(store: BlockStore) -> bool:
    return store.frontier(0) is not None or store.end is not None


def common_of(manifest: Manifest, portions: Sequence[Portion]) -> str:
    """Who has the same routes the same texts to the same paths: documents, rules, tokenizer, router."""
    from dipaco_swarm.training.routed import shard_recipe  # torch, which a reader of one path does without

    found = hashlib.sha256(shard_recipe(manifest, manifest.stage, PathIndex(0)).key().encode())
    found.update(f"{manifest.stage.text_characters}\n".encode())
    for portion in portions:
        found.update(f"{portion.name}\n{portion.size}\n".encode())
    return found.hexdigest()[:16]
