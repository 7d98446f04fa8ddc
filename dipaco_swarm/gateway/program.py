"""`dipaco-swarm serve`: opens a run, and a door to it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.client.sources import Source, open_run, visit
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.client.visits import Tell
from dipaco_swarm.gateway.app import build_app
from dipaco_swarm.gateway.asked import Writer
from dipaco_swarm.gateway.gateway import Gateway
from dipaco_swarm.gateway.live import LiveGateway, gateway_of
from dipaco_swarm.gateway.own_paths import OwnPaths
from dipaco_swarm.page.impatient import ImpatientProtocol
from dipaco_swarm.page.serving import bound
from dipaco_swarm.settings import Web
from dipaco_swarm.training.chat import template_from

MOST_CONNECTIONS = 512
"""Open ones, of all clients; others are told to come again."""
LAST_SECONDS = 8
"""For answers that are being written when the program ends: a peer may be silent for five before that is noticed."""


@dataclass(frozen=True)
class Opening:
    """How the door is opened."""

    web: Web
    api_key: str | None = None
    """What clients have to show; None: nothing."""
    chat_template: Path | None = None
    best: bool = False
    """Of each path the snapshot with the lowest loss on its shard."""


def serve(source: Source, opening: Opening, tell: Tell) -> None:
    """Answer until asked to stop. Raises SwarmError when the run or the port cannot be had."""
    template, web = None if opening.chat_template is None else template_from(opening.chat_template), opening.web
    if web.is_public and opening.api_key is None:
        tell(f"anybody who reaches {web.host} can ask this gateway; --api-key keeps others out")
    with bound(web) as door, opened(source, opening, tell) as gateway:
        peers = asks_peers(source, opening)
        app = build_app(
            gateway,
            template=template,
            api_key=opening.api_key,
            hosts=web.names,
            asks_peers=peers,
            over=lambda: server.should_exit,
        )
        now, where = gateway(), Web(web.host, door.getsockname()[1])
        paths = "1 path" if now.num_paths == 1 else f"{now.num_paths} paths"
        tell(f"{now.name}, {paths}: http://{where}/ in a browser; Ctrl+C ends it")
        tell(f"http://{where}/v1 speaks as OpenAI's")
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=ImpatientProtocol,
                ws="none",
                log_level="warning",
                access_log=False,
                lifespan="off",
                server_header=False,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_graceful_shutdown=LAST_SECONDS,
            )
        )
        with _ended_by_sigterm():
            server.run(sockets=[door])


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends what is in the block as Ctrl+C does, so that what was opened is closed.

    The server catches both itself, ends, and raises them again.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def asks_peers(source: Source, opening: Opening) -> bool:
    """Whether peers write; otherwise this machine does."""
    return not isinstance(source, Path) and not opening.best


@contextmanager
def opened(source: Source, opening: Opening, tell: Tell) -> Iterator[Callable[[], Gateway]]:
    """What gives the gateway for the next request: one of a folder stays as it is, one of a live run follows it."""
    if isinstance(source, Path) or not asks_peers(source, opening):
        with open_run(source, best=opening.best) as run:
            gateway = on_this_machine(run)
            yield lambda: gateway
        return
    with visit(source) as (swarm, manifest):
        tell("peers of the run write; whoever is asked sees the prompt")
        swarm.follow_manifest()
        live = LiveGateway(swarm, manifest, source.fingerprint, tell)
        try:
            yield live
        finally:
            live.close()


def on_this_machine(run: TrainedRun) -> Gateway:
    """What answers for a run without asking anybody."""
    own = OwnPaths(run)

    def writers(path: PathIndex) -> Iterator[Writer]:
        yield own

    return gateway_of(run, writers)
