"""What a person reads on the screens."""

import io
import json
import logging
import math
from dataclasses import replace

import pytest
from rich.console import Console

from dipaco_swarm.dashboard.drawing import draw
from dipaco_swarm.dashboard.peer_drawing import Look
from dipaco_swarm.dashboard.screens import SUMMARY_SECONDS, PlainScreen, open_screen
from dipaco_swarm.dashboard.shapes import sparkline
from dipaco_swarm.dashboard.views import (
    Evaluation,
    LineView,
    ModuleView,
    PathScore,
    PeerView,
    StageEnd,
    SwarmStatus,
    View,
    duration,
)
from dipaco_swarm.events.event import Logged
from dipaco_swarm.events.words import count, size
from tests.doors.examples_of_views import (
    ADDRESS,
    bootstrap_view,
    evaluation,
    large_status,
    peer_of_many_modules,
    peer_view,
    small_status,
)


def text_of(view: View | Evaluation, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(draw(view))
    return console.export_text()


def line_with(text: str, *words: str) -> str:
    (line,) = (line for line in text.splitlines() if all(word in line for word in words))
    return line


# ---------------------------------------------------------------------------------------------------------- volunteer


def test_a_volunteer_reads_path_loss_speed_company_traffic_and_what_was_agreed() -> None:
    text = text_of(peer_view())
    assert "python-2x2" in text
    assert "path 3 (of 4)" in text
    assert "training" in text
    assert "4.322" in line_with(text, "│  loss")
    assert "9.8 million tokens" in line_with(text, "5,312 tokens/s")
    assert "step 4,200" in line_with(text, "stage  ")
    assert "96 % of the time" in line_with(text, "trained", "of the last 15 min; 94 % of 2 h 5 min")
    assert "due in 23 s" in line_with(text, "round  ", "13")
    assert "L0M1 v12 with 2 others, L1M1 v12 with 3 others, at 14:03:22" in line_with(text, "agreed")
    assert "3 of 3" in line_with(text, "3 peers of 2 paths")
    assert "Ctrl+C" in text


def test_a_volunteer_who_pauses_reads_of_nothing_that_is_due() -> None:
    text = text_of(replace(peer_view(), activity="paused, as you asked", paused=True))
    assert "due" not in line_with(text, "│  round ")
    assert "left" not in line_with(text, "│  stage ")


def test_a_volunteer_reads_what_the_line_is_used_for() -> None:
    text = text_of(peer_view())
    assert line_with(text, "line  ").split()[1:-1] == [
        "line",
        "now",
        "so",
        "far",
        "round",
        "versions",
        "joining",
        "messages",
    ]
    sent, came = line_with(text, "↑ sent"), line_with(text, "↓ came")
    assert "210 kB/s   41.2 MB   38.9 MB    2.1 MB    200 kB" in sent
    assert "1.8 MB/s   57.9 MB   49.3 MB         -    8.6 MB" in came
    five = dict.fromkeys(("round", "versions", "joining", "reading", "messages"), 999_900_000)
    narrow = text_of(replace(peer_view(), sent=LineView(five, 9.9e6), received=LineView(five, 9.9e6)), width=80)
    assert line_with(narrow, "line  ").split()[-2] == "messages"
    assert line_with(narrow, "↑ sent").count("1.0 GB") == 5
    quiet = text_of(replace(peer_view(), sent=LineView({"round": 10, "versions": 0}), received=LineView({"round": 10})))
    assert "versions" not in line_with(quiet, "line  ")


def test_a_volunteer_sees_a_round_on_its_way_beside_training() -> None:
    text = text_of(peer_view())
    assert "62%" in line_with(text, "L0M1  ")
    assert "version 13" in line_with(text, "L1M1  ")
    assert line_with(text, "L2M3  ").rstrip("│ ").endswith("-")


def at_a_terminal(view: View, width: int, height: int, look: Look | None = None) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), record=True, force_terminal=True)
    console.print(draw(view, look))
    return console.export_text().splitlines()


@pytest.mark.parametrize("look", [Look(), Look(keys=True), Look(keys=True, details=True)])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 40)])
@pytest.mark.parametrize("view", [peer_view(), peer_of_many_modules(), replace(peer_view(), modules=())])
def test_a_volunteer_sees_all_that_matters_on_any_terminal(view: PeerView, width: int, height: int, look: Look) -> None:
    many = (*view.events, *(replace(event, text=f"{event.text}; {'and so on, ' * 6}") for event in view.events))
    for events in (view.events, many, many[:2], ()):
        lines = at_a_terminal(replace(view, events=events), width, height, look)
        text = "\n".join(lines)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert "q or Ctrl+C saves" in lines[-1] if look.keys else "Ctrl+C saves" in lines[-1]
        said = "".join(line.strip("│ ") for line in lines).replace(" ", "")
        for event in events[-1:]:
            assert f"{event.clock}{event.text}".replace(" ", "") in said  # all of it, in one line or in two
        if not look.details:
            assert sum(f"│  {event.clock}" in line for line in lines for event in {*events}) >= min(len(events), 2)
        for word in ("loss", "speed", "trained", "share", "round", "stage", "agreed", "line", "↑ sent", "↓ came"):
            assert line_with(text, f"│  {word} ")


def test_modules_of_which_something_is_to_be_seen_come_first_where_there_is_room_for_few() -> None:
    text = "\n".join(at_a_terminal(peer_of_many_modules(), 80, 24, Look(keys=True)))
    assert "30%" in line_with(text, "│  L11M2")
    assert "more modules" in text
    in_detail = "\n".join(at_a_terminal(peer_of_many_modules(), 80, 24, Look(keys=True, details=True)))
    assert in_detail.count("3 peers of 2 paths") > text.count("3 peers of 2 paths")
    assert "\n".join(at_a_terminal(peer_of_many_modules(), 100, 40)).count("3 peers of 2 paths") == 20


def test_a_volunteer_reads_its_share_its_life_and_when_the_stage_ends() -> None:
    text = text_of(peer_view())
    assert "9.8 million tokens, 121 million in all" in line_with(text, "speed")
    assert "31 %" in line_with(text, "of what my modules learned, with 6 others")
    assert "1 min 35 s left" in line_with(text, "stage  ", "12 of 14")
    assert "no set end" in line_with(text_of(replace(peer_view(), stage_end=None)), "stage  ")
    assert "under 1 %" in line_with(text_of(replace(peer_view(), share=0.001)), "│  share")
    assert "none yet" in line_with(text_of(replace(peer_view(), share=None, peers=1)), "│  share", "with nobody else")
    slow = replace(peer_view(), stage_end=StageEnd(0.0, 14))
    assert "left" not in line_with(text_of(slow), "stage  ", "0 of 14")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 40)])
@pytest.mark.parametrize("status", [small_status(), large_status()])
def test_the_operator_sees_address_and_newest_events_on_any_terminal(
    status: SwarmStatus, width: int, height: int
) -> None:
    lines = at_a_terminal(replace(bootstrap_view(), status=status), width, height)
    assert len(lines) <= height
    assert "".join(lines).count(ADDRESS) == 1
    assert "product-k-means" in "\n".join(lines)
    assert "Ctrl+C" in lines[-1]


def test_disagreement_and_being_alone_are_said_in_words() -> None:
    text = text_of(peer_view())
    assert "3 of 4, healing" in line_with(text, "L1M1", "4 peers of")
    assert "this path alone" in line_with(text, "L2M3")
    lonely = replace(peer_view(), modules=(ModuleView("L0M1", version=3, peers=1, agree=1, paths=16),))
    assert "nobody else yet" in line_with(text_of(lonely), "L0M1  ", " 3 ")


def test_a_newcomer_sees_calm_words_instead_of_numbers_that_do_not_exist() -> None:
    text = text_of(PeerView("r", 0, 2, path=None, num_paths=4, activity="asking for the manifest", rounds=0, peers=1))
    assert "no path yet" in text
    assert "not yet" in line_with(text, "│  loss")
    assert "nothing yet" in line_with(text, "agreed")
    assert "due" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_screen_is_wider_than_the_terminal(width: int) -> None:
    for view in (peer_view(), small_status(), large_status(), bootstrap_view(), evaluation()):
        assert max(map(len, text_of(view, width).splitlines())) <= width


# ----------------------------------------------------------------------------------------------------------- the swarm


def test_status_says_what_is_staffed_held_and_agreed() -> None:
    text = text_of(small_status())
    assert "3 of 4 staffed" in line_with(text, "paths  ")
    assert "1 waits for a volunteer" in text
    assert "none" in line_with(text, "L0M1 L1M0")
    assert "1 (keepers only)" in line_with(text, "L1M0   ", "peers")
    assert "no, healing" in line_with(text, "L0M1   ", "peers")
    assert "11-12" in line_with(text, "version", "of 14")
    assert "an outer round in 41 s" in text


def test_a_lost_module_is_named_before_anything_milder() -> None:
    text = text_of(large_status())
    assert "nobody serves L1M7" in line_with(text, "modules")
    assert "L1M7" in line_with(text, "nobody  ")


def test_a_large_path_table_is_a_map_with_a_cell_per_path() -> None:
    text = text_of(large_status())
    rows = [line.strip("│ ").split() for line in text.splitlines()]
    cells = [cell for row in rows if row and row[0] in {str(16 * i) for i in range(16)} for cell in row[1:]]
    assert len(cells) == 256
    assert cells.count("·") == 256 - large_status().staffed
    assert len(text.splitlines()) < 40


@pytest.mark.parametrize("width", [20, 41, 100])
def test_an_irregular_large_table_is_drawn_too(width: int) -> None:
    paths = large_status().paths
    irregular = tuple(replace(path, modules=(f"L0M{path.index % 5}",)) for path in paths[:61])
    text_of(replace(large_status(), paths=irregular), width)


def test_a_healthy_run_says_so_and_an_empty_one_can_be_drawn() -> None:
    modules = tuple(replace(module, holders=3, digests_agree=True) for module in small_status().modules)
    assert "all held by 2 or more" in text_of(replace(small_status(), modules=modules))
    text_of(SwarmStatus("r", 0, 1, finished=True, peers=0, keepers=0, paths=(), modules=()))


def test_json_has_every_field_and_the_sums() -> None:
    document = json.loads(small_status().to_json())
    assert document["staffed"] == 3
    assert document["paths"][2]["peers"] == 0
    assert document["paths"][2]["loss"] is None
    assert document["digests_agree"] is False
    assert document["under_held"] == ["L1M0"]
    assert (document["version_min"], document["version_max"]) == (11, 12)


def test_json_has_no_nan_because_json_has_none() -> None:
    assert json.loads(replace(small_status(), loss=math.nan).to_json())["loss"] is None


def test_the_operator_reads_the_address_free_of_any_frame() -> None:
    text = text_of(bootstrap_view(), width=200)
    assert ADDRESS in text.splitlines()
    assert "keeping modules" in text
    assert "product-k-means" in text
    assert "".join(text_of(bootstrap_view(), width=60).splitlines()).count(ADDRESS) == 1


def test_evaluation_gives_each_path_and_the_whole() -> None:
    text = text_of(evaluation())
    assert f"{math.exp(4.0):.2f}" in line_with(text, "120", "30,000")
    assert f"{math.exp(4.1):.2f}" in line_with(text, "all")  # (4.0*30 + 4.4*10) / 40
    assert "first 32 tokens" in text
    assert "anew" not in text
    assert math.isinf(PathScore(0, 1, 1, loss=1e6).perplexity)


def test_evaluation_says_when_it_routes_every_window() -> None:
    text = text_of(replace(evaluation(), window=64), width=140)
    assert "routed anew every 64 tokens" in text
    assert "windows" in line_with(text, "perplexity", "loss")


# ------------------------------------------------------------------------------------------------------ words and bars


def test_sizes_counts_and_times_are_for_people() -> None:
    assert [size(n) for n in (0, 999, 1000, 99_940, 99_960, 999_600, 1_234_567_890, 5 * 10**15)] == [
        "0 B", "999 B", "1.0 kB", "99.9 kB", "100 kB", "1.0 MB", "1.2 GB", "5,000.0 TB",
    ]  # fmt: skip
    assert [count(n) for n in (7, 1500, 2_500_000)] == ["7", "1.5 thousand", "2.5 million"]
    assert [duration(s) for s in (0.2, 59.4, 59.6, 200, 3600, 7500)] == [
        "0 s", "59 s", "1 min", "3 min 20 s", "1 h 0 min", "2 h 5 min",
    ]  # fmt: skip


def test_a_sparkline_fits_and_survives_anything() -> None:
    assert sparkline([8.0, 1.0], 10) == "█▁"
    assert len(sparkline(list(range(1000)), 48)) == 48
    assert sparkline([], 10) == ""
    assert sparkline([3.0, 3.0], 10) == "▁▁"
    assert sparkline([math.nan, 1.0, math.inf], 10) == "▁"


# -------------------------------------------------------------------------------------------------------------- screens


def test_a_plain_screen_writes_a_line_per_event_and_a_summary_now_and_then() -> None:
    lines: list[str] = []
    now = [0.0]
    screen = PlainScreen(lines.append, clock=lambda: "14:00:00", now=lambda: now[0])
    screen.show(peer_view())
    screen.event(Logged("round 12: L0M1 with 3 of 3 peers"))
    screen.show(peer_view())
    now[0] += SUMMARY_SECONDS
    screen.show(peer_view())
    assert len(lines) == 3
    assert lines[1] == "14:00:00  round 12: L0M1 with 3 of 3 peers"
    assert lines[0] == (
        "14:00:00  path 3: training, loss 4.322, 5,312 tokens/s, 96 % of the time trained, round 12, 7 peers, "
        "sent 41.2 MB, received 57.9 MB"
    )


def test_a_long_line_of_a_plain_screen_stays_one_line() -> None:
    out = io.StringIO()
    with open_screen("plain", Console(file=out, width=20)) as screen:
        screen.event(Logged("round 12: L0M1 with 3 of 3 peers [in 1.4 s]"))
    assert out.getvalue().endswith("  round 12: L0M1 with 3 of 3 peers [in 1.4 s]\n")
    assert out.getvalue().count("\n") == 1


@pytest.mark.parametrize("kind", ["live", "plain"])
def test_our_log_lines_become_events(kind: str) -> None:
    out = io.StringIO()
    log = logging.getLogger("dipaco_swarm.peer.volunteer")
    with open_screen(kind, Console(file=out, width=100, force_terminal=kind == "live")) as screen:  # type: ignore[arg-type]
        screen.show(peer_view())
        log.info("round %d is done", 12)
        log.debug("not for people")
    assert "round 12 is done" in out.getvalue()
    assert "not for people" not in out.getvalue()
    assert not logging.getLogger("dipaco_swarm").handlers


def test_a_live_screen_keeps_the_last_events_below_the_newest_view() -> None:
    out = io.StringIO()
    with open_screen("live", Console(file=out, width=100, height=60, force_terminal=True)) as screen:
        screen.event(Logged("the manifest has arrived"))
        screen.show(bootstrap_view())
        screen.show(small_status())
        for i in range(20):
            screen.event(Logged(f"event {i}."))
        screen.show(replace(peer_view(), events=()))
    last = out.getvalue()[out.getvalue().rindex("╭") :]
    assert "event 19." in last
    assert "event 14." in last
    assert "event 13." not in last


def test_no_screen_says_nothing() -> None:
    out = io.StringIO()
    with open_screen("none", Console(file=out)) as screen:
        screen.show(peer_view())
        screen.event(Logged("something"))
    assert out.getvalue() == ""
