"""Where all the tokens of a run are, to the token: trained = counted + local + lost by reason.

From what its peers wrote down: their events (`metrics.jsonl`), the numbers of tokens beside their checkpoints, and the
checkpoints. A peer that was killed has written down what it gave before anybody had it, and what it trained after every
step. The rules are those of the ledger of the simulated swarms (`dipaco_swarm/testing/ledger.py`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.dashboard.metrics import metrics_file, read_metrics
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.training import Committed, Contributing, TokensDropped
from dipaco_swarm.events.volunteer import Joined
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.testing.ledger import Ledger, Place, Version
from dipaco_swarm.training import checkpoint as checkpoints
from dipaco_swarm.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class Account:
    """Of one module, or of all. Tokens; each counts once for every module that it was trained on."""

    trained: int = 0
    counted: int = 0
    """In the version that the run ended with."""
    local: int = 0
    """On the disk of who trained them, for the next round; or left over when a stage was over."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    wrong: tuple[str, ...] = ()
    """What does not add up."""

    @property
    def closes(self) -> bool:
        return self.trained == self.counted + self.local + self.lost_in_all and not self.wrong

    @property
    def lost_in_all(self) -> int:
        return sum(self.lost.values())

    def __add__(self, other: "Account") -> "Account":
        return Account(
            self.trained + other.trained,
            self.counted + other.counted,
            self.local + other.local,
            Counter(self.lost) + Counter(other.lost),
            self.wrong + other.wrong,
        )

    def __str__(self) -> str:
        share = 100 * self.lost_in_all / max(1, self.trained)
        reasons = "; ".join(f"{reason} {tokens:,}" for reason, tokens in sorted(self.lost.items()))
        why = f" ({share:.1f} %: {reasons})" if reasons else ""
        wrong = "".join(f"; WRONG: {what}" for what in self.wrong)
        where = f"counted {self.counted:,} + local {self.local:,} + lost {self.lost_in_all:,}"
        return f"trained {self.trained:,} = {where}{why}{wrong}"


@dataclass(frozen=True)
class Progress:
    """What a peer has on its disk of one path of one stage."""

    peer: str
    stage: int
    path: PathIndex
    trained: int
    """Tokens, in all its lives."""
    saved: Checkpoint | None
    given: Mapping[ModuleId, int]
    """The last version of each module from which others may have its progress."""

    @property
    def trainer(self) -> str:
        """How the ledger calls it."""
        return f"{self.peer}/{self.path}"

    def in_checkpoint(self, module: ModuleId) -> int:
        """Tokens beyond the version that it has saved."""
        return 0 if self.saved is None else self.saved.tokens[module]


def accounts(
    homes: Mapping[str, Path], keeper: OperatorHome, manifest: Manifest, run: str, begun: OperatorHome | None = None
) -> dict[Place, Account]:
    """By stage and module. `homes`: of every peer that ever took part. `run`: as checkpoints name it. `begun`: what the
    story went on from, which others had trained.

    For a run whose programs have all ended.
    """
    told = {name: [entry.event for entry in read_metrics(metrics_file(home))] for name, home in homes.items()}
    names = {event.peer: name for name, events in told.items() for event in events if isinstance(event, Joined)}
    disks = [progress for name, home in homes.items() for progress in _on_disk(name, home, run)]
    found = {}
    for stage in manifest.stages:
        table = PathTable(stage.table)
        is_last = stage is manifest.stages[-1]
        for module in table.modules:
            through = table.paths_through(module)
            of_module = [disk for disk in disks if disk.stage == stage.index and disk.path in through]
            kept = keeper.state(stage.index, module)
            best = _best([Claim.of(kept)] if kept is not None else [], module, of_module if is_last else [])
            first = None if begun is None else begun.state(stage.index, module)
            before = 0 if first is None else first.work
            found[stage.index, module] = _account((stage.index, module), told, names, of_module, best, before)
    return found


def _on_disk(peer: str, home: Path, run: str) -> Iterator[Progress]:
    for noted in sorted((home / "checkpoints").glob("stage-*-path-*.trained")):
        _, stage, _, path = noted.stem.split("-")
        file = checkpoints.file_of(home, int(stage), PathIndex(int(path)))
        saved = checkpoints.load(file, run)
        trained = max(checkpoints.trained(file), 0 if saved is None else saved.trained)
        yield Progress(peer, int(stage), PathIndex(int(path)), trained, saved, checkpoints.given(file))


def _best(kept: Sequence[Claim], module: ModuleId, disks: Iterable[Progress]) -> Claim | None:
    """The state that the stage ended with: the keeper's, and in the last one the best that is on anybody's disk."""
    best = None
    for claim in (*kept, *(Claim.of(disk.saved.base[module]) for disk in disks if disk.saved is not None)):
        if best is None or claim.beats(best):
            best = claim
    return best


def _account(
    place: Place,
    told: Mapping[str, Sequence[Event]],
    names: Mapping[str, str],
    disks: Sequence[Progress],
    best: Claim | None,
    before: int,
) -> Account:
    ledger, (stage, module) = Ledger(), place
    for peer, events in told.items():
        for event in events:
            if isinstance(event, Contributing) and event.stage == stage and str(module) in event.modules:
                trainer, offer = f"{peer}/{event.path}", event.modules[str(module)]
                ledger.trained[trainer, place] = event.trained
                ledger.give(trainer, place, offer.base, offer.tokens)
    for event in (event for events in told.values() for event in events):
        if isinstance(event, Committed) and (event.stage, event.module) == (stage, str(module)):
            version = Version(event.digest, event.base, event.version, event.work)
            ledger.commit(0.0, place, version, {names.get(peer, peer): n for peer, n in event.tokens.items()})
    wrong = []
    for peer, events in told.items():
        for event in events:
            if isinstance(event, TokensDropped) and (event.stage, event.module) == (stage, str(module)):
                ledger.trained[f"{peer}/{event.path}", place] = event.trained
                gone = ledger.drop(f"{peer}/{event.path}", place, event.local, event.reason)
                if gone > event.tokens:
                    wrong.append(f"{peer} lost {gone:,} tokens of {module} ({event.reason}), and said {event.tokens:,}")
    for disk in disks:
        wrong += _enter_disk(ledger, place, disk, best)
    balance = ledger.balance({place: best.digest} if best is not None else {})
    wrong += [f"{tokens:,} tokens of {name} are nowhere" for name, tokens in balance.nowhere.items()]
    wrong += [f"{tokens:,} tokens of {name} count twice" for name, tokens in balance.twice.items()]
    if best is not None and best.work - before != balance.counted:
        since = f", {before:,} of them from before" if before else ""
        wrong.append(f"the last state of {module} has {best.work:,} tokens behind it{since}")
    wrong += [violation.what for violation in ledger.violations]
    return Account(balance.trained, balance.counted, balance.local, balance.lost, tuple(wrong))


def _enter_disk(ledger: Ledger, place: Place, disk: Progress, best: Claim | None) -> Iterator[str]:
    """What a peer has left behind, and lost if its last life was ended between two checkpoints."""
    module, local = place[1], disk.in_checkpoint(place[1])
    ledger.trained[disk.trainer, place] = disk.trained
    unsaved = disk.trained - (0 if disk.saved is None else disk.saved.trained)
    if disk.saved is not None and best is not None:
        claim = Claim.of(disk.saved.base[module])
        if disk.given.get(module, -1) >= claim.version and best.beats(claim):
            ledger.drop(disk.trainer, place, unsaved, "not acknowledged")
            local = 0
    gone = ledger.drop(disk.trainer, place, local, "killed") if unsaved else 0
    if gone > unsaved:
        yield f"{disk.peer} lost {gone:,} tokens of {module} at its end, and had not saved {unsaved:,}"
    ledger.local[disk.trainer, place] = local
