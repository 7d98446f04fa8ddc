"""What the announcements say about a whole run, as values for the screens.

Everybody may announce anything. So a version counts where a node of the operator's is not far behind it, or two say
that they have it; the speed of one peer up to many times that of the others; and a loss within what a loss can be.
"""

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, median, median_low

from dipaco_swarm.algorithm.generations import tokens_of
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.plausible import plausible
from dipaco_swarm.algorithm.stages import trained_modules
from dipaco_swarm.dashboard.views import MemberStatus, ModuleStatus, PathStatus, SwarmStatus
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.cards import NO_CARD, Card
from dipaco_swarm.swarm.interface import Announcement, Role, Swarm

FASTER = 100.0
"""Times as fast as half of the others a peer may count: a large GPU among laptops."""
MOST_LOSS = 25.0
"""Nats a token; guessing among all tokens that there are costs half of it."""


def status_of(swarm: Swarm, manifest: Manifest, roots: Collection[str] = ()) -> SwarmStatus:
    """The run as it was heard of last; `Swarm.look_up` makes that recent. `roots`: the operator's nodes, by name."""
    stage = manifest.stage
    table = PathTable(stage.table)
    said = {module: _plausible(swarm, roots, swarm.members(stage.index, module)) for module in table.modules}
    members = _members(said, table.num_paths)
    keepers = {s.peer for announced in said.values() for s in announced if s.role is Role.KEEPS}
    of_paths, nodes = trained_modules(stage), {*roots, swarm.peer}  # the other modules stay as they are
    modules = tuple(
        _module_status(module, announced, nodes) for module, announced in said.items() if module in of_paths
    )
    versions = {module.name: module.version for module in modules}
    of_path: dict[int, list[MemberStatus]] = {}
    for member in members:
        of_path.setdefault(member.path, []).append(member)
    paths = tuple(
        _path_status(PathIndex(path), table, stage.path_weights[path], of_path.get(path, []), versions)
        for path in range(table.num_paths)
        if path not in stage.resting
    )
    speed = sum(member.tokens_per_second for member in members)
    known = [member for member in members if member.known] or members  # the operator's node goes by the pace
    pace = sum(member.tokens_per_second for member in known)
    return SwarmStatus(
        run=manifest.config.name,
        stage=stage.index,
        stages=len(manifest.config.stages),
        finished=manifest.finished,
        peers=len(members),
        keepers=len(keepers),
        paths=paths,
        modules=modules,
        tokens_per_second=speed,
        loss=_loss_of(paths),
        target_version=stage.rounds,
        round_seconds=_round_seconds(manifest, len({member.path for member in known}), pace),
        admission=manifest.config.admission.kind,
        members=members,
    )


def _plausible(swarm: Swarm, roots: Collection[str], announced: Sequence[Announcement]) -> tuple[Announcement, ...]:
    """Without versions that nobody can have; a node of the operator's may look at its own."""
    keeps = any(said.peer == swarm.peer and said.role is Role.KEEPS for said in announced)
    return plausible(announced, {*roots, swarm.peer} if keeps else roots)


def _members(said: Mapping[ModuleId, Sequence[Announcement]], num_paths: int) -> tuple[MemberStatus, ...]:
    """Everybody who trains, each once."""
    newest: dict[str, Announcement] = {}
    lowest: dict[str, int] = {}
    cards: dict[str, Card] = {}
    for announced in said.values():
        for s in announced:
            if s.path is not None and s.path < num_paths:
                newest[s.peer] = s
                cards[s.peer] = s.card if s.card != NO_CARD else cards.get(s.peer, NO_CARD)
                lowest[s.peer] = min(s.version, lowest.get(s.peer, s.version))
    known = [s for s in newest.values() if s.known] or newest.values()
    speeds = [s.tokens_per_second for s in known if s.tokens_per_second > 0]
    most = FASTER * median_low(speeds) if speeds else 0.0
    return tuple(
        MemberStatus(
            name=name,
            path=s.path or 0,
            nickname=cards[name].nickname,
            trained=cards[name].trained,
            version=lowest[name],
            tokens_per_second=min(s.tokens_per_second, most),
            loss=s.loss if s.loss is not None and 0 <= s.loss <= MOST_LOSS else None,
            moves=s.moves,
            catching_up=s.catching_up,
            reachable=s.reduces,
            awake=s.awake,
            known=s.known,
        )
        for name, s in sorted(newest.items())
    )


def _loss_of(paths: Sequence[PathStatus]) -> float | None:
    """The mean over the paths that are trained, weighted by their shares."""
    trained = [(path.share, path.loss) for path in paths if path.loss is not None]
    shares = sum(share for share, _ in trained)
    return sum(share * loss for share, loss in trained) / shares if shares else None


def _round_seconds(manifest: Manifest, staffed: int, tokens_per_second: float) -> float | None:
    """Seconds of training in a round at the present pace."""
    return staffed * manifest.rules.round_tokens / tokens_per_second if tokens_per_second else None


def _module_status(module: ModuleId, members: Sequence[Announcement], nodes: Collection[str]) -> ModuleStatus:
    """`nodes`: of the operator's, and ourselves. What has come into a module they say, where they are heard of: whoever
    comes may say of a version of its own what it likes."""
    version = max((s.version for s in members), default=0)
    newest = [s for s in members if s.version == version]
    said = [s for s in members if s.peer in nodes] or [s for s in newest if s.known] or newest
    return ModuleStatus(
        name=str(module),
        version=version,
        holders=len(newest),
        keepers=sum(1 for s in newest if s.role is Role.KEEPS),
        peers=sum(1 for s in members if s.trains),
        digests_agree=len({s.digest for s in newest}) <= 1,
        work=median_low([tokens_of(s.work) for s in said]) if said else 0,
    )


def _path_status(
    path: PathIndex, table: PathTable, share: float, ours: Sequence[MemberStatus], versions: Mapping[str, int]
) -> PathStatus:
    names = tuple(str(module) for module in table.modules_of(path))
    losses = [member.loss for member in ours if member.loss is not None]
    return PathStatus(
        index=path,
        modules=names,
        peers=len(ours),
        share=share,
        version_min=min(versions[name] for name in names),
        version_max=max(versions[name] for name in names),
        tokens_per_second=sum(member.tokens_per_second for member in ours),
        loss=_middle(losses),
    )


def _middle(losses: Sequence[float]) -> float | None:
    """The mean of two, and the median of more: then no single one decides."""
    if not losses:
        return None
    return fmean(losses) if len(losses) < 3 else median(losses)
