"""The screen of a simulated program."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dipaco_swarm.events.event import Event

if TYPE_CHECKING:
    from dipaco_swarm.testing.world import World


class Lines:
    """A screen that remembers."""

    def __init__(self, world: "World", name: str, said: Callable[[Event], None] = lambda event: None) -> None:
        """`name`: of the program. `said`: hears every event, also those that are not for people."""
        self._world = world
        self.name = name
        self._said = said

    def show(self, view: object) -> None:
        """Nobody looks."""

    def event(self, event: Event) -> None:
        if event.for_people:
            self._world.note(self.name, str(event))
        self._said(event)
