"""What stories in virtual time have in common."""

import pytest

from dipaco_swarm.swarm.round import reduction
from dipaco_swarm.swarm.round.codecs.codec import BLOCK

SHORT_PIECE = 8 * BLOCK
"""Numbers, of the product's 64 * BLOCK at least: a story of four members takes less than half of the time."""


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small module has as many pieces as a large one."""
    monkeypatch.setattr(reduction, "MIN_PIECE", SHORT_PIECE)
