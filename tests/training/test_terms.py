"""What a volunteer is told before anything is read or allocated."""

import hashlib
import os
from dataclasses import replace

import pytest

from dipaco_swarm.errors import UsageError
from dipaco_swarm.events.joining import Terms
from dipaco_swarm.run.config import AdmissionConfig, DataConfig, RunConfig, StageConfig
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.run.model import LevelConfig, ModelConfig
from dipaco_swarm.training.terms import check_memory, terms_of
from dipaco_swarm.training.tokenizer import train_tokenizer

TERMS = Terms(
    source="huggingface",
    reads="x",
    parameters=10**9,
    memory=38 * 10**9,
    disk=96 * 10**9,
    sends=2 * 10**9,
    admission="open",
)


def told(data: DataConfig, *, admission: AdmissionConfig | None = None, device: str = "cpu") -> Terms:
    tokenizer = train_tokenizer([f"word{i}" for i in range(100)], 400)
    digest = hashlib.sha256(tokenizer).hexdigest()
    config = RunConfig(
        name="small",
        model=ModelConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2),
        levels=(LevelConfig(blocks=(0,), embedding=True), LevelConfig(blocks=(1,), head=True)),
        stages=(StageConfig(router="single", rounds=1),),
        data=data,
        admission=admission or AdmissionConfig(),
    )
    stage = Stage(index=0, table=((0, 0),), path_weights=(1.0,), router=None, seeds={"L0M0": digest, "L1M0": digest})
    manifest = Manifest(revision=0, config=config, tokenizer=digest, stages=(stage,))
    return terms_of(manifest, {digest: tokenizer}.__getitem__, device)


def test_what_is_read_is_said() -> None:
    for data, words in (
        (DataConfig(source="python"), "the text of the Python installation of this machine"),
        (DataConfig(source="huggingface", path="allenai/c4", config="en"), "the data set allenai/c4 (en)"),
        (DataConfig(source="text", path="/home/*/mail"), 'files of this machine: data.path="/home/*/mail", below'),
        (DataConfig(source="jsonl", path="https://example.org/a.jsonl"), "https://example.org/a.jsonl"),
    ):
        assert words in told(data).whole


def test_of_a_corpus_that_is_split_by_path_it_is_said() -> None:
    terms = told(DataConfig(source="jsonl", path="a", prepared="hf://someone/corpus-by-path"))
    assert "reads jsonl, split by path;" in terms.line
    assert "hf://someone/corpus-by-path, split by path, where it is there; " in terms.whole


def test_it_is_said_when_texts_go_to_other_peers() -> None:
    for shares, reading, said in (("tokens", "auto", True), ("routes", "auto", False), ("tokens", "whole", False)):
        data = DataConfig(source="jsonl", path="a", shares=shares, reading=reading)  # type: ignore[arg-type]
        assert ("send texts of these documents" in told(data).whole) is said
        assert ("passes on jsonl" in told(data).line) is said


def test_an_open_run_says_what_that_means() -> None:
    assert "who takes part: anybody, unchecked" in told(DataConfig(source="python")).whole
    assert "invited" in told(DataConfig(source="python"), admission=AdmissionConfig(kind="invited")).whole


def test_a_gpu_takes_most_of_it_out_of_memory() -> None:
    assert told(DataConfig(source="python"), device="cuda").memory < told(DataConfig(source="python")).memory


def test_a_model_that_does_not_fit_ends_it_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**21}.__getitem__)
    check_memory(replace(TERMS, memory=2**33))
    with pytest.raises(UsageError, match=r"1,000,000,000 parameters .* up to 38\.0 GB .* has 8\.6 GB in all"):
        check_memory(TERMS)


def test_a_screen_has_room_for_the_line() -> None:
    for admission in ("open", "invited"):
        terms = replace(TERMS, memory=10**12 - 1, disk=10**12 - 1, sends=10**12 - 1, admission=admission)
        assert len(terms.line) <= 120
