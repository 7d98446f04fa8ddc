"""The rows about outer rounds: how late their result is merged, in how many bits it travels, with which outer step.

All of them are two by two paths from one warm-up, and differ in `[rounds]`, `[outer]` and `[wire]` alone: the same
documents in the same order, so that what two rows differ by is not the luck of a seed. A row of 60 rounds has a longer
schedule of the inner learning rate, and a warm-up with it.
"""

from typing import Any

from benchmarks.quality.merges import Merge
from benchmarks.quality.rows import OVERLAP, Row, Scale

LONG_ROUNDS = 60
DELAYS = {"5 %": 1, "25 %": 5, "50 %": 10, "95 %": 19}
"""Inner steps of the 20 between two rounds. A whole round is not allowed: the next round must find this one merged."""


def overlap_rows(scale: Scale = OVERLAP) -> tuple[Row, ...]:
    """All of them, what matters most first."""
    return tuple(_rows(scale))


def _rows(scale: Scale) -> list[Row]:
    def row(
        name: str,
        about: str,
        delay: str | None = None,
        codec: str = "int8",
        long: bool = False,
        merge: Merge = "rebase",
        **outer: Any,
    ) -> Row:
        rounds = LONG_ROUNDS if long else scale.rounds
        changes: dict[str, Any] = {"wire": {"codec": codec}}
        if delay is not None:
            changes["rounds"] = {"overlap_steps": DELAYS[delay]}
        if outer:
            changes["outer"] = outer
        if long:
            changes["inner"] = {"schedule_steps": scale.warmup + rounds * scale.inner_steps}
        stages = [{"router": "k-means", "modules": [scale.side, scale.side], "rounds": rounds}]
        return Row(f"60: {name}" if long else name, about, stages, scale.paths, changes, repeated=True, merge=merge)

    plain = "merged late, what was trained since on top"
    return [
        row("blocking", "int8, outer momentum 0.6, learning rate 0.7"),
        row("25 %", plain, "25 %"),
        row("95 %", plain, "95 %"),
        row("25 %, momentum 0.3", "outer momentum 0.3", "25 %", momentum=0.3),
        row("95 %, momentum 0.3", "outer momentum 0.3", "95 %", momentum=0.3),
        row("blocking, momentum 0.3", "outer momentum 0.3", momentum=0.3),
        row("95 %, momentum 0", "no outer momentum", "95 %", momentum=0.0),
        row("fp32", "blocking, fp32 on the wire", codec="fp32"),
        row("int4", "blocking, int4 on the wire", codec="int4"),
        row("25 %, alpha", "half-way to it", "25 %", merge="alpha"),
        row("25 %, eager", "trained meanwhile from a guess of it", "25 %", merge="eager"),
        row("95 %, eager", "trained meanwhile from a guess of it", "95 %", merge="eager"),
        row("blocking", "as blocking, 60 rounds", long=True),
        row("25 %", plain, "25 %", long=True),
        row("95 %", plain, "95 %", long=True),
        row("95 %, momentum 0.3", "outer momentum 0.3", "95 %", long=True, momentum=0.3),
        row("e3m0", "blocking, e3m0 on the wire", codec="e3m0"),
        row("5 %", plain, "5 %"),
    ]
