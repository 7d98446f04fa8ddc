"""How well each path likes the documents of the routing sample: what the discriminative router is learned from.

    operator: sample -> blob     peers: log p of each piece after its prefix -> blob -> operator

A sample is cut into shares, and a path's peers divide them among themselves: each says which it has scored.

(paper section 2.4.2; docs/paper.md#discriminative-router)
"""

import json
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.numpy import load, save
from transformers import PreTrainedModel

from dipaco_swarm.errors import ManifestError
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.values import Digest
from dipaco_swarm.training.evaluation import sequence_log_likelihoods
from dipaco_swarm.training.pieces import EvaluationSet

Scores = NDArray[np.float64]
Rows = NDArray[np.int64]

SHARES = 64
"""Of a sample. A peer that leaves in the middle of one loses that one."""
AUDITED_DOCUMENTS = 8
BYTES_OF_A_SCORE = 8
"""In a blob of scores."""
AUDIT_TOLERANCE = 0.01
"""Relative difference in log-likelihood that another kind of machine may have; bf16 on a GPU stays below it."""


class ScoreStatement(BaseModel):
    """What a peer says when it has scored some of the sample."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: int = Field(ge=0)
    scores: Digest
    """Blob of one float64 log-likelihood for each piece of these shares."""
    shares: str = Field(pattern=r"^[0-9a-f]{16}$")
    """Which they are: 64 bits in hexadecimal, that of the first share last."""

    @property
    def blob(self) -> str:
        return self.scores

    @property
    def scored(self) -> frozenset[int]:
        """The shares, counted from 0."""
        return frozenset(share for share in range(SHARES) if int(self.shares, 16) >> share & 1)

    def to_bytes(self) -> bytes:
        return json.dumps(self.model_dump()).encode()


def in_hexadecimal(shares: Iterable[int]) -> str:
    """As `ScoreStatement.shares` has them."""
    return f"{sum(1 << share for share in set(shares)):016x}"


def pieces_of(share: int, pieces: int) -> range:
    """The pieces of a share of a sample that has so many; none in some, where they are few."""
    return range(pieces * share // SHARES, pieces * (share + 1) // SHARES)


def rows_of_shares(shares: Iterable[int], pieces: int) -> Rows:
    """The pieces of these shares in the order of a blob of scores: int64 (n,)."""
    found = [np.arange(part.start, part.stop) for share in sorted(set(shares)) for part in [pieces_of(share, pieces)]]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


class ReadyStatement(BaseModel):
    """What a peer says of the stage that comes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: int = Field(ge=0)
    """That it will train."""
    ready: bool
    """Whether it could begin now."""

    def to_bytes(self) -> bytes:
        return json.dumps(self.model_dump()).encode()


def topic_of(manifest: Manifest) -> str:
    """Where the scores of this sample are announced."""
    assert manifest.scoring is not None, "nobody was asked to score"
    return f"scores/{manifest.stage.index}/{manifest.scoring[:16]}"


def ready_topic(manifest: Manifest) -> str:
    """Where peers say that they are ready for the stage that comes."""
    assert manifest.coming is not None, "nobody knows what comes"
    return f"ready/{manifest.coming.index}/{(manifest.coming.router or '')[:16]}"


def sample_to_bytes(sample: EvaluationSet) -> bytes:
    """The routing sample as a blob: tokens int32 (n, T) and lengths int32 (n,)."""
    return save({"tokens": sample.tokens.astype(np.int32), "lengths": sample.lengths.astype(np.int32)})


def sample_from_bytes(data: bytes, vocabulary: int, sequence_length: int) -> EvaluationSet:
    """Read a published routing sample. Raises ManifestError when it does not fit the run."""
    try:
        arrays = load(data)
        tokens, lengths = arrays["tokens"].astype(np.int64), arrays["lengths"].astype(np.int64)
    except (SafetensorError, KeyError) as error:
        raise ManifestError(f"the published routing sample cannot be read ({error}); ask the operator") from None
    fits = tokens.ndim == 2 and lengths.shape == tokens.shape[:1] and tokens.shape[1] == sequence_length
    if not fits or not tokens.size or not 0 <= tokens.min() <= tokens.max() < vocabulary:
        raise ManifestError(
            "the published routing sample does not fit tokenizer and length of the run; ask the operator"
        )
    if not 0 < lengths.min() <= lengths.max() <= sequence_length:
        raise ManifestError("the published routing sample has pieces of impossible length; ask the operator")
    return EvaluationSet(tokens, lengths, ("",) * len(lengths))


def rows_of(pieces: EvaluationSet, rows: Rows) -> EvaluationSet:
    """Some of them, by number."""
    return EvaluationSet(pieces.tokens[rows], pieces.lengths[rows], ("",) * len(rows))


def score_sample(network: PreTrainedModel, sample: EvaluationSet, prefix_tokens: int) -> Scores:
    """log p of each piece after its prefix under one path, in nats: float64 (n,)."""
    tokens, lengths = torch.from_numpy(sample.tokens), torch.from_numpy(sample.lengths)
    sums, _ = sequence_log_likelihoods(network, tokens, lengths, prefix_tokens)
    scores: Scores = sums.numpy()
    return scores


def scores_to_bytes(scores: Scores) -> bytes:
    return scores.astype("<f8").tobytes()


def scores_from_bytes(data: bytes, documents: int) -> Scores:
    """Raises ValueError when these are not `documents` finite log-likelihoods."""
    if len(data) != BYTES_OF_A_SCORE * documents:
        raise ValueError(f"{len(data)} bytes are not scores of {documents} documents")
    scores = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not np.isfinite(scores).all() or (scores > 0).any():
        raise ValueError("some of the scores are not log-likelihoods")
    return scores


def audit(scores: Scores, network: PreTrainedModel, sample: EvaluationSet, prefix_tokens: int, seed: int) -> bool:
    """Whether a peer's scores are those of its path, checked on some documents that it could not foresee.

    `sample`: the pieces that were scored, in the order of the scores.
    """
    rows = np.random.default_rng(seed).choice(len(scores), min(AUDITED_DOCUMENTS, len(scores)), replace=False)
    expected = score_sample(network, rows_of(sample, rows), prefix_tokens)
    return bool(np.allclose(scores[rows], expected, rtol=AUDIT_TOLERANCE, atol=0.5))
