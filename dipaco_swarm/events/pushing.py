"""The best of a run goes to a hub."""

from dataclasses import dataclass

from dipaco_swarm.events.event import Event


@dataclass(frozen=True)
class Pushed(Event):
    """The model as it is now can be had by anybody."""

    name: str
    stage: int
    version: int

    @property
    def line(self) -> str:
        return f"pushed to {self.name}: stage {self.stage}, version {self.version}"


@dataclass(frozen=True)
class NotPushed(Event):
    """Nothing is lost: the next version that is due is tried again."""

    name: str
    stage: int
    version: int
    why: str

    @property
    def line(self) -> str:
        return f"not pushed to {self.name}: {self.why}"
