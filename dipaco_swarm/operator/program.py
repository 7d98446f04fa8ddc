"""`dipaco-bootstrap serve` and `standby`: from settings to a bootstrap node, and again when the network is lost."""

from contextlib import suppress

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dipaco_swarm.algorithm.stages import check_tables
from dipaco_swarm.dashboard.screens import open_screen, recorded
from dipaco_swarm.events.operator import NodeDown
from dipaco_swarm.files import alone_in
from dipaco_swarm.machine.memory import keep_what_is_loaded, share_heaps
from dipaco_swarm.machine.sleep import SleepDetector
from dipaco_swarm.machine.stopping import Stopped, Stopping, stopping_on_signals, until_stopped
from dipaco_swarm.operator.home import OperatorHome, load_operator_key, load_standby_key
from dipaco_swarm.operator.node import BootstrapNode
from dipaco_swarm.operator.pushing import PushingScreen
from dipaco_swarm.page.opening import open_page
from dipaco_swarm.page.tracking import tracked
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.file import read_run_file
from dipaco_swarm.run.signature import fingerprint_of
from dipaco_swarm.settings import BootstrapSettings, StandbySettings
from dipaco_swarm.training.pinning import pinned
from dipaco_swarm.training.pretrained import resolved


def serve(settings: BootstrapSettings) -> None:
    """Publish the run of a run file and keep it going until Ctrl+C. Raises SwarmError."""
    config = read_run_file(settings.run_file)
    check_tables(config)
    key, home = load_operator_key(settings.home), OperatorHome(settings.home)
    config = with_its_model(config, home, key)
    fingerprint = fingerprint_of(key.public_key())
    published = home.manifest(fingerprint)
    standbys = published.delegates if published is not None else ()
    others = tuple(place for each in standbys for place in each.places)
    _run(settings, RunAddress(config.name, fingerprint, others), key, config)


def stand_by(settings: StandbySettings) -> None:
    """Be a second bootstrap node of a run until Ctrl+C. Raises SwarmError."""
    _run(settings, settings.address, load_standby_key(settings.home), None)


def _run(
    settings: BootstrapSettings | StandbySettings,
    address: RunAddress,
    key: Ed25519PrivateKey,
    config: RunConfig | None,
) -> None:
    """`address`: of the run, with the places of the other nodes."""
    from dipaco_swarm.swarm.libp2p.opening import open_swarm
    from dipaco_swarm.swarm.libp2p.settings import NodeSettings

    keep_what_is_loaded()
    share_heaps()
    network = NodeSettings(settings.listen, settings.announce)
    until_finished = isinstance(settings, BootstrapSettings) and settings.until_finished
    tracking = settings.tracking if isinstance(settings, BootstrapSettings) else None
    with (
        alone_in(settings.home),
        stopping_on_signals() as stop,
        open_screen(settings.screen) as shown,
        tracked(tracking, address.name) as on_sample,
        open_page(address, recorded(shown, settings.home), settings.home, settings.web) as (screen, watch),
    ):
        if isinstance(settings, BootstrapSettings) and settings.push is not None:
            screen = PushingScreen(screen, settings.home, settings.push)
        watch.on_sample = on_sample
        node = BootstrapNode(address, key, OperatorHome(settings.home), screen, config)

        def keep_it_going(stop: Stopping) -> bool:
            """Open the node and serve; whether the swarm was lost."""
            nonlocal network
            with open_swarm(address, settings.home, network, stop, leads_in=True) as swarm:
                stop.tell(swarm.interrupt)
                network = network.settled(swarm.address.bootstraps)
                with SleepDetector(swarm.clock) as detector, watch.on(swarm), suppress(Stopped):
                    places = swarm.address.bootstraps
                    node.live(swarm, places, stop, detector.missed, until_finished=until_finished)
                return swarm.lost

        until_stopped(keep_it_going, stop, screen.event)
        screen.event(NodeDown())


def with_its_model(config: RunConfig, home: OperatorHome, key: Ed25519PrivateKey) -> RunConfig:
    """The run file with what the world says of its model and data: as it was published, else asked now.

    Raises SwarmError.
    """
    published = home.manifest(fingerprint_of(key.public_key()))
    known = None if published is None else published.config
    return pinned(resolved(config, known), known)
