"""The page beside a program: its history, the thread that looks, and where it is wanted the server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.page.board import Board
from dipaco_swarm.page.history import History
from dipaco_swarm.page.serving import serving
from dipaco_swarm.page.watch import PageScreen, Watch
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.settings import Web
from dipaco_swarm.swarm.interface import Swarm

HISTORY_FILE = "history.sqlite"


@contextmanager
def open_page(
    address: RunAddress,
    screen: Screen,
    home: Path | None,
    web: Web | None,
    look_up: Callable[[Swarm, Manifest], None] | None = None,
) -> Iterator[tuple[Screen, Watch]]:
    """A screen that tells the page as well, and who looks at the swarm, until the block ends.

    `home`: where the history is kept; None: nowhere, as for a guest. `web`: where a browser finds it; None: nowhere.
    `look_up`: how a guest finds out who is there. Raises UsageError when `web` cannot be used.
    """
    roots = tuple(place.rpartition("/")[2] for place in address.bootstraps)
    with ExitStack() as opened:
        history = opened.enter_context(closing(History(None if home is None else home / HISTORY_FILE)))
        watch = Watch(history, Board(), address.fingerprint, roots, look_up)
        opened.enter_context(watch.at_work())
        if web is not None:
            screen.event(opened.enter_context(serving(watch, web)))
        yield PageScreen(screen, watch), watch
