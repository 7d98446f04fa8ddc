"""Real text of many natural domains, from Debian's documentation and source packages and this Python installation.

    build_corpus(FOLDER, bytes of each domain) --> FOLDER/DOMAIN.jsonl, one document per line: {"text", "domain"}

Packages come from the machine's own Debian mirror (`apt-get download`, no root needed) and are unpacked, never
installed. One that cannot be had is left out with a line; without any, the text of the Python installation remains.
A domain is a file here, and nothing but a name in reports: no document is routed by it.
"""

import gzip
import hashlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from random import Random

from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.training.documents import cut, read_documents

LONGEST_DOCUMENT = 20_000
"""Characters; of a longer file only the beginning, as more documents are worth more than longer ones."""
SHORTEST_DOCUMENT = 400
DICTIONARY_PIECE = 4_000
DOWNLOAD_SECONDS = 180


@dataclass(frozen=True)
class Domain:
    """What of which packages makes a domain."""

    name: str
    packages: tuple[str, ...]
    pattern: str
    clean: Callable[[str], str]
    cut: int | None = None
    """Characters of a document, for packages that are one big file."""


class _Text(HTMLParser):
    """The words of a page, without what only browsers read."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in ("script", "style", "head")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style", "head")

    def handle_data(self, data: str) -> None:
        if self._hidden <= 0:
            self.parts.append(data)


def plain(text: str) -> str:
    return text


def from_html(text: str) -> str:
    reader = _Text()
    reader.feed(text)
    return re.sub(r"\n\s*\n+", "\n\n", "".join(reader.parts))


def from_roff(text: str) -> str:
    """A manual page's source as text: macros keep their words and lose their names."""
    lines = []
    for line in text.splitlines():
        if line.startswith(('.\\"', "'\\\"", ".de", ".ds", ".nr", ".if", ".ie", ".el", ".TH", ".so")):
            continue
        if line.startswith((".", "'")):
            name, _, line = line[1:].partition(" ")
            if name in ("SH", "SS"):
                line = f"\n{line}"
            elif not line and name in ("PP", "P", "TP", "IP", "sp", "LP"):
                lines.append("")
                continue
            line = line.replace('"', "")
        lines.append(line)
    joined = "\n".join(lines)
    joined = re.sub(r"\\f(\[\w*\]|\(..|.)", "", joined)
    joined = re.sub(r"\\\((bu|em|en|aq|dq|lq|rq|co|ha|ti|cq|oq)", _sign, joined)
    joined = re.sub(r"\\\[(bu|em|en|aq|dq|lq|rq|co|ha|ti|cq|oq)\]", _sign, joined)
    joined = re.sub(r"\\(s[+-]?\d+|[&|^/,%:c])", "", joined)
    joined = joined.replace("\\-", "-").replace("\\e", "\\").replace("\\ ", " ")
    return re.sub(r"\n\n\n+", "\n\n", joined)


_SIGNS = {
    "bu": "-", "em": "--", "en": "-", "aq": "'", "dq": '"', "lq": '"', "rq": '"',
    "co": "(c)", "ha": "^", "ti": "~", "cq": "'", "oq": "'",
}  # fmt: skip


def _sign(match: re.Match[str]) -> str:
    return _SIGNS[match[1]]


DOMAINS = (
    Domain("german", ("manpages-de",), "*/man/de/*.gz", from_roff),
    Domain("french", ("manpages-fr",), "*/man/fr/*.gz", from_roff),
    Domain("spanish", ("manpages-es",), "*/man/es/*.gz", from_roff),
    Domain("polish", ("manpages-pl",), "*/man/pl/*.gz", from_roff),
    Domain("russian", ("manpages-ru",), "*/man/ru/*.gz", from_roff),
    Domain("japanese", ("manpages-ja",), "*/man/ja/*.gz", from_roff),
    Domain("chinese", ("manpages-zh",), "*/man/zh_CN/*.gz", from_roff),
    Domain("c-manual", ("manpages-dev", "manpages"), "*/share/man/man*.gz", from_roff),
    Domain("sql-manual", ("postgresql-doc-15",), "*.html", from_html),
    Domain("python-manual", ("python3.11-doc",), "*/_sources/*.txt", plain),
    Domain("dictionary", ("dict-gcide",), "*.dict.dz", plain, DICTIONARY_PIECE),
    Domain("c++", ("libeigen3-dev", "libboost1.81-dev"), "*.[h]*", plain),
    Domain("go", ("golang-1.19-src",), "*.go", plain),
    Domain("lisp", ("sbcl-source",), "*.lisp", plain),
    Domain("perl", ("perl-modules-5.36",), "*.pm", plain),
)
"""With `python` there are 16, as many as the product reports by the names of their files."""


def build_corpus(folder: Path, domain_bytes: int, say: Callable[[str], None]) -> Path:
    """Make the corpus, or find it made; returns the folder of its files. `domain_bytes`: at most, of each domain."""
    made = folder / f"corpus-{domain_bytes}"
    finished = made / "done.txt"
    if finished.exists():
        return made
    made.mkdir(parents=True, exist_ok=True)
    counts = {}
    for domain in DOMAINS:
        counts[domain.name] = _write(made, domain.name, _of_packages(domain, folder / "packages", say), domain_bytes)
    python = (document.text for document in read_documents(DataConfig(source="python")))
    counts["python"] = _write(made, "python", python, domain_bytes)
    for name, (documents, size) in counts.items():
        say(f"{name}: {documents:,} documents, {size / 1e6:.1f} MB" if documents else f"{name}: left out")
    finished.write_text("".join(f"{name} {n} {size}\n" for name, (n, size) in counts.items()))
    return made


def mixed(corpus: Path, files: int = 16, characters: int | None = None) -> Path:
    """The same documents in files of mixed kinds, as large corpora come; returns their folder.

    `characters`: documents are cut into so long ones, at the ends of lines; None: they stay whole.
    """
    made = corpus.with_name(f"{corpus.name}-mixed{characters or ''}")
    if not (made / "done.txt").exists():
        made.mkdir(exist_ok=True)
        lines = [line for file in sorted(corpus.glob("*.jsonl")) for line in file.read_text("utf-8").splitlines()]
        if characters is not None:
            documents = map(json.loads, lines)
            parts = ((fields, part) for fields in documents for part in cut(fields["text"], "", characters))
            lines = [json.dumps({**fields, "text": part.text}) for fields, part in parts]
        Random(0).shuffle(lines)
        for number in range(files):
            (made / f"{number:02d}.jsonl").write_text("\n".join(lines[number::files]) + "\n", encoding="utf-8")
        (made / "done.txt").write_text((corpus / "done.txt").read_text())
    return made


def _write(folder: Path, domain: str, texts: Iterator[str], domain_bytes: int) -> tuple[int, int]:
    """Write a domain's documents until it is full, each text once; returns how many, and their bytes."""
    seen: set[bytes] = set()
    lines, size = [], 0
    for text in texts:
        body = text.strip()[:LONGEST_DOCUMENT]
        fingerprint = hashlib.sha256(" ".join(body.split()).encode()).digest()
        if len(body) < SHORTEST_DOCUMENT or fingerprint in seen:
            continue
        seen.add(fingerprint)
        if size + len(body.encode()) > domain_bytes:
            break
        size += len(body.encode())
        lines.append(json.dumps({"text": body, "domain": domain}, ensure_ascii=False))
    if lines:
        (folder / f"{domain}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines), size


def _of_packages(domain: Domain, folder: Path, say: Callable[[str], None]) -> Iterator[str]:
    """The cleaned texts of a domain, in an order that is random and always the same."""
    files: list[tuple[str, Path]] = []
    for package in domain.packages:
        root = _unpacked(package, folder, say)
        if root is not None:
            files += [(f"{package}/{file.relative_to(root)}", file) for file in root.rglob("*") if file.is_file()]
    chosen = [(name, file) for name, file in files if fnmatch(name, domain.pattern)]
    for _, file in sorted(chosen, key=lambda item: hashlib.sha256(item[0].encode()).digest()):
        raw = file.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8", errors="replace")
        if text.count("\ufffd") > len(text) / 100:
            continue  # another encoding: one page of hundreds
        text = domain.clean(text)
        if domain.cut is None:
            yield text
        else:
            yield from (text[start : start + domain.cut] for start in range(0, len(text), domain.cut))


def _unpacked(package: str, folder: Path, say: Callable[[str], None]) -> Path | None:
    """The files of a package; None, with a line, when it cannot be had."""
    root = folder / package
    if (root / "usr").exists():
        return root
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if not list(folder.glob(f"{package}_*.deb")):
            subprocess.run(
                ["apt-get", "download", "-q=2", package],
                cwd=folder, check=True, capture_output=True, timeout=DOWNLOAD_SECONDS,
            )  # fmt: skip
        archive = next(folder.glob(f"{package}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", archive.name, package], cwd=folder, check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError, StopIteration) as error:
        reason = getattr(error, "stderr", b"") or str(error).encode()
        say(f"without the package {package}: {reason.decode(errors='replace').strip().splitlines()[-1:]}")
        return None
    return root
