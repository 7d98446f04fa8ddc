"""What dipaco-peer does besides training: pause, resume, install-service."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dipaco_swarm.cli.words import new_app, worded_failures

app = new_app("Train one path of a DiPaCo run; and what there is besides.")
COMMANDS = ("pause", "resume", "install-service")

HomeArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="HOME", help="The peer's home folder.  [default: the one there is below ~/.local/share/dipaco]"
    ),
]
HomeOption = Annotated[Path | None, typer.Option("--home", metavar="DIR", help="The same.")]


@app.command()
def pause(where: HomeArgument = None, home: HomeOption = None) -> None:
    """Have the peer of a home folder pause: within two seconds, and until `resume`, also over restarts."""
    with worded_failures():
        from dipaco_swarm.errors import cannot_write
        from dipaco_swarm.machine.watching import ask_for_pause

        folder = _home(where or home)
        try:
            ask_for_pause(folder)
        except OSError as error:
            raise cannot_write("paused", folder, error) from error
        typer.echo(f"the peer of {folder} pauses; it goes on with: dipaco-peer resume {folder}")


@app.command()
def resume(where: HomeArgument = None, home: HomeOption = None) -> None:
    """Have it go on."""
    with worded_failures():
        from dipaco_swarm.errors import cannot_write
        from dipaco_swarm.machine.watching import let_go_on

        folder = _home(where or home)
        try:
            let_go_on(folder)
        except OSError as error:
            raise cannot_write("paused", folder, error) from error
        typer.echo(f"the peer of {folder} goes on, unless it pauses for its hours or for others")


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def install_service(
    context: typer.Context,
    run: Annotated[str, typer.Option(metavar="ADDRESS", help="The run address that the operator gave you.")],
) -> None:
    """Write and start a systemd unit of this user, which runs dipaco-peer with the same options."""
    with worded_failures():
        from dipaco_swarm.cli.peer import app as peer_app
        from dipaco_swarm.peer.service import install, units_folder
        from dipaco_swarm.run.address import RunAddress

        options = ["--run", run, *context.args]
        typer.main.get_command(peer_app).make_context("dipaco-peer", list(options))  # a wrong one is said here
        for line in install(RunAddress.parse(run).name, [*_program(), *options], units_folder()):
            typer.echo(line)


def _program() -> list[str]:
    """How this program was called, from anywhere."""
    called = str(Path(sys.argv[0]).absolute())
    return [sys.executable, called] if called.endswith(".py") else [called]


def _home(chosen: Path | None) -> Path:
    """Raises UsageError."""
    from dipaco_swarm.errors import UsageError
    from dipaco_swarm.settings import default_home

    if chosen is not None:
        if not chosen.is_dir():
            raise UsageError(f"{chosen} is no folder; name the home folder of your peer, as --home has it")
        return chosen
    found = sorted(default_home("x", "peer").parents[1].glob("*/peer"))
    if len(found) != 1:
        known = ", ".join(map(str, found)) or "none below ~/.local/share/dipaco"
        raise UsageError(f"which peer? Name its home folder; there is {known}")
    return found[0]
