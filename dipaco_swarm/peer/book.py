"""Where the tokens of a volunteer go, written down so that after any number of kills the sum is right to the token."""

import logging
from collections.abc import Sequence
from pathlib import Path

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.errors import HomeError
from dipaco_swarm.events.training import Committed, Contributing, Loss, Offer, TokensDropped
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.swarm.interface import Agreed
from dipaco_swarm.training import checkpoint as checkpoints

log = logging.getLogger(__name__)


class TokenBook:
    """Reports what was given, committed and dropped, and notes after every step what was trained.

    What is given or committed is written down before anybody else can have it. `benchmarks/chaos` adds it all up.
    """

    def __init__(self, screen: Screen, home: Path) -> None:
        self._screen = screen
        self._home = home

    def trained(self, peer: PathInTraining) -> None:
        """Note how many tokens this peer has trained on its path."""
        try:
            checkpoints.note_trained(checkpoints.file_of(self._home, peer.stage, peer.path), peer.trained)
        except HomeError as error:
            log.debug("%s", error)  # the checkpoint says so to the person

    def contributing(self, peer: PathInTraining, due: Sequence[ModuleId]) -> None:
        """The rounds of these modules are about to begin."""
        offers = {str(m): Offer(peer.progress[m].base.digest, peer.progress[m].tokens) for m in due}
        self._screen.event(Contributing(peer.stage, peer.path, peer.trained, offers))

    def committing(self, peer: PathInTraining, module: ModuleId, agreed: Agreed, state: ModuleState) -> None:
        """A round has made this state of a module, which the peer is about to take."""
        base, tokens = peer.progress[module].base, {str(name): count for name, count in agreed.tokens.items()}
        self._screen.event(
            Committed(peer.stage, str(module), state.version, state.digest, base.digest, state.work, tokens)
        )

    def dropped(
        self, peer: PathInTraining, module: ModuleId, version: int, tokens: int, reason: Loss, *, local: int = 0
    ) -> None:
        """The peer goes on without these tokens, which it trained on `version`; `local`: what it still has."""
        if tokens:
            self._screen.event(
                TokensDropped(peer.stage, peer.path, str(module), version, tokens, reason, local, peer.trained)
            )
