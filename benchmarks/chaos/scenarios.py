"""The stories: who is there, what happens to them, and what must be true afterwards.

Each is a function of a `Story`; to add one, write it and add it to SCENARIOS. All have small numbers by default, which
`--rounds` and `--minutes` raise.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.chaos.crew import Member
from benchmarks.chaos.lab import Link
from benchmarks.chaos.story import Disappointed, Story
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.events.operator import Serving
from dipaco_swarm.events.volunteer import Moving, NobodyAnswers, NotDialable
from dipaco_swarm.operator.home import OperatorHome

FOUR_PATHS: dict[str, Any] = {"router": "product-k-means", "modules": [2, 2]}
HOME_LINE = Link(down_mbit=100, up_mbit=20, round_trip_ms=50)
FAR_LINE = Link(down_mbit=10, up_mbit=10, round_trip_ms=200, loss_percent=2)
LONG_ROUNDS: dict[str, Any] = {"rounds": {"inner_steps": 300}}
"""What a line with loss carries in a few seconds is less than a module."""
LONGER_ROUNDS: dict[str, Any] = {"rounds": {"inner_steps": 1000}}
"""Half a minute or more: longer than such a line takes for a module, as no path waits for who helps it."""
LEAK_MINUTES = 5.0
"""Of a shorter soak the memory says nothing."""
FULL_ROUNDS: dict[str, Any] = {"rounds": {"inner_steps": 120}, "inner": {"schedule_steps": 4500}}
"""Ten seconds and more. Shorter ones are over before all have heard of the last one, and have as many tokens as there
was time: fewer with faults, and as a path's learning rate goes by its rounds, the two cannot be compared."""
ROUND_SECONDS = 120.0
"""No round should take longer than this, whatever happens, on two cores with eight peers."""
UNDER_WAY = 2.5
"""Rounds whose tokens still come once the operator has ended a stage: those that have begun, and half of one more."""
FATAL = frozenset({"kill", "power cut", "Ctrl+C"})
FAULTS = FATAL | {"sleep", "unplug"}
"""Of a soak."""


@dataclass(frozen=True)
class Length:
    """How long a scenario goes on, and how many take part."""

    rounds: int
    minutes: float
    peers: int = 8
    tokens: float = 0.0
    """Instead of rounds, for the run without faults: the operator ends it so that so many will have counted."""


@dataclass(frozen=True)
class Scenario:
    """Something that happens to a swarm."""

    about: str
    play: Callable[[Story, Length], None]
    rounds: int
    """How many it is about, unless --rounds says otherwise."""
    minutes: float
    """Of what goes by the clock."""
    stage: Mapping[str, Any] | None = field(default_factory=lambda: FOUR_PATHS)
    """In which it happens; None: in the warm-up, where everybody is on one path."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    networked: bool = True
    """Whether lines are cut, slow or behind routers; where they are not, this machine's loopback will do."""
    ends_by_rounds: bool = False
    """Whether the stage is over after so many rounds; otherwise the story ends it, however fast rounds are."""
    cpu_share: int = 100
    """Per cent of the time that each peer computes."""
    compared: bool = False
    """Followed by the same run without faults, to the same number of tokens."""


def _long(usual: float) -> float:
    """Seconds that no module should be without a new version where a round usually takes so long.

    Four rounds more; or as long as it takes to notice that one and then another who should lead are silent.
    """
    return max(5 * usual, 20.0)


def _check_nobody_waits(story: Story, whom: str, since: float, usual: float) -> None:
    gap = story.facts().longest_gap(since, time.time())
    seen = f"{gap:.0f} s without a version at most, usually {usual:.0f} s"
    story.check(f"nobody waits for {whom}", gap < _long(usual), seen)


def _everybody(story: Story, count: int, link: Link = Link()) -> list[Member]:  # noqa: B008  # frozen
    """Peers that were told their paths, replicas last; returns when they train in the last stage."""
    paths = story.config.stages[-1].num_paths or 1
    peers = [story.peer(f"peer-{i}", i % paths, link) for i in range(count)]
    story.until_version(1, 10 * ROUND_SECONDS)
    story.tell("all modules have left their seeds")
    return peers


# ---------------------------------------------------------------------------------------------------------- come and go


def kill_half(story: Story, length: Length) -> None:
    """Every round a random half of the peers is killed and started again."""
    node = story.bootstrap()
    peers = _everybody(story, length.peers)
    story.remember_versions()
    for _ in range(length.rounds):
        version = story.version()
        story.pause(story.random.uniform(0, 3))  # any moment: training, gathering, in the middle of a reduce
        half = story.random.sample(peers, len(peers) // 2)
        for peer in (peer for peer in half if peer.running):
            (story.power_cut if story.random.random() < 0.5 else story.kill)(peer)
        for peer in half:
            peer.start()
        story.until_version(version + 1, ROUND_SECONDS)
        story.tell(f"version {story.version()} everywhere; killed {', '.join(sorted(peer.name for peer in half))}")
    # all train again before it ends, so that its last rounds have as much in them as those of the run without faults
    story.until_version(story.version() + 2, 2 * ROUND_SECONDS)
    story.finish(node, 3 * ROUND_SECONDS)
    killed = sum(story.faults.values())
    story.check("half of the peers was killed every round", killed == len(peers) // 2 * length.rounds, killed)


def warm_up(story: Story, length: Length) -> None:
    """The same peers until they train in the last stage, with its router and its seeds; then all leave."""
    node = story.bootstrap(until_finished=False)
    _everybody(story, length.peers)
    _say_goodbye(story, node)


def undisturbed(story: Story, length: Length) -> None:
    """The same peers, and nothing happens to them."""
    node = story.bootstrap()
    _everybody(story, length.peers)

    def is_near() -> bool:
        counted, rounds = story.contributed(), max(1, story.version() - 1)
        return counted + UNDER_WAY * counted / rounds >= length.tokens

    story.until(is_near, "nearly as many tokens as with faults", length.rounds * ROUND_SECONDS)
    story.finish(node, 3 * ROUND_SECONDS)


def quiet(story: Story, length: Length) -> None:
    """Nothing happens to anybody, and so nothing is lost."""
    node = story.bootstrap()
    _everybody(story, length.peers)
    story.remember_versions()
    story.until_version(1 + length.rounds, (length.rounds + 2) * ROUND_SECONDS)
    story.finish(node, 3 * ROUND_SECONDS)


def soak(story: Story, length: Length) -> None:
    """Random faults for a long time: kills, power cuts, goodbyes, sleep, unplugged lines."""
    node = story.bootstrap()
    peers = _everybody(story, length.peers)
    story.remember_versions()
    asleep: dict[str, float] = {}
    unplugged: dict[str, float] = {}
    began, ends = time.time(), time.monotonic() + 60 * length.minutes
    longest_pause = min(15.0, 60 * length.minutes / len(FAULTS))
    deck: list[str] = []
    while time.monotonic() < ends or (set(story.faults) < FAULTS and time.monotonic() < ends + ROUND_SECONDS):
        story.pause(story.random.uniform(longest_pause / 8, longest_pause))
        now = time.monotonic()
        for peer in peers:
            if asleep.get(peer.name, now) < now:
                del asleep[peer.name]
                peer.thaw()
            if unplugged.get(peer.name, now) < now:
                del unplugged[peer.name]
                peer.line.join()
            if not peer.running:
                peer.start()
        able = [p for p in peers if p.running and p.name not in asleep and p.name not in unplugged]
        if len(able) < len(peers) // 2:
            continue
        # random, and yet each kind as often as the others, in a short soak too
        deck = deck or story.random.sample(sorted(FAULTS), len(FAULTS))
        # the first two never die: it is their memory that tells of leaks
        targets = [peer for peer in able if peer not in peers[:2] or deck[-1] not in FATAL]
        if not targets:
            continue
        peer, fault = story.random.choice(targets), deck.pop()
        match fault:
            case "kill":
                story.kill(peer)
            case "power cut":
                story.power_cut(peer)
            case "Ctrl+C":
                story.ctrl_c(peer)
            case "sleep":
                peer.freeze()
                asleep[peer.name] = now + story.random.uniform(5, 60)
                story.faults["sleep"] += 1
            case "unplug":
                peer.line.cut()
                unplugged[peer.name] = now + story.random.uniform(5, 60)
                story.faults["unplug"] += 1
        story.tell(f"{fault}: {peer.name}; {len(story.crew.running())} programs running, version {story.version()}")

    def unplugged_packets() -> int:
        return sum(peer.line.counters().unplugged for peer in peers)

    story.until(lambda: unplugged_packets() > 0, "packets meet a line that is cut", 30)
    for peer in peers:
        if peer.name in asleep:
            peer.thaw()
        peer.line.join()
        if not peer.running:
            peer.start()
    gap = story.facts().longest_gap(began, time.time())
    story.note("version at the end of the churn", story.version())
    story.check("no module stood still", gap < ROUND_SECONDS, f"{gap:.0f} s without a new version at most")
    story.check("lines were really cut", unplugged_packets() > 0, f"{unplugged_packets()} packets")
    took = story.until_one(time.time(), length.rounds * ROUND_SECONDS)
    story.note("seconds of peace until everybody made the same versions", f"{took:.0f}")
    if length.minutes >= LEAK_MINUTES:
        story.check_for_leaks()
    # the stage ends when its slowest module is where the fastest was: after an hour that can be a hundred rounds
    story.finish(node, 15 * ROUND_SECONDS)
    often = set(story.faults) >= FAULTS and sum(story.faults.values()) >= 2 * length.minutes
    story.check("faults of every kind happened all the time", often, dict(story.faults))


def _say_goodbye(story: Story, node: Member) -> None:
    """Ctrl+C to every peer one after the other, and to the bootstrap node when it has what they made."""
    took = [story.ctrl_c(peer) for peer in story.peers if peer.running]
    story.note("seconds from Ctrl+C to the end, the longest", f"{max(took):.1f}")
    newest = story.facts().newest()
    kept, stage = OperatorHome(node.home), len(story.config.stages) - 1

    def has_all() -> bool:
        states = {m: kept.state(stage, ModuleId.parse(m)) for m in newest}
        return all(s is not None and s.version >= newest[m] for m, s in states.items())

    try:
        story.until(has_all, "the keeper has the newest version of every module", 30)
    except Disappointed as never:
        story.tell(str(never))
    node.ctrl_c()


# ------------------------------------------------------------------------------------------------------------- networks


def partition(story: Story, length: Length) -> None:
    """Two halves that cannot see each other both go on, and meet again."""
    node = story.bootstrap()
    peers = _everybody(story, length.peers)
    story.remember_versions()
    half = len(peers) // 2
    here, there = peers[:half], peers[half:]  # each half has every path
    at = story.version()
    cut = time.time()
    story.network.part([node.line, *(peer.line for peer in here)], [peer.line for peer in there])
    story.faults["partition"] += 1
    names = {"here": [p.name for p in here], "there": [p.name for p in there]}

    def both_go_on() -> bool:
        since = story.facts().since(cut)
        return all(since.by(of).version(story.modules) >= at + 3 for of in names.values())

    took = story.until(both_go_on, "both halves commit three rounds on their own", 6 * ROUND_SECONDS)
    story.note("seconds until both halves had three versions of their own", f"{took:.0f}")
    dropped = story.network.dropped()
    story.check("the network was really parted", dropped > 0, f"{dropped} packets dropped")
    story.check(
        "the halves really went apart", bool(forks := story.facts().forks()), f"{len(forks)} versions with two digests"
    )
    story.network.mend()
    mended, version = time.time(), story.version()

    took = story.until_one(mended, 3 * ROUND_SECONDS)
    story.note("time to heal", f"{took:.0f} s, {story.version() - version} rounds")
    story.until_version(story.version() + length.rounds, length.rounds * ROUND_SECONDS)
    story.finish(node, 3 * ROUND_SECONDS)


def bootstrap_down(story: Story, length: Length) -> None:
    """The bootstrap node is killed for a while; peers go on, and it catches up."""
    node = story.bootstrap()
    peers = _everybody(story, length.peers)
    story.remember_versions()
    before, down = story.version(), time.time()
    story.power_cut(node)
    story.until_version(before + length.rounds, (length.rounds + 2) * ROUND_SECONDS)
    story.note("rounds while it was down", story.version() - before)
    _check_nobody_waits(story, "it", down, story.facts().seconds_a_round())
    cut = story.random.choice(peers)
    story.power_cut(cut)
    restarted = time.time()
    cut.start()  # the node does not answer its call; it must not give up, nor be in the way

    def is_in_or_waits() -> bool:
        return bool(story.facts().since(restarted).by([cut.name]).made) or bool(cut.reported(NobodyAnswers))

    took = story.until(is_in_or_waits, "who is started meanwhile finds the others, or waits", ROUND_SECONDS)
    story.note("seconds until a peer started meanwhile was in, or said that it waits", f"{took:.0f}")
    story.check("it has not given up", cut.running, "running" if cut.running else cut.said_in_this_life()[-300:])
    node.start()
    back = time.time()
    took = story.until(
        lambda: bool(story.facts().since(back).by([cut.name]).made),
        "that peer takes part",
        3 * ROUND_SECONDS,
    )
    story.note("seconds until it took part with the node back", f"{took:.0f}")
    story.finish(node, 3 * ROUND_SECONDS)


def speeds(story: Story, length: Length) -> None:
    """Three peers of one path are as fast as 1 : 2 : 10; the round waits for none of them, and all of them count."""
    story.bootstrap()
    shares = {"slow": 0.03, "middling": 0.06, "fast": 0.3}
    peers = {name: story.peer(name, 0) for name in shares}
    story.peer("other", 3)  # the other two modules
    story.until(lambda: story.facts().rounds() > 0, "the last stage has begun", 10 * ROUND_SECONDS)
    for name, share in shares.items():
        peers[name].throttle(share)
        story.faults["throttled"] += 1
    throttled = time.time()
    story.until_finished((length.rounds + 2) * ROUND_SECONDS)
    facts = story.facts().since(throttled + 10)
    tokens = {name: sum(one.tokens for one in facts.by([name]).made) for name in shares}
    rounds = {name: len({(one.module, one.version) for one in facts.by([name]).made}) for name in shares}
    story.note("tokens that counted", ", ".join(f"{name} {count:,}" for name, count in tokens.items()))
    story.note("rounds in which they counted", ", ".join(f"{name} {count}" for name, count in rounds.items()))
    story.check("the slow one really was slow", 3 * tokens["slow"] < tokens["fast"], f"{tokens['slow']:,} tokens")
    story.check(
        "the slow one is in most rounds", 2 * rounds["slow"] >= rounds["fast"], f"{rounds['slow']} of {rounds['fast']}"
    )


def freeze(story: Story, length: Length) -> None:
    """A quarter of the peers are laptops that sleep for a while; nobody waits for them, and they come back."""
    node = story.bootstrap()
    peers = _everybody(story, length.peers)
    story.remember_versions()
    story.until_version(story.version() + length.rounds, (length.rounds + 2) * ROUND_SECONDS)
    usual = story.facts().seconds_a_round()
    before, asleep = story.version(), story.random.sample(peers, len(peers) // 4)
    slept = time.time()
    for peer in asleep:
        peer.freeze()
        story.faults["sleep"] += 1
    story.until(lambda: all(peer.process.status() == "stopped" for peer in asleep), "they really sleep", 10)
    story.pause(60 * length.minutes)
    while_asleep = story.version() - before
    _check_nobody_waits(story, "them", slept, usual)
    for peer in asleep:
        peer.thaw()
    woken = time.time()
    story.note(f"rounds while {len(asleep)} of {len(peers)} slept for {60 * length.minutes:.0f} s", while_asleep)
    story.check("the others went on", while_asleep >= 1, f"{while_asleep} rounds")
    names = [peer.name for peer in asleep]

    def all_back() -> bool:
        since = story.facts().since(woken)
        return all(any(one.contributors > 1 for one in since.by([name]).made) for name in names)

    took = story.until(all_back, "those who slept take part again", 2 * ROUND_SECONDS)
    story.note("seconds until those who slept took part again", f"{took:.0f}")
    story.finish(node, 3 * ROUND_SECONDS)


def slow_link(story: Story, length: Length) -> None:
    """One of five peers has a line of 10 Mbit/s with 200 ms and 2 % loss, the others home lines."""
    node = story.bootstrap()
    story.peer("far", 0, FAR_LINE)
    for path in range(4):
        story.peer(f"near-{path}", path, HOME_LINE)
    story.until_version(1, 10 * ROUND_SECONDS)
    took = story.until_version_of(["far"], 1, 10 * ROUND_SECONDS)
    story.note("seconds after the others until the far peer was in", f"{took:.0f}")
    began = time.time()
    story.until_version(story.version() + length.rounds, (length.rounds + 2) * ROUND_SECONDS)
    story.finish(node, 3 * ROUND_SECONDS)
    facts = story.facts().since(began)
    alone = len({(one.module, one.version) for one in facts.by(["near-0"]).made})
    with_far = len({(one.module, one.version) for one in facts.by(["far"]).made if one.contributors > 1})
    far = story.crew.members["far"].line.counters()
    story.faults["slow line"] += 1
    story.check("packets were really lost", far.lost > 0, f"{far.lost} packets lost, {far.bytes_out:,} bytes sent")
    story.check("the far peer is in most rounds of its modules", 2 * with_far >= alone, f"{with_far} of {alone}")


def deadlines(story: Story, length: Length) -> None:
    """The same run file on a fast network, on home lines, and on bad ones: `--line` says which."""
    line = {"loopback": Link(), "home": HOME_LINE, "far": FAR_LINE}[story.line]
    node = story.bootstrap()
    peers = _everybody(story, 4, line)
    seconds = (length.rounds + 2) * 4 * ROUND_SECONDS
    took = story.until_version_of([peer.name for peer in peers], 1, seconds)
    story.note("seconds from the first outer steps until all four took part", f"{took:.0f}")
    began, before = time.time(), story.version()
    took = story.until_version(before + length.rounds, seconds)
    made = story.facts().since(began).made
    done = story.version() - before
    story.check(f"{length.rounds} rounds on a {story.line} line", done >= length.rounds, f"{done} in {took:.0f} s")
    story.finish(node, seconds)
    counters = [peer.line.counters() for peer in story.peers]
    if line.loss_percent:
        story.check("packets were really lost", all(c.lost > 0 for c in counters), [c.lost for c in counters])
    if line.round_trip_ms:
        story.check("packets were really late", all(c.delayed > 0 for c in counters), [c.delayed for c in counters])
    together = sum(one.contributors > 1 for one in made) / max(1, len(made))
    story.check(
        "mostly together", together > 0.5, f"{100 * together:.0f} % of the outer steps had both peers of a module"
    )
    sent = sum(c.bytes_out for c in counters)
    story.note("bytes sent a peer", f"{sent / len(counters):,.0f}")
    story.faults[f"{story.line} line"] += len(counters)


def nat(story: Story, length: Length) -> None:
    """Two peers behind home routers share modules: with one that can be dialled, and alone with the bootstrap node."""
    node = story.bootstrap()
    behind = Link(nat=True)
    story.peer("home-a", 0, behind)
    story.peer("home-b", 1, behind)

    def together(names: Sequence[str]) -> dict[str, int]:
        """Outer steps of each that it took with somebody."""
        return {n: sum(one.contributors > 1 for one in story.facts().by([n]).made) for n in names}

    two, four = ["home-a", "home-b"], ["home-a", "home-b", "home-c", "open"]
    seconds = (length.rounds + 4) * ROUND_SECONDS
    story.until(lambda: min(together(two).values()) >= length.rounds, "two behind routers train together", seconds)
    shared = together(two)
    alone = "two behind routers train in one group, alone"
    story.check(alone, min(shared.values()) >= length.rounds, f"{shared} outer steps with the other")
    told = [len(story.crew.members[name].reported(NotDialable)) for name in two]
    story.check("they are really behind routers", all(told), told)
    relayed = node.line.counters().bytes_out
    story.check("it went through the bootstrap node", relayed > min(shared.values()) * 100_000, f"{relayed:,} bytes")
    story.peer("open", 2)
    story.peer("home-c", 3, behind)
    story.until(lambda: min(together(four).values()) >= length.rounds, "all four train together", seconds)
    shared = together(four)
    story.check("all four share modules", min(shared.values()) >= length.rounds, f"{shared} outer steps with others")
    story.finish(node, 3 * ROUND_SECONDS)
    story.faults["home router"] += 3


# ---------------------------------------------------------------------------------------------------- few, and the last


def rotate(story: Story, length: Length) -> None:
    """Four peers, sixteen paths: all of them progress, and evenly."""
    story.bootstrap()
    for i in range(4):
        story.peer(f"peer-{i}", "auto")
    story.until_finished((length.rounds + 2) * 8 * ROUND_SECONDS)
    tokens = dict.fromkeys(range(16), 0)
    rounds = dict.fromkeys(range(16), 0)
    for one in story.facts().made:
        tokens[one.path] += one.tokens
        rounds[one.path] += 1
    mean = sum(tokens.values()) / len(tokens)
    story.faults["move"] = sum(len(peer.reported(Moving)) for peer in story.peers)
    story.check("peers moved", story.faults["move"] >= 12, f"{story.faults['move']} moves")
    story.check("every path was trained", all(rounds.values()), " ".join(f"{path}:{n}" for path, n in rounds.items()))
    least, most = min(tokens.values()) / mean, max(tokens.values()) / mean
    story.check("evenly", least > 1 / 3 and most < 3, f"tokens of a path: {least:.2f} to {most:.2f} of the mean")


def last_holder(story: Story, length: Length) -> None:
    """Everybody goes, the keeper comes back with an old copy, and one peer still has the newest modules."""
    node = story.bootstrap()
    peers = _everybody(story, length.peers)
    story.until_version(2, 2 * ROUND_SECONDS)
    backup = story.crew.folder / "backup"
    shutil.copytree(node.home, backup)
    story.until_version(4, 3 * ROUND_SECONDS)
    last = peers[0]
    for peer in peers[1:]:
        story.power_cut(peer)
    story.power_cut(node)
    story.ctrl_c(last)  # what it has is in its checkpoint
    newest = {one.module: one.version for one in story.facts().by([last.name]).made}
    story.remember_versions(newest)
    shutil.rmtree(node.home)
    shutil.copytree(backup, node.home)
    story.faults["keeper with an old copy"] += 1
    for peer in peers[1:]:
        for file in (peer.home / "checkpoints").glob("*.safetensors"):
            file.unlink()
        story.faults["lost checkpoints"] += 1
    node.start()
    story.until(lambda: bool(node.reported(Serving)), "the keeper is back with its old copy", ROUND_SECONDS)
    back = time.time()
    last.start()
    story.until(lambda: bool(story.facts().since(back).by([last.name]).made), "the last holder trains", ROUND_SECONDS)
    for peer in peers[1:]:
        peer.start()

    def everybody_back() -> bool:
        since = story.facts().since(back)
        return all(since.by([peer.name]).made for peer in peers)

    first: dict[str, int] = {}
    for one in story.facts().since(back).made:
        first.setdefault(one.module, one.version)
    below = {m: v for m, v in first.items() if m in newest and v <= newest[m]}
    story.check("no version is made twice", not below, f"first new versions {first}, the last holder had {newest}")
    story.until(everybody_back, "everybody takes part again", 3 * ROUND_SECONDS)
    story.until_version(story.version() + length.rounds, (length.rounds + 2) * ROUND_SECONDS)
    story.finish(node, 3 * ROUND_SECONDS)


SCENARIOS: dict[str, Scenario] = {
    "kill-half": Scenario(
        kill_half.__doc__ or "", kill_half, 30, 0, changes=FULL_ROUNDS, networked=False, compared=True
    ),
    "partition": Scenario(partition.__doc__ or "", partition, 3, 0),
    "bootstrap-down": Scenario(bootstrap_down.__doc__ or "", bootstrap_down, 5, 0, networked=False),
    "freeze": Scenario(freeze.__doc__ or "", freeze, 3, 1, networked=False),
    "speeds": Scenario(speeds.__doc__ or "", speeds, 10, 0, networked=False, ends_by_rounds=True),
    "slow-link": Scenario(slow_link.__doc__ or "", slow_link, 8, 0, changes=LONGER_ROUNDS),
    "deadlines": Scenario(deadlines.__doc__ or "", deadlines, 10, 0, changes=LONG_ROUNDS),
    "nat": Scenario(nat.__doc__ or "", nat, 3, 0),
    "rotate": Scenario(
        rotate.__doc__ or "",
        rotate,
        120,
        0,
        {"router": "product-k-means", "modules": [4, 4]},
        {"rounds": {"inner_steps": 30}},
        networked=False,
        ends_by_rounds=True,
    ),
    "last-holder": Scenario(last_holder.__doc__ or "", last_holder, 3, 0, networked=False),
    "quiet": Scenario(quiet.__doc__ or "", quiet, 10, 0, networked=False),
    "soak": Scenario(soak.__doc__ or "", soak, 3, 60),
}
"""What `python -m benchmarks.chaos` knows."""
