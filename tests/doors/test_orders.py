"""Orders that are left for the node that serves a run."""

import time
from pathlib import Path

import pytest

from dipaco_swarm.run.orders import Ban, Forgive, leave, left


def test_orders_are_obeyed_as_they_were_given_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    leave(tmp_path / "orders", Forgive(name="somebody"))
    monkeypatch.setattr(time, "time_ns", lambda: now - 3600 * 10**9)
    leave(tmp_path / "orders", Ban(name="somebody"))
    assert [order.order for _, order in left(tmp_path / "orders")] == ["forgive", "ban"]
