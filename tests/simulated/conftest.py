"""What stories in virtual time have in common."""

import pytest

from dipaco_swarm.swarm.round import reduction

from .pieces import SHORT_PIECE


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small module has as many pieces as a large one."""
    monkeypatch.setattr(reduction, "MIN_PIECE", SHORT_PIECE)
