"""How every command ends: what a person can act on is one line, what is our bug is a traceback.

0    done          2    SwarmError: one red line on stderr (also typer's code for wrong arguments)
1    a bug: traceback        3    NotWholeError: a synchronous run that ended, and was made without somebody at times
                             130  interrupted
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import typer

from dipaco_swarm.errors import NotWholeError, SwarmError, UsageError, tamed
from dipaco_swarm.machine.others import ASKING

if TYPE_CHECKING:
    from dipaco_swarm.machine.manners import Hours
    from dipaco_swarm.settings import Web, Yields

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
    """A message without line breaks, and without what a terminal obeys, whatever it quotes."""
    return tamed(" ".join(text.split()))


def write_text(prompt: str, pieces: Iterator[str]) -> None:
    """A text as it comes; on a terminal without what that would obey, as strangers have written it."""
    shown = tamed if sys.stdout.isatty() else str
    first = next(pieces, "")  # what can fail has failed before anything is written
    typer.echo(shown(prompt + first), nl=False)
    for piece in pieces:
        typer.echo(shown(piece), nl=False)
    typer.echo()


def path_choice(text: str) -> int | None:
    """`--path`: a number, or None for auto. Raises UsageError."""
    if text == "auto":
        return None
    if text.isascii() and text.isdecimal():
        return int(text)
    raise UsageError(f"--path={text} is not a path; give a number, counted from 0, or auto")


def nickname_choice(text: str) -> str:
    """`--name`: as others are told. Raises UsageError."""
    from dipaco_swarm.swarm.cards import nickname_of

    try:
        return nickname_of(text)
    except ValueError as error:
        raise UsageError(f"--name {text[:60]!r} cannot be shown to others: {error}") from None


MOST_DEVICES = 16


def devices_choice(text: str) -> tuple[str, ...]:
    """`--device`: one, or several of a kind, with commas. Raises UsageError."""
    devices = tuple(text.split(","))
    kinds = {device.partition(":")[0] for device in devices}
    known = all(re.fullmatch(r"cpu|cuda(:[0-9]{1,2})?", device) for device in devices) and len(kinds) == 1
    if text == "auto" or (known and len(devices) <= MOST_DEVICES):
        return devices
    raise UsageError(
        f"--device={text[:60]} is not known; give auto, cpu, cuda, cuda:1, or several of a kind that train one path "
        f"together: cuda:0,cuda:1 or cpu,cpu, up to {MOST_DEVICES}"
    )


def moments_choice(text: str) -> bool | None:
    """`--moments`: whether they have eight bits; None for auto. Raises UsageError."""
    if text == "8-bit" and find_spec("bitsandbytes") is None:
        raise UsageError("--moments 8-bit needs bitsandbytes, not installed here: pip install bitsandbytes")
    return None if text == "auto" else text == "8-bit"


def compile_choice(*, wanted: bool) -> bool:
    """`--compile`. Raises UsageError where what it needs is not installed."""
    if wanted and not any(map(shutil.which, ("g++", "clang++"))):
        raise UsageError("--compile needs a C++ compiler, and there is none here: install g++, or leave it out")
    return wanted


YIELDS: "tuple[Yields, ...]" = ("cpu", "gpu", "battery", "metered")


def yield_choice(text: str) -> "frozenset[Yields]":
    """`--yield`: for what a peer pauses while others want it. Raises UsageError."""
    words = YIELDS if text == "all" else () if text == "no" else tuple(text.split(","))
    known = [each for each in YIELDS if each in words]
    if len(known) != len(words):
        raise UsageError(f"--yield={text} is not known; give {', '.join(YIELDS)}, some of them with commas, all, or no")
    missing: dict[Yields, str] = {}
    if find_spec("pynvml") is None:
        missing["gpu"] = "nvidia-ml-py, not installed here: pip install nvidia-ml-py"
    if shutil.which(ASKING) is None:
        missing["metered"] = f"the program {ASKING} (of systemd) to ask NetworkManager with; it is not here"
    for each in () if text == "all" else known:  # of all, what can be told here
        if each in missing:
            raise UsageError(f"--yield {each} needs {missing[each]}")
    return frozenset(known) - missing.keys()


def gpu_power_choice(watts: int | None, devices: Sequence[str]) -> int | None:
    """`--gpu-power`, on these devices. Raises UsageError."""
    if watts is None:
        return None
    if devices[0] == "cpu":
        raise UsageError(f"--gpu-power {watts}: --device cpu has no GPU; leave it out")
    if find_spec("pynvml") is None:
        raise UsageError("--gpu-power needs nvidia-ml-py, not installed here: pip install nvidia-ml-py")
    return watts


def hours_choice(text: str | None) -> "Hours | None":
    """`--hours`. Raises UsageError."""
    if text is None:
        return None
    from dipaco_swarm.machine.manners import Hours

    try:
        return Hours.parse(text)
    except ValueError as error:
        raise UsageError(f"--hours {error}") from None


ANSWERS = 4
"""At once, when a volunteer does not say."""
MOST_ANSWERS = 8


def answers_choice(text: str) -> int:
    """`--answers`: how many questions are answered at once; 0: none. Raises UsageError."""
    known = {"auto": ANSWERS, "no": 0}
    if text in known:
        return known[text]
    if text.isascii() and text.isdecimal() and int(text) <= MOST_ANSWERS:
        return int(text)
    raise UsageError(f"--answers={text} is no number of questions; give auto, no, or 1 to {MOST_ANSWERS}")


def screen_choice(chosen: ScreenKind | None) -> ScreenKind:
    """`--screen`: what was asked for; else live on a terminal and plain in a log."""
    if chosen is not None:
        return chosen
    return "live" if sys.stdout.isatty() else "plain"


def web_choice(text: str | None) -> "Web | None":
    """`--web`: where a page is served. Raises UsageError when it is none, or what it needs is not installed."""
    if text is None:
        return None
    from dipaco_swarm.settings import Web, check_web

    check_web()
    return Web.parse(text)


def ask_hub_as_nobody() -> None:
    """Of what a run's operator names, nothing is read with this person's own login at the hub: else private data sets
    are. To be called before anything asks the hub; whoever wants otherwise has set the variable to 0."""
    os.environ.setdefault("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
