"""Sockets that killed programs left behind go; those at which somebody listens stay."""

import os
import socket
from pathlib import Path

from dipaco_swarm.swarm.libp2p.stale_sockets import sweep


def test_only_dead_sockets_of_ours_are_removed(tmp_path: Path) -> None:
    alive, dead, young, strange = (
        tmp_path / name for name in ("dipaco-a.sock", "dipaco-b.sock.in", "dipaco-c.sock", "other.sock")
    )
    listening = []
    for file in (alive, dead, young, strange):
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(file))
        server.listen(1)
        listening.append(server)
        if file != young:
            os.utime(file, (0, 0))
    (tmp_path / "dipaco-d.sock").write_text("a file that is no socket")
    os.utime(tmp_path / "dipaco-d.sock", (0, 0))
    for server in listening[1:]:
        server.close()
    try:
        assert sweep(tmp_path) == 1
        assert alive.exists()
        assert not dead.exists()
        assert young.exists()
        assert strange.exists()
        assert (tmp_path / "dipaco-d.sock").exists()
        probes = [socket.socket(socket.AF_UNIX) for _ in range(8)]  # one who listens and is busy is not dead
        for probe in probes:
            probe.setblocking(False)
            probe.connect_ex(str(alive))
        assert sweep(tmp_path) == 0
        for probe in probes:
            probe.close()
    finally:
        listening[0].close()
