"""A member of a module group in a process of its own, for tests that kill it: python -m tests.swarm.member HOME ADDRESS

Commands come as JSON lines on standard input, answers go as JSON lines to standard output:

    {"do": "round", "among": 4, "patience": 20}   wait until so many members are seen, then take part in one round
    {"do": "leave"}                               say goodbye and end
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from dipaco_swarm.algorithm.outer import OuterStep, nesterov_step, rescale
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState, vector_bytes
from dipaco_swarm.manifest import RunAddress
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup
from dipaco_swarm.swarm.libp2p import LibP2PSwarm, open_swarm
from dipaco_swarm.swarm.node import NodeSettings

MODULE = ModuleId(0, 0)
PATHS = 4
GROUP = ModuleGroup(0, MODULE, {PathIndex(path): 1 / PATHS for path in range(PATHS)})
STEP = OuterStep(learning_rate=0.7, momentum=0.9)


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, "at": time.time(), **fields}), flush=True)  # noqa: T201


def gradient_of(path: int, version: int, parameters: int) -> torch.Tensor:
    some = torch.randn(min(parameters, 1 << 20), generator=torch.Generator().manual_seed(1000 * path + version))
    return some.repeat(-(-parameters // len(some)))[:parameters].contiguous()


def checksum(vector: torch.Tensor) -> int:
    return hash(bytes(vector_bytes(vector)[:: len(vector) // 1000 or 1]))


class Member:
    """A module of one vector, and the rounds it goes through."""

    def __init__(self, swarm: LibP2PSwarm, path: int, parameters: int) -> None:
        self.swarm = swarm
        self.path = PathIndex(path)
        self.state = self._current(parameters)
        self.announce()

    def _current(self, parameters: int) -> ModuleState:
        """The newest state that anybody holds, or the seed."""
        self.swarm.look_up(0, [MODULE], timeout=10)
        for said in sorted(self.swarm.members(0, MODULE), key=lambda said: -said.version):
            state = self.swarm.fetch_state(0, MODULE, said.digest, timeout=30)
            if state is not None:
                return state
        return ModuleState.seed(torch.zeros(parameters))

    def announce(self) -> None:
        self.swarm.hold(0, MODULE, self.state)
        said = Announcement(self.swarm.peer, 0, MODULE, self.path, self.state.version, self.state.digest)
        self.swarm.announce([said], [GROUP])

    def wait_for(self, among: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.swarm.members(0, MODULE)) < among:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{among} members were not seen")
            time.sleep(0.05)
            self.swarm.look_up(0, [MODULE], timeout=10)

    def round(self, patience: float) -> None:
        gradient = gradient_of(self.path, self.state.version, len(self.state.params))
        before = checksum(gradient)
        started = time.monotonic()
        say("begun", version=self.state.version)
        part = Contribution(GROUP, self.path, self.state.version, gradient, tokens=1)
        outcome = self.swarm.reduce([part], patience=patience)[MODULE]
        seconds = time.monotonic() - started
        if isinstance(outcome, Agreed):
            mean = torch.cat([rescale(outcome.mean[s.start : s.stop], s.effective_paths) for s in outcome.spans])
            params, momentum = nesterov_step(self.state.params, self.state.momentum, mean, STEP)
            self.state = ModuleState(self.state.version + 1, params, momentum)
            self.announce()
        say(
            "done",
            agreed=isinstance(outcome, Agreed),
            reason=None if isinstance(outcome, Agreed) else outcome.reason,
            contributors=list(outcome.contributors) if isinstance(outcome, Agreed) else [],
            version=self.state.version,
            digest=self.state.digest,
            gradient_untouched=checksum(gradient) == before,
            seconds=seconds,
        )


def main() -> None:
    home, address, path, parameters = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    loopback = NodeSettings(listen="/ip4/127.0.0.1/tcp/0")
    with open_swarm(RunAddress.parse(address), home, loopback) as swarm:
        swarm.take_part("fp32", 4.0)
        member = Member(swarm, path, parameters)
        say("ready", peer=swarm.peer, version=member.state.version)
        for line in sys.stdin:
            command: dict[str, Any] = json.loads(line)
            if command["do"] == "leave":
                break
            member.wait_for(command["among"])
            say("set")
            if sys.stdin.readline():  # everybody goes at once
                member.round(command["patience"])


if __name__ == "__main__":
    main()
