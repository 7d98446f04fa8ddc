"""What `benchmarks.honest` draws, and what it says of a world."""

from dataclasses import replace

from benchmarks.honest import Seen, drawn, line, table

QUIET = Seen(versions=50, twins=0, late={}, behind={}, broken=())
LOUD = replace(QUIET, twins=2, late={"peer-1": 234.0}, behind={"L0M0": (0, 27)})


def test_a_world_is_drawn_by_its_number_and_every_other_one_comes_and_goes() -> None:
    assert drawn(5) == drawn(5)
    assert [drawn(number).comes_and_goes for number in range(4)] == [False, True, False, True]
    assert all((one.stays is None) == (number % 2 == 0) for number in range(8) for one in drawn(number).arrivals)


def test_what_was_seen_is_said_and_counted() -> None:
    said = line(drawn(1), LOUD)
    assert said.endswith("2 twins of 50 versions; late: peer-1 after 234 s; not kept: L0M0 at 0 of 27")
    rows = table({0: QUIET, 1: LOUD, 2: replace(QUIET, broken=("a program ended",))}).splitlines()
    assert rows[2] == "| stay | 2 | 1 | 100 | 0 | 0 | 0 | 1 |"
    assert rows[3] == "| come and go | 1 | 0 | 50 | 2 | 1 | 1 | 0 |"
