"""What a scenario is told with: a run in the lab, its members, faults, waiting, and the verdict at the end."""

import random
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos.crew import Crew, Here, Member, Place
from benchmarks.chaos.facts import LEVELS, Facts, Growth, at_rest, culprits, doubts, growth, tracebacks, uncalm
from benchmarks.chaos.lab import Lab, Link
from benchmarks.chaos.tokens import Account, accounts
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.client import visits as use
from dipaco_swarm.events.operator import Serving
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.training import checkpoint
from dipaco_swarm.training.early import run_of

START_SECONDS = 120.0
LOOK_SECONDS = 0.25
SAMPLE_SECONDS = 5.0
SETTLED_SECONDS = 60.0
"""Memory of the first minute of a life is loading, not growing."""


@dataclass(frozen=True)
class Measure:
    """Something that a program holds and that must not grow."""

    of: Callable[[Member], float]
    unit: float
    most: float
    """Units a minute. What leaks does so in every round or with every fault, many times a minute."""


MEASURES: Mapping[str, Measure] = {
    "memory": Measure(Member.resident, 1e6, 0.5),
    "open files": Measure(Member.descriptors, 1, 0.2),
    "processes": Measure(Member.daemons, 1, 0.02),
}

Changes = Mapping[str, Mapping[str, Any]]


def run_file(name: str, stage: Mapping[str, Any] | None, end: Mapping[str, Any], changes: Changes) -> RunConfig:
    """The run of all scenarios: paths of a quarter of a million parameters on the Python installation's text.

    `stage`: after a warm-up of two rounds; None: the warm-up is all. `end`: what else is said of the last stage.
    """
    warm_up: Mapping[str, Any] = {"router": "single"}
    stages = [{**warm_up, **end}] if stage is None else [{**warm_up, "rounds": 2}, {**stage, **end}]
    settings: dict[str, Any] = {
        "model": {
            "hidden_size": 64,
            "intermediate_size": 176,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 128,
        },
        "tokenizer": {"vocab_size": 1024},
        "data": {"source": "python", "max_documents": 1500, "sequence_length": 128, "routing_sample": 0.2},
        "inner": {
            "learning_rate": 3e-3,
            "embedding_learning_rate_ratio": 30.0,
            "head_learning_rate_ratio": 6.0,
            "beta2": 0.99,
            "warmup_steps": 20,
            "schedule_steps": 1500,
            "batch_sequences": 4,
        },
        "outer": {"learning_rate": 0.7, "momentum": 0.6, "ramp_rounds": 2},
        "rounds": {"pacing": "paced", "inner_steps": 40},
        "wire": {"codec": "int8"},
    }
    for section, values in changes.items():
        settings[section] = {**settings.get(section, {}), **values}
    return RunConfig.model_validate(
        {
            "name": name,
            "min_peers": 1,
            "levels": [{"embedding": True, "blocks": [0]}, {"blocks": [1], "head": True}],
            "stages": stages,
            **settings,
        },
        strict=False,
    )


def toml_of(config: RunConfig) -> str:
    """The run file as an operator would write it."""

    def value(of: Any) -> str:
        if isinstance(of, bool):
            return str(of).lower()
        if isinstance(of, str):
            return f'"{of}"'
        if isinstance(of, list):
            return f"[{', '.join(map(value, of))}]"
        return repr(of)

    def section(title: str, fields: Mapping[str, Any]) -> list[str]:
        return [title, *(f"{key} = {value(of)}" for key, of in fields.items() if of is not None), ""]

    said = config.model_dump(mode="json", exclude_unset=True)
    lines = [f"{key} = {value(of)}" for key, of in said.items() if not isinstance(of, dict | list)]
    for key, of in said.items():
        if isinstance(of, dict):
            lines += ["", *section(f"[{key}]", of)]
    for key, of in said.items():
        if isinstance(of, list):
            for entry in of:
                lines += section(f"[[{key}]]", entry)
    return "\n".join(lines) + "\n"


class Disappointed(Exception):
    """Something that should have happened did not."""


@dataclass
class Verdict:
    """What came out of a scenario."""

    checks: list[tuple[str, bool, str]] = field(default_factory=list)
    """What was expected, whether it was so, what was seen."""
    figures: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(ok for _, ok, _ in self.checks)

    def check(self, expected: str, ok: bool, seen: object = "") -> None:
        self.checks.append((expected, bool(ok), str(seen)))


class Story:
    """One run in the lab, from its first process to its last."""

    def __init__(
        self,
        lab: Lab | type[Here],
        crew: Crew,
        config: RunConfig,
        seed: int,
        cache: Path,
        verdict: Verdict,
        tell: Callable[[str], None],
        start: Path | None = None,
    ) -> None:
        self.lab, self.crew, self.config, self.verdict = lab, crew, config, verdict
        self.random = random.Random(seed)
        self.faults: Counter[str] = Counter()
        """What was done to whom, counted: a scenario without its faults proves nothing."""
        self._cache = cache
        self._start = start
        """The home of a bootstrap node, with whose copy this story goes on: several runs from one clustering."""
        self._tell = tell
        self._began = time.monotonic()
        self._samples: dict[str, dict[tuple[str, int], list[tuple[float, float]]]] = {what: {} for what in MEASURES}
        self._sampled = 0.0
        self.address = ""
        self.cpu_share = 100
        self.prelude: Callable[[], None] | None = None
        """What the processes of peers do before they are peers."""
        self.peers_leave = True
        """Peers end by themselves when the run is over."""
        self.line = "loopback"
        """Of the scenario that is played on several."""
        self._floor: dict[str, int] = {}

    @property
    def network(self) -> Lab:
        """Of a scenario that is played in the laboratory."""
        assert isinstance(self.lab, Lab), "only in the laboratory"
        return self.lab

    @property
    def run(self) -> RunAddress:
        """Of its bootstrap node, which has been started."""
        return RunAddress.parse(self.address)

    # ------------------------------------------------------------------------------------------------ people and things

    def bootstrap(
        self,
        link: Link = Link(),  # noqa: B008  # frozen
        *,
        until_finished: bool = True,
        prelude: Callable[[], None] | None = None,
    ) -> Member:
        """Start the bootstrap node, and wait for its run address. `prelude`: what its process does before."""
        file = self.crew.folder / "RUN.toml"
        file.write_text(toml_of(self.config))
        host = self.lab.host("bootstrap", link)
        if self._start is not None:
            # who trained then comes under another name now; the node would wait for the former ones for ten minutes
            shutil.copytree(self._start, self.crew.folder / "bootstrap", ignore=shutil.ignore_patterns("circle-*"))
        arguments = ["serve", str(file), "--listen", f"/ip4/{host.address}/tcp/{_free_port(host)}"]
        node = self.crew.add("bootstrap", host, "bootstrap", arguments + ["--until-finished"] * until_finished)
        node.prelude = prelude
        node.start()
        self.until(lambda: bool(node.reported(Serving)), "the bootstrap node prints the run address", START_SECONDS)
        self.address = self._address_in(node)
        return node

    @staticmethod
    def _address_in(node: Member) -> str:
        kept = sorted(node.home.glob("*address*"))
        if kept:
            return kept[0].read_text().strip()
        raise Disappointed(f"{node.name} has no run address in its home")

    def peer(self, name: str, path: int | str, link: Link = Link(), *more: str) -> Member:  # noqa: B008  # frozen
        """Start a peer in a host of its own."""
        host = self.lab.host(name, link)
        arguments = [
            "--run",
            self.address,
            "--path",
            str(path),
            "--cache",
            str(self._cache),
            "--threads",
            "1",
            "--cpu-share",
            str(self.cpu_share),
        ]
        member = self.crew.add(name, host, "peer", [*arguments, *["--until-finished"] * self.peers_leave, *more])
        member.prelude = self.prelude
        member.start()
        return member

    @property
    def peers(self) -> list[Member]:
        return [member for member in self.crew.members.values() if member.program == "peer"]

    # ------------------------------------------------------------------------------------------------------- watching

    def tell(self, line: str) -> None:
        self._tell(f"{time.monotonic() - self._began:6.0f} s  {line}")

    def facts(self, stage: int | None = None) -> Facts:
        """What the peers have made so far; of the last stage, unless told otherwise."""
        return Facts.of(self.peers).of_stage(len(self.config.stages) - 1 if stage is None else stage)

    @property
    def modules(self) -> int:
        """Modules of the last stage."""
        stage = self.config.stages[-1]
        if stage.paths:
            return sum(len(set(column)) for column in zip(*stage.paths, strict=True))
        count = stage.num_paths or 1
        return sum(count if of == "path" else of for of in stage.modules or (1,) * LEVELS)

    def version(self) -> int:
        """The version that every module of the last stage has reached, somewhere."""
        return self.facts().version(self.modules)

    def until(self, condition: Callable[[], bool], expected: str, seconds: float) -> float:
        """Wait; returns how long it took. Raises Disappointed when it does not come."""
        started = time.monotonic()
        while not condition():
            self._sample()
            if time.monotonic() - started > seconds:
                raise Disappointed(f"waited {seconds:.0f} s and it did not come: {expected}")
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - started

    def until_version(self, version: int, seconds: float) -> float:
        return self.until(lambda: self.version() >= version, f"every module at version {version}", seconds)

    def until_one(self, since: float, seconds: float) -> float:
        """Until everybody has made the same version of each of their modules after `since`, as of `time.time`."""
        return self.until(lambda: not self.facts().parted(since), "everybody makes the same versions again", seconds)

    def until_version_of(self, peers: Sequence[str], version: int, seconds: float) -> float:
        """Until each of these peers has made this version of some module."""

        def all_there() -> bool:
            facts = self.facts()
            return all(any(v >= version for v in facts.by([peer]).newest().values()) for peer in peers)

        return self.until(all_there, f"{', '.join(peers)} at version {version}", seconds)

    def pause(self, seconds: float) -> None:
        """Let the swarm go on for a while."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._sample()
            time.sleep(min(left, LOOK_SECONDS))

    def until_finished(self, seconds: float) -> float:
        """Until all members have ended by themselves, with the run."""
        return self.until(lambda: not self.crew.running(), "the run finishes and everybody leaves", seconds)

    def finish(self, node: Member, seconds: float) -> None:
        """End the stage, as the operator would, and wait until all members have left."""
        OperatorHome(node.home).tell_to_advance()
        self.until_finished(seconds)

    def _sample(self) -> None:
        if time.monotonic() - self._sampled < SAMPLE_SECONDS:
            return
        self._sampled = time.monotonic()
        for member in self.crew.running():
            key = member.name, member.lives
            try:
                seen = {what: measure.of(member) for what, measure in MEASURES.items()}
            except (OSError, psutil.NoSuchProcess):
                continue
            for what, value in seen.items():
                self._samples[what].setdefault(key, []).append((self._sampled, value))

    # --------------------------------------------------------------------------------------------------------- faults

    def power_cut(self, member: Member) -> None:
        member.power_cut()
        self.faults["power cut"] += 1

    def kill(self, member: Member) -> None:
        member.kill()
        self.faults["kill"] += 1

    def ctrl_c(self, member: Member) -> float:
        self.faults["Ctrl+C"] += 1
        return member.ctrl_c()

    # -------------------------------------------------------------------------------------------------------- verdict

    def note(self, figure: str, seen: object) -> None:
        self.verdict.figures[figure] = str(seen)
        self.tell(f"{figure}: {seen}")

    def check(self, expected: str, ok: bool, seen: object = "") -> None:
        self.verdict.check(expected, ok, seen)
        self.tell(f"{'ok  ' if ok else 'BAD '}  {expected}{f': {seen}' if str(seen) else ''}")

    def remember_versions(self, newest: Mapping[str, int] | None = None) -> None:
        """From here on no module may end older than this, or than it is now."""
        self._floor = dict(newest if newest is not None else self.facts().newest())

    def conclude(self) -> None:
        """What must be true at the end of every scenario."""
        everything = Facts.of(self.peers)
        facts = everything.of_stage(len(self.config.stages) - 1)
        last = facts.newest()
        held = self._kept(last)
        at_end = self._held_at_the_end(facts, held)
        self.check("one digest per module at the end", all(len(d) == 1 for d in at_end.values()), _versions(last))
        same = all(
            held[module][0] == version and {held[module][1]} == at_end[module] for module, version in last.items()
        )
        self.check(
            "the keeper has every module as the peers left it", same, _versions({m: v for m, (v, _) in held.items()})
        )
        self.check(
            "no module is lost",
            len(last) == self.modules and all(last[m] >= v for m, v in self._floor.items()),
            f"{len(last)} of {self.modules}",
        )
        self.check(
            "no log shows a traceback",
            not (found := tracebacks(self.crew.members.values())),
            ", ".join(found) or "none",
        )
        for member in self.crew.members.values():
            if member.left_by_itself:
                member.check_exit()
        bad = [f"{member.name}: {said}" for member in self.crew.members.values() for said in member.ended_badly]
        self.check("who was asked to leave left, and nobody else did", not bad, "; ".join(bad) or "so it was")
        self.check(
            "no line is one of programs", not (lines := uncalm(self.peers)), "; ".join(lines[:3]) or "all are calm"
        )
        guilty = culprits(self.crew.members.values(), self.run.fingerprint)
        self.check(
            "nobody is banned, or doubted by two: faults are no guilt", not guilty, "; ".join(guilty[:3]) or "nobody"
        )
        left = self.crew.orphans()
        self.check("no orphan process", not left, ", ".join(left) or "none")
        self._account_for_tokens()
        self.note("rounds committed", facts.rounds())
        self.note("seconds a round, median", f"{facts.seconds_a_round():.1f}")
        self.note("forks on the way", len(facts.forks()))
        alone = [f"{name}: {doubt.line}" for name, doubt in doubts(self.crew.members.values())]
        self.note("doubts", f"{len(alone)}: {'; '.join(alone[:4])}" if alone else "none")
        self.note("faults", ", ".join(f"{count} x {what}" for what, count in self.faults.items()) or "none")
        for what, unit in (("memory", "MB "), ("open files", "")):
            if grown := self._growth(what):
                self.note(f"{what} of the longest lives, {unit}a minute", _each(grown))

    def accounts(self) -> dict[tuple[int, ModuleId], Account]:
        """Where every token is, by stage and module, once all members have left."""
        keeper, run = OperatorHome(self.crew.folder / "bootstrap"), self.run
        manifest = keeper.manifest(run.fingerprint)
        assert manifest is not None, "the keeper has no manifest"
        homes = {peer.name: peer.home for peer in self.peers}
        begun = None if self._start is None else OperatorHome(self._start)
        return accounts(homes, keeper, manifest, run_of(run.name, run.fingerprint), begun)

    def _account_for_tokens(self) -> None:
        """Where every token is, module by module and in all."""
        found = self.accounts()
        in_all = sum(found.values(), Account())
        for (stage, module), account in sorted(found.items()):
            self.note(f"tokens of {module} in stage {stage}", account)
        self.note("tokens in all, of each module that they were trained on", in_all)
        wrong = "; ".join(in_all.wrong[:3]) or f"{in_all.trained:,} tokens"
        self.check("trained = counted + local + lost, to the token", all(a.closes for a in found.values()), wrong)
        if not self.faults:
            self.check("nothing is lost without faults", not in_all.lost_in_all, f"{in_all.lost_in_all:,} tokens")

    def check_for_leaks(self) -> None:
        """Whether those who lived longest stayed as large in the second half of their lives, in all that they hold."""
        for what, measure in MEASURES.items():
            grown = self._growth(what, 0.5)
            fine = bool(grown) and not any(each.is_surely_above(measure.most) for _, each in grown)
            self.check(f"{what} of the longest lives, a minute, do not surely grow", fine, _each(grown))

    def _kept(self, modules: Iterable[str]) -> dict[str, tuple[int, str]]:
        """Module -> version and digest of what the keeper has; -1 and nothing where it has none."""
        kept = OperatorHome(self.crew.folder / "bootstrap")
        states = {module: kept.state(len(self.config.stages) - 1, ModuleId.parse(module)) for module in modules}
        return {
            module: (-1, "") if state is None else (state.version, state.digest) for module, state in states.items()
        }

    def _held_at_the_end(self, facts: Facts, kept: Mapping[str, tuple[int, str]]) -> dict[str, set[str]]:
        """Module -> the digests of its newest version, in what the peers saved as they left.

        A module that nobody was on any more is with the keeper alone (`kept`); whatever it has must have been made by
        somebody.
        """
        newest = facts.newest()
        held: dict[str, set[str]] = {module: set() for module in newest}
        run = self.run
        for peer in self.peers:
            files = peer.home.glob(f"checkpoints/stage-{len(self.config.stages) - 1}-path-*.safetensors")
            latest = max(files, key=lambda file: file.stat().st_mtime, default=None)
            saved = None if latest is None else checkpoint.load(latest, run_of(run.name, run.fingerprint))
            for module_id, state in saved.base.items() if saved is not None else ():
                if state.version == newest.get(str(module_id)):
                    held[str(module_id)].add(state.digest)
        made = {m: {one.digest for one in facts.made if (one.module, one.version) == (m, v)} for m, v in newest.items()}
        for module in [module for module, digests in held.items() if not digests]:
            _, digest = kept[module]
            held[module] = {digest} if digest in made[module] else made[module]
        return held

    def _growth(self, what: str, last: float = 1.0) -> list[tuple[str, Growth]]:
        """Of the four longest lives, without their first minute; in the `last` part of them."""
        settled = {}
        for (name, life), seen in self._samples[what].items():
            rest = [(at, value) for at, value in seen if at - seen[0][0] > SETTLED_SECONDS]
            rest = rest[int(len(rest) * (1 - last)) :]
            if len(rest) > 10 and len(low := at_rest(rest)) > 2:  # minutes: of fewer there is no slope
                settled[f"{name}.{life}"] = low
        longest = sorted(settled, key=lambda key: settled[key][0][0] - settled[key][-1][0])[:4]
        return [(key, growth(settled[key], MEASURES[what].unit)) for key in longest]

    def perplexity(self) -> float:
        """Routed, on the run's held-out documents, from what the bootstrap node keeps."""
        return use.evaluate(self.crew.folder / "bootstrap", None).perplexity

    def contributed(self) -> float:
        """Tokens that counted, of all peers."""
        return Facts.of(self.peers).contributed()


def _free_port(host: Place) -> int:
    """A port that nobody has there; it stays the bootstrap node's when that is started again."""
    if host.namespace is not None:
        return 4001
    with socket.socket() as probe:
        probe.bind((host.address, 0))
        return int(probe.getsockname()[1])


def _each(grown: Sequence[tuple[str, Growth]]) -> str:
    return ", ".join(f"{name} {each}" for name, each in grown)


def _versions(of: Mapping[str, int]) -> str:
    counts = Counter(of.values())
    return ", ".join(f"{count} x v{version}" for version, count in sorted(counts.items()))
