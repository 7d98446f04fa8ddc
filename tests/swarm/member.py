"""A member of a module group in a process of its own, for tests that kill it (`processes.py` starts it).

It is told what to do over a connection, and answers there:

    {"do": "round", "version": 3, "among": [...], "patience": 20}
        get to that version, wait until these peers are seen there, answer "set"; at the next word take part in a round,
        and say "begun" and "done"
    {"do": "keep", "version": 3}
        hold a made-up state of that version, announce it as a keeper, say "kept"
    anything else
        say goodbye and end
"""

import logging
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from dipaco_swarm.algorithm.outer import OuterStep, nesterov_step, rescale
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState, vector_bytes
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup, Role
from dipaco_swarm.swarm.libp2p.opening import open_swarm
from dipaco_swarm.swarm.libp2p.settings import NodeSettings
from dipaco_swarm.swarm.networked import NetworkedSwarm

MODULE = ModuleId(0, 0)
PATHS = 4
GROUP = ModuleGroup(0, MODULE, {PathIndex(path): 1 / PATHS for path in range(PATHS)})
STEP = OuterStep(learning_rate=0.7, momentum=0.9)


def gradient_of(path: int, version: int, parameters: int) -> torch.Tensor:
    some = torch.randn(min(parameters, 1 << 20), generator=torch.Generator().manual_seed(1000 * path + version))
    return some.repeat(-(-parameters // len(some)))[:parameters].contiguous()


def checksum(vector: torch.Tensor) -> int:
    return hash(bytes(vector_bytes(vector)[:: len(vector) // 1000 or 1]))


class Member:
    """A module of one vector, and the rounds it goes through."""

    def __init__(self, swarm: NetworkedSwarm, connection: Connection, path: int, parameters: int) -> None:
        self.swarm = swarm
        self._connection = connection
        self.path = PathIndex(path)
        self.state = ModuleState.seed(torch.zeros(parameters))

    def say(self, event: str, **fields: object) -> None:
        self._connection.send({"event": event, **fields})

    def catch_up(self, version: int) -> None:
        """Take the state of this version from whoever holds it."""
        deadline = time.monotonic() + 30
        while self.state.version < version:
            for said in self.swarm.members(0, MODULE):
                if said.version == version:
                    self.state = self.swarm.fetch_state(0, MODULE, said.digest, timeout=30) or self.state
                    break
            else:
                self.look_again(deadline, f"version {version} was not seen")

    def look_again(self, deadline: float, otherwise: str) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.05)
        self.swarm.look_up(0, [MODULE], timeout=10)

    def announce(self) -> None:
        self.swarm.hold(0, MODULE, self.state)
        state = self.state
        said = Announcement(self.swarm.peer, 0, MODULE, self.path, state.version, state.digest, state.work)
        self.swarm.announce([said], [GROUP])

    def keep(self, version: int) -> None:
        params, momentum = (gradient_of(path, version, len(self.state.params)) for path in range(2))
        self.state = ModuleState(version, params, momentum)
        self.swarm.hold(0, MODULE, self.state)
        digest = self.state.digest
        self.swarm.announce([Announcement(self.swarm.peer, 0, MODULE, None, version, digest, role=Role.KEEPS)])
        self.say("kept", digest=self.state.digest)

    def wait_for(self, version: int, among: set[str]) -> None:
        self.swarm._vouching.circle.meet(among)  # a round waits for newcomers a moment only, and this is not about that
        self.catch_up(version)
        self.announce()
        deadline = time.monotonic() + 30
        while among - {said.peer for said in self.swarm.members(0, MODULE) if said.version == version}:
            self.look_again(deadline, f"{among} were not seen")

    def round(self, patience: float) -> None:
        gradient = gradient_of(self.path, self.state.version, len(self.state.params))
        before = checksum(gradient)
        started = time.monotonic()
        self.say("begun", version=self.state.version)
        state = self.state
        part = Contribution(GROUP, self.path, state.version, gradient, 1, state.digest, state.work)
        outcome = self.swarm.all_reduce([part], patience=patience)[MODULE]
        seconds = time.monotonic() - started
        if isinstance(outcome, Agreed):
            mean = torch.cat([rescale(outcome.mean[s.start : s.stop], s.effective_paths) for s in outcome.spans])
            params, momentum = nesterov_step(self.state.params, self.state.momentum, mean, STEP)
            work = self.state.work + sum(outcome.tokens.values())
            self.state = ModuleState(self.state.version + 1, params, momentum, work)
            self.announce()
        self.say(
            "done",
            agreed=isinstance(outcome, Agreed),
            reason=None if isinstance(outcome, Agreed) else outcome.reason,
            contributors=list(outcome.contributors) if isinstance(outcome, Agreed) else [],
            version=self.state.version,
            digest=self.state.digest,
            gradient_untouched=checksum(gradient) == before,
            seconds=seconds,
        )


def run(connection: Connection, home: Path, address: str, path: int, parameters: int) -> None:
    """The whole life of a member; what it logs goes to a file next to its home."""
    log = os.open(f"{home}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("dipaco_swarm").setLevel(logging.DEBUG)
    loopback = NodeSettings(listen="/ip4/127.0.0.1/tcp/0")
    with open_swarm(RunAddress.parse(address), home, loopback) as swarm:
        swarm.configure_rounds("fp32", 4.0)
        member = Member(swarm, connection, path, parameters)
        member.say("ready", peer=swarm.peer)
        while (command := connection.recv())["do"] in ("round", "keep"):
            if command["do"] == "keep":
                member.keep(command["version"])
                continue
            member.wait_for(command["version"], set(command["among"]))
            member.say("set")
            connection.recv()  # everybody goes at once
            member.round(command["patience"])
