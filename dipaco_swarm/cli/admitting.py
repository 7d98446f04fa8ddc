"""`dipaco-bootstrap invite`, `withdraw` and `admitted`: invitations, and who is in by one or by name."""

import json
from contextlib import suppress
from pathlib import Path

import typer

from dipaco_swarm.cli.operator_home import folder_of, manifest_in, register_in
from dipaco_swarm.errors import ManifestError, UsageError
from dipaco_swarm.events.words import counted
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.orders import Invite, Withdraw
from dipaco_swarm.run.register import digest_of, new_code


def print_invitations(node: OperatorHome, count: int) -> None:
    """One run address a line. Raises HomeError when there is no run."""
    address, codes = node.address(), [new_code() for _ in range(count)]
    node.order(Invite(digests=tuple(map(digest_of, codes))))
    for code in codes:
        typer.echo(str(address.with_invitation(code)))
    with suppress(ManifestError):  # which is the node's to say
        manifest = node.manifest_of_own()
        if manifest is not None and manifest.config.admission.kind == "open":
            typer.echo("this run is open to all: nobody needs an invitation", err=True)


def withdraw(node: OperatorHome, addresses: list[str], *, unused: bool) -> None:
    """Take back the invitations in these run addresses; `unused`: all that nobody has used.

    Raises UsageError when neither is said or both are, AddressError when one is none, HomeError without a run.
    """
    if bool(addresses) == unused:
        raise UsageError("say which invitations: the run addresses that `invite` printed, or --all")
    node.order(Withdraw(digests=tuple(digest_of(_code_in(address)) for address in addresses)))


def _code_in(address: str) -> str:
    """Of the invitation in a run address. Raises UsageError when there is none, AddressError when it is none."""
    code = RunAddress.parse(address).invitation
    if code is None:
        raise UsageError(f"{address} has no invitation in it, which would stand behind a #")
    return code


def list_admitted(run: Path, home: Path | None, *, as_json: bool) -> None:
    """`run`: a run file, or the folder that `serve` keeps. Raises HomeError when there is no run."""
    folder = folder_of(run, home)
    manifest, unused = manifest_in(folder), len(OperatorHome(folder).invitations())
    register, kind = register_in(folder, manifest), manifest.config.admission.kind
    if as_json:
        typer.echo(json.dumps({"kind": kind, "admitted": register.admitted, "unused_invitations": unused}, indent=2))
        return
    for name in register.admitted:
        typer.echo(name)
    said = f"{counted(len(register.admitted), 'peer')} admitted, {counted(unused, 'invitation')} not used yet"
    if kind == "open":
        said += "; the run is open, so others take part as well"
    typer.echo(said, err=True)
