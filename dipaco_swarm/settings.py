"""What this machine chose: folders, ports, devices. Never hashed, never sent; the run's own constants: `manifest`."""

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.reach import Reach

ScreenKind = Literal["live", "plain", "none"]
DeviceKind = Literal["auto", "cpu", "cuda"]
ReachableKind = Literal["auto", "yes", "no"]


@dataclass(frozen=True)
class PeerSettings:
    """How this machine trains."""

    address: RunAddress
    path: int | None
    """The path to train; None: the one that needs help most."""
    home: Path
    """Where checkpoints, identity and token caches are kept."""
    cache: Path | None
    """Where shards and features are kept; peers of one machine may share it. None: inside home."""
    listen: str | None
    """Multiaddr to listen on; None: any free port on all interfaces."""
    device: DeviceKind
    micro_batch: int | None
    """Sequences per forward pass; None: as many as fit."""
    threads: int | None
    """CPU threads of torch; None: torch's own choice."""
    until_finished: bool
    """End when the run has finished, instead of holding its modules until Ctrl+C."""
    rounds: int | None
    """End after this many outer rounds; None: no limit."""
    screen: ScreenKind
    reachable: ReachableKind = "auto"
    """Whether others can dial this machine; auto: the bootstrap nodes are asked."""
    bandwidth: float | None = None
    """Bytes of modules per second that this machine may send; None: as fast as it goes."""
    cpu_share: float = 1.0
    """Of the time of a round that inner steps may take, above 0 and at most 1; for the rest this machine is idle."""
    disk: int = 20 * 10**9
    """Bytes that documents read beside training may take."""
    reach: Reach = field(default_factory=partial(Reach, fenced=True))
    """What of this machine the run may read; nothing if nobody says otherwise."""


@dataclass(frozen=True)
class BootstrapSettings:
    """How this machine keeps the door of a run open."""

    run_file: Path
    home: Path
    """Where the operator's key, the node's identity and the kept modules are."""
    listen: str
    """Multiaddr to listen on."""
    announce: tuple[str, ...]
    """Multiaddrs that others should dial, where they differ from `listen` (behind NAT or in a container)."""
    until_finished: bool
    screen: ScreenKind


@dataclass(frozen=True)
class StandbySettings:
    """How this machine stands by for the node that leads a run."""

    address: RunAddress
    home: Path
    """Where the standby's key, the node's identity and the kept modules are."""
    listen: str
    announce: tuple[str, ...]
    """As for `BootstrapSettings`."""
    screen: ScreenKind


def default_home(run_name: str, role: Literal["peer", "bootstrap", "standby"]) -> Path:
    """Where a program keeps its things when nobody says otherwise; a peer and a bootstrap node may share a machine."""
    data = os.environ.get("XDG_DATA_HOME", "")
    # the XDG specification says to ignore relative values
    base = Path(data) if data and Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "dipaco" / run_name / role
