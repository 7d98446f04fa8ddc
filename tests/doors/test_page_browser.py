"""The page in a real browser, where there is one: a Chromium, and Python's playwright to speak with it."""

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from benchmarks.page import Crowd, manifest_of, watch_of
from dipaco_swarm.page.history import Contributor
from dipaco_swarm.page.serving import serving
from dipaco_swarm.settings import Web
from tests.pages import OpenPage, barriers, chromium, in_a_browser

MARKUP = "<img src=x onerror=\"document.title='broken'\">"

pytestmark = [in_a_browser, pytest.mark.timeout(180)]


class Visit(OpenPage):
    """One whose run is shown."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        super().__init__(browser, url, ("error", "warning"), **options)
        self.page.wait_for_selector("#figures .value")
        self.page.wait_for_selector("#people tbody tr")
        self.page.wait_for_selector("#chart-loss svg")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module", params=[(2, 7), (16, 1000)], ids=["4 paths", "256 paths"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """Address and side of a made-up run that goes on while it is looked at."""
    side, peers = request.param
    crowd = Crowd(side, peers)
    watch = watch_of(crowd, side, hours=2)
    first = crowd.names[0]
    watch.ledger._known[first] = Contributor(first, MARKUP, 0, 1e9, 1e9, 60.0, 1e15)
    manifest, over = manifest_of(side), threading.Event()

    def live() -> None:
        while not over.wait(0.5):
            crowd.live(0.5)
            watch.take(crowd.status(), manifest)

    watch.take(crowd.status(), manifest)
    looking = threading.Thread(target=live)
    with closing(watch.history), serving(watch, Web("127.0.0.1", 0)) as page:
        looking.start()
        yield page.url, side
        over.set()
        looking.join()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_it_draws_itself_asks_nobody_else_and_complains_of_nothing(
    browser: Any, served: tuple[str, int], width: int, theme: str
) -> None:
    url, side = served
    visit = Visit(browser, url, viewport={"width": width, "height": 800}, color_scheme=theme)
    page = visit.page
    assert page.locator("#map .cell").count() == side * side
    assert page.locator("#modules .chip").count() == 2 * side
    assert page.locator("#state").inner_text() == "live"
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing hangs over the side
    assert page.locator(".chart svg").count() == 7
    before = page.locator("#figures").inner_text()
    page.wait_for_function("before => document.getElementById('figures').innerText !== before", arg=before)
    assert visit.complaints == []
    assert {address for address in visit.asked if not address.startswith(url)} == set()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, served: tuple[str, int], theme: str) -> None:
    page = Visit(browser, served[0], viewport={"width": 360, "height": 800}, color_scheme=theme).page
    assert barriers(page) == []
    page.locator("#people tbody tr a").first.click()
    page.wait_for_selector("#detail-title")
    assert barriers(page) == []


def test_a_name_with_markup_stays_text_and_has_a_page(browser: Any, served: tuple[str, int]) -> None:
    visit = Visit(browser, served[0])
    page = visit.page
    first = page.locator("#people tbody tr").first
    assert MARKUP in first.inner_text()
    assert page.locator("#people img").count() == 0
    first.locator("a").click()
    page.wait_for_selector("#detail-title")
    assert MARKUP in page.locator("#detail-title").inner_text()
    assert page.locator("#detail img").count() == 0
    assert page.evaluate("document.activeElement.id") == "detail-title"
    page.go_back()
    page.wait_for_selector("#map .cell")
    assert "broken" not in page.title()
    assert visit.complaints == []


def test_the_keyboard_reaches_paths_curves_and_the_theme(browser: Any, served: tuple[str, int]) -> None:
    page = Visit(browser, served[0]).page
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.locator("#chart-loss svg").focus()
    page.keyboard.press("ArrowLeft")
    assert re.search(r"\d\d:\d\d\n.*\d\.\d\d", page.locator("#tip").inner_text())
    page.locator("#map .cell").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail-title")
    assert page.locator("#detail-title").inner_text() == "Path 0"


def test_a_search_finds_who_is_looked_for(browser: Any, served: tuple[str, int]) -> None:
    page = Visit(browser, served[0]).page
    page.locator("#find").fill("onerror")
    page.wait_for_function("() => document.querySelectorAll('#people tbody tr').length === 1")
    assert MARKUP in page.locator("#people tbody").inner_text()
    page.locator("#find").fill("nobody is called so")
    page.wait_for_function("() => document.querySelectorAll('#people tbody tr').length === 0")
    assert page.locator("#page").inner_text() == "nobody of that kind yet"
