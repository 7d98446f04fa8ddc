"""What this machine chose: folders, ports, devices. Never hashed, never sent; the run's own constants: `manifest`."""

import ipaddress
import os
import re
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from dipaco_swarm.errors import UsageError
from dipaco_swarm.machine.manners import Hours
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.reach import Reach

ScreenKind = Literal["live", "plain", "none"]
NEEDED_FOR_THE_PAGE = ("starlette", "uvicorn", "prometheus_client")
Yields = Literal["cpu", "gpu", "battery", "metered"]
ReachableKind = Literal["auto", "yes", "no"]


@dataclass(frozen=True)
class Web:
    """Where a page is served."""

    host: str
    port: int
    """0: any that is free."""
    by_two_options: bool = False
    """Whether it was asked for as `--host` and `--port`, and not as `--web`."""

    @classmethod
    def parse(cls, text: str) -> "Web":
        """`127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`. Raises UsageError."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
            raise UsageError(
                f"--web {text[:80]!r} is not HOST:PORT with a port up to 65535; for this machine alone give "
                "127.0.0.1:8080"
            )
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def asked(self) -> str:
        """The options that asked for it."""
        return f"--host {self.host} --port {self.port}" if self.by_two_options else f"--web {self}"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def names(self) -> tuple[str, ...]:
        """How a browser may call it; `*`: anyhow. Of a door that is open to this machine alone a page elsewhere could
        otherwise say that it is that page's own, by a name of its own that leads here."""
        return ("*",) if self.is_public else ("localhost", "127.0.0.1", "[::1]", self.host)

    @property
    def is_public(self) -> bool:
        """Whether other machines can open it."""
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host != "localhost"


def check_web() -> None:
    """Raises UsageError when what the page needs is not installed."""
    missing = [name for name in NEEDED_FOR_THE_PAGE if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the page needs {', '.join(missing)}, not installed here; in the checkout: "
            "pip install -c constraints.txt '.[web]'"
        )


@dataclass(frozen=True)
class Own:
    """A volunteer's own documents, which its peer alone trains on."""

    folder: Path
    share: float
    """Of the sequences of its path, above 0 and at most a half."""
    home: Path
    """Of the peer: what is made of them is kept there, and nowhere that peers of a machine share."""


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
    device: str
    """What to train on, as torch calls it, or auto."""
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
    nickname: str = ""
    """For people, beside the name that nobody can choose."""
    disk: int = 20 * 10**9
    """Bytes that documents read beside training may take."""
    answers: int = 0
    """Questions of strangers that are answered at once, beside training; 0: none."""
    reach: Reach = field(default_factory=partial(Reach, fenced=True))
    """What of this machine the run may read; nothing if nobody says otherwise."""
    own: Own | None = None
    """None: it trains on the run's documents alone."""
    hours: Hours | None = None
    """When it trains, by the local time; None: always."""
    yields: frozenset[Yields] = frozenset()
    """For what it pauses while others want it."""
    low_priority: bool = False
    """Whether others of this machine get processor and disk first."""
    gpu_power: int | None = None
    """Watts that each GPU may take meanwhile; None: as many as it does."""
    helpers: tuple[str, ...] = ()
    """Devices of this machine beside the first one, of its kind, that train the same path."""
    autocast: bool | None = None
    """Whether activations are bf16; None: where that is faster here."""
    eight_bit: bool | None = None
    """Whether moments have eight bits; None: on a GPU."""
    recompute: bool = False
    """Whether activations are computed again in the backward pass; else where a GPU's memory is short."""
    compiled: bool = False
    """Whether torch.compile makes the passes."""


@dataclass(frozen=True)
class Push:
    """Where the run's model goes now and then."""

    name: str
    """OWNER/NAME of a model on the Hugging Face hub."""
    every: int
    """Versions between two."""

    @classmethod
    def parse(cls, name: str, every: int) -> "Push":
        """Raises UsageError."""
        if re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII) is None:
            raise UsageError(f"--push-best {name[:80]!r} is not OWNER/NAME of a model on the hub, as in me/our-model")
        return cls(name, every)


@dataclass(frozen=True)
class Tracking:
    """An experiment tracker that is told how the run goes."""

    project: str

    @classmethod
    def parse(cls, text: str) -> "Tracking":
        """`trackio:PROJECT`. Raises UsageError, also where it is not installed."""
        found = re.fullmatch(r"trackio:([A-Za-z0-9][A-Za-z0-9._-]{0,79})", text)
        if found is None:
            raise UsageError(
                f"--log {text[:80]!r} is not known; give trackio:PROJECT, with letters, digits, dots and dashes"
            )
        if find_spec("trackio") is None:
            raise UsageError(
                f"--log {text} needs trackio, not installed here; in the checkout: pip install '.[trackio]'"
            )
        return cls(found[1])


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
    web: Web | None = None
    """Where browsers find the run's page; None: nowhere."""
    push: Push | None = None
    """Where the model goes now and then; None: nowhere."""
    tracking: Tracking | None = None
    """Where its curves go as well; None: nowhere."""


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
    web: Web | None = None


def default_home(run_name: str, role: Literal["peer", "bootstrap", "standby"]) -> Path:
    """Where a program keeps its things when nobody says otherwise; a peer and a bootstrap node may share a machine."""
    data = os.environ.get("XDG_DATA_HOME", "")
    # the XDG specification says to ignore relative values
    base = Path(data) if data and Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "dipaco" / run_name / role
