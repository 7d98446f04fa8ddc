"""What all tests share: hubs of local swarms, and how hypothesis searches.

Hypothesis takes the same inputs in every run: a suite that is green stays green until somebody changes the code. To
look for new ones: `pytest --hypothesis-profile=search`.
"""

import contextlib
import gc
import logging
import os
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from dipaco_swarm.machine.memory import keep_what_is_loaded
from dipaco_swarm.swarm import border, tasks
from tests.hub import Hub
from tests.patience import PATIENCE

# a busy machine is slow to draw inputs, and that says nothing about them
settings.register_profile(
    "suite", derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, max_examples=5000)
settings.load_profile("suite")


def pytest_configure() -> None:
    """The workers share the cores, and threads that wait for each other burn them."""
    torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of real daemons first: then the workers end at about the same time. Long ones only where `-m` says so."""
    items.sort(key=lambda item: item.get_closest_marker("swarm") is None)
    for item in items:
        bound = item.get_closest_marker("timeout")
        seconds = float(config.getini("timeout") if bound is None else bound.args[0])
        item.add_marker(pytest.mark.timeout(seconds * PATIENCE), append=False)
    if "long" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A test that passed only the second time is a mistake too, of the test or of the product: here is what it said."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"passed only later, or never: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


def pytest_collection_finish() -> None:
    """As the programs do: nobody looks again which of a million objects of the libraries are used."""
    keep_what_is_loaded()
    gc.set_threshold(10_000, 20, 20)  # simulated swarms make much that is new, and little garbage


@pytest.fixture(scope="session", autouse=True)
def _no_power_cuts() -> Iterator[None]:
    """No test cuts the power, and to wait for the disk would take a tenth of the suite. Programs of tests wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def mistakes() -> Iterator[list[str]]:
    """Mistakes of ours, at the border or in the background: none. A test that makes one on purpose clears it."""
    caught: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: caught.append(record.getMessage())  # type: ignore[method-assign]
    for log in (border.log, tasks.log):
        log.addHandler(handler)
    yield caught
    for log in (border.log, tasks.log):
        log.removeHandler(handler)
    assert not caught


@pytest.fixture
def make_hub() -> Iterator[Callable[[], Hub]]:
    """Hubs that know nothing of each other."""
    with contextlib.ExitStack() as hubs:
        yield lambda: hubs.enter_context(Hub())


@pytest.fixture
def hub(make_hub: Callable[[], Hub]) -> Hub:
    return make_hub()
