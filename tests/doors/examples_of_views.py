"""Views with numbers that a person might meet, for tests and for looking at."""

from dataclasses import replace

from dipaco_swarm.dashboard.views import (
    BootstrapView,
    Evaluation,
    Happened,
    LineView,
    ModuleStatus,
    ModuleView,
    PathScore,
    PathStatus,
    PeerView,
    StageEnd,
    SwarmStatus,
    TimeView,
)

PLACE = "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooWHmZ7sYfVX5tCz1eLQkq3R8bPw6uJd4aNcG2xT9vBsmKp"
ADDRESS = f"dipaco:python-2x2:{'abcd2345' * 4}@{PLACE}"


def peer_view() -> PeerView:
    return PeerView(
        run="python-2x2",
        stage=1,
        stages=2,
        path=3,
        num_paths=4,
        activity="training",
        rounds=12,
        peers=7,
        modules=(
            ModuleView("L0M1", version=12, peers=3, agree=3, paths=2, on_its_way=0.62),
            ModuleView("L1M1", version=12, peers=4, agree=3, differ=1, paths=2, catches_up_to=13),
            ModuleView("L2M3", version=11, peers=1, agree=1, paths=1),
        ),
        losses=tuple(7.6 * (0.55 + 0.45 * 0.985**i) + 0.05 * ((i * 37) % 11 - 5) / 5 for i in range(240)),
        tokens_per_second=5312.4,
        tokens=9_830_400,
        life_tokens=121_000_000,
        share=0.31,
        stage_end=StageEnd(version=11.7, last=14, seconds=95.0),
        step=4200,
        time=TimeView(share=0.938, seconds=7500.0, lately=0.961, lately_seconds=900.0),
        sent=LineView({"round": 38_900_000, "versions": 2_100_000, "joining": 200_000, "messages": 30_000}, 210_000.0),
        received=LineView({"round": 49_300_000, "versions": 0, "joining": 8_570_000, "messages": 30_000}, 1_800_000.0),
        last_agreed="L0M1 v12 with 2 others, L1M1 v12 with 3 others, at 14:03:22",
        round_progress=0.62,
        next_round_seconds=23.0,
        events=(
            Happened("14:01:29", "L0M1: caught up from version 9 to 10"),
            Happened("14:02:10", "round 11: loss 4.331, L0M1 v11 with 2 others, L1M1 v11 with 3 others"),
            Happened("14:03:22", "round 12: loss 4.322, L0M1 v12 with 2 others, L1M1 v12 with 3 others"),
        ),
    )


def peer_of_many_modules() -> PeerView:
    """Twenty levels, of which the twelfth is on its way."""
    modules = tuple(
        ModuleView(
            f"L{level}M{level % 3}", version=12, peers=3, agree=3, paths=2, on_its_way=0.3 if level == 11 else None
        )
        for level in range(20)
    )
    return replace(peer_view(), activity="training, and sharing L11M2", modules=modules)


def small_status(*, finished: bool = False) -> SwarmStatus:
    peers = (2, 1, 0, 3)
    return SwarmStatus(
        run="python-2x2",
        stage=1,
        stages=2,
        finished=finished,
        peers=6,
        keepers=1,
        paths=tuple(
            PathStatus(
                index=i,
                modules=(f"L0M{i // 2}", f"L1M{i % 2}"),
                peers=peers[i],
                share=(0.31, 0.22, 0.19, 0.28)[i],
                version_min=11,
                version_max=12,
                tokens_per_second=2400.0 * peers[i],
                loss=4.21 + 0.1 * i if peers[i] else None,
            )
            for i in range(4)
        ),
        modules=(
            ModuleStatus("L0M0", version=12, holders=4, keepers=1, peers=3),
            ModuleStatus("L0M1", version=12, holders=4, keepers=1, peers=3, digests_agree=False),
            ModuleStatus("L1M0", version=11, holders=1, keepers=1, peers=2),
            ModuleStatus("L1M1", version=12, holders=5, keepers=1, peers=4),
        ),
        tokens_per_second=14_400.0,
        loss=4.335,
        target_version=14,
        round_seconds=41.0,
    )


def large_status() -> SwarmStatus:
    peers = [(i * 7919 % 13) // 4 for i in range(256)]
    return SwarmStatus(
        run="paper-16x16",
        stage=1,
        stages=2,
        finished=False,
        peers=sum(peers),
        keepers=3,
        paths=tuple(PathStatus(i, (f"L0M{i // 16}", f"L1M{i % 16}"), peers[i], 1 / 256, 40, 43) for i in range(256)),
        modules=tuple(
            ModuleStatus(
                f"L{level}M{i}",
                40 + i % 4,
                holders=9 * ((level, i) != (1, 7)),
                keepers=int((level, i) != (1, 7)),
                peers=8,
            )
            for level in range(2)
            for i in range(16)
        ),
        tokens_per_second=1_830_000.0,
        loss=3.1,
        target_version=427,
        round_seconds=1260.0,
    )


def bootstrap_view() -> BootstrapView:
    return BootstrapView(
        address=ADDRESS,
        activity="keeping modules",
        status=small_status(),
        progress=0.4,
        bytes_sent=1_400_000_000,
        bytes_received=98_000,
        events=(Happened("14:03:22", "fitting a router (product-k-means) for 4 paths"),),
    )


def evaluation() -> Evaluation:
    return Evaluation(
        run="python-2x2",
        stage=1,
        data="the run's held-out documents",
        prefix_tokens=32,
        paths=(
            PathScore(0, documents=120, tokens=30_000, loss=4.0),
            PathScore(1, documents=80, tokens=10_000, loss=4.4),
        ),
    )


def status_for_users() -> SwarmStatus:
    """A run of minutes, in the middle."""
    figures = (0.39, 3976.0, 3.526), (0.19, 3932.0, 4.361), (0.27, 3937.0, 3.497), (0.14, 3275.0, 4.336)
    return SwarmStatus(
        run="demo-2x2",
        stage=1,
        stages=2,
        finished=False,
        peers=4,
        keepers=1,
        paths=tuple(
            PathStatus(
                index=i,
                modules=(f"L0M{i // 2}", f"L1M{i % 2}"),
                peers=1,
                share=share,
                version_min=9,
                version_max=10 if i < 2 else 9,
                tokens_per_second=speed,
                loss=loss,
            )
            for i, (share, speed, loss) in enumerate(figures)
        ),
        modules=tuple(
            ModuleStatus(name, version=10 if name == "L0M0" else 9, holders=3, keepers=1, peers=2)
            for name in ("L0M0", "L0M1", "L1M0", "L1M1")
        ),
        tokens_per_second=15_120.0,
        loss=3.793,
        target_version=14,
        round_seconds=14.0,
    )


def evaluation_for_users() -> Evaluation:
    return Evaluation(
        run="demo-2x2",
        stage=1,
        data="held-out documents of python",
        prefix_tokens=32,
        paths=(
            PathScore(0, documents=157, tokens=33_711, loss=3.81736),
            PathScore(1, documents=76, tokens=16_174, loss=4.0464),
            PathScore(2, documents=169, tokens=35_120, loss=3.6241),
            PathScore(3, documents=124, tokens=26_445, loss=2.9219),
        ),
    )
