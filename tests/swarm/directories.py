"""A directory for tests: its records and its clock are in the test's hands."""

from dipaco_swarm.swarm.directory import Directory
from dipaco_swarm.swarm.local import LocalNetwork, LocalTransport
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.transport import Records
from tests.clocks import HandClock

TIMING = Timing()


def directory_over(records: Records, clock: HandClock) -> Directory:
    """What the peer "us" hears and says."""
    transport = LocalTransport(LocalNetwork(timing=TIMING, clock=clock), "us")
    transport.records = records
    return Directory(transport, "run")
