"""How fast a joiner gets its modules: ours from one and several holders, the raw stream, hivemind's download.

    python -m benchmarks.joining [--quick]

200 MB of modules: four of 6.25 M parameters, each with its momentum. Every peer is a process of its own with its own
daemon, everything over loopback; within a repetition all systems take turns, so that a busy machine is busy for all of
them, and medians are shown. The raw stream is the same number of bytes through two daemons and nothing else, read by
hivemind's own P2P and by our streams; "x raw" compares with the faster of the two. Ours counts everything from
`fetch_state()` of the first module to the return of the last: dialling, asking, receiving, checking. hivemind's is
`load_state_from_peers()` of the same tensors from one donor, without any check. Memory is how much the peak of resident
memory of the joiner during the download lies above what was resident before it, at the most in all runs.
"""

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.reduce import ROOT, hardware, status_kb

HOLDERS = 4
MODULES = 4
STAGE = 0
CHUNK = 1 << 18
RAW = "bench/raw"

# one peer, in its own process -----------------------------------------------------------------------------------------


def vectors_of(module: int, parameters: int) -> Any:
    """Parameters and momentum of a module, the same in every process."""
    import torch

    some = torch.randn(2, min(parameters, 1 << 20), generator=torch.Generator().manual_seed(module))
    return [row.repeat(-(-parameters // len(row)))[:parameters].contiguous() for row in some]


class Ours:
    """A holder or the joiner of our swarm; the raw streams go through the same daemons."""

    def __init__(self, rank: int, place: str, folder: Path, parameters: int, stack: contextlib.ExitStack) -> None:
        from dipaco_swarm.algorithm.paths import ModuleId
        from dipaco_swarm.algorithm.state import ModuleState
        from dipaco_swarm.run.address import RunAddress
        from dipaco_swarm.swarm.libp2p.opening import open_swarm
        from dipaco_swarm.swarm.libp2p.settings import NodeSettings

        address = RunAddress("bench", "a" * 32, (place,) if place else ())
        settings = NodeSettings(listen="/ip4/127.0.0.1/tcp/0")
        self._swarm = stack.enter_context(open_swarm(address, folder / f"ours-{rank}", settings))
        self.place = place or self._swarm.address.bootstraps[0]
        self._modules = [ModuleId(0, i) for i in range(MODULES)]
        self._bytes = 8 * parameters * MODULES
        self._states: dict[ModuleId, ModuleState] = {}
        if rank < HOLDERS:
            for i, module in enumerate(self._modules):
                self._states[module] = ModuleState(1, *vectors_of(i, parameters))
                self._swarm.hold(STAGE, module, self._states[module])
        if rank == 0:
            self._run(self._serve_raw(vectors_of(0, parameters)[0]))

    @property
    def peer(self) -> str:
        return self._swarm.peer

    @property
    def _node(self) -> Any:
        """The swarm's door to libp2p, for streams that are not the protocol's."""
        return self._swarm._transport

    def _run(self, work: Any) -> Any:
        return self._swarm._portal.run(work)

    def processes(self) -> list[int]:
        return [os.getpid()]

    def prepare(self, holders: int, rank: int) -> None:
        """Holders say what they have, or goodbye; the joiner waits until it sees as many as there are to be."""
        from dipaco_swarm.swarm.interface import Announcement, Role

        if self._states:
            said = [
                Announcement(self._swarm.peer, STAGE, module, None, state.version, state.digest, role=Role.KEEPS)
                for module, state in self._states.items()
            ]
            self._swarm.announce(said if rank < holders else [])
            return
        while any(len(self._swarm.members(STAGE, module)) != holders for module in self._modules):
            time.sleep(0.05)
            self._swarm.look_up(STAGE, self._modules, timeout=10)
        time.sleep(1.0)  # until the records have gone round
        self._digests = {module: self._swarm.members(STAGE, module)[0].digest for module in self._modules}

    def fetch(self) -> None:
        got = [self._swarm.fetch_state(STAGE, m, digest, timeout=100) for m, digest in self._digests.items()]
        if any(state is None for state in got):
            raise RuntimeError("nobody sent the state")

    async def _serve_raw(self, vector: Any) -> None:
        from dipaco_swarm.algorithm.state import vector_bytes

        data = vector_bytes(vector)

        async def to_ours(stream: Any) -> None:
            for start in range(0, self._bytes, len(data)):
                await stream.send_raw(data[: self._bytes - start])

        async def to_hivemind(info: Any, reader: Any, writer: asyncio.StreamWriter) -> None:
            for start in range(0, self._bytes, CHUNK):
                writer.write(data[: min(CHUNK, self._bytes - start)])
                await writer.drain()
            writer.close()

        await self._node.serve(RAW, to_ours)
        await self._node.p2p.add_binary_stream_handler(f"{RAW}/hivemind", to_hivemind)

    def raw(self, peer: str, reader: str) -> None:
        self._run({"ours": self._read_raw, "hivemind": self._read_raw_with_hivemind}[reader](peer))

    async def _read_raw(self, peer: str) -> None:
        into = memoryview(bytearray(1 << 22))
        async with self._node.dial(peer, RAW) as stream:
            for start in range(0, self._bytes, len(into)):
                await stream.receive_into(into[: self._bytes - start])

    async def _read_raw_with_hivemind(self, peer: str) -> None:
        from hivemind.p2p import PeerID

        p2p = self._node.p2p
        _, reader, writer = await p2p.call_binary_stream_handler(PeerID.from_base58(peer), f"{RAW}/hivemind")
        left = self._bytes
        while left:
            got = len(await reader.read(CHUNK))
            if not got:
                raise RuntimeError("the raw stream ended early")
            left -= got
        writer.close()


class Hivemind:
    """A donor or the joiner of hivemind's state download."""

    def __init__(self, rank: int, place: str, folder: Path, parameters: int, stack: contextlib.ExitStack) -> None:
        import hivemind
        import torch
        from hivemind.averaging import DecentralizedAverager

        dht = hivemind.DHT(
            initial_peers=[place] if place else [], start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], startup_timeout=60
        )
        stack.callback(dht.shutdown)
        self.place = place or str(dht.get_visible_maddrs()[0])
        self.peer = ""
        donor = rank == 0
        tensors = [v for i in range(MODULES) for v in vectors_of(i, parameters)] if donor else [torch.zeros(1)]
        self._averager: Any = DecentralizedAverager(
            tensors, dht, start=True, prefix="bench", target_group_size=2, allow_state_sharing=donor, min_group_size=2
        )
        stack.callback(self._averager.shutdown)

    def processes(self) -> list[int]:
        return [os.getpid(), self._averager.pid]

    def prepare(self, holders: int, rank: int) -> None:
        pass

    def fetch(self) -> None:
        if self._averager.load_state_from_peers(wait=True, timeout=60) is None:
            raise RuntimeError("nobody sent the state")


def member_main(system: str, rank: int, place: str, folder: Path, parameters: int) -> None:
    import torch

    torch.set_num_threads(1)
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to the log
    with contextlib.ExitStack() as stack:
        member: Any = {"ours": Ours, "hivemind": Hivemind}[system](rank, place, folder, parameters, stack)
        print(json.dumps({"place": member.place, "peer": member.peer}), file=say, flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            answer: dict[str, Any] = {}
            try:
                if command["do"] == "prepare":
                    member.prepare(command["holders"], rank)
                else:
                    ctypes.CDLL(None).malloc_trim(0)  # what an earlier download took is free again, and seen to be
                    before = {process: status_kb(process, "VmRSS") for process in member.processes()}
                    for process in before:
                        Path(f"/proc/{process}/clear_refs").write_text("5")
                    started = time.monotonic()
                    if command["do"] == "raw":
                        member.raw(command["peer"], command["reader"])
                    else:
                        member.fetch()
                    answer["seconds"] = time.monotonic() - started
                    answer["grown"] = 1024 * sum(status_kb(process, "VmHWM") - before[process] for process in before)
            except Exception as error:  # noqa: BLE001  # whatever a library throws is the reason that the table shows
                answer = {"failed": f"{type(error).__name__}: {error}"[:160]}
            print(json.dumps(answer), file=say, flush=True)


# all peers, from outside ----------------------------------------------------------------------------------------------


@dataclass
class Row:
    seconds: list[float] = field(default_factory=list)
    grown: list[float] = field(default_factory=list)
    failed: str = ""

    def note(self, answer: dict[str, Any]) -> None:
        if "failed" in answer:
            self.failed = answer["failed"]
        else:
            self.seconds.append(answer["seconds"])
            self.grown.append(answer["grown"])


class Party:
    """The peers of one system: holders first, the joiner last."""

    def __init__(self, system: str, peers: int, folder: Path, parameters: int) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self.names: list[str] = []
        place = ""
        for rank in (*range(peers - 1), HOLDERS):
            command = [sys.executable, "-m", "benchmarks.joining", "--member", system, str(rank), place, str(folder)]
            process = subprocess.Popen(
                [*command, str(parameters)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(folder / f"{system}-{rank}.log").open("wb"),
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            self.processes.append(process)
            said = self._hear(process)
            place = place or said["place"]
            self.names.append(said["peer"])

    @staticmethod
    def _hear(process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        return json.loads(line) if line else {"failed": "a peer ended", "place": "", "peer": ""}

    def ask(self, process: subprocess.Popen[str], **command: object) -> dict[str, Any]:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        return self._hear(process)

    def prepare(self, holders: int) -> dict[str, Any]:
        return [self.ask(process, do="prepare", holders=holders) for process in self.processes][-1]

    def close(self) -> None:
        import psutil

        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
            process.wait()


@contextlib.contextmanager
def party(system: str, peers: int, folder: Path, parameters: int) -> Iterator[Party]:
    opened = Party(system, peers, folder, parameters)
    try:
        yield opened
    finally:
        opened.close()


def measure(ours: Party, rival: Party, rows: dict[str, Row]) -> None:
    """Every system once."""
    *_, joiner = ours.processes
    for reader in ("hivemind", "ours"):
        answer = ours.ask(joiner, do="raw", peer=ours.names[0], reader=reader)
        rows.setdefault(f"raw stream, read by {reader}", Row()).note(answer)
    for holders in (1, 2, 4):
        ready = ours.prepare(holders)
        answer = ready if "failed" in ready else ours.ask(joiner, do="fetch")
        rows.setdefault(f"ours, {holders} holder{'' if holders == 1 else 's'}", Row()).note(answer)
    rows.setdefault("hivemind, 1 donor", Row()).note(rival.ask(rival.processes[-1], do="fetch"))


def table(rows: dict[str, Row], size: int) -> str:
    def speed(row: Row) -> float:
        return 1e-6 * size / statistics.median(row.seconds) if row.seconds else float("nan")

    raw = max(speed(row) for name, row in rows.items() if name.startswith("raw"))
    lines = ["| download | MB/s | x raw | memory, x state | runs |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        if not row.seconds:
            lines.append(f"| {name} | - | - | - | 0 {row.failed} |")
            continue
        lines.append(
            f"| {name} | {speed(row):.0f} | {speed(row) / raw:.2f} | {max(row.grown) / size:.2f} | "
            f"{len(row.seconds)}{' ' + row.failed if row.failed else ''} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="40 MB, twice")
    parser.add_argument("--member", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.member:
        system, rank, place, folder, parameters = options.member
        member_main(system, int(rank), place, Path(folder), int(parameters))
        return
    began = time.monotonic()
    parameters, repetitions = (1_250_000, 2) if options.quick else (6_250_000, 7)
    rows: dict[str, Row] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        party("ours", HOLDERS + 1, Path(folder), parameters) as ours,
        party("hivemind", 2, Path(folder), parameters) as rival,
    ):
        for _ in range(repetitions):
            measure(ours, rival, rows)
    size = 8 * parameters * MODULES
    command = "python -m benchmarks.joining" + (" --quick" if options.quick else "")
    text = (
        f"# Joining: {platform.machine()}, {hardware()}\n\n`{command}`, {size // 10**6} MB of modules, "
        f"{time.monotonic() - began:.0f} s, load average at the end {os.getloadavg()[0]:.1f}\n\n{table(rows, size)}\n"
    )
    print(text)
    if not options.quick:
        place = ROOT / "benchmarks" / "results" / f"joining-{hardware()}.md"
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
        print(f"written to {place.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
