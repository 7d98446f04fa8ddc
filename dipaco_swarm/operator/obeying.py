"""All that an operator orders on the command line, done by the node that leads: who takes part, standbys, run files,
going back."""

from dipaco_swarm.operator.admissions import Admissions
from dipaco_swarm.operator.appointing import Appointing, full_address
from dipaco_swarm.operator.extending import Extending
from dipaco_swarm.operator.going_back import GoingBack
from dipaco_swarm.operator.publishing import Publisher
from dipaco_swarm.operator.stages import Stages
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.operator.workshop import States
from dipaco_swarm.run.manifest import Manifest


class Obeying:
    """Each order is published before its file is removed, so that none is lost."""

    def __init__(
        self, around: Surroundings, publisher: Publisher, stages: Stages, going_back: GoingBack, address: str
    ) -> None:
        """`address`: of the run, with the places of this node."""
        self._around = around
        self._publisher = publisher
        self._address = address
        self._admissions = Admissions(around)
        self._appointing = Appointing(around, publisher)
        self._extending = Extending(around, stages)
        self._going_back = going_back

    def take_up(self, manifest: Manifest) -> None:
        """Go on with what was published last. Raises ManifestError when its register is damaged."""
        self._admissions.take_up(manifest)

    def renewed(self, manifest: Manifest, states: States) -> Manifest:
        """The manifest with all that was ordered since the last time, published; the same one when nothing was.

        `states`: the agreed modules. Raises HomeError while the disk is full; then it is done the next time.
        """
        manifest = self._published(manifest, self._admissions.renewed(manifest))
        self._admissions.published()
        appointed = self._published(manifest, self._appointing.renewed(manifest))
        if appointed is not manifest:
            self._around.home.keep_address(full_address(self._address, appointed))
            self._around.swarm.follow_manifest()  # from now on another node may take over
        self._appointing.published()
        extended = self._published(appointed, self._extending.renewed(appointed, states))
        self._extending.published()
        if extended.config.admission != appointed.config.admission:
            self._admissions.open_door(extended)
        gone_back = self._published(extended, self._going_back.renewed(extended))
        self._going_back.published()
        return gone_back

    def _published(self, before: Manifest, after: Manifest) -> Manifest:
        """Everybody hears of it at once."""
        if after is not before:
            self._publisher.publish(after)
        return after
