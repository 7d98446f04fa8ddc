"""What the page shows just now, as plain values that become JSON; and what has changed since the picture before.

A picture is small however large the swarm: a row for each path and module, the first of the ranking, the last events.
Peers, curves and all else are asked for where somebody looks at them. Numbers are rounded to what is drawn.
"""

import math
from collections.abc import Mapping
from typing import Any

from dipaco_swarm.dashboard.views import ModuleStatus, PathStatus, SwarmStatus
from dipaco_swarm.events.words import company
from dipaco_swarm.page.history import Contributor, Noted
from dipaco_swarm.page.pace import Pace, progress_of
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.strategies import ROUTERS

Picture = dict[str, Any]

FIRST = 8
"""Of the ranking."""
SHOWN_EVENTS = 60
LISTS = ("paths", "modules")
"""Parts of a picture of which the rows that have changed are sent."""


def about_of(manifest: Manifest, address: str | None, since: float | None, *, guest: bool) -> Picture:
    """What changes with a stage at most."""
    config = manifest.config
    return {
        "run": config.name,
        "description": config.about.description if config.about is not None else "",
        "address": address,
        "guest": guest,
        "since": None if since is None else round(since),
        "table": [list(row) for row in manifest.stage.table],
        "resting": list(manifest.stage.resting),
        "shares": [rounded(share) for share in manifest.stage.path_weights],
        "overlap": manifest.stage.overlap,
        "codec": manifest.rules.wire.codec,
        "pacing": manifest.rules.rounds.pacing,
        "company": company(config.admission.kind),
        "stages": [_stage_row(config, index, manifest) for index in range(len(config.stages))],
    }


def _stage_row(config: RunConfig, index: int, manifest: Manifest) -> Picture:
    stage = config.stages[index]
    begun = manifest.stages[index] if index < len(manifest.stages) else None
    paths = len(begun.table) if begun is not None else stage.num_paths
    return {
        "router": stage.router,
        "paths": 1 if ROUTERS[stage.router].paths == "one" else paths,
        "rounds": begun.rounds if begun is not None and begun.rounds is not None else stage.rounds,
    }


def now_of(
    status: SwarmStatus,
    pace: Pace,
    *,
    activity: str,
    progress: float | None,
    heldout: Mapping[int, float],
    trained: float | None,
    last_event: float | None,
) -> Picture:
    """What changes with every look."""
    version, lowest = progress_of(status)
    return {
        "stage": status.stage,
        "finished": status.finished,
        "activity": activity,
        "progress": rounded(progress),
        "peers": status.peers,
        "awake": sum(member.awake for member in status.members),
        "keepers": status.keepers,
        "staffed": status.staffed,
        "paths": len(status.paths),
        "speed": rounded(status.tokens_per_second),
        "loss": rounded(status.loss, 4),
        "heldout": rounded(heldout_of(status, heldout), 4),
        "tokens": pace.tokens,
        "counted": rounded(pace.counted_per_second),
        "goodput": rounded(pace.goodput),
        "trained": rounded(trained),
        "version": rounded(version, 4),
        "lowest": lowest,
        "target": status.target_version,
        "round": rounded(status.round_seconds),
        "left": rounded(pace.stage_seconds),
        "minimum": status.min_holders,
        "event": last_event,
    }


def heldout_of(status: SwarmStatus, losses: Mapping[int, float]) -> float | None:
    """The mean over the paths of which it is known, weighted by their shares."""
    known = [(path.share, losses[path.index]) for path in status.paths if path.index in losses]
    shares = sum(share for share, _ in known)
    return sum(share * loss for share, loss in known) / shares if shares else None


def path_row(path: PathStatus, heldout: float | None) -> list[object]:
    """Index, peers, lowest and highest version, tokens a second, loss, loss on held-out documents."""
    return [
        path.index,
        path.peers,
        path.version_min,
        path.version_max,
        rounded(path.tokens_per_second),
        rounded(path.loss, 4),
        rounded(heldout, 4),
    ]


def module_row(module: ModuleStatus) -> list[object]:
    """Name, version, holders, keepers, who trains it, whether all have the same bytes, tokens behind it."""
    return [
        module.name,
        module.version,
        module.holders,
        module.keepers,
        module.peers,
        module.digests_agree,
        rounded(module.work, 4),
    ]


def contributor_row(each: Contributor, rank: int, here: bool) -> Picture:
    return {
        "rank": rank,
        "peer": each.peer,
        "name": each.nickname,
        "path": each.path,
        "first": round(each.first),
        "last": round(each.last),
        "offered": round(each.offered),
        "counted": round(each.counted),
        "here": here,
    }


def event_row(event: Noted) -> Picture:
    return {"id": event.id, "at": round(event.at, 1), "kind": event.kind, "line": event.line}


def change(before: Picture, after: Picture) -> Picture:
    """What of a picture is another than before: of lists with as many rows, the rows; of events, the new ones."""
    changed: Picture = {}
    for part, value in after.items():
        old = before.get(part)
        if old == value:
            continue
        if part in LISTS and isinstance(old, list) and len(old) == len(value):
            changed[part] = {str(i): row for i, row in enumerate(value) if row != old[i]}
        elif part == "now" and isinstance(old, dict):
            changed[part] = {key: each for key, each in value.items() if old.get(key, _NEVER) != each}
        elif part == "feed" and isinstance(old, list):
            last = old[-1]["id"] if old else 0
            changed[part] = [event for event in value if event["id"] > last]
        else:
            changed[part] = value
    return changed


_NEVER = object()


def rounded(value: float | None, digits: int = 3) -> float | None:
    """So many digits that count; None for what is no number."""
    if value is None or not math.isfinite(value):
        return None
    if value == 0:
        return 0
    places = digits - 1 - math.floor(math.log10(abs(value)))
    result = round(value, places)
    return int(result) if places <= 0 else result
