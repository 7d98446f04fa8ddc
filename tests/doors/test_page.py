"""The page of a run as a browser and a program get it: safe, small, and the same as what is seen."""

import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from benchmarks.page import Crowd, manifest_of
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.client.watching import LookingUp
from dipaco_swarm.dashboard.views import MemberStatus, SwarmStatus
from dipaco_swarm.errors import UsageError
from dipaco_swarm.events.operator import StageOpened
from dipaco_swarm.events.volunteer import BestSnapshot
from dipaco_swarm.page import app as page_app
from dipaco_swarm.page.app import Application
from dipaco_swarm.page.board import Board
from dipaco_swarm.page.credit import Ledger
from dipaco_swarm.page.history import Contributor, History, Sample
from dipaco_swarm.page.kept import THREADS, Kept
from dipaco_swarm.page.pace import PaceMeter
from dipaco_swarm.page.serving import bound, serving
from dipaco_swarm.page.statics import SECURITY
from dipaco_swarm.page.watch import Watch
from dipaco_swarm.settings import Web
from dipaco_swarm.swarm.timing import Timing
from tests.doors.examples_of_views import small_status
from tests.hub import until
from tests.pages import addresses_in, sources_of

NOW = 1_800_000_000.0
MARKUP = "<img src=x onerror=alert(1)>"
STATIC = files("dipaco_swarm.page").joinpath("static")


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Of a run of four paths and seven peers."""
    crowd = Crowd(2, 7)
    history = History(None)
    history.note_contributors([Contributor(crowd.names[0], MARKUP, 0, 1e9, 1e9 + 5, 60.0, 1e6)])
    watch = Watch(history, Board(), "a" * 32, ())
    watch.event(BestSnapshot(1, 3.25, {"L0M0": 4}, kept=True))
    watch.event(StageOpened(1, 4))
    watch.take(crowd.status(), manifest_of(2))
    yield watch
    history.close()


@pytest.fixture
def client(watch: Watch) -> TestClient:
    return TestClient(Application(watch).asgi())


# ------------------------------------------------------------------------------------------------------------ safety


@pytest.mark.parametrize(
    "place", ["/", "/main.js", "/api/status", "/api/peers", "/metrics", "/nowhere", "/api/peers/x"]
)
def test_every_answer_tells_the_browser_to_trust_this_origin_alone(client: TestClient, place: str) -> None:
    answer = client.get(place)
    assert {name: answer.headers[name] for name in SECURITY} == SECURITY
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "*" not in policy


def test_the_page_has_no_script_and_no_style_of_its_own_and_nothing_of_elsewhere(client: TestClient) -> None:
    sources = sources_of(client)
    assert len(sources) > 3
    assert [client.get(f"/{source}").status_code for source in sources] == [200] * len(sources)


@pytest.mark.parametrize("file", sorted(each.name for each in STATIC.iterdir() if each.name.endswith(".js")))
def test_scripts_put_no_markup_into_the_page_and_ask_nobody_else(file: str) -> None:
    text = STATIC.joinpath(file).read_text(encoding="utf-8")
    others = [url for url in addresses_in(text) if url != "http://www.w3.org/2000/svg"]
    assert others == []


def test_nothing_can_be_changed(client: TestClient) -> None:
    for place in ("/", "/api/status", "/api/events", "/api/peers/x", "/metrics"):
        assert [client.request(how, place).status_code for how in ("POST", "PUT", "DELETE")] == [405] * 3


def test_markup_in_a_name_stays_text(client: TestClient, watch: Watch) -> None:
    answer = client.get("/api/peers", params={"find": "onerror"})
    assert answer.headers["content-type"] == "application/json"
    assert b"<img" not in answer.content
    (row,) = answer.json()["rows"]
    assert row["name"] == MARKUP
    assert client.get(f"/api/peers/{row['peer']}").json()["name"] == MARKUP
    assert b"<" not in watch.board._changes[-1][1]


@pytest.mark.parametrize(
    ("place", "status"),
    [
        ("/api/peers?start=-1", 400),
        ("/api/peers?count=100000", 400),
        ("/api/peers?sort=__class__", 400),
        ("/api/paths/" + "1" * 5000, 404),
        ("/api/paths/01", 404),
        ("/api/history?seconds=1e9", 400),
        ("/api/history?seconds=²", 400),
        ("/api/paths/99", 404),
        ("/api/paths/99999999999999999999999", 404),
        ("/api/peers/..%2f..%2fetc", 404),
        ("/static/../app.py", 404),
        ("/%2e%2e/app.py", 404),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(client: TestClient, place: str, status: int) -> None:
    answer = client.get(place)
    assert answer.status_code == status
    assert len(answer.text) < 200


# ------------------------------------------------------------------------------------------------------------- values


def test_the_status_is_what_the_command_says(client: TestClient, watch: Watch) -> None:
    assert watch.seen is not None
    said = client.get("/api/status").json()
    assert said == json.loads(watch.seen.status.to_json())
    assert len(said["members"]) == 7
    assert len(said["paths"]) == 4


def test_before_anything_was_seen_it_says_so() -> None:
    client = TestClient(Application(Watch(History(None), Board(), "a" * 32, ())).asgi())
    assert client.get("/").status_code == 200
    answer = client.get("/api/status")
    assert (answer.status_code, "try again" in answer.text) == (503, True)
    assert client.get("/api/history").json()["at"] == []
    assert "dipaco_up 0.0" in client.get("/metrics").text


def test_curves_paths_and_peers_have_what_was_written(client: TestClient, watch: Watch) -> None:
    curves = client.get("/api/history").json()
    assert len(curves["at"]) == len(curves["loss"]) == 1
    assert len(curves["paths"]) == 4
    assert client.get("/api/paths/1").json()["members"]
    everybody = client.get("/api/peers", params={"count": 3}).json()
    assert (everybody["total"], len(everybody["rows"])) == (7, 3)
    assert [row["rank"] for row in everybody["rows"]] == [1, 2, 3]
    assert client.get("/api/peers", params={"start": 6}).json()["rows"][0]["rank"] == 7
    found = client.get(f"/api/peers/{everybody['rows'][0]['peer']}").json()
    assert (found["rank"], found["of"], found["here"]) == (1, 7, True)


def test_metrics_are_metrics(client: TestClient, watch: Watch) -> None:
    text = client.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["dipaco_peers"].samples[0].value == 7
    assert families["dipaco_tokens_counted"].type == "counter"
    assert len(families["dipaco_path_peers"].samples) == 4
    assert families["dipaco_heldout_loss"].samples[0].value == 3.25
    assert "dipaco_goodput_ratio" not in families  # nobody can say it yet
    assert all(family.documentation for family in families.values())


# ------------------------------------------------------------------------------------------------------------- stream


def events_of(data: bytes) -> list[tuple[str, Any]]:
    """Names and values of server-sent events."""
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in data.decode().split("\n\n") if block]
    return [(block["event"], json.loads(block["data"])) for block in blocks]


def test_a_viewer_gets_the_whole_picture_and_then_what_changes(watch: Watch) -> None:
    crowd = Crowd(2, 7)

    async def view() -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
        number, first = await watch.board.after(0, 5)
        waiting = asyncio.ensure_future(watch.board.after(number, 5))
        await asyncio.sleep(0)
        looking = threading.Thread(target=watch.take, args=(crowd.status(50.0), manifest_of(2)))
        looking.start()
        _, second = await waiting
        looking.join()
        return events_of(first), events_of(second)

    ((kind, picture),), ((other, changed),) = asyncio.run(view())
    assert (kind, other) == ("all", "change")
    assert set(picture) == {"about", "now", "paths", "modules", "ranking", "feed"}
    assert "about" not in changed
    assert "stage" not in changed["now"]
    assert changed["now"]["lowest"] == 50
    assert {"0", "1", "2", "3"} >= set(changed["paths"])


def test_who_has_missed_much_gets_the_whole_picture_again() -> None:
    board = Board()
    for i in range(100):
        board.put({"now": {"i": i}})

    async def view(number: int) -> tuple[int, bytes]:
        return await board.after(number, 1)

    assert [kind for kind, _ in events_of(asyncio.run(view(97))[1])] == ["change"] * 3
    assert events_of(asyncio.run(view(3))[1]) == [("all", {"now": {"i": 99}})]
    assert asyncio.run(view(100)) == (100, b"")  # nothing new


def test_a_picture_of_a_large_run_is_small() -> None:
    crowd = Crowd(16, 1000)
    watch = Watch(History(None), Board(), "a" * 32, ())
    watch.take(crowd.status(), manifest_of(16))
    whole = len(json.dumps(watch.board.picture))
    assert whole < 40_000
    watch.take(crowd.status(), manifest_of(16))
    assert len(watch.board._changes[-1][1]) < 12_000  # though every peer's loss and speed are other ones


# ------------------------------------------------------------------------------------------------------------ serving


def test_a_server_answers_streams_and_ends_with_its_block(watch: Watch) -> None:
    with serving(watch, Web("127.0.0.1", 0)) as served:
        assert served.url.startswith("http://127.0.0.1:")
        assert not served.public
        with urllib.request.urlopen(served.url + "api/status", timeout=10) as answer:
            assert json.load(answer)["peers"] == 7
        stream = urllib.request.urlopen(served.url + "api/events", timeout=10)
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = iter(stream.readline, b"")
        assert any(line == b"event: all\n" for line in lines)
    assert not [thread for thread in threading.enumerate() if thread.name == "page-server"]


def test_a_port_that_is_taken_is_said() -> None:
    with bound(Web("127.0.0.1", 0)) as taken:
        web = Web("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(UsageError, match=rf"--web 127.0.0.1:{web.port}: another program listens on port"):
            bound(web)
        with pytest.raises(UsageError, match=rf"--host 127.0.0.1 --port {web.port}: another program"):
            bound(replace(web, by_two_options=True))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8080", "is not HOST:PORT"),
        ("127.0.0.1", "is not HOST:PORT"),
        (":8080", "is not HOST:PORT"),
        ("127.0.0.1:http", "is not HOST:PORT"),
        ("127.0.0.1:70000", "is not HOST:PORT"),
        ("127.0.0.1:²", "is not HOST:PORT"),
        ("http://127.0.0.1:80:80", "is no address"),
        ("203.0.113.7:8080", "this machine does not have the address 203.0.113.7"),
        ("no such host:8080", "is no address"),
    ],
)
def test_a_web_address_that_is_none_is_said(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        bound(Web.parse(text))


@pytest.mark.parametrize(
    ("text", "public"),
    [("127.0.0.1:1", False), ("localhost:1", False), ("[::1]:1", False), ("0.0.0.0:1", True), ("[::]:1", True)],
)
def test_an_address_that_others_can_reach_is_said(text: str, public: bool) -> None:
    web = Web.parse(text)
    assert web.is_public is public
    assert str(web) == text


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from dipaco_swarm import settings

    monkeypatch.setattr(settings, "find_spec", lambda name: None if name == "uvicorn" else object())
    with pytest.raises(UsageError, match=r"the page needs uvicorn, .* pip install .*'\.\[web\]'"):
        settings.check_web()


# -------------------------------------------------------------------------------------------------------- what counts


def member(name: str, speed: float, *, path: int = 0, known: bool = True) -> MemberStatus:
    return MemberStatus(name, path, tokens_per_second=speed, known=known)


def with_work(work: int, *members: MemberStatus) -> SwarmStatus:
    """Four paths; every module has counted so much."""
    status = small_status()
    modules = tuple(replace(module, work=work) for module in status.modules)
    return replace(
        status, modules=modules, members=members, tokens_per_second=sum(m.tokens_per_second for m in members)
    )


def test_tokens_are_credited_by_speed_and_no_lie_makes_them_more() -> None:
    ledger = Ledger(())
    honest, liar, stranger = member("honest", 100.0), member("liar", 300.0), member("new", 1e9, known=False)
    ledger.see(with_work(0, honest, liar, stranger), 0.0, 1.0)
    ledger.see(with_work(1000, honest, liar, stranger), 1.0, 1.0)
    counted = {each.peer: round(each.counted) for each in ledger.ranking()}
    assert counted == {"liar": 750, "honest": 250, "new": 0}
    assert [each.offered for each in ledger.ranking()] == [1.0, 1.0, 1.0]
    ledger.see(with_work(400, honest, liar), 2.0, 1.0)  # somebody says that less was counted
    assert sum(each.counted for each in ledger.ranking()) == 1000


def test_time_in_which_we_slept_is_nobodys() -> None:
    ledger = Ledger(())
    for at in (0.0, 1.0, 90_000.0):
        ledger.see(with_work(0, member("a", 1.0)), at, 90_000.0)
    assert ledger.ranking()[0].offered == 120.0


def test_tokens_go_on_after_a_restart_and_the_end_of_a_stage_is_foreseen() -> None:
    history = History(None)
    meter = PaceMeter(history)

    def status(version: int) -> SwarmStatus:
        modules = tuple(replace(m, version=version, work=2000 * version) for m in small_status().modules)
        return replace(small_status(), modules=modules, tokens_per_second=100.0, target_version=20)

    assert meter.see(status(0), 0.0, NOW).stage_seconds is None
    for second in range(1, 251):
        pace = meter.see(status(second // 50), float(second), NOW + second)
    assert pace.tokens == 20_000  # of two levels with two modules each: every token is in each level once
    assert pace.counted_per_second == pytest.approx(80.0)
    assert pace.goodput == pytest.approx(0.8)
    assert pace.stage_seconds == pytest.approx(750.0)
    idle = tuple(replace(member(name, 50.0), trained=0.8) for name in ("a", "b"))
    rests = PaceMeter(History(None))
    for second in range(251):
        pace = rests.see(replace(status(second // 50), members=idle), float(second), NOW + second)
    assert pace.goodput == pytest.approx(1.0)  # all that was trained has counted
    again = PaceMeter(history)
    assert again.see(status(5), 0.0, NOW + 251).tokens == 20_000
    assert again.see(replace(status(1), stage=2), 1.0, NOW + 252).tokens == 24_000


def test_a_node_that_comes_back_knows_its_pace_of_before_and_of_rounds_that_take_hours() -> None:
    history, hour = History(None), 3600

    def status(version: int) -> SwarmStatus:
        modules = tuple(replace(m, version=version, work=500 * hour * version) for m in small_status().modules)
        return replace(small_status(), modules=modules, tokens_per_second=1250.0, target_version=20)

    meter = PaceMeter(history)
    for minute in range(10 * 60):  # a round in an hour
        pace = meter.see(status(minute // 60), 60.0 * minute, NOW + 60 * minute)
        sample = Sample(NOW + 60 * minute, 1, pace.tokens, minute // 60, 3, 3, 1250.0)
        history.note(sample)
    assert pace.goodput == pytest.approx(0.8, abs=0.15)
    assert len(meter._marks) <= 720
    again = PaceMeter(history).see(status(9), 7.0, NOW + 10 * hour)
    assert again.tokens == pace.tokens
    assert again.goodput == pytest.approx(0.8, abs=0.15)
    assert again.stage_seconds == pytest.approx(11 * hour, rel=0.15)


def test_the_wheel_has_the_page(tmp_path: Path) -> None:
    assert {"index.html", "page.css", "main.js", "theme.js", "icon.svg"} <= {each.name for each in STATIC.iterdir()}


# -------------------------------------------------------------------------------------------------------------- guests


class Directory:
    """A swarm that notes what is looked up."""

    timing = Timing()

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []
        self.modules: set[ModuleId] = set()

    def look_up(self, stage: int, modules: list[ModuleId], *, timeout: float, thorough: bool = True) -> None:
        self.asked.append((len(modules), thorough))
        self.modules.update(modules)


def test_a_guest_asks_for_everybody_once_and_then_for_some_each_second() -> None:
    swarm, look_up, manifest = Directory(), LookingUp(), manifest_of(16)
    look_up(swarm, manifest)  # type: ignore[arg-type]
    assert swarm.asked == [(32, True)]
    swarm.modules.clear()
    for _ in range(15):
        look_up(swarm, manifest)  # type: ignore[arg-type]
    assert swarm.asked[1:] == [(3, False)] * 15
    assert len(swarm.modules) == 32
    look_up(swarm, manifest.model_copy(update={"stages": manifest.stages[:1]}))  # type: ignore[arg-type]
    assert swarm.asked[-1] == (2, True)


# ------------------------------------------------------------------------------------------------------------- bounds


def test_a_page_of_this_machine_is_called_by_its_names(watch: Watch) -> None:
    for host, name, status in (
        ("127.0.0.1", "localhost:8080", 200),
        ("127.0.0.1", "elsewhere.example:8080", 400),
        ("::1", "[::1]", 200),
        ("0.0.0.0", "run.example", 200),
    ):
        with serving(watch, Web(host, 0)) as served:
            place = served.url.replace("0.0.0.0", "127.0.0.1")
            assert httpx.get(place, headers={"host": name}).status_code == status


def test_what_prometheus_does_not_understand_is_answered_as_if_nothing_was_said(client: TestClient) -> None:
    odd = "application/openmetrics-text; version=abc; escaping=allow-utf-8"
    assert "dipaco_peers" in client.get("/metrics", headers={"accept": odd}).text


def test_curves_begin_at_few_places(client: TestClient, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def samples(self: Application, seconds: int) -> list[Sample]:
        made.append(seconds)
        return []

    monkeypatch.setattr(Application, "_samples", samples)
    for seconds in (1, 2, 3600, 3601, 86400, 604800, 604801, 10**9, 0):
        assert client.get(f"/api/history?seconds={seconds}").status_code == 200
    assert made == [3600, 86400, 604800, 0]


def test_an_answer_is_made_once_for_all_who_ask_and_few_at_a_time(watch: Watch) -> None:
    made: list[str] = []
    under_way: list[int] = [0]

    def make(name: str) -> bytes:
        made.append(name)
        under_way.append(under_way[-1] + 1)
        threading.Event().wait(0.2)
        under_way.append(under_way[-1] - 1)
        return name.encode()

    async def ask() -> None:
        kept = Kept()
        names = [str(number % 4) for number in range(20)]
        assert await asyncio.gather(*(kept.get(name, partial(make, name)) for name in names)) == [
            name.encode() for name in names
        ]

    asyncio.run(ask())
    assert sorted(made) == ["0", "1", "2", "3"]
    assert max(under_way) == THREADS


def test_viewers_of_one_place_keep_nobody_out(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_app, "MOST_OF_ONE", 2)
    with serving(watch, Web("127.0.0.1", 0)) as served, ExitStack() as held, httpx.Client(timeout=10) as client:
        events = f"{served.url}api/events"
        heard: list[Iterator[bytes]] = []

        def look(at: str) -> int:
            """As a proxy on this machine says who looks."""
            said = held.enter_context(client.stream("GET", events, headers={"x-forwarded-for": at}))
            if said.status_code == 200:
                heard.append(said.iter_raw())
                next(heard[-1])
            return said.status_code

        assert [look("8.8.8.8") for _ in range(3)] == [200, 200, 429]
        assert look("8.8.4.4") == 200
        assert [look("127.0.0.1") for _ in range(3)] == [200] * 3
        held.close()
        until(lambda: watch.board.viewers == 0)
        assert look("8.8.8.8") == 200


def test_a_crowd_does_not_hold_back_what_others_see(watch: Watch) -> None:
    watch.board.viewers = 200
    pause = watch.pause()
    watch.board.viewers = 2000
    assert watch.pause() == pause
