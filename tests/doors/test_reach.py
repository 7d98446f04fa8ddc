"""A run file of somebody else reads nothing of this machine but what the volunteer has named."""

from pathlib import Path

import pytest

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import portions_of, read_documents


def texts(path: str, root: Path | None, source: str = "text") -> list[str]:
    data = DataConfig(source=source, path=path)
    return [document.text for document in read_documents(data, reach=Reach(root, fenced=True))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one document, and one beside it."""
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "a.txt").write_text("alpha")
    (tmp_path / "secret.txt").write_text("secret")
    return folder


def test_what_is_below_the_folder_is_read_however_it_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("a.txt", "*.txt", "**/*.txt", f"{root}/*.txt", f"{root}/[a-z].txt", "../documents/a.txt"):
        assert texts(path, root) == ["alpha"], path
    monkeypatch.chdir(root.parent)
    assert texts("a.txt", Path("documents")) == ["alpha"]


@pytest.mark.parametrize(
    "path", ["../secret.txt", "../*.txt", "/etc/pass*", "/etc/passwd", "~/.ssh/*", "/*", "a/../../secret.txt", "/**"]
)
def test_nothing_else_is_read(path: str, root: Path) -> None:
    with pytest.raises(DataError, match=r"wants to read .* outside of .* --data-root"):
        texts(path, root)
    assert portions_of(DataConfig(source="text", path=str(root / "a.txt")), reach=Reach())


def test_links_lead_nowhere_else(root: Path) -> None:
    (root / "b.txt").symlink_to(root.parent / "secret.txt")
    with pytest.raises(DataError, match=r"secret\.txt .*outside of"):
        texts("*.txt", root)
    (root / "b.txt").unlink()
    (root / "up").symlink_to(root.parent)
    for path in ("up/*.txt", "*/secret.txt"):
        with pytest.raises(DataError, match="outside of"):
            texts(path, root)


def test_without_a_folder_no_file_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    for path in ("a.txt", str(root / "a.txt"), "/etc/passwd"):
        with pytest.raises(DataError, match=r"reads files of your machine.* --data-root DIR"):
            texts(path, None)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("file:///etc/passwd", "only https:// and hf://"),
        ("http://example.org/a.txt", "only https:// and hf://"),
        ("ftp://example.org/a.txt", "only https:// and hf://"),
        ("zip://*.txt::file:///etc/a.zip", "only https:// and hf://"),
        ("https://example.org/a.zip::file:///x", "only https:// and hf://"),
        ("https://192.168.1.1/admin", "your own network"),
        ("https://127.0.0.1:8080/", "your own network"),
        ("https://[::1]/", "only https:// and hf://"),
        ("https://2130706433/", "your own network"),
        ("https://0x7f.1/", "your own network"),
        ("https://router/", "your own network"),
        ("https://nas.local/", "your own network"),
        ("https://example.org/drive.google.com", "is another server"),
        ("https://169.254.169.254/latest/meta-data", "your own network"),
    ],
)
@pytest.mark.parametrize("source", ["text", "huggingface"])
def test_addresses_of_other_machines_are_public_ones(address: str, why: str, source: str, root: Path) -> None:
    with pytest.raises(DataError, match=why):
        texts(address, root, source)


def test_addresses_of_the_public_network_are_asked() -> None:
    reach = Reach(None, fenced=True)
    for address in ("https://example.org/texts/a.txt", "hf://datasets/somebody/texts/a.txt"):
        assert reach.located(DataConfig(source="text", path=address)) == address


def test_a_data_set_by_its_name_is_no_folder_of_ours(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reach = Reach(None, fenced=True)
    for name in ("Salesforce/wikitext", "allenai/c4", "HuggingFaceFW/fineweb-edu"):
        reach.check_name(DataConfig(source="huggingface", path=name))
    monkeypatch.chdir(root.parent)
    for name in ("documents", "./documents", "/etc", "~/texts", "../x"):
        with pytest.raises(DataError, match="reads files of your machine"):
            reach.check_name(DataConfig(source="huggingface", path=name))
    for way_of_reading in ("text", "json", "pandas", "imagefolder", "wikitext"):
        with pytest.raises(DataError, match="no data set of the hub"):
            texts(way_of_reading, None, "huggingface")
    Reach(root, fenced=True).check_name(DataConfig(source="huggingface", path=str(root)))
    with pytest.raises(DataError, match="outside of"):
        Reach(root, fenced=True).check_name(DataConfig(source="huggingface", path="/etc"))


def test_a_data_set_is_made_of_nothing_that_a_volunteer_does_not_read(root: Path) -> None:
    """What it is made of, it says itself, in its README."""
    there = root / "set"
    there.mkdir()
    (there / "b.txt").write_text("beta")

    def made_of(files: object) -> list[str]:
        (there / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files: {files}\n---\n")
        return texts(str(there), root, "huggingface")

    assert made_of("b.txt") == ["beta"]
    for files in (root.parent / "secret.txt", "../../secret.txt"):
        with pytest.raises(DataError, match=r"secret\.txt .*outside of|reads what is in it"):
            made_of(files)
    parts = [f"hf://datasets/a/b@{'0' * 40}/c.parquet", "https://example.org/c.parquet"]
    reach, data = Reach(None, fenced=True), DataConfig(source="huggingface", path="a/b")
    reach.check_parts(data, parts)
    for part in ("https://192.168.1.1/x", "/etc/passwd"):
        with pytest.raises(DataError, match=r"your own network|reads files of your machine"):
            reach.check_parts(data, [*parts, part])


@pytest.mark.parametrize(
    ("start", "pattern"),
    [
        ("hf://datasets/a/b@0", "reference://*::http://192.168.1.1/x.json"),
        ("hf://datasets/a/b@0", "http://192.168.1.1/x.jsonl"),
        ("hf://datasets/a/b@0", "https://example.org/x.jsonl"),
        ("hf://datasets/a/b@0", "hf://buckets/a/b/x.jsonl"),
        ("hf://datasets/a/b@0", "file:/etc/passwd"),
        ("hf://datasets/a/b@0", "../../c/d/*.jsonl"),
        ("hf://datasets/a/b@0", "x.jsonl::hf://datasets/a/b/x"),
        ("hf://datasets/a/b@0", "/etc/passwd"),
        ("hf://datasets/a/b@0/..", "**"),
        ("/etc", "**"),
        ("http://192.168.1.1", "**"),
    ],
)
def test_files_of_a_data_set_are_looked_for_in_it_alone(start: str, pattern: str) -> None:
    reach, data = Reach(None, fenced=True), DataConfig(source="huggingface", path="a/b")
    with pytest.raises(DataError, match=r"reads what is in it|reads files of your machine"):
        reach.check_pattern(data, start, pattern)


def test_files_of_a_data_set_are_found_in_it() -> None:
    data = DataConfig(source="huggingface", path="a/b")
    for pattern in ("**", "data/train-[0-9]*.parquet", "a b/c.jsonl", "hf://datasets/a/b@0/x.jsonl"):
        Reach(None, fenced=True).check_pattern(data, "hf://datasets/a/b@0", pattern)
