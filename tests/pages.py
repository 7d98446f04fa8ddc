"""What all pages that the programs serve are asked: in their text, and in a real browser where there is one."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest
from starlette.testclient import TestClient

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


class Tags(HTMLParser):
    """Every tag of a page with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


HERE = "http://localhost"
"""Of a door that is open to this machine alone."""


def sources_of(client: TestClient) -> list[str]:
    """The files of the page at "/", which has no script and no style in itself, and nothing of elsewhere."""
    page = Tags()
    page.feed(client.get("/").text)
    for tag, attributes in page.found:
        assert tag != "style"
        assert "style" not in attributes, tag
        assert tag != "script" or attributes.get("src"), tag
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href"):
            assert not re.match(r"\w+:|/", attributes.get(name) or ""), attributes  # also below a prefix of a proxy
    return [str(a.get("src") or a.get("href")) for tag, a in page.found if tag in ("script", "link")]


def addresses_in(text: str) -> list[str]:
    """Addresses that are written in the text of a script, which puts no markup into a page."""
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc", text)
    return re.findall(r"https?://[^\s\"'`]+", text)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, where Python can speak with one."""
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


SERIOUS = ("serious", "critical")


def barriers(page: Any) -> list[str]:
    """What axe-core finds on a page as it is shown that keeps somebody from using it: rule, element, and why.

    axe is a package of its own, as the browser is; without it the test is skipped.
    """
    pytest.importorskip("axe_playwright_python")
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run({resultTypes: ['violations']})")
    return [
        f"{rule['id']}: {node['target']}: {node['failureSummary']}"
        for rule in found["violations"]
        if rule["impact"] in SERIOUS
        for node in rule["nodes"]
    ]


class OpenPage:
    """A page in a browser, all that it asked for, and all that it complained of."""

    def __init__(self, browser: Any, url: str, counts: tuple[str, ...], **options: Any) -> None:
        """`counts`: kinds of lines of the console that are complaints."""
        self.page = browser.new_context(**options).new_page()
        self.asked: set[str] = set()
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.add(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type in counts else None)
        self.page.goto(url, wait_until="domcontentloaded")
