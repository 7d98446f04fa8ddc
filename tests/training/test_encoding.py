"""Token ids are computed once, and a torn file is no file."""

import errno
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dipaco_swarm.training.encoding import Indices, remembered_encoding


class Counting:
    """Each text as the codes of its letters; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, texts: Sequence[str]) -> list[Indices]:
        self.asked += 1
        return [np.array([ord(letter) for letter in text], dtype=np.int64) for text in texts]


def test_the_second_to_ask_reads_what_the_first_computed(tmp_path: Path) -> None:
    first, second = Counting(), Counting()
    texts = ["ab", "", "c" * 5]
    computed = remembered_encoding(first, tmp_path)(texts)
    read = remembered_encoding(second, tmp_path)(texts)
    assert (first.asked, second.asked) == (1, 0)
    assert [ids.tolist() for ids in read] == [ids.tolist() for ids in computed] == [[97, 98], [], [99] * 5]
    assert all(ids.dtype == np.int64 for ids in read)


def test_where_one_text_ends_and_the_next_begins_matters(tmp_path: Path) -> None:
    encode = remembered_encoding(Counting(), tmp_path)
    assert [len(ids) for ids in encode(["ab", "c"])] == [2, 1]
    assert [len(ids) for ids in encode(["a", "bc"])] == [1, 2]
    assert encode([]) == []


def test_a_full_disk_costs_time_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(file: object, array: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    source = Counting()
    encode = remembered_encoding(source, tmp_path / "tokens")
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        for _ in range(3):
            assert encode(["abc"])[0].tolist() == [97, 98, 99]
    assert source.asked == 3  # and not twice for one question
    assert [entry.name for entry in (tmp_path / "tokens").iterdir()] == ["lock"]
    assert [record.getMessage() for record in caplog.records] == [
        f"the disk of {tmp_path} is full: make room there for the tokens of the documents; until then they are made "
        "anew"
    ]
    assert encode(["abc"])[0].tolist() == [97, 98, 99]
    assert encode(["abc"])[0].tolist() == [97, 98, 99]
    assert source.asked == 4  # kept again


@pytest.mark.parametrize("kept", [0, 10, 140])
def test_a_torn_file_is_computed_again(tmp_path: Path, kept: int) -> None:
    source = Counting()
    encode = remembered_encoding(source, tmp_path)
    encode(["abc"])
    (file,) = tmp_path.glob("*.npy")
    file.write_bytes(file.read_bytes()[:kept])
    assert encode(["abc"])[0].tolist() == [97, 98, 99]
    assert source.asked == 2
