"""What clients saw, as rows of a table, and the aims that rows have to meet."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

LOCAL_AIM = 0.9
"""Tokens a second of one client, to those of a loop on this machine, as busy as it is then."""
SCALE_AIM = 1.5
"""Tokens a second of the most clients together, to those of one, where one machine writes for all."""
FIRST_AIM = {"no delay": 0.3, "home line": 1.0}
"""Seconds to the first token of one client, in the median."""
SLOWER_AIM = 0.05
"""Of its training, that a peer's answers cost."""

GENERATED, SERVED_HERE, SERVED_BY_PEERS = "generate", "serve, here", "serve, peers"
AT_FIRST = "serve, peers, at first"
"""While the gateway fetches the paths that so many ask for."""
SERVED_AFTER = "serve, peers, the run is over"
DENSE_TIMES = 9
DENSE, TRANSFORMERS = f"a dense model, {DENSE_TIMES} x the parameters", "transformers serve, one path"
HEAD = (
    "| way | line | clients | answers | tokens/s | first token, s: median | p95 | whole answer, s: p95 "
    "| slowest | of peers | lost |\n" + "|---" * 11 + "|"
)


@dataclass(frozen=True)
class Answer:
    """What one client saw of one answer."""

    first: float
    """Seconds from the question to the first token."""
    seconds: float
    tokens: int
    by: tuple[str, ...] = ()
    """Who wrote it, in turn, where that is known; an empty name is the gateway itself."""


@dataclass(frozen=True)
class Row:
    """So many clients at once."""

    way: str
    clients: int
    answers: Sequence[Answer]
    seconds: float
    """From the first question to the last token."""
    lost: int = 0
    line: str = "no delay"
    streams: bool = True
    """Whether somebody waited for a first token."""
    in_a_loop: Sequence[Answer] = ()
    """The same answers by a loop of this machine, each just before that of this row; none: they were not compared."""

    @property
    def of_a_loop(self) -> float | None:
        """Tokens a second, to those of a loop beside it: the median of all answers, as a machine that has others to
        serve stops one or the other now and then. None: it was not compared."""
        if not self.in_a_loop or not self.answers:
            return None
        pairs = zip(self.in_a_loop, self.answers, strict=False)
        return statistics.median((loop.seconds / loop.tokens) / (each.seconds / each.tokens) for loop, each in pairs)

    @property
    def tokens_a_second(self) -> float:
        """Of all clients together."""
        return sum(answer.tokens for answer in self.answers) / self.seconds

    @property
    def first(self) -> float:
        """Seconds to the first token, the median."""
        return statistics.median(answer.first for answer in self.answers) if self.answers else float("inf")

    def __str__(self) -> str:
        firsts, wholes = (sorted(getattr(each, of) for each in self.answers) for of in ("first", "seconds"))
        by_peers = [bool(by) for answer in self.answers for by in answer.by]
        waited = (f"{self.first:.2f}", f"{p95(firsts):.2f}") if self.streams and self.answers else ("-", "-")
        cells = (
            *(self.way, self.line, self.clients, len(self.answers) + self.lost, f"{self.tokens_a_second:,.0f}"),
            *(*waited, *((f"{p95(wholes):.2f}", f"{wholes[-1]:.2f}") if wholes else ("-", "-"))),
            *(f"{sum(by_peers) / len(by_peers):.0%}" if by_peers else "-", self.lost),
        )
        return f"| {' | '.join(map(str, cells))} |"


def p95(ordered: Sequence[float]) -> float:
    """Within which 95 of 100 are."""
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


@dataclass(frozen=True)
class Beside:
    """Tokens a second that a peer trains on."""

    alone: Sequence[float]
    """Nobody asks it: before, between and after..."""
    at_first: float
    """Four askers take all that it gives at once..."""
    asked: Sequence[float]
    """... and what it goes on giving: so many times."""
    written: float
    """Tokens a second that it wrote for them, when it had nothing saved up."""

    @property
    def slower(self) -> float:
        """The share of its training that answers cost in the long run: each time compared with what was before and
        after it, as machines grow slower and faster; the mean."""
        around = [(one + other) / 2 for one, other in pairwise(self.alone)]
        return statistics.mean(1 - asked / alone for asked, alone in zip(self.asked, around, strict=True))

    def __str__(self) -> str:
        return (
            f"Nobody asks a peer: it trains on {_list(self.alone)} tokens/s. While four askers take all that it gives: "
            f"{self.at_first:,.0f} until what it had saved up is gone, then {_list(self.asked)}, in turn with those "
            f"alone: {self.slower:.1%} less (aim: less than {SLOWER_AIM:.0%}); it writes "
            f"{self.written:.1f} tokens/s for them then."
        )


def _list(speeds: Sequence[float]) -> str:
    return ", ".join(f"{speed:,.0f}" for speed in speeds)


@dataclass(frozen=True)
class Killed:
    """What came of texts while peers were killed."""

    prompts: int
    identical: int
    """To what `generate` writes on this machine with the same modules."""
    killed_at: Sequence[int]
    """Tokens that had come of a text when its writer was killed."""
    handed_over: int
    """Texts with more than one writer."""
    of_the_liar: int
    """Texts that it had a part in before it was found out."""
    found: bool
    """Whether the liar, and nobody else, is asked nothing more."""

    def __str__(self) -> str:
        at = " and ".join(map(str, self.killed_at))
        lies = f"{self.of_the_liar} text{'s' if self.of_the_liar != 1 else ''} had come from it"
        return (
            f"Four peers on two paths, two of them killed in the middle of texts, after {at} tokens of them: "
            f"{self.identical} of {self.prompts} texts are what `generate` writes from the same modules; "
            f"{self.handed_over} had more than one writer. A fifth peer that lied was "
            f"{'found out' if self.found else 'NOT found out'}; {lies}."
        )

    @property
    def missed(self) -> list[str]:
        """Aims, in words."""
        found = []
        if self.identical < self.prompts:
            found.append(f"{self.prompts - self.identical} of {self.prompts} texts are not the undisturbed ones")
        if len(self.killed_at) < 2 or self.handed_over < 2:
            found.append(f"{len(self.killed_at)} peers were killed and {self.handed_over} texts handed over, not two")
        if not self.found:
            found.append("the lying peer was not found out, or an honest one was")
        return found


@dataclass
class Results:
    """Of one call; a part that was not played has no entry."""

    rows: list[Row] = field(default_factory=list)
    beside: Beside | None = None
    killed: Killed | None = None
    left_out: list[str] = field(default_factory=list)
    """Parts that this machine cannot play, and why."""

    @property
    def missed(self) -> list[str]:
        """Aims that are not met, in words."""
        found = [
            f"{row.way}, {row.line}, {row.clients} clients: {row.lost} answers lost" for row in self.rows if row.lost
        ]
        for row in self.rows:
            if row.clients != 1 or row.way not in (SERVED_HERE, SERVED_BY_PEERS, SERVED_AFTER):
                continue
            where, share = f"{row.way}, {row.line}, one client", row.of_a_loop
            if share is not None and share < LOCAL_AIM:
                found.append(f"{where}: {share:.0%} of a loop's tokens a second, aim {LOCAL_AIM:.0%}")
            if row.first > FIRST_AIM[row.line]:
                found.append(f"{where}: the first token comes after {row.first:.2f} s, aim {FIRST_AIM[row.line]} s")
        for way, scale in self._scales.items():
            if way in (SERVED_HERE, SERVED_AFTER) and scale < SCALE_AIM:
                found.append(f"{way}: the most clients have {scale:.1f} times the tokens of one, aim {SCALE_AIM}")
        if self.beside is not None and self.beside.slower > SLOWER_AIM:
            found.append(f"answers cost {self.beside.slower:.1%} of training, aim {SLOWER_AIM:.0%}")
        return found + (self.killed.missed if self.killed is not None else [])

    @property
    def _scales(self) -> dict[str, float]:
        """Tokens a second of the most clients together, to those of one, of each way."""
        found: dict[str, dict[int, float]] = {}
        for row in self.rows:
            if row.line == "no delay":
                found.setdefault(row.way, {})[row.clients] = row.tokens_a_second
        return {way: of[max(of)] / of[1] for way, of in found.items() if 1 in of and len(of) > 1}

    @property
    def said(self) -> list[str]:
        """Sentences beside the table."""
        speed = {row.way: row.tokens_a_second for row in self.rows if row.clients == 1 and row.line == "no delay"}
        found = [
            f"With one client `{row.way}` has {row.of_a_loop:.0%} of the tokens a second of a loop that writes in turn "
            "with it."
            for row in self.rows
            if row.of_a_loop is not None
        ]
        if TRANSFORMERS in speed and GENERATED in speed:
            share = speed[TRANSFORMERS] / speed[GENERATED]
            found.append(f"With one client `{TRANSFORMERS}` has {share:.0%} of a loop's tokens a second.")
        most = max((row.clients for row in self.rows), default=1)
        found += [
            f"`{way}`: {most} clients have {scale:.1f} times the tokens of one." for way, scale in self._scales.items()
        ]
        if GENERATED in speed and DENSE in speed:
            found.append(
                f"A path writes {speed[GENERATED] / speed[DENSE]:.1f} times as many tokens a second as a dense model "
                f"with {DENSE_TIMES} times the parameters. The paper says that paths of 150 million parameters are as "
                "good as a dense model of 1.3 billion, 9 times as large; in quality-full-2x-amd-epyc.md paths are as "
                "good as one 7.4 times as large (perplexity 40.7 and 41.7). What is measured here is speed alone: the "
                "dense model has random numbers."
            )
        parts = (self.beside, self.killed)
        return [*found, *(str(part) for part in parts if part is not None), *self.left_out]
