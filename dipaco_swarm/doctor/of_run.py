"""What a run asks of this machine, against what this machine can do: its path, its rounds, its stage.

Where figures come from: the bootstrap node says what is trained and how fast our line is, a guest's look says how far
the others are, and a trial of ten seconds says how fast this machine trains.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco_swarm.dashboard.views import SwarmStatus
from dipaco_swarm.doctor.report import Check
from dipaco_swarm.errors import SwarmError
from dipaco_swarm.events import words
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.training.needs import PathNeeds

if TYPE_CHECKING:
    from dipaco_swarm.swarm.libp2p.outside import RunPath
    from dipaco_swarm.training.trial import Trial

LookAtRun = Callable[[RunAddress], tuple["Trial", SwarmStatus]]
"""A guest's look: what is trained, and how far they are. Raises SwarmError."""

JOINING_BYTES = 8 + 4
"""A parameter of a path, at most: modules with their outer momentum, and the model that makes a router's features."""
LONG_ROUND_SECONDS = 600.0
LONG_JOINING_SECONDS = 3600.0
TRIAL_SECONDS = 10.0
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
"""How this machine's TCP finds out how fast it may send: "cubic" takes every lost packet for a line that is full."""


def path_check(path: "RunPath", available: int | None, free: int, on_gpu: int | None) -> Check:
    """Whether a path of the run fits. Bytes of memory, of disk, and of the GPU's; None: unknown, or there is none."""
    needs = PathNeeds.of(path.parameters)
    memory = needs.memory if on_gpu is None else needs.memory_beside_gpu
    said = f"{words.size(memory)} of memory, {words.size(needs.disk)} of disk"
    if on_gpu is not None:
        said = f"{words.size(needs.gpu)} on the GPU, {said}"
    seen = f"{words.count(path.parameters)} parameters: {said}, and what a batch takes"
    figures = {"path_parameters": path.parameters, "memory_bytes": memory, "disk_bytes": needs.disk}
    places = (("memory", available, memory), ("disk", free, needs.disk), ("memory of the GPU", on_gpu, needs.gpu))
    small = [what for what, there, needed in places if there is not None and there < needed]
    if small:
        advice = f"too little {' and '.join(small)}: make room, or take another machine for this run"
        return Check("path", "bad", seen, advice, figures)
    return Check("path", "ok", seen, figures=figures)


def admission_check(address: RunAddress) -> Check:
    """Of a run of invited peers, as far as the address tells: whether an invitation was used, its node alone knows."""
    if address.invitation is not None:
        return Check("admission", "ok", "invited peers only; this address has an invitation, which looking did not use")
    advice = "unless it has been admitted already: ask the operator for an invitation, or to admit it by its name"
    return Check("admission", "note", "invited peers only, and this address has no invitation", advice)


def round_check(path: "RunPath", bytes_up: float | None, congestion_control: str | None) -> Check:
    """How long this machine's line needs for a round, in which training goes on."""
    sends = f"sends up to {words.size(path.round_bytes)}"
    if bytes_up is None:
        return Check("a round", "note", sends, "how fast this line is could not be told: the node took too long")
    seconds = path.round_bytes / bytes_up
    seen = f"{sends}: {words.how_long(seconds)} at the {bytes_up * 8 / 1e6:.1f} Mbit/s that this line sends now"
    figures = {"bytes_up_per_second": bytes_up, "round_bytes": path.round_bytes, "sending_seconds": seconds}
    if seconds > LONG_ROUND_SECONDS:
        advice = "others may make rounds without this machine, and it brings its part to the next: a faster line helps"
        if congestion_control not in (None, "bbr"):
            advice = (
                "if this line should be faster, packets get lost on the way, and TCP takes that for a full line: "
                "`sudo sysctl net.ipv4.tcp_congestion_control=bbr`, and a start of the peer after it, may make it many "
                f"times as fast. Else {advice}"
            )
        return Check("a round", "note", seen, advice, figures)
    return Check("a round", "ok", seen, figures=figures)


def congestion_control() -> str | None:
    """None where that is not told."""
    try:
        return CONGESTION_CONTROL.read_text().strip()
    except OSError:
        return None


def joining_check(path: "RunPath", bytes_down: float | None) -> Check:
    """How long this machine's line needs for the modules of a path."""
    size = JOINING_BYTES * path.parameters
    fetches = f"fetches up to {words.size(size)}"
    if bytes_down is None:
        return Check("joining", "note", fetches, "how fast this line takes in could not be told: ask again later")
    seconds = size / bytes_down
    seen = f"{fetches}: {words.how_long(seconds)} at the {bytes_down * 8 / 1e6:.1f} Mbit/s that this line takes in now"
    figures = {"bytes_down_per_second": bytes_down, "joining_bytes": size, "joining_seconds": seconds}
    if seconds > LONG_JOINING_SECONDS:
        return Check("joining", "note", seen, "it goes on where it stopped, so it may be done in the night", figures)
    return Check("joining", "ok", seen, figures=figures)


def as_a_guest(address: RunAddress, look: LookAtRun, device: str) -> Iterator[Check]:
    """How fast this machine trains a path of the run, and when the stage ends."""
    try:
        trial, status = look(address)
    except SwarmError as error:
        yield Check("speed", "note", f"not measured: {error}", "ask again when the run can be reached")
        return
    try:
        speed = trial.tokens_per_second(device, TRIAL_SECONDS)
    except SwarmError as error:
        yield Check("speed", "bad", f"this machine cannot train a path: {error}", "take another device, or machine")
        return
    yield speed_check(device, speed, trial.round_tokens)
    yield stage_check(status, trial.round_tokens / speed)


def speed_check(device: str, speed: float, round_tokens: int) -> Check:
    """`speed`: tokens a second. `round_tokens`: what a path is meant to train for a round."""
    seconds = round_tokens / speed
    seen = f"{speed:,.0f} tokens/s on {device}; a path alone makes a round in {words.how_long(seconds)}"
    return Check("speed", "ok", seen, figures={"tokens_per_second": speed, "round_seconds_alone": seconds})


def stage_check(status: SwarmStatus, alone_seconds: float) -> Check:
    """When the stage ends. `alone_seconds`: what a round takes where this machine is the only one."""
    version, last = status.version_min, status.target_version
    if status.finished:
        return Check("stage", "note", "the run has finished", "there is nothing left to train; ask it something")
    at = f"stage {status.stage} is at version {version:,}"
    if last is None:
        return Check("stage", "ok", f"{at}; it ends when the operator says so", figures={"version": version})
    pace, who = status.round_seconds, f"the pace of {words.counted(status.peers, 'peer')}"
    if pace is None:
        pace, who = alone_seconds, "the pace of this machine, as nobody trains now"
    left = max(0, last - version) * pace
    seen = f"{at} of {last:,}: about {words.how_long(left)} left at {who}"
    return Check("stage", "ok", seen, figures={"version": version, "last_version": last, "stage_seconds_left": left})
