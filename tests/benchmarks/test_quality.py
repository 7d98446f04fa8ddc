"""The quality benchmark's own logic: rows, what is done already, what the table says; and a tiny row for real."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.quality import measure as measuring
from benchmarks.quality.corpus import build_corpus, from_html, from_roff
from benchmarks.quality.measure import Result, Workshop, bytes_sent, measure
from benchmarks.quality.report import lines_of, page, table, verdicts
from benchmarks.quality.rows import FULL, SMALL, Row, Scale, chosen_rows, rows_of, run_file
from dipaco_swarm.algorithm.stages import check_tables
from dipaco_swarm.run.manifest import Manifest, Stage

TINY = replace(
    SMALL, name="small", domain_bytes=60_000, sequence_length=64, steps=8, warmup=4, inner_steps=2, seeds=(0, 1)
)


def result(row: str, seed: int, loss: float, **more: object) -> Result:
    """A result with this loss in nats a token, on 1,000 tokens of two domains."""
    values: dict[str, object] = {
        "row": row,
        "seed": seed,
        "key": "",
        "domains": {"go": (-400 * loss, 400), "perl": (-600 * loss, 600)},
        "rerouted": {},
        "parameters": 920_000,
        "parameters_per_token": 460_000,
        "tokens": 1_000_000,
        "unique_tokens": (100_000, 200_000),
        "bytes_sent": 5_000_000,
        "cpu_seconds": 10.0,
        "seconds": 12.0,
    }
    return Result(**{**values, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [SMALL, FULL])
def test_every_row_is_a_run_file_that_can_be_run(scale: Scale) -> None:
    for row in rows_of(scale):
        config = run_file(scale, 1, "corpus", "tokenizer.json", row.changes, after=row.stages, peers=row.peers)
        check_tables(config)
        assert config.rounds.pacing == "synchronous"
        assert (row.steps > 0) != bool(row.stages)


def test_rows_are_chosen_by_patterns() -> None:
    rows = rows_of(SMALL)
    assert chosen_rows(rows, []) == rows
    assert [row.name for row in chosen_rows(rows, ["dense", "flat*"])] == ["dense", "flat 4"]
    assert chosen_rows(rows, ["nothing"]) == ()


def test_names_of_rows_and_of_their_files_are_unique(tmp_path: Path) -> None:
    for scale in (SMALL, FULL):
        workshop = Workshop(scale, tmp_path, tmp_path)
        rows = rows_of(scale)
        assert [row.repeated for row in rows].count(True) == 3, "what is compared within the noise of seeds"
        assert len({row.name for row in rows}) == len({workshop.file(row, 0) for row in rows}) == len(rows)


def test_a_result_counts_as_long_as_what_was_run_is_the_same(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "done.txt").write_text("go 10 60000\n")
    workshop = Workshop(TINY, tmp_path, corpus)
    row = rows_of(TINY)[0]
    assert workshop.result(row, 0) is None
    file = workshop.file(row, 0)
    file.parent.mkdir()
    made = result(row.name, 0, 4.0, key=workshop.key(row, 0))
    file.write_text(json.dumps(made.__dict__))
    found = workshop.result(row, 0)
    assert found is not None
    assert found.total.loss == pytest.approx(4.0)
    assert workshop.result(row, 1) is None
    assert workshop.result(replace(row, changes={"inner": {"learning_rate": 1.0}}), 0) is None
    (corpus / "done.txt").write_text("go 11 66000\n")
    assert workshop.result(row, 0) is None
    file.write_text("{")  # cut off while it was written
    assert workshop.result(row, 0) is None


def test_the_table_has_mean_and_spread_and_the_aims_are_judged() -> None:
    rows = rows_of(SMALL)
    results = {
        "dense": [result("dense", 0, 4.0), result("dense", 1, 4.1)],
        "2x2 product": [result("2x2 product", 0, 3.9), result("2x2 product", 2, 1.0)],
        "2x2 discriminative": [
            result("2x2 discriminative", 0, 3.95, rerouted={"64": (-3900.0, 1000), "32": (-3800.0, 1000)})
        ],
    }
    names = [name for name, *_ in lines_of(rows, results)]
    expected = ["dense", "2x2 product", "2x2 discriminative", "2x2 discriminative, W 64", "2x2 discriminative, W 32"]
    assert names == expected
    text = table(rows, results)
    assert "| dense | **57.47** | ±2.87 |" in text  # (exp 4.0 + exp 4.1) / 2, half of their distance
    assert "| 2x2 discriminative, W 32 | **44.70** | - |" in text  # exp 3.8
    judged = verdicts(rows, results, SMALL)
    # the one seed that both have: exp 3.9 against exp 4.0
    assert "product k-means is at most dense at equal steps (best lr): **yes**, 49.40 against 54.60 (-9.5 %)" in judged
    assert "discriminative is at most product k-means: **no**, 51.94 against 49.40" in judged
    assert "int8" not in judged  # its rows are not there
    whole = page("Title", "intro", SMALL, rows, results)
    assert "| go | 57.5 | 26.1 | 51.9 |" in whole


def test_bytes_sent_are_those_of_a_butterfly() -> None:
    row = next(row for row in rows_of(SMALL) if row.name == "2x2 ends")
    config = run_file(SMALL, 0, "corpus", "tokenizer.json", row.changes, after=row.stages, peers=4)
    digest, ends = "0" * 64, ((0, 0, 0, 0), (1, 0, 1, 1), (2, 1, 0, 2), (3, 1, 1, 3))
    single = ((0, 0, 0, 0),)

    def stage(index: int, cells: tuple[tuple[int, ...], ...], rounds: int) -> Stage:
        weights = (1 / len(cells),) * len(cells)
        seeds = {f"L{level}M{module}": digest for line in cells for level, module in enumerate(line)}
        return Stage(index=index, table=cells, path_weights=weights, router=None, seeds=seeds, rounds=rounds)

    manifest = Manifest(revision=0, config=config, tokenizer=digest, stages=(stage(0, single, 4), stage(1, ends, 12)))
    # 12 rounds, 2 + 2 shared modules of two members each: 2 modules' worth per round; the path-specific ones are free
    assert bytes_sent(manifest, [1000, 10, 20, 1000], peers=4) == 12 * 2 * (2 * 4 * 10 + 2 * 4 * 20)


def test_markup_becomes_text() -> None:
    page = '.\\" a comment\n.TH LS 1\n.SH NAME\nls \\- list\n.PP\n.B ls\nwith \\fIoptions\\fR \\(bu one\n'
    assert from_roff(page).strip().splitlines() == ["NAME", "ls - list", "", "ls", "with options - one"]
    html = "<html><head><title>no</title></head><body><p>5 &lt; 6</p>\n\n\n<script>no</script><p>yes</p></body></html>"
    assert from_html(html) == "5 < 6\n\nyes"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_tiny_row_of_each_kind_is_trained_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.quality.corpus.DOMAINS", ())  # no downloads in tests: Python's own text remains
    monkeypatch.setattr(measuring, "PIECES_PER_DOMAIN", 20)
    said: list[str] = []
    corpus = build_corpus(tmp_path, 200_000, said.append)
    assert len(said) == 1
    assert said[0].startswith("python: ")
    workshop = Workshop(TINY, tmp_path / "tiny", corpus)
    workshop.prepare()
    stages = [{"router": "k-means", "modules": [2, 2], "rounds": 2}]
    paths = measure(workshop, Row("2x2", "", stages, peers=4), 0)
    dense = measure(workshop, Row("dense", "", steps=4), 0)
    assert paths.total.tokens == dense.total.tokens > 0  # scored on the same
    assert paths.parameters == 2 * paths.parameters_per_token == 2 * dense.parameters
    assert paths.tokens == (4 + 4 * 2 * 2) * 4 * 64  # one peer in the warm-up, then four
    assert paths.bytes_sent == 2 * 2 * 2 * 4 * dense.parameters  # 2 rounds, two modules a level, k = 2, fp32
    assert dense.bytes_sent == 0
    assert 0 < paths.unique_tokens[0] <= paths.unique_tokens[1] < dense.unique_tokens[0]
    warm = list((tmp_path / "tiny" / "warm-ups").iterdir())
    measure(workshop, Row("flat", "", [{"router": "k-means", "paths": [[0, 0], [1, 1]], "rounds": 1}], peers=2), 0)
    assert list((tmp_path / "tiny" / "warm-ups").iterdir()) == warm  # trained once
    assert workshop.result(Row("2x2", "", stages, peers=4), 0) is not None
