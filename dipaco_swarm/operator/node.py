"""One bootstrap node, whatever it is just now: it leads the run, or stands by for the one that does."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.machine.sleep import LookForSleep
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.operator.operator import Operator
from dipaco_swarm.operator.standby import Standby, signer_in
from dipaco_swarm.operator.training_workshop import TrainingWorkshop
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import Signer, keys_in, open_manifest, public_hex
from dipaco_swarm.swarm.interface import Swarm

MANIFEST_SECONDS = 20.0
LOOKS = 5
PAUSE_SECONDS = 2.0
MOST_PLACES = 8
"""Of one node, in run addresses."""


class BootstrapNode:
    """Its key and its home, over all its roles."""

    def __init__(
        self,
        address: RunAddress,
        key: Ed25519PrivateKey,
        home: OperatorHome,
        screen: Screen,
        config: RunConfig | None = None,
    ) -> None:
        """`address`: of the run, with the places of the other nodes. `config`: the operator's run file; None: we are a
        standby, and the manifest says it."""
        self._address = address
        self._key = key
        self._home = home
        self._screen = screen
        self._config = config

    def live(
        self, swarm: Swarm, places: tuple[str, ...], stop: Stopping, missed: LookForSleep, *, until_finished: bool
    ) -> None:
        """Lead, or stand by, until asked to stop; the newest manifest on the disk says which. Raises SwarmError.

        `places`: where this node can be dialled.
        """
        config, taken_over, signer = self._config, None, self._leads_as()
        places = places[:MOST_PLACES]
        others = tuple(place for place in self._address.bootstraps if place not in places)
        address = str(self._address.with_bootstraps((*others, *places)))
        while not stop():
            if signer is not None:
                config = config or self._published().config
                workshop = TrainingWorkshop(config)
                leader = Operator(config, signer, swarm, self._home, self._screen, stop, address, workshop, missed)
                if not leader.run(until_finished=until_finished, taken_over=taken_over):
                    return
                signer = None
            else:
                first = self._newest(swarm, stop)
                if first is None:
                    return
                workshop = TrainingWorkshop(open_manifest(first, self._address.fingerprint).config)
                fingerprint = self._address.fingerprint
                standby = Standby(
                    self._key, fingerprint, first, swarm, self._home, self._screen, stop, address, workshop
                )
                took_over = standby.run(f"{public_hex(self._key)}@{','.join(places)}")
                if took_over is None:
                    return
                taken_over, signer = took_over
                config = taken_over.config

    def _leads_as(self) -> Signer | None:
        """How we sign as the leader; None: we stand by."""
        signed = self._home.signed_manifest()
        if signed is None:
            return None if self._config is None else self._key
        if keys_in(signed)[1] != public_hex(self._key):
            return None
        return signer_in(signed, self._published(), self._key)

    def _published(self) -> Manifest:
        manifest = self._home.manifest(self._address.fingerprint)
        assert manifest is not None, "there is a signed one"
        return manifest

    def _newest(self, swarm: Swarm, stop: Stopping) -> bytes | None:
        """The newest signed manifest that we can find; None when asked to stop.

        Raises UnreachableError when nobody has one, and this node never had.
        """
        kept = self._home.signed_manifest()
        for look in range(LOOKS):
            found = swarm.newest_manifest(timeout=MANIFEST_SECONDS)
            if found is not None:
                return max(
                    (each for each in (found, kept) if each is not None),
                    key=lambda each: open_manifest(each, self._address.fingerprint).revision,
                )
            if kept is not None and look:
                return kept
            if stop.wait(PAUSE_SECONDS):
                return None
        raise UnreachableError(self._address.nobody_knows_it)
