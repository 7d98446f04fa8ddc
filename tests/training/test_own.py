"""A volunteer's own documents: the share that was asked for, the same after a restart, and nothing set apart."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from dipaco_swarm.errors import DataError, UsageError
from dipaco_swarm.settings import Own
from dipaco_swarm.training.inner import Batches
from dipaco_swarm.training.own import OwnSequences, WithOwn, found_in, look_at, own_portions
from dipaco_swarm.training.pieces import EvaluationSet
from dipaco_swarm.training.tokenizer import end_of_text_id, load_tokenizer, train_tokenizer

LENGTH = 16
RUN = 1000
"""What the run's sequences are filled with, and above."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(train_tokenizer(["plain letters"], 257))  # one token for each byte


class OfRun:
    """Sequences 0, 1, 2, ... of the run, each filled with its number; every seventh batch is not there at first."""

    holds_out = False

    def batches(self, batch_sequences: int, seed: int, start: int = 0) -> Iterator[Tensor | None]:
        while True:
            if start % 7 == 3:
                yield None
            rows = torch.arange(start * batch_sequences, (start + 1) * batch_sequences) + RUN
            yield rows[:, None].expand(-1, LENGTH)
            start += 1

    def slice(self, at_most: int) -> EvaluationSet | None:
        return None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Letters of three kinds of files, and a picture."""
    mine = tmp_path / "my [letters]"
    (mine / "old").mkdir(parents=True)
    for i in range(30):
        (mine / "old" / f"{i}.txt").write_text(f"letter {i} " + chr(97 + i % 26) * (10 + 3 * i))
    rows = "".join(json.dumps({"text": f"row {i} of a diary"}) + "\n" for i in range(20))
    (mine / "diary.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    (mine / "picture.png").write_bytes(b"\x89PNG")
    (mine / "empty.jsonl").write_text("")
    return mine


def own_of(folder: Path, home: Path, share: float = 0.2) -> Own:
    return Own(folder, share, home)


def some(batches: Batches, count: int) -> list[Tensor]:
    return list(islice((batch for batch in batches if batch is not None), count))


def test_every_document_of_every_kind_is_trained_on_and_none_is_held_out(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    texts = {document.text for portion in own_portions(folder) for document in portion.read()}
    assert len(texts) == 50
    own = OwnSequences(own_of(folder, tmp_path / "home"), tokenizer, LENGTH, 0)
    ends = [text for text in texts if len(text.encode()) % LENGTH]
    epoch = (sum(len(text.encode()) for text in texts) + len(ends)) // LENGTH
    rows = list(islice(own.rows(0), 2 * epoch))
    first, second = (Counter(row.tobytes() for row in some) for some in (rows[:epoch], rows[epoch:]))
    assert first == second
    assert np.concatenate(rows[:epoch]).tolist().count(end_of_text_id(tokenizer)) >= len(ends) - 1


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_the_share_is_kept_and_the_runs_sequences_come_in_their_order(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, share: float
) -> None:
    own = OwnSequences(own_of(folder, tmp_path / "home", share), tokenizer, LENGTH, 0)
    rows = torch.cat(some(WithOwn(OfRun(), own, share).batches(4, 1), 50))
    of_run = [int(row[0]) - RUN for row in rows if row[0] >= RUN]
    assert len(rows) - len(of_run) == round(200 * share)
    assert of_run == list(range(len(of_run)))
    for begin in range(0, 200, 40):
        assert sum(row[0] < RUN for row in rows[begin : begin + 40]) == pytest.approx(40 * share, abs=1)


@pytest.mark.parametrize("start", [1, 9, 33])
def test_a_restart_goes_on_with_the_same_sequences(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, start: int
) -> None:
    def sequences(home: str) -> WithOwn:
        return WithOwn(OfRun(), OwnSequences(own_of(folder, tmp_path / home), tokenizer, LENGTH, 5), 0.3)

    whole = some(sequences("one").batches(4, 1), 60)
    for home in ("one", "another"):  # where the sequences are still there, and where they are made again
        for before, after in zip(whole[start:], some(sequences(home).batches(4, 1, start), 60 - start), strict=True):
            assert torch.equal(before, after)


def test_what_is_made_of_them_stays_in_the_home_and_is_renewed_with_them(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    next(OwnSequences(own_of(folder, home), tokenizer, LENGTH, 0).rows(0))
    assert (home / "own").stat().st_mode & 0o077 == 0
    (before,) = (home / "own").iterdir()
    (folder / "new.md").write_text("one letter more")
    next(OwnSequences(own_of(folder, home), tokenizer, LENGTH, 0).rows(0))
    (after,) = (home / "own").iterdir()
    assert before != after


def test_what_is_there_is_said_and_what_is_not_is_a_mistake(folder: Path, tmp_path: Path) -> None:
    assert {kind: len(files) for kind, files in found_in(folder).items()} == {"text": 30, "jsonl": 2}
    told = look_at(own_of(folder, tmp_path))
    assert told.files == 32
    assert told.line.startswith("20 % of what this peer trains on are your own documents (32 files, ")
    assert len(told.line) <= 120
    with pytest.raises(UsageError, match="there is no such folder"):
        look_at(own_of(tmp_path / "nowhere", tmp_path))
    for file in ("old/0.txt", "diary.jsonl.gz"):
        with pytest.raises(UsageError, match="there is no such folder"):
            look_at(own_of(folder / file, tmp_path))
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    (pictures / "a.png").write_bytes(b"\x89PNG")
    with pytest.raises(UsageError, match=r"nothing that can be read \(1 .png\)"):
        look_at(own_of(pictures, tmp_path))
    (pictures / "a.jsonl").write_text('{"body": "no text"}\n')
    with pytest.raises(UsageError, match="need their text in a column called text"):
        look_at(own_of(pictures, tmp_path))


def test_a_folder_without_any_text_ends_with_the_reason(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "a.txt").write_text(" \n \n")
    own = OwnSequences(own_of(tmp_path / "blank", tmp_path / "home"), tokenizer, LENGTH, 0)
    with pytest.raises(DataError, match=r"--own-data .*blank"):
        next(own.rows(0))
