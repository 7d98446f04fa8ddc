"""What a page costs the node that serves it, with many viewers; or the same run without them, to look at.

    python -m benchmarks.page                                  256 paths, 1,000 peers, 200 open pages, a minute
    python -m benchmarks.page --serve 127.0.0.1:8080           the same run, to look at in a browser
    python -m benchmarks.page --paths 4 --peers 7 --serve ...

The run is made up: peers with speeds and losses, versions that rise, some who come and go every second. The node's
share of a core is that of the process that looks, draws and serves; the viewers are another process, and read what
comes.
"""

import argparse
import asyncio
import json
import math
import multiprocessing
import random
import resource
import time
from contextlib import closing
from dataclasses import replace

from dipaco_swarm.algorithm.paths import grid
from dipaco_swarm.dashboard.views import MemberStatus, ModuleStatus, PathStatus, SwarmStatus
from dipaco_swarm.events.operator import RouterFitted, StageOpened
from dipaco_swarm.events.volunteer import BestSnapshot
from dipaco_swarm.page.board import Board
from dipaco_swarm.page.history import Contributor, History, Sample
from dipaco_swarm.page.serving import serving
from dipaco_swarm.page.watch import Watch
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.settings import Web

NAMES = (
    "Marie",
    "attic-laptop",
    "GPU im Keller",
    "Õie",
    "Οδυσσέας",
    "uni-lab-4",
    "<b>bold</b>",
    "rechenknecht",
    "amelia",
)
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
PLACE = "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooWHmZ7sYfVX5tCz1eLQkq3R8bPw6uJd4aNcG2xT9vBs"
HOURS = 70
ROUND_SECONDS = 5000.0
COUNTED = 0.97
"""Of the tokens trained."""
RUN_FILE = """
name = "{name}"

[model]
model_type = "llama"
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 2

[[levels]]
blocks = [0]
embedding = true

[[levels]]
blocks = [1]
head = true

[data]
source = "python"
sequence_length = 256

[[stages]]
router = "single"
rounds = 160

[[stages]]
router = "product-k-means"
modules = [{side}, {side}]
rounds = 427

[[stages]]
router = "discriminative"
rounds = 200
"""


def config_of(side: int) -> RunConfig:
    """A run of side x side paths."""
    return parse_run_file(RUN_FILE.format(name=f"paper-{side}x{side}" if side > 2 else "python-2x2", side=side))


def manifest_of(side: int) -> Manifest:
    table = grid([side, side])
    seeds = {str(module): "a" * 64 for module in table.modules}
    shares = tuple(1 / table.num_paths for _ in range(table.num_paths))
    first = Stage(
        index=0,
        table=((0, 0),),
        path_weights=(1.0,),
        router=None,
        seeds={"L0M0": "a" * 64, "L1M0": "a" * 64},
        rounds=160,
    )
    now = Stage(index=1, table=table.rows, path_weights=shares, router="b" * 64, seeds=seeds, rounds=427)
    return Manifest(revision=7, config=config_of(side), tokenizer="c" * 64, stages=(first, now))


class Crowd:
    """Peers that are not there."""

    def __init__(self, side: int, peers: int, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._side = side
        self._rounds = 43.2
        """Made so far."""
        self._tokens = 0.0
        """Counted in this stage."""
        empty = {3 * side + side // 2, side * side - 2} if side > 2 else set()
        paths = [path for path in range(side * side) if path not in empty]
        self._members = [self._member(self._random.choice(paths)) for _ in range(peers)]
        self._offset = [self._random.gauss(0, 0.25) for _ in range(side * side)]

    def _member(self, path: int) -> MemberStatus:
        draw = self._random
        name = "12D3KooW" + "".join(draw.choices(ALPHABET, k=44))
        return MemberStatus(
            name=name,
            path=path,
            nickname=draw.choice(NAMES) if draw.random() < 0.4 else "",
            trained=min(1.0, draw.gauss(0.95, 0.02)),
            tokens_per_second=draw.lognormvariate(8, 1.0),
            moves=draw.random() < 0.6,
            reachable=draw.random() < 0.5,
            awake=draw.random() < 0.97,
        )

    @property
    def names(self) -> list[str]:
        return [member.name for member in self._members]

    def status(self, rounds: float | None = None) -> SwarmStatus:
        """As it is when so many rounds were made."""
        rounds = self._rounds if rounds is None else rounds
        side = self._side
        loss = self._losses(rounds)
        members = tuple(
            replace(
                member,
                version=int(rounds),
                loss=loss[member.path] + self._random.gauss(0, 0.03),
                catching_up=self._random.random() < 0.01,
                tokens_per_second=member.tokens_per_second * self._random.uniform(0.97, 1.03),
            )
            for member in self._members
        )
        of_path: dict[int, list[MemberStatus]] = {}
        for member in members:
            of_path.setdefault(member.path, []).append(member)
        paths = []
        for index in range(side * side):
            ours = of_path.get(index, [])
            losses = [member.loss for member in ours if member.loss is not None]
            paths.append(
                PathStatus(
                    index=index,
                    modules=(f"L0M{index // side}", f"L1M{index % side}"),
                    peers=len(ours),
                    share=1 / side**2,
                    version_min=int(rounds),
                    version_max=int(rounds + 0.5),
                    tokens_per_second=sum(member.tokens_per_second for member in ours),
                    loss=sum(losses) / len(losses) if losses else None,
                )
            )
        modules = []
        for level in range(2):
            for number in range(side):
                through = [p for p in paths if (p.index // side if level == 0 else p.index % side) == number]
                version = int(rounds + (number * 7 + level * 3) % 10 / 12)
                trains = sum(path.peers for path in through)
                holders = 1 if (level, number) == (1, 7) else trains + 2
                work = int(self._tokens / side)
                modules.append(
                    ModuleStatus(f"L{level}M{number}", version, holders, 1, trains, (level, number) != (0, 5), work)
                )
        known = [path.loss for path in paths if path.loss is not None]
        speed = sum(member.tokens_per_second for member in members)
        return SwarmStatus(
            run=config_of(side).name,
            stage=1,
            stages=3,
            finished=False,
            peers=len(members),
            keepers=3,
            paths=tuple(paths),
            modules=tuple(modules),
            tokens_per_second=speed,
            loss=sum(known) / len(known),
            target_version=427,
            round_seconds=ROUND_SECONDS,
            members=tuple(sorted(members, key=lambda member: member.name)),
        )

    def _losses(self, rounds: float) -> list[float]:
        """Of each path."""
        return [2.1 + 4.2 * math.exp(-0.5 * (0.4 + rounds) ** 0.55) + each * 0.6 for each in self._offset]

    def live(self, seconds: float) -> None:
        """Let time pass: rounds are made, and one peer in two hundred goes and another comes."""
        self._rounds += seconds / ROUND_SECONDS
        self._tokens += COUNTED * seconds * sum(member.tokens_per_second for member in self._members)
        for _ in range(max(1, len(self._members) // 400)):
            if self._random.random() < 0.3 * seconds:
                at = self._random.randrange(len(self._members))
                self._members[at] = self._member(self._members[at].path)

    def write_past(self, history: History, hours: int) -> None:
        """Samples of each minute, and who has been here."""
        now, end, tokens, before = time.time(), self.status(), 0.0, 0.0
        for minute in range(hours * 60, 0, -1):
            done = 1 - minute / (hours * 60)
            single = done < 0.15
            known = [loss + self._random.gauss(0, 0.02) for loss in self._losses(43 * done)]
            loss = sum(known) / len(known)
            wave = 1 + 0.25 * math.sin(minute / 1440 * 2 * math.pi)
            peers = end.peers * min(1.0, 0.15 + done * 1.3) * wave
            speed = end.tokens_per_second * peers / end.peers
            tokens += COUNTED * 60 * speed
            before = tokens if single else before
            history.note(
                Sample(
                    at=now - 60 * minute,
                    stage=int(not single),
                    tokens=int(tokens),
                    version=160 * done / 0.15 if single else self._rounds * (done - 0.15) / 0.85,
                    peers=round(peers),
                    staffed=min(self._side**2, int(peers * 0.8)) if not single else 1,
                    speed=speed,
                    counted=speed * COUNTED,
                    goodput=COUNTED - 0.01 + 0.02 * math.sin(minute / 90),
                    trained=0.95 + 0.02 * math.sin(minute / 190),
                    loss=loss + (0.5 if single else 0),
                    heldout=None if single else loss + 0.05,
                    paths=() if single else tuple(known),
                )
            )
        self._tokens = tokens - before
        for key, value in (("stage", 1.0), ("work", self._tokens), ("tokens", tokens)):
            history.remember(key, value)
        history.note_contributors(
            Contributor(
                peer=member.name,
                nickname=member.nickname,
                path=member.path,
                first=now - self._random.random() * hours * 3600,
                last=now,
                offered=self._random.random() * hours * 3600,
                counted=member.tokens_per_second * self._random.random() * hours * 3000,
            )
            for member in self._members
        )


def watch_of(crowd: Crowd, side: int, hours: int = HOURS) -> Watch:
    """Who looks at a crowd, with so long a past."""
    history = History(None)
    crowd.write_past(history, hours)
    watch = Watch(history, Board(), "a" * 32, ())
    watch.address = f"dipaco:{config_of(side).name}:{'abcd2345' * 4}@{PLACE}"
    for path in range(side * side):
        watch.event(BestSnapshot(path, 2.2 + path % 7 / 20, {f"L0M{path // side}": 42}, kept=True))
    watch.event(RouterFitted(20_000, (1 / side**2,) * side**2))
    watch.event(StageOpened(1, side * side))
    return watch


def serve(side: int, peers: int, web: Web, seconds: float, port: "multiprocessing.Queue[object]") -> None:
    """The node: looks every second, as a real one does, and says in the end what it took."""
    crowd = Crowd(side, peers)
    watch = watch_of(crowd, side)
    manifest = manifest_of(side)
    with closing(watch.history), serving(watch, web) as served:
        for _ in range(5):
            watch.take(crowd.status(), manifest)
        port.put(served.url)
        until, before, begun = time.monotonic() + seconds, _cpu(), time.monotonic()
        made = 0.0
        while time.monotonic() < until:
            drawn = time.thread_time()
            crowd.live(1.0)
            status = crowd.status()
            made += time.thread_time() - drawn  # the crowd itself is none of the node's work
            drawn = time.thread_time()
            watch.take(status, manifest)
            watch.note_cost(time.thread_time() - drawn)
            time.sleep(watch.pause())
        port.put((_cpu() - before - made) / (time.monotonic() - begun))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _view(host: str, port: int, until: float, got: list[int]) -> None:
    """One open page, as far as the node sees it."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
    writer.write(b"GET /api/events HTTP/1.1\r\nHost: %b\r\n\r\n" % host.encode())
    await writer.drain()
    while (left := until - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(left):
                data = await reader.read(1 << 20)
        except TimeoutError:
            break
        if not data:
            break
        got[0] += len(data)
        got[1] += data.count(b"event: ")
    writer.close()


async def _all(viewers: int, host: str, port: int, seconds: float) -> list[int]:
    got, until = [0, 0], time.monotonic() + seconds
    await asyncio.gather(*(_view(host, port, until, got) for _ in range(viewers)))
    return got


def look(viewers: int, url: str, seconds: float, said: "multiprocessing.Queue[object]") -> None:
    host, port = url.removeprefix("http://").strip("/").rsplit(":", 1)
    said.put(asyncio.run(_all(viewers, host, int(port), seconds)))


def measure(side: int, peers: int, viewers: int, seconds: float) -> dict[str, float]:
    """Share of a core of the node, and what the viewers got."""
    context = multiprocessing.get_context("spawn")
    said, got = context.Queue(), context.Queue()
    node = context.Process(target=serve, args=(side, peers, Web("127.0.0.1", 0), seconds, said))
    node.start()
    crowd = context.Process(target=look, args=(viewers, said.get(timeout=300), seconds, got))
    crowd.start()
    share = said.get(timeout=seconds + 120)
    size, events = got.get(timeout=60)
    crowd.join()
    node.join()
    return {
        "viewers": viewers,
        "share of a core": round(share, 4),
        "events each": round(events / max(1, viewers), 1),
        "kB/s each": round(size / max(1, viewers) / seconds / 1000, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", type=int, default=256, help="a square number")
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--viewers", type=int, nargs="*", default=[0, 200])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--serve", metavar="HOST:PORT", help="serve the made-up run there until Ctrl+C")
    args = parser.parse_args()
    side = math.isqrt(args.paths)
    if args.serve:
        said: multiprocessing.Queue[object] = multiprocessing.Queue()
        serve(side, args.peers, Web.parse(args.serve), 1e9, said)
        return
    for viewers in args.viewers:
        print(json.dumps(measure(side, args.peers, viewers, args.seconds)))


if __name__ == "__main__":
    main()
