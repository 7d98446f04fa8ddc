"""Who trained a module not long ago."""

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.lately import Lately

ADA, BOB = PeerName("ada"), PeerName("bob")
BEFORE, HERE, BESIDE, AFTER = (0, ModuleId(0, 0)), (1, ModuleId(0, 0)), (1, ModuleId(1, 0)), (2, ModuleId(0, 0))


def test_who_says_goodbye_in_a_stage_is_in_none_before_it() -> None:
    """Nobody reads there any more that it has left, and it would count as somebody who may be back for ten minutes."""
    lately = Lately(600.0)
    for key in (BEFORE, HERE, BESIDE, AFTER):
        for peer in (ADA, BOB):
            lately.heard(key, peer, 0.0, 10)
    lately.left(HERE, ADA)
    assert [lately.of(key, 1.0) for key in (BEFORE, HERE, BESIDE, AFTER)] == [[BOB], [BOB], [ADA, BOB], [ADA, BOB]]
    for key in (BESIDE, AFTER):
        lately.left(key, ADA)
    assert lately.of_all(599.0) == {BOB}
    assert not lately.of_all(600.0)
