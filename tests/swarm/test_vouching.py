"""What is believed of claims takes no longer the more of them there are, or hardly."""

from collections.abc import Sequence

import pytest

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm.directory import Directory
from dipaco_swarm.swarm.interface import Announcement
from tests.hub import Hub, hear

from .test_contract import MODULE, announcement, group

OURS = Claim(0, "0" * 64)


def test_who_announces_what_is_gathered_once_for_all_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub() as hub:
        one, other = hub.swarm("one"), hub.swarm("other")
        one._vouching.circle.meet(["other"])
        other.announce([announcement(other, 0, version=7)], [group(1.0)])
        hear([one], 0, [MODULE])
        (said,) = (said for said in other.members(0, MODULE) if said.peer == "other")
        heard, gathered = Directory.heard_ourselves, []

        def count(self: Directory, stage: int, module: ModuleId) -> Sequence[Announcement]:
            if self is one._directory:
                gathered.append(module)
            return heard(self, stage, module)

        hear([one, other], 0, [MODULE])
        one._vouching._portal.soon = lambda *_: None  # type: ignore[method-assign]  # nobody is asked about the others
        monkeypatch.setattr(Directory, "heard_ourselves", count)
        claims = [Claim(8, f"{i:064x}", 9) for i in range(200)]
        found = one._vouching.believed(0, MODULE, OURS, [*claims, Claim.of(said)])
        assert found == [Claim.of(said)]
        assert len(gathered) <= 2  # its own loop reads as well
