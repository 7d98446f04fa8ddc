"""A command with many options: its help has them in groups."""

from typing import Any

from typer.core import TyperCommand


class Grouped(TyperCommand):
    """Groups are the `rich_help_panel` of options; those without one come first.

    typer has a click of its own in some versions: so the types of the two arguments have no name here.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)
