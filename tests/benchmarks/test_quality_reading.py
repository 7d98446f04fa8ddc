"""The rows of the quality benchmark about reading: what they are, and how they are compared."""

import math
from pathlib import Path

from benchmarks.quality.measure import Workshop
from benchmarks.quality.reading import READING, WAYS, WHOLE, reading_page, reading_rows
from benchmarks.quality.rows import run_file
from dipaco_swarm.algorithm.stages import check_tables
from dipaco_swarm.peer.reading import is_read_beside
from tests.benchmarks.test_quality import result


def test_rows_differ_in_how_documents_are_read_and_in_nothing_else(tmp_path: Path) -> None:
    rows = reading_rows()
    workshop = Workshop(READING, tmp_path, tmp_path)
    assert len({workshop.file(row, 0) for row in rows}) == len(rows) == len(WAYS)
    found = []
    for row in rows:
        config = run_file(READING, 1, "corpus", "tokenizer.json", row.changes, after=row.stages, peers=row.peers)
        check_tables(config)
        assert is_read_beside(config) == (row.name != WHOLE)
        found.append(config.model_copy(update={"data": config.data.model_copy(update={"reading": "", "shares": ""})}))
    assert found[0] == found[1] == found[2]


def test_a_row_is_compared_with_whole_shards_of_the_same_seeds() -> None:
    values = {WHOLE: (50.0, 60.0), "beside, shared": (51.0, 60.0)}
    found = {
        name: [result(name, seed, math.log(value)) for seed, value in enumerate(each)] for name, each in values.items()
    }
    page = reading_page("Quality", "it was said", READING, reading_rows(), found)
    assert "| whole | **55.00** | 50.00, 60.00 | +0.0 % | +0.0 %, +0.0 % |" in page
    assert "| beside, shared | **55.50** | 51.00, 60.00 | +0.9 % | +2.0 %, +0.0 % |" in page
    assert "alone" not in page
