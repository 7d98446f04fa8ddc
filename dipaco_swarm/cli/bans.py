"""`dipaco-bootstrap bans`: who is out of a run, and why."""

import json
from pathlib import Path

import typer

from dipaco_swarm.cli.operator_home import folder_of, manifest_in, register_in, table
from dipaco_swarm.operator.banned import banned_by_node, banned_by_operator, file_of_bans
from dipaco_swarm.operator.home import OperatorHome

COLUMNS = ("name", "by", "why")


def warn_of_own_ban(node: OperatorHome, name: str) -> None:
    """Say so where the node has banned the name by itself: no order ends that."""
    fingerprint = node.address().fingerprint
    for banned in banned_by_node(node.folder, fingerprint):
        if banned.name == name:
            typer.echo(
                f"but that node itself has banned it, as it {banned.why}. No order ends that, here or at peers: where "
                f"it is a mistake, stop the program and remove {file_of_bans(node.folder, fingerprint)}"
            )


def list_bans(run: Path, home: Path | None, *, as_json: bool) -> None:
    """`run`: a run file, or the folder that `serve` keeps. Raises HomeError when there is no run."""
    folder = folder_of(run, home)
    register = register_in(folder, manifest_in(folder))
    fingerprint = OperatorHome(folder).address().fingerprint
    found = [*banned_by_operator(register), *banned_by_node(folder, fingerprint)]
    if as_json:
        typer.echo(json.dumps([banned.as_values(fingerprint) for banned in found], indent=2))
        return
    if not found:
        typer.echo("nobody is banned, by you or by this node")
        return
    for line in table([COLUMNS, *((banned.name, banned.by, banned.why) for banned in found)], left=True):
        typer.echo(line)
