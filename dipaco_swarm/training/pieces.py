"""Pieces of documents: what is routed, trained on and scored; and the sets of pieces that nobody trains on.

    document --cut_into_pieces--> pieces of at most T tokens

A piece is routed on its own first tokens, as a chunk of text is at generation time. Held-out and routing documents are
set apart whole, so no piece of them is ever trained on.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.config import DataConfig, RouterConfig
from dipaco_swarm.training.documents import Document, Split, in_chunks, split_of
from dipaco_swarm.training.encoding import Indices, encoder

PIECES_PER_DOCUMENT = 4
"""Of a held-out document, so that a few long ones do not stand for a domain."""
SETTLED_DOCUMENTS = 2_000
"""An endless stream is left when all domains are full and this many documents brought no new one."""
MEASURED_PIECES = 256
FULL = 1.05
"""Of a sequence: a text on average."""


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Pieces of documents that nobody trains on, one per row."""

    tokens: Indices
    """int64, shape (n, T), zero after the end of a piece."""
    lengths: Indices
    """Tokens of each piece, more than the prefix, int64, shape (n,)."""
    domains: tuple[str, ...]
    """Domain of each piece, length n."""


def together(sets: Sequence[EvaluationSet]) -> EvaluationSet:
    """All pieces of some sets."""
    if len(sets) == 1:
        return sets[0]
    tokens, lengths = (
        np.concatenate(arrays) for arrays in zip(*((each.tokens, each.lengths) for each in sets), strict=True)
    )
    return EvaluationSet(tokens, lengths, tuple(domain for each in sets for domain in each.domains))


def cut_into_pieces(ids: Indices, sequence_length: int, prefix_tokens: int) -> list[Indices]:
    """Consecutive pieces of a document, int64 (tokens,), each of `sequence_length` tokens but the last.

    A piece without a token after its prefix is dropped: there would be nothing to score.
    """
    pieces = [ids[start : start + sequence_length] for start in range(0, len(ids), sequence_length)]
    return [piece for piece in pieces if len(piece) > prefix_tokens]


def prefixes_of(pieces: Sequence[Indices], prefix_tokens: int) -> Indices:
    """What the router reads of each piece: int64 (pieces, prefix_tokens)."""
    return np.array([piece[:prefix_tokens] for piece in pieces], dtype=np.int64).reshape(len(pieces), prefix_tokens)


def evaluation_pieces(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    data: DataConfig,
    router: RouterConfig,
    per_domain: int,
    *,
    split: Split | None = "holdout",
) -> EvaluationSet:
    """Held-out pieces, at most `per_domain` of each domain and four of each document; raises DataError if none.

    `split` None: of all documents; for texts that are nobody's training data.
    An endless source is read until all domains are full and no new one has come for 2,000 documents.
    """
    return _collect(documents, tokenizer, data, router, (split, per_domain, PIECES_PER_DOCUMENT))


def routing_pieces(
    documents: Iterable[Document], tokenizer: Tokenizer, data: DataConfig, router: RouterConfig
) -> EvaluationSet:
    """The routing sample: pieces that routers are fitted on, at most `router.max_documents` of each domain and in all.

    All pieces of a document, as in a shard. Raises DataError when there are none.
    """
    most = router.max_documents
    found = _collect(documents, tokenizer, data, router, ("routing", most, None), most)
    return EvaluationSet(found.tokens[:most], found.lengths[:most], found.domains[:most])


def routing_prefixes(
    documents: Iterable[Document], tokenizer: Tokenizer, data: DataConfig, router: RouterConfig
) -> Indices:
    """Prefixes of the routing sample: int64 (n, prefix_tokens), n at most `router.max_documents`."""
    return routing_pieces(documents, tokenizer, data, router).tokens[:, : router.prefix_tokens]


def text_characters(sample: EvaluationSet, tokenizer: Tokenizer) -> int:
    """Characters of a text that mostly fills a sequence of T tokens: so many, by these pieces, as T tokens stand for.

    Four for a token of English prose, two or three for code, one or two for Chinese. A twentieth more than the mean:
    what is over is less than what a text that is too short leaves for others.
    """
    count = len(sample.lengths)
    some = range(0, count, -(-count // MEASURED_PIECES))
    ids = [sample.tokens[i, : sample.lengths[i]].tolist() for i in some]
    characters: int = sum(map(len, tokenizer.decode_batch(ids, skip_special_tokens=False)))
    tokens: int = sum(map(len, ids))
    length: int = sample.tokens.shape[1]
    return max(1, round(FULL * length * characters / tokens))


def _collect(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    data: DataConfig,
    router: RouterConfig,
    wanted: tuple[Split | None, int, int | None],
    in_all: int | None = None,
) -> EvaluationSet:
    """Pieces of one split: `wanted` is the split, pieces per domain, and pieces per document. `in_all`: enough."""
    split, per_domain, per_document = wanted
    encode = encoder(tokenizer)
    pieces: list[Indices] = []
    domains: list[str] = []
    count: Counter[str] = Counter()
    seen, newest = 0, 0  # documents read, and how many when the newest domain came
    for chunk in in_chunks(documents):
        seen += len(chunk)
        for document in chunk:
            newest = newest if document.domain in count else seen
            count[document.domain] += 0
        chosen = [d for d in chunk if split in (None, split_of(d.text, data)) and count[d.domain] < per_domain]
        for document, ids in zip(chosen, encode([d.text for d in chosen]), strict=True):
            cut = cut_into_pieces(ids, data.sequence_length, router.prefix_tokens)[:per_document]
            cut = cut[: per_domain - count[document.domain]]
            count[document.domain] += len(cut)
            pieces += cut
            domains += [document.domain] * len(cut)
        if min(count.values()) >= per_domain and seen - newest >= SETTLED_DOCUMENTS:
            break
        if in_all is not None and len(pieces) >= in_all:
            break
    if not pieces:
        raise DataError(_no_pieces(split, seen, data, router))
    tokens = np.zeros((len(pieces), data.sequence_length), dtype=np.int64)
    for row, piece in zip(tokens, pieces, strict=True):
        row[: len(piece)] = piece
    return EvaluationSet(tokens, np.array([len(piece) for piece in pieces], dtype=np.int64), tuple(domains))


def _no_pieces(split: Split | None, seen: int, data: DataConfig, router: RouterConfig) -> str:
    if split is None:
        return (
            f"none of {seen} documents has more than {router.prefix_tokens} tokens, which the router reads and nobody "
            "scores; give longer texts"
        )
    name, share = ("holdout", data.holdout) if split == "holdout" else ("routing_sample", data.routing_sample)
    return (
        f"none of {seen} documents is a {split} document of more than {router.prefix_tokens} tokens; data.{name}="
        f"{share} of the documents should be: bring more or longer documents, or raise it"
    )
