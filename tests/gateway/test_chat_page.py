"""The page that asks, in a real browser where there is one."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dipaco_swarm.gateway.app import SHARED, build_app
from dipaco_swarm.gateway.gateway import Gateway
from dipaco_swarm.page.statics import SECURITY
from dipaco_swarm.training.chat import template_of
from tests.gateway.scripted import Script, gateway_of, served
from tests.pages import HERE, OpenPage, addresses_in, barriers, chromium, in_a_browser, sources_of

pytestmark = pytest.mark.timeout(120)

STATIC = files("dipaco_swarm.gateway").joinpath("static")
MARKUP = "<img src=x onerror=\"document.title='broken'\"><b>bold</b>"
TEMPLATE = template_of("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<me>")


def app_of(gateway: Gateway, **how: Any) -> Starlette:
    return build_app(lambda: gateway, **how)


# ------------------------------------------------------------------------------------------------------- what is sent


def test_the_page_is_of_this_address_alone_and_has_no_script_of_its_own() -> None:
    client = TestClient(app_of(gateway_of(Script())), base_url=HERE)
    sources = sources_of(client)
    for source in (*sources, *SHARED):
        assert client.get(f"/{source}").status_code == 200, source
    for place in ("/", "/chat.js", "/about", "/v1/models", "/nowhere"):
        said = client.get(place).headers
        assert {name: said[name] for name in SECURITY} == SECURITY, place


@pytest.mark.parametrize("file", sorted(each.name for each in STATIC.iterdir() if each.name.endswith(".js")))
def test_its_scripts_put_no_markup_into_the_page_and_ask_nobody_else(file: str) -> None:
    text = STATIC.joinpath(file).read_text(encoding="utf-8")
    assert addresses_in(text) == []


def test_what_it_has_to_know_needs_the_key_and_its_files_do_not() -> None:
    client = TestClient(
        app_of(gateway_of(Script()), api_key="sesame", asks_peers=True, template=TEMPLATE), base_url=HERE
    )
    assert client.get("/").status_code == 200
    assert client.get("/chat.js").status_code == 200
    assert client.get("/about").status_code == 401
    said = client.get("/about", headers={"authorization": "Bearer sesame"}).json()
    assert said == {"run": "small", "paths": 4, "chats": True, "reroutes": True, "asks_peers": True}


def test_a_stream_says_who_writes_from_where_on() -> None:
    script = Script(text="abcdef", turns=[3, 3, 0])
    script.gate.set()
    client = TestClient(app_of(gateway_of(script)), base_url=HERE)
    asked = {"model": "small", "prompt": "0123456789", "max_tokens": 6, "reroute": 2, "stream": True}
    lines = client.post("/v1/completions", json=asked).text.split("\n\n")
    parts = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [choice for part in parts for choice in part["choices"]]
    writers = [(choice["text"], choice["written_by"]["path"]) for choice in choices if "written_by" in choice]
    assert writers == [("a", 3), ("e", 0)]
    assert [each["path"] for each in parts[-1]["dipaco"][0]["written_by"]] == [3, 0]


# ------------------------------------------------------------------------------------------------------ in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


class Visit(OpenPage):
    """What is written on it, and read."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        super().__init__(browser, url, ("error",), **options)

    def write(self, words: str) -> None:
        self.page.wait_for_selector("#talk:not([hidden])")
        self.page.locator("#words").fill(words)
        self.page.locator("#words").press("Enter")

    def is_ready(self) -> None:
        self.page.wait_for_function("() => document.getElementById('state-text').textContent === 'ready'")

    def text(self, what: str) -> str:
        """As it is shown, without the names of paths."""
        found: str = self.page.locator(what).first.evaluate(
            "e => [...e.querySelectorAll('.tag')].reduce((t, tag) => t.replace(tag.textContent, ''), e.textContent)"
        )
        return found


Open = Callable[..., Visit]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def opened(browser: Any, script: Script, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens the page of a gateway that answers by the script."""
    ends: list[Any] = []

    def visit(how: dict[str, Any] | None = None, **options: Any) -> Visit:
        server = served(partial(app_of, **(how or {})), script)
        ends.append(server)
        return Visit(browser, server.__enter__(), **options)

    yield visit
    for each in ends:
        each.__exit__(None, None, None)


@in_a_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_a_text_goes_on_in_the_colours_of_its_paths(opened: Open, script: Script, width: int, theme: str) -> None:
    script.text, script.turns = "abcdef" * 8, [3, 1, 1]
    visit = opened({"asks_peers": True}, viewport={"width": width, "height": 800}, color_scheme=theme)
    page = visit.page
    page.wait_for_selector("#talk:not([hidden])")
    assert "goes on with texts" in page.locator("#manner").inner_text()
    assert "strangers" in page.locator("#seen").inner_text()
    page.locator("#how-button").click()
    page.locator("#reroute").select_option("16")
    page.locator("#tokens").fill("48")
    visit.write("0123456789\n")
    visit.is_ready()
    assert visit.text("#log") == "0123456789\n" + "abcdef" * 8
    assert [each.inner_text() for each in page.locator(".tag").all()] == ["path 3", "path 1"]
    colours = page.locator(".window").evaluate_all("all => all.map(e => getComputedStyle(e).backgroundColor)")
    assert len(set(colours)) == 2
    legend = page.locator("#legend li").all_inner_texts()
    assert [re.search(r"path \d", line)[0] for line in legend] == ["path 1", "path 3"]  # type: ignore[index]
    assert "L0M1 version 12, L1M1 version 9" in legend[1]
    assert "peer D3peer-3" in legend[1]
    script.turns, script.text = [], "and on"
    visit.write("xyz")
    visit.is_ready()
    assert visit.text("#log").endswith("abcdefxyzand on")
    assert visit.text("#log").startswith("0123456789\nabc")
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing hangs over the side
    assert visit.complaints == []
    assert {address for address in visit.asked if not address.startswith("http://127.0.0.1:")} == set()


@in_a_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened: Open, script: Script, theme: str) -> None:
    script.text, script.turns = "abcdef" * 8, [3, 1, 1]
    visit = opened({"asks_peers": True}, color_scheme=theme)
    visit.page.locator("#how-button").click()
    visit.write("0123456789")
    visit.is_ready()
    assert barriers(visit.page) == []


@in_a_browser
def test_a_conversation_takes_turns_and_goes_out_whole(opened: Open, script: Script) -> None:
    visit = opened({"template": TEMPLATE})
    page = visit.page
    visit.write("hello")
    visit.is_ready()
    visit.write("and again")
    visit.is_ready()
    assert page.locator("#log .turn .text").count() == 4
    assert page.locator("#log .turn h3").all_inner_texts() == ["you", "small"] * 2
    prompt = gateway_of(script).tokenizer.decode(list(script.asked[-1].text))
    assert prompt == "<user>hello\n<assistant>an answer\n<user>and again\n<me>"
    assert "Nobody else sees" in page.locator("#seen").inner_text()
    page.locator("#anew").click()
    assert page.locator("#log .turn").count() == 0
    assert page.locator("#legend li").count() == 0
    assert visit.complaints == []


@in_a_browser
@pytest.mark.parametrize("how", [{}, {"template": TEMPLATE}])
def test_markup_stays_text(opened: Open, script: Script, how: dict[str, Any]) -> None:
    script.text = MARKUP
    visit = opened(how)
    visit.write(MARKUP)
    visit.is_ready()
    page = visit.page
    assert page.locator("#log").inner_text().count("onerror=") == 2
    assert page.locator("#log img, #log b").count() == 0
    assert "broken" not in page.title()
    assert visit.complaints == []


@in_a_browser
def test_it_shows_words_as_they_come_and_stops_when_told(opened: Open, script: Script) -> None:
    visit = opened()
    page = visit.page
    page.wait_for_selector("#talk:not([hidden])")
    script.gate.clear()
    visit.write("x")
    page.wait_for_function("() => document.querySelector('.window')?.lastChild.textContent === 'a'")
    assert page.locator("#log").get_attribute("aria-busy") == "true"
    assert page.locator("#send").is_hidden()
    page.keyboard.press("Escape")
    visit.is_ready()
    assert visit.text("#log") == "xa"
    assert page.locator("#trouble").is_hidden()
    script.gate.set()
    assert page.locator("#send").inner_text() == "go on"
    page.locator("#words").press("Enter")
    visit.is_ready()
    assert visit.text("#log") == "xaan answer"
    assert script.asked[-1].text == tuple(gateway_of(script).ids_of("xa"))


@in_a_browser
def test_what_goes_wrong_is_a_sentence_and_what_came_stays(opened: Open, script: Script) -> None:
    visit = opened()
    page = visit.page
    script.breaks_after = 2
    visit.write("x")
    page.wait_for_selector("#trouble:not([hidden])")
    said = page.locator("#trouble").inner_text()
    assert said == "Nobody answers for path 0 now (peer 12345678: gone); try again in a minute."
    assert visit.text("#log") == "xan"
    script.breaks_after = None
    page.locator("#words").press("Enter")
    visit.is_ready()
    assert page.locator("#trouble").is_hidden()
    page.locator("#how-button").click()
    page.locator("#path").fill("9")
    page.locator("#send").click()
    assert page.evaluate("document.getElementById('path').validity.rangeOverflow")
    page.route("**/v1/completions", lambda route: route.abort())
    page.locator("#path").fill("")
    page.locator("#send").click()
    page.wait_for_selector("#trouble:not([hidden])")
    assert page.locator("#trouble").inner_text().startswith("The gateway does not answer.")


@in_a_browser
def test_a_gateway_with_a_key_asks_for_it(opened: Open) -> None:
    visit = opened({"api_key": "sesame"})
    page = visit.page
    page.wait_for_selector("#door:not([hidden])")
    page.locator("#key").fill("open")
    page.locator("#key").press("Enter")
    page.wait_for_function("() => document.getElementById('state-text').textContent === 'a key is needed'")
    page.locator("#key").fill("sesame")
    page.locator("#key").press("Enter")
    visit.write("x")
    visit.is_ready()
    assert visit.text("#log") == "xan answer"
