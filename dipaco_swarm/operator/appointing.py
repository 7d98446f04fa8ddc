"""Standbys of a run: whom its operator has let sign for it, and where they can be dialled."""

from pathlib import Path

from dipaco_swarm.events.operator import NotAppointed, StandbyAppointed
from dipaco_swarm.files import remove
from dipaco_swarm.operator.publishing import Publisher
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.run.manifest import Delegate, Manifest
from dipaco_swarm.run.orders import Appoint

MOST = 8
"""Standbys of a run."""


class Appointing:
    """Obeys `dipaco-bootstrap appoint`."""

    def __init__(self, around: Surroundings, publisher: Publisher) -> None:
        self._around = around
        self._publisher = publisher
        self._obeying: list[Path] = []

    def renewed(self, manifest: Manifest) -> Manifest:
        """The manifest with the standbys that were appointed since the last time; the same one when nobody was."""
        for file, order in self._around.home.orders():
            if isinstance(order, Appoint):
                self._obeying.append(file)
                manifest = self._with(manifest, order)
        return manifest

    def published(self) -> None:
        """What `renewed` returned last is on the disk: nothing that was ordered has to be done again."""
        for file in self._obeying:
            remove(file)
        self._obeying.clear()

    def _with(self, manifest: Manifest, order: Appoint) -> Manifest:
        event = self._around.screen.event
        signature = self._publisher.delegation_to(order.key)
        others = tuple(each for each in manifest.delegates if each.key != order.key)
        if signature is None or len(others) == MOST:
            event(NotAppointed(order.key, "this node is a standby itself" if signature is None else "there are eight"))
            return manifest
        appointed = Delegate(key=order.key, signature=signature, places=order.places)
        event(StandbyAppointed(order.key, order.places))
        return manifest.model_copy(update={"revision": manifest.revision + 1, "delegates": (*others, appointed)})


def full_address(address: str, manifest: Manifest) -> str:
    """The run address with the places of all nodes; `address`: with those of one of them."""
    places = [place for each in manifest.delegates for place in each.places if place not in address]
    return ",".join([address, *places])
