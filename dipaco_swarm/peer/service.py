"""`dipaco-peer install-service`: a peer that starts with its machine, as a unit of systemd of its user."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from dipaco_swarm.errors import HomeError
from dipaco_swarm.files import write_whole

UNIT = """\
# written by: dipaco-peer install-service
[Unit]
Description=DiPaCo peer of {run}

[Service]
# names of folders without a / in front mean the same as where the command was typed
WorkingDirectory={folder}
ExecStart={command}
Restart=on-failure
# 2 is a mistake that a restart does not cure, and 3 says how a synchronous run has ended; see the last line of the log
RestartPreventExitStatus=2 3
RestartSec=30
KillSignal=SIGINT
KillMode=mixed
TimeoutStopSec=60

[Install]
WantedBy=default.target
"""

Execute = Callable[[Sequence[str]], int]
"""Runs a command; its exit code."""


def unit_of(run: str, command: Sequence[str]) -> str:
    """What the file says. `command`: the program and its arguments, as they are typed in the current folder."""
    folder = str(Path.cwd()).replace("%", "%%")  # a whole line, not quoted
    return UNIT.format(run=run, folder=folder, command=" ".join(map(_quoted, command)))


def units_folder() -> Path:
    chosen = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(chosen) if chosen and Path(chosen).is_absolute() else Path.home() / ".config") / "systemd" / "user"


def install(run: str, command: Sequence[str], folder: Path, execute: Execute | None = None) -> list[str]:
    """Write the unit, and start it where systemd is there; lines for a person. Raises HomeError.

    `execute`: what runs commands; None: whatever is found here.
    """
    file = folder / f"dipaco-peer-{run}.service"
    write_whole(file, unit_of(run, command).encode(), durable=False)
    said = [f"wrote {file}"]
    steps = [("systemctl", "--user", "daemon-reload"), ("systemctl", "--user", "enable", "--now", file.name)]
    shown = " && ".join(" ".join(step) for step in steps)
    if execute is None and shutil.which("systemctl") is None:
        return [*said, f"there is no systemctl here; where there is: {shown}"]
    for step in steps:
        if (execute or _execute)(step):
            raise HomeError(
                f"{' '.join(step)} failed; is this the session of a user with systemd? The unit is written: {file}; "
                f"in such a session: {shown}"
            )
    return [
        *said,
        f"started; its log: journalctl --user -u {file.name} -f",
        "so that it runs while you are not logged in: loginctl enable-linger",
        f"no more: systemctl --user disable --now {file.name}",
    ]


def _execute(command: Sequence[str]) -> int:
    return subprocess.run(command, check=False).returncode


def _quoted(argument: str) -> str:
    """As a unit file wants it: nothing in it is a variable, a specifier, or the end of an argument."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
