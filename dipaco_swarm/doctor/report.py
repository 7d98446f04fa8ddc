"""What the doctor saw, for people and for programs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

Verdict = Literal["ok", "note", "bad"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    """note: works, but worth knowing. bad: this machine cannot take part like this."""
    seen: str
    advice: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was measured, for programs: by names that say the unit."""


@dataclass(frozen=True)
class Report:
    """All checks."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.verdict != "bad" for check in self.checks)

    def to_json(self) -> str:
        """For programs: all checks, and all that was measured."""
        checks = [
            {"name": each.name, "verdict": each.verdict, "seen": each.seen, "advice": each.advice}
            for each in self.checks
        ]
        figures = {name: figure for each in self.checks for name, figure in each.figures.items()}
        return json.dumps({"ok": self.ok, "checks": checks, "figures": figures}, indent=2)

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, style="bold")
        table.add_column()
        signs = {"ok": Text("✓", "green"), "note": Text("•", "yellow"), "bad": Text("✗", "red")}
        for check in self.checks:
            table.add_row(signs[check.verdict], check.name, Text(check.seen))
            if check.advice:
                table.add_row("", "", Text(check.advice, "yellow" if check.verdict == "note" else "red"))
        table.add_row()
        end = ("This machine can take part.", "bold green") if self.ok else ("Not yet: see the red lines.", "bold red")
        table.add_row("", "", Text(*end))
        return table
