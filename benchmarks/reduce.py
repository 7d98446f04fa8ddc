"""How fast a module group averages: ours against hivemind's DecentralizedAverager and gloo, on this machine.

    python -m benchmarks.reduce [--quick]

Every member is a process of its own, everything over loopback. Within one setting (peers, parameters) all systems take
turns, repetition by repetition, so that a busy machine is busy for all of them; medians are shown. Bandwidth is bytes
of the fp32 vector over the time of the slowest member. Ours counts everything from `reduce()` to its return: gathering,
averaging, agreeing; hivemind's counts its all-reduce alone, without its search for a group; gloo has no faults to think
of. "x hivemind" compares with the same width of numbers (bf16 with its fp16, int8 with its blockwise 8 bit) or its
fp32, whichever is faster. Memory is how much the peak of resident memory during the round lies above what was resident
before it.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).parents[1]
SYSTEMS = {"ours": ("fp32", "bf16", "int8"), "hivemind": ("fp32", "fp16", "blockwise8"), "gloo": ("fp32",)}
RIVAL = {"fp32": "fp32", "bf16": "fp16", "int8": "blockwise8"}


# one member, in its own process ---------------------------------------------------------------------------------------


class Member(Protocol):
    def prepare(self, codec: str, parameters: int) -> None: ...
    def processes(self) -> list[int]: ...
    def go(self) -> float:
        """Average once; returns the bytes sent per parameter, or nan."""
        ...

    def finish(self) -> None: ...


class Ours:
    def __init__(self, rank: int, peers: int, place: str, folder: Path, stack: contextlib.ExitStack) -> None:
        from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
        from dipaco_swarm.run.address import RunAddress
        from dipaco_swarm.swarm.interface import ModuleGroup
        from dipaco_swarm.swarm.libp2p.opening import open_swarm
        from dipaco_swarm.swarm.libp2p.settings import NodeSettings

        address = RunAddress("bench", "a" * 32, (place,) if place else ())
        settings = NodeSettings(listen="/ip4/127.0.0.1/tcp/0")
        self._swarm = stack.enter_context(open_swarm(address, folder / f"ours-{peers}-{rank}", settings))
        self.place = place or self._swarm.address.bootstraps[0]
        self._peers, self._rank, self._version = peers, rank, -1
        self._codec = ""
        self._module = ModuleId(0, 0)
        self._group = ModuleGroup(0, self._module, {PathIndex(path): 1 / peers for path in range(peers)})

    def prepare(self, codec: str, parameters: int) -> None:
        from dipaco_swarm.algorithm.paths import PathIndex
        from dipaco_swarm.swarm.interface import Announcement, Contribution

        self._version += 1
        if self._codec != codec:
            self._codec = codec
            self._swarm.configure_rounds(codec, 4.0)
        path = PathIndex(self._rank)
        said = Announcement(self._swarm.peer, 0, self._module, path, self._version, "0" * 64)
        self._swarm.announce([said], [self._group])
        self._part = Contribution(self._group, path, self._version, vector_of(parameters), 1, "0" * 64)
        while sum(m.version == self._version for m in self._swarm.members(0, self._module)) < self._peers:
            time.sleep(0.05)
            self._swarm.look_up(0, [self._module], timeout=10)

    def processes(self) -> list[int]:
        return [os.getpid()]

    def go(self) -> float:
        outcome = self._swarm.all_reduce([self._part], patience=30.0)[self._module]
        sent = getattr(outcome, "bytes_sent", None)
        if sent is None or len(outcome.contributors) < self._peers:  # type: ignore[union-attr]
            raise RuntimeError(str(outcome)[:200])
        return float(sent) / len(self._part.gradient)

    def finish(self) -> None:
        del self._part


class Hivemind:
    def __init__(self, rank: int, peers: int, place: str, folder: Path, stack: contextlib.ExitStack) -> None:
        import hivemind

        self._dht = hivemind.DHT(
            initial_peers=[place] if place else [], start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], startup_timeout=60
        )
        stack.callback(self._dht.shutdown)
        self.place = place or str(self._dht.get_visible_maddrs()[0])
        self._peers, self._rounds = peers, 0
        self._averager: Any = None

    def prepare(self, codec: str, parameters: int) -> None:
        import hivemind
        from hivemind.averaging import DecentralizedAverager
        from hivemind.averaging.control import AveragingStage

        compression = {
            "fp32": hivemind.compression.NoCompression,
            "fp16": hivemind.compression.Float16Compression,
            "blockwise8": hivemind.compression.BlockwiseQuantization,
        }[codec]()
        self._rounds += 1
        self._averager = DecentralizedAverager(
            [vector_of(parameters)],
            self._dht,
            start=True,
            prefix=f"bench{self._peers}round{self._rounds}",
            target_group_size=self._peers,
            min_group_size=self._peers,
            min_matchmaking_time=4.0,
            request_timeout=3.0,
            compression=compression,
            allow_state_sharing=False,
        )
        self._step = self._averager.step(wait=False, require_trigger=True, timeout=100, allow_retries=True)
        deadline = time.monotonic() + 40
        while self._step.stage is not AveragingStage.AWAITING_TRIGGER:
            if time.monotonic() > deadline or self._step.done():
                raise RuntimeError("found no group in 40 s")
            time.sleep(0.02)

    def processes(self) -> list[int]:
        return [os.getpid(), self._averager.pid]

    def go(self) -> float:
        self._step.allow_allreduce()
        self._step.result(timeout=60)
        return float("nan")

    def finish(self) -> None:
        if self._averager is not None:
            self._averager.shutdown()
        self._averager = None


class Gloo:
    def __init__(self, rank: int, peers: int, place: str, folder: Path, stack: contextlib.ExitStack) -> None:
        import torch.distributed

        self.place = place
        if not place:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.place = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        self._peers, self._rank, self._ready = peers, rank, False
        self._distributed: Any = torch.distributed

    def prepare(self, codec: str, parameters: int) -> None:
        if not self._ready:
            self._distributed.init_process_group(
                "gloo", init_method=self.place, rank=self._rank, world_size=self._peers
            )
            self._ready = True
        self._vector = vector_of(parameters)
        self._distributed.barrier()

    def processes(self) -> list[int]:
        return [os.getpid()]

    def go(self) -> float:
        self._distributed.all_reduce(self._vector)
        return float("nan")

    def finish(self) -> None:
        del self._vector


def vector_of(parameters: int) -> Any:
    import torch

    some = torch.randn(1 << 20, generator=torch.Generator().manual_seed(os.getpid()))
    return some.repeat(-(-parameters // len(some)))[:parameters].contiguous()


def status_kb(process: int, field_name: str) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{field_name}:"):
            return int(line.split()[1])
    return 0


def member_main(system: str, rank: int, peers: int, place: str, folder: Path) -> None:
    import torch

    torch.set_num_threads(1)
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to the log
    with contextlib.ExitStack() as stack:
        member: Any = {"ours": Ours, "hivemind": Hivemind, "gloo": Gloo}[system](rank, peers, place, folder, stack)
        print(json.dumps({"place": member.place}), file=say, flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            answer: dict[str, Any] = {}
            try:
                if command["do"] == "prepare":
                    member.prepare(command["codec"], command["parameters"])
                elif command["do"] == "go":
                    before = {process: status_kb(process, "VmRSS") for process in member.processes()}
                    for process in before:
                        Path(f"/proc/{process}/clear_refs").write_text("5")
                    started = time.monotonic()
                    sent = member.go()
                    answer = {"seconds": time.monotonic() - started, "sent": sent}
                    peak = {process: status_kb(process, "VmHWM") for process in before}
                    answer["grown"] = 1024 * sum(peak[process] - before[process] for process in before)
                else:
                    member.finish()
            except Exception as error:  # noqa: BLE001  # whatever a library throws is the reason that the table shows
                answer = {"failed": f"{type(error).__name__}: {error}"[:160]}
            print(json.dumps(answer), file=say, flush=True)


# all members, from outside --------------------------------------------------------------------------------------------


@dataclass
class Row:
    seconds: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    grown: list[float] = field(default_factory=list)
    failed: str = ""


class Party:
    """The members of one system."""

    def __init__(self, system: str, peers: int, folder: Path) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        place = ""
        for rank in range(peers):
            command = [sys.executable, "-m", "benchmarks.reduce", "--member", system, str(rank), str(peers)]
            process = subprocess.Popen(
                [*command, place, str(folder)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(folder / f"{system}-{peers}-{rank}.log").open("wb"),
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            self.processes.append(process)
            if rank == 0:
                place = self.hear(process)["place"]
        for process in self.processes[1:]:
            self.hear(process)

    @staticmethod
    def hear(process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        return json.loads(line) if line else {"failed": "a member ended"}

    def ask(self, **command: object) -> list[dict[str, Any]]:
        for process in self.processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(command) + "\n")
                process.stdin.flush()
        return [self.hear(process) for process in self.processes]

    def measure(self, codec: str, parameters: int, row: Row) -> None:
        answers = self.ask(do="prepare", codec=codec, parameters=parameters)
        if not any("failed" in answer for answer in answers):
            answers = self.ask(do="go")
        failed = [answer["failed"] for answer in answers if "failed" in answer]
        self.ask(do="finish")
        if failed:
            row.failed = failed[0]
            return
        row.seconds.append(max(answer["seconds"] for answer in answers))
        row.sent.append(statistics.mean(answer["sent"] for answer in answers))
        row.grown.append(max(answer["grown"] for answer in answers) / (4 * parameters))

    def close(self) -> None:
        import psutil

        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
                for one in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
            process.wait()


@contextlib.contextmanager
def parties(peers: int, folder: Path) -> Iterator[dict[str, Party]]:
    opened: dict[str, Party] = {}
    try:
        for system in SYSTEMS:
            opened[system] = Party(system, peers, folder)
        yield opened
    finally:
        for party in opened.values():
            party.close()


def table(rows: dict[tuple[int, int, str, str], Row]) -> str:
    lines = [
        "| peers | parameters | system | codec | MB/s | x hivemind | x gloo | sent, bytes/parameter | memory, x vector "
        "| runs |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]

    def speed(peers: int, parameters: int, system: str, codec: str) -> float:
        row = rows.get((peers, parameters, system, codec))
        return 4e-6 * parameters / statistics.median(row.seconds) if row is not None and row.seconds else float("nan")

    def number(value: float, digits: int) -> str:
        return "-" if value != value else f"{value:.{digits}f}"

    for (peers, parameters, system, codec), row in rows.items():
        ours = speed(peers, parameters, system, codec)
        rival = max(
            (s for c in {RIVAL.get(codec, "fp32"), "fp32"} if (s := speed(peers, parameters, "hivemind", c)) == s),
            default=float("nan"),
        )
        lines.append(
            f"| {peers} | {parameters // 10**6} M | {system} | {codec} | {number(ours, 0)} | "
            f"{number(ours / rival, 1) if system == 'ours' else ''} | "
            f"{number(ours / speed(peers, parameters, 'gloo', 'fp32'), 2) if system == 'ours' else ''} | "
            f"{number(statistics.median(row.sent), 2) if row.sent else '-'} | "
            f"{number(statistics.median(row.grown), 1) if row.grown else '-'} | "
            f"{len(row.seconds)}{' ' + row.failed if row.failed else ''} |"
        )
    return "\n".join(lines)


def available_bytes() -> int:
    """Memory that can be taken; a peer of hivemind's takes about 40 bytes a parameter."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return 1024 * int(fields["MemAvailable"].split()[0])


def hardware() -> str:
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ":unknown")
    name = re.split(r"processor|cpu|@", model.split(":")[1].lower().replace("(r)", "").replace("(tm)", ""))[0]
    return "-".join((f"{os.cpu_count()}x", *name.split()))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 and 4 peers, 10 M parameters, one repetition")
    parser.add_argument("--member", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help="begin nothing new after this long; 110 quick, 780 full")
    parser.add_argument("--only", choices=list(SYSTEMS), action="append", help="these systems alone")
    options = parser.parse_args(arguments)
    if options.member:
        system, rank, peers, place, folder = options.member
        member_main(system, int(rank), int(peers), place, Path(folder))
        return
    for system in set(SYSTEMS) - set(options.only or SYSTEMS):
        del SYSTEMS[system]
    began = time.monotonic()
    limit = options.seconds or (110.0 if options.quick else 780.0)
    rows: dict[tuple[int, int, str, str], Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        for peers in (2, 4) if options.quick else (2, 4, 8):
            with parties(peers, Path(folder)) as party:
                for parameters in (10_000_000,) if options.quick else (10_000_000, 50_000_000):
                    if peers * 40 * parameters > available_bytes():
                        print(f"left out {peers} peers with {parameters} parameters: too little memory here")
                        continue
                    for repetition in range(1 if options.quick else 3):
                        for system, codecs in SYSTEMS.items():
                            for codec in codecs:
                                row = rows.setdefault((peers, parameters, system, codec), Row())
                                late = time.monotonic() - began > limit
                                if row.failed or (late and repetition > 0):
                                    continue
                                if late:
                                    row.failed = "not run: out of time"
                                    continue
                                party[system].measure(codec, parameters, row)
    command = "python -m benchmarks.reduce" + (" --quick" if options.quick else "")
    text = (
        f"# Reduce: {platform.machine()}, {hardware()}\n\n`{command}`, "
        f"{time.monotonic() - began:.0f} s, load average at the end {os.getloadavg()[0]:.1f}\n\n{table(rows)}\n"
    )
    print(text)
    if not options.only:
        place = ROOT / "benchmarks" / "results" / f"reduce-{hardware()}.md"
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
        print(f"written to {place.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
