"""Real processes: a bootstrap node, honest peers, and one after the other somebody hostile among them."""

import statistics
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.chaos import crew as crews
from benchmarks.chaos.crew import Member
from benchmarks.chaos.facts import Facts
from benchmarks.chaos.story import Disappointed, Story, Verdict, run_file
from benchmarks.hostile.acting import DONE_FILE, FORGED_FILE, act
from benchmarks.hostile.columns import OUT_WITHIN, Columns, kind_of
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.events.training import Steps
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.testing.cast import STRANGERS

SHARED = ModuleId(0, 0)
START_SECONDS = 300.0
STARTING_SECONDS = 10.0
"""Until who plays a role has started: that costs the honest their processors, and is no attack."""
FINDING_SECONDS = 30.0
"""Who takes part has so much longer to be found in."""
DOING_SECONDS = 180.0
"""Who is to be out after some rounds must have done it once, and the others have gone on, within so long: who leads a
round of four members is chance."""
HEALING_SECONDS = 10.0
"""Until it is waited for no more, once it is killed; nobody has waited for a stranger."""
GRAIN = 0.25
"""Of a version in a window: it has fractions of them, and what is left is that versions do not come evenly."""
VOCABULARY = 2560
"""So that a module has a piece for each of four reducers. In one of two pieces only the first two by their names have
any, and a role of a dishonest reducer that sorts behind them does nothing at all."""
INNER_STEPS = 200
"""Of a round, by all three together: as long as peers hear of each other in. Where a round is over before its members
have heard of the last one, every second one is put off, to the length of eight."""
WORST = (
    "takeover",
    "not-a-number",
    "claims-tokens",
    "calls",
    "tarpit",
    "flip",
    "noise",
    "mute",
    "staller",
    "equivocator",
)
"""What --quick plays."""


def rows(
    roles: Sequence[str], size: int, window: float, tell: Callable[[str], None]
) -> Mapping[tuple[str, int], Columns]:
    """One swarm; each role comes, stays for a window, and is killed. `size`: honest members of the one module group.

    `window`: seconds before, during and after. "Before" is the median of all of these windows, as a few versions are
    made in one.
    """
    crews.prepare()
    found: dict[tuple[str, int], Columns] = {}
    changes = {"tokenizer": {"vocab_size": VOCABULARY}, "rounds": {"inner_steps": INNER_STEPS}}
    config = run_file("hostile", None, {}, changes)
    with tempfile.TemporaryDirectory(prefix="dipaco-hostile-") as folder, crews.Crew(Path(folder)) as crew:
        story = Story(crews.Here, crew, config, 0, Path(folder) / "cache", Verdict(), tell)
        story.bootstrap(until_finished=False)
        honest = [story.peer(f"peer-{number}", 0) for number in range(size)]
        story.until(lambda: Facts.of(honest).newest().get(str(SHARED), 0) >= 2, "two versions", START_SECONDS)
        story.pause(window)
        for role in roles:  # what is after one is before the next
            try:
                found[role, size + 1] = _one(story, honest, role, window)
            except Disappointed as broken:
                tell(f"{role}: {broken}")
                if (hostile := story.crew.members[f"hostile-{role}"]).running:
                    hostile.kill()
    before = statistics.median(columns.versions[0] for columns in found.values()) if found else 0.0
    return {
        row: replace(columns, versions=(before, columns.versions[1], columns.versions[2]))
        for row, columns in found.items()
    }


def _one(story: Story, honest: Sequence[Member], role: str, window: float) -> Columns:
    story.prelude = partial(act, role)
    before = time.time()
    hostile = story.peer(f"hostile-{role}", 0)
    story.prelude = None
    kind, _ = kind_of(role)
    is_stranger = kind in STRANGERS
    story.pause(STARTING_SECONDS if is_stranger else STARTING_SECONDS + FINDING_SECONDS)
    if kind in OUT_WITHIN:
        story.until(lambda: _went_on(honest, hostile), "a version after a round in which it did that", DOING_SECONDS)
    began = time.time()
    story.pause(window)
    ended = time.time()
    if not hostile.running:  # it was to be there all the time
        raise Disappointed(f"who plays {role} has ended by itself: {hostile.log.read_text()[-400:]!r}")
    hostile.kill()
    story.pause(0.0 if is_stranger else HEALING_SECONDS)
    after = time.time()
    story.pause(window)
    now = time.time()
    story.until(lambda: _times(Facts.of(honest))[-1] > now, "the version that is under way", START_SECONDS)
    spans = ((before - window, before), (began, ended), (after, now))
    forged = _forged(hostile)
    facts = Facts.of(honest)
    made = {one.digest for one in facts.made}
    kept = OperatorHome(story.crew.folder / "bootstrap").state(0, SHARED)
    dead = [member.name for member in honest if not member.running]
    for name in dead:
        story.crew.members[name].start()
    times = _times(facts)
    versions = [versions_a_minute(times, *span) for span in spans]
    tokens = [_trained(honest, *span) for span in spans]
    speed = tokens[1] / max(1.0, tokens[0])
    with_it = [one for one in facts.made if one.module == str(SHARED) and began < one.time < ended]
    return Columns(
        versions=(versions[0], versions[1], versions[2]),
        trained=(1.0, speed, tokens[2] / max(1.0, tokens[0])),
        processors=processors_left(speed, len(honest), is_stranger=is_stranger),
        counted=sum(one.contributors > len(honest) for one in with_it) / max(1, len(with_it)),
        adopted=len(forged & made) + (kept is not None and kept.digest in forged),
        ended=len(dead),
        grain=60 * GRAIN / window,
    )


def processors_left(speed: float, honest: int, *, is_stranger: bool) -> float:
    """Of those that so many honest processes had, what they have beside one that trains as they do. `speed`: theirs, of
    that before: who takes part with less than its share of the processors excuses less. A stranger trains nothing:
    where training is slower for it, that is its attack.
    """
    return 1.0 if is_stranger else min(1.0, max(speed, honest / (honest + 1)))


def _went_on(honest: Sequence[Member], hostile: Member) -> bool:
    """Whether the first round in which the hostile did what it does is over: the others know it from there on."""
    file = hostile.home / DONE_FILE
    done = file.read_text().splitlines() if file.exists() else []
    if not done:
        return False
    first, module = done[0].split()
    return any(one.module == module and one.time > float(first) for one in Facts.of(honest).made)


def _forged(hostile: Member) -> set[str]:
    file = hostile.home / FORGED_FILE
    return set(file.read_text().split()) if file.exists() else set()


def versions_a_minute(made: Sequence[float], begin: float, end: float) -> float:
    """Between the last one before this time and the first one after it: a window of few versions has no other fraction
    of them, and without the one that is under way at its end it has half of one less. `made`: when each was, ascending.
    """
    first, after = bisect_right(made, begin) - 1, bisect_right(made, end)
    since = made[first] if first >= 0 else begin
    until = made[after] if after < len(made) else end
    return 60 * (min(after, len(made) - 1) - first) / (until - since) if made else 0.0


def _times(facts: Facts) -> list[float]:
    """When each version of the shared module was made first."""
    first: dict[int, float] = {}
    for one in facts.made:
        if one.module == str(SHARED):
            first.setdefault(one.version, one.time)
    return sorted(first.values())


def _trained(honest: Sequence[Member], begin: float, end: float) -> float:
    """Tokens a second that the honest trained on."""
    return sum(_tokens(member, end) - _tokens(member, begin) for member in honest) / (end - begin)


def _tokens(member: Member, at: float) -> int:
    """That it had trained on by then, in the life in which it was."""
    steps = (
        entry.event.tokens
        for entry in reversed(member.told.entries())
        if entry.time <= at and isinstance(entry.event, Steps)
    )
    return next(steps, 0)
