"""`dipaco-bootstrap check`: mistakes first, within a second; what takes longer only for a file without any."""

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from dipaco_swarm.run.checking import Problem, problems_in
from dipaco_swarm.run.file import text_of_run_file


def run_check(
    run_file: Path, peers: int | None, uplink: float, tokens_per_second: float | None, documents: int, *, as_json: bool
) -> bool:
    """Print what was found; whether the run can be opened. Raises RunFileError for what is no TOML file."""
    config, problems = problems_in(text_of_run_file(run_file))
    if config is None or problems:
        _print_problems(run_file, problems, as_json=as_json)
        return False
    from rich.console import Console

    from dipaco_swarm.algorithm.stages import most_paths  # torch loads only for a file that is right so far
    from dipaco_swarm.operator.check.pace import Crowd
    from dipaco_swarm.operator.check.report import examine

    report = examine(config, Crowd(peers or most_paths(config), uplink, tokens_per_second), documents)
    if as_json:
        typer.echo(report.to_json())
    else:
        Console().print(report)
    return report.ok


def _print_problems(run_file: Path, problems: Sequence[Problem], *, as_json: bool) -> None:
    if as_json:
        found = [{"key": problem.key, "what": problem.what} for problem in problems]
        typer.echo(json.dumps({"ok": False, "problems": found}, indent=2))
        return
    for problem in problems:
        typer.secho(f"{problem.key}: {problem.what}", fg="red", err=True)
    count = f"{len(problems)} mistake{'' if len(problems) == 1 else 's'}"
    typer.echo(f"{run_file}: {count}; correct {'it' if len(problems) == 1 else 'them'} and check again", err=True)
