"""The pages are true where a program can tell: what the code points to is there, and links lead somewhere."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

ROOT = Path(__file__).parents[2]
POINTER = re.compile(r"\bdocs/[\w./-]+\.md(?:#[\w-]+)?")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HERE = "tests/doors/test_pages.py"


def tracked(*endings: str) -> list[Path]:
    """The files of this checkout with these endings, without what git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    except (FileNotFoundError, subprocess.CalledProcessError):  # a checkout without git
        folders = ("dipaco_swarm", "tests", "benchmarks", "docs", "bootstrap", "examples", ".github")
        found = [path for folder in folders for path in (ROOT / folder).rglob("*")] + list(ROOT.glob("*"))
        listed = [str(path.relative_to(ROOT)) for path in found]
    files = [ROOT / name for name in listed if name.endswith(endings) and name != HERE]
    return [file for file in files if file.is_file()]


def anchors(page: Path) -> set[str]:
    """What the headings of a page are linked by: lower case, hyphens for spaces, nothing but words."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(target: str, folder: Path, page: Path) -> bool:
    """Whether this link of a page in this folder leads nowhere."""
    name, _, anchor = target.partition("#")
    file = (folder / name).resolve() if name else page
    if not file.exists():
        return True
    return bool(anchor) and file.suffix == ".md" and anchor not in anchors(file)


def test_what_the_code_points_to_in_the_pages_is_there() -> None:
    pointers = [
        (file.relative_to(ROOT), target)
        for file in tracked(".py", ".toml", ".yml", "Makefile")
        for target in POINTER.findall(file.read_text())
    ]
    assert len(pointers) > 10, "the pattern finds nothing any more"
    assert [pointer for pointer in pointers if broken(pointer[1], ROOT, ROOT)] == []


def links() -> Iterator[tuple[Path, str]]:
    for page in tracked(".md"):
        for target in LINK.findall(CODE.sub("", page.read_text())):
            yield page, target


def test_links_between_pages_lead_somewhere() -> None:
    found = list(links())
    assert len(found) > 20, "the pattern finds nothing any more"
    wrong = [(page.relative_to(ROOT), target) for page, target in found if broken(target, page.parent, page)]
    assert wrong == []


@pytest.mark.parametrize("word", [r"\bSPEC\b", r"\bQUALITY\.md\b", r"\bSTYLE\.md\b", r"\bHOUSE\b", r"\bDESIGN\.md\b"])
def test_nothing_points_to_a_page_that_is_not_here(word: str) -> None:
    files = tracked(".py", ".md", ".toml", ".yml", "Makefile")
    assert [file.relative_to(ROOT) for file in files if re.search(word, file.read_text())] == []


@pytest.mark.parametrize("program", ["peer", "peer_home", "bootstrap", "swarm"])
def test_every_command_and_option_is_on_a_page(program: str) -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "bootstrap/README.md"]
    said = "".join(page.read_text() for page in pages)
    top = typer.main.get_command(import_module(f"dipaco_swarm.cli.{program}").app)
    commands: dict[str, Any] = getattr(top, "commands", {})
    options = [
        (name, (*option.opts, *option.secondary_opts))  # of a pair such as --trial and --no-trial one is enough
        for name, command in (commands or {"": top}).items()
        for option in command.params
        if option.param_type_name == "option"
    ]
    assert len(options) > 2, "no options found"
    assert [name for name in commands if name not in said] == []
    missing = [(name, names) for name, names in options if not any(re.search(rf"{n}\b", said) for n in names)]
    assert missing == []


def test_files_that_the_pages_name_are_there() -> None:
    pages = [ROOT / "docs" / name for name in ("paper.md", "protocol.md", "architecture.md")]
    named = [(page.name, name) for page in pages for name in re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", page.read_text())]
    assert len(named) > 20, "the pattern finds nothing any more"
    places = (ROOT, ROOT / "dipaco_swarm", ROOT / "dipaco_swarm/swarm")
    assert [(page, name) for page, name in named if not any((place / name).exists() for place in places)] == []


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_every_room_of_the_package_is_on_the_page(page: str) -> None:
    inside = [path for path in (ROOT / "dipaco_swarm").iterdir() if not path.name.startswith(("_", "."))]
    rooms = [f"{path.name}/" for path in inside if (path / "__init__.py").exists()]
    rooms += [path.name for path in inside if path.suffix == ".py"]
    assert len(rooms) > 10, "no rooms found"
    assert [room for room in rooms if room not in (ROOT / page).read_text()] == []


def test_what_the_architecture_page_names_is_in_the_file_it_names() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    pairs = re.findall(r"`(\w+)` (?:and `(\w+)` )?in `((?:\w+/)*\w+\.py)`", page)
    assert len(pairs) > 5, "the pattern finds nothing any more"
    for *names, file in pairs:
        text = (ROOT / "dipaco_swarm" / file).read_text()
        assert [name for name in names if name and not re.search(rf"\b{name}\b", text)] == [], file


def test_the_tables_of_the_protocol_page_are_what_the_code_says() -> None:
    command = [sys.executable, "-m", "docs.build", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_page_speaks_of_every_message_and_record() -> None:
    page = (ROOT / "docs/protocol.md").read_text()
    sources = [(ROOT / "dipaco_swarm/swarm" / name).read_text() for name in ("wire.py", "records.py")]
    written = [name for source in sources for name in re.findall(r"^class (\w+)\(Message\)", source, re.MULTILINE)]
    assert len(written) > 20, "the pattern finds nothing any more"
    assert [name for name in written if name not in page] == []
