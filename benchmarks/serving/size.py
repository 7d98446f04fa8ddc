"""How large the models of this benchmark are, and how much is asked."""

from collections.abc import Mapping
from dataclasses import dataclass

RUN_FILE = """\
name = "serving"
min_peers = 1

[model]
hidden_size = {hidden}
intermediate_size = {wide}
num_hidden_layers = 8
num_attention_heads = 4
max_position_embeddings = 512

[[levels]]
blocks = [0, 1, 2, 3]
embedding = true

[[levels]]
blocks = [4, 5, 6, 7]
head = true

[tokenizer]
vocab_size = 4096

[data]
source = "python"
max_documents = {documents}
sequence_length = 128
routing_sample = 0.2

[inner]
warmup_steps = 5
schedule_steps = 1000
batch_sequences = 4

[rounds]
pacing = "paced"
inner_steps = {steps}

[[stages]]
router = "k-means"
paths = [[0, 0], [1, 1]]
rounds = {rounds}
"""
"""Two paths: with four peers there are two of each, so that somebody can go on with what another began."""


@dataclass(frozen=True)
class Size:
    hidden: int
    """Of eight blocks; 256: 10 million parameters."""
    tokens: int
    """Of each answer."""
    answers: Mapping[int, int]
    """Clients at once -> answers in all."""
    seconds: float
    """That training is looked at each time without askers..."""
    asked_seconds: float
    """... and with them: a peer gives a second's work every 25."""
    turns: int
    """How often it is looked at with askers; before, between and after that without."""
    prompts: int
    """That are asked while peers are killed."""
    documents: int = 400
    """That peers read: what is asked does not depend on them."""
    steps: int = 20
    """Inner steps of a round, of a second each, where peers train by sleeping."""
    rounds: int = 100_000
    """After which the run is over, if the operator does not end it before."""

    @property
    def wide(self) -> int:
        return self.hidden * 11 // 4

    def run_file(self, *, rounds: int, steps: int) -> str:
        return RUN_FILE.format(hidden=self.hidden, wide=self.wide, documents=self.documents, rounds=rounds, steps=steps)
