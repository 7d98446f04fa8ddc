"""`dipaco-bootstrap serve`: from its settings to an operator on a real swarm, and again when the network is lost."""

from contextlib import suppress

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dipaco_swarm.algorithm.stages import check_tables
from dipaco_swarm.dashboard.screens import open_screen, recorded
from dipaco_swarm.events.operator import NodeDown
from dipaco_swarm.machine.memory import keep_what_is_loaded, share_heaps
from dipaco_swarm.machine.sleep import SleepDetector
from dipaco_swarm.machine.stopping import Stopped, Stopping, stopping_on_signals, until_stopped
from dipaco_swarm.operator.home import OperatorHome, load_operator_key
from dipaco_swarm.operator.operator import Operator
from dipaco_swarm.operator.training_workshop import TrainingWorkshop
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.file import read_run_file
from dipaco_swarm.run.signature import fingerprint_of
from dipaco_swarm.settings import BootstrapSettings
from dipaco_swarm.training.pretrained import resolved


def serve(settings: BootstrapSettings) -> None:
    """Publish the run of a run file and keep it going until Ctrl+C. Raises SwarmError."""
    from dipaco_swarm.swarm.libp2p.opening import open_swarm
    from dipaco_swarm.swarm.libp2p.settings import NodeSettings

    config = read_run_file(settings.run_file)
    check_tables(config)
    keep_what_is_loaded()
    share_heaps()
    key, home = load_operator_key(settings.home), OperatorHome(settings.home)
    config = with_its_model(config, home, key)
    workshop = TrainingWorkshop(config)
    node = NodeSettings(settings.listen, settings.announce)
    empty = RunAddress(config.name, fingerprint_of(key.public_key()), ())
    with stopping_on_signals() as stop, open_screen(settings.screen) as shown:
        screen = recorded(shown, settings.home)

        def keep_it_going(stop: Stopping) -> bool:
            """Open the node and serve; whether the swarm was lost."""
            nonlocal node
            with open_swarm(empty, settings.home, node, stop) as swarm:
                stop.tell(swarm.interrupt)
                node = node.settled(swarm.address.bootstraps)
                address = str(swarm.address)
                with SleepDetector(swarm.clock) as detector, suppress(Stopped):
                    operator = Operator(config, key, swarm, home, screen, stop, address, workshop, detector.missed)
                    operator.run(until_finished=settings.until_finished)
                return swarm.lost

        until_stopped(keep_it_going, stop, screen.event)
        screen.event(NodeDown())


def with_its_model(config: RunConfig, home: OperatorHome, key: Ed25519PrivateKey) -> RunConfig:
    """The run file with what a checkpoint says of its model: as it was published, else read now. Raises SwarmError."""
    published = home.manifest(fingerprint_of(key.public_key()))
    return resolved(config, None if published is None else published.config)
