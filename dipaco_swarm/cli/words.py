"""How every command ends: what a person can act on is one line, what is our bug is a traceback.

0    done          2    SwarmError: one red line on stderr (also typer's code for wrong arguments)
1    a bug: traceback        3    NotWholeError: a synchronous run that ended, and was made without somebody at times
                             130  interrupted
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import typer

from dipaco_swarm.errors import NotWholeError, SwarmError, UsageError

ScreenKind = Literal["live", "plain", "none"]

EXIT_ERROR = 2
EXIT_NOT_WHOLE = 3
EXIT_INTERRUPTED = 130


def new_app(help: str) -> typer.Typer:
    """A typer application that leaves tracebacks as Python writes them: whole, plain, fit to paste."""
    return typer.Typer(
        help=help, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )


@contextmanager
def worded_failures(*, ctrl_c_is_ordinary: bool = False) -> Iterator[None]:
    """Around the body of a command. `ctrl_c_is_ordinary`: Ctrl+C is how this command is meant to end."""
    try:
        yield
    except SwarmError as error:
        typer.secho(f"error: {one_line(str(error))}", fg="red", err=True)
        raise typer.Exit(EXIT_NOT_WHOLE if isinstance(error, NotWholeError) else EXIT_ERROR) from None
    except KeyboardInterrupt:
        if ctrl_c_is_ordinary:
            raise typer.Exit(0) from None
        typer.secho("interrupted", fg="yellow", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:  # `dipaco-swarm status | head`
        sys.stderr.close()
        raise typer.Exit(EXIT_ERROR) from None


def one_line(text: str) -> str:
    """A message without line breaks, whatever it quotes."""
    return " ".join(text.split())


def path_choice(text: str) -> int | None:
    """`--path`: a number, or None for auto. Raises UsageError."""
    if text == "auto":
        return None
    if text.isascii() and text.isdecimal():
        return int(text)
    raise UsageError(f"--path={text} is not a path; give a number, counted from 0, or auto")


def screen_choice(chosen: ScreenKind | None) -> ScreenKind:
    """`--screen`: what was asked for; else live on a terminal and plain in a log."""
    if chosen is not None:
        return chosen
    return "live" if sys.stdout.isatty() else "plain"
