"""dipaco-peer: train one path of a run until Ctrl+C."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dipaco_swarm.cli.words import new_app, path_choice, screen_choice, worded_failures

if TYPE_CHECKING:
    from dipaco_swarm.settings import PeerSettings

BYTES_PER_MEGABIT = 1e6 / 8
BYTES_PER_GIGABYTE = 1e9

app = new_app("Train one path of a DiPaCo run, together with everybody who shares its modules.")


@app.command()
def peer(
    run: Annotated[str, typer.Option(metavar="ADDRESS", help="The run address that the operator gave you.")],
    path: Annotated[
        str, typer.Option(metavar="N|auto", help="The path to train; auto: where help is needed.")
    ] = "auto",
    home: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoints and identity.  [default: ~/.local/share/dipaco/NAME/peer]"),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Shards; peers of one machine may share it.  [default: inside --home]"),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="MADDR", help="Where to listen, for example /ip4/0.0.0.0/tcp/4002.  [default: any free port]"
        ),
    ] = None,
    reachable: Annotated[
        Literal["auto", "yes", "no"],
        typer.Option(help="Whether others can dial this machine; auto: the bootstrap node tries it."),
    ] = "auto",
    bandwidth: Annotated[
        float | None,
        typer.Option(metavar="MBIT", min=1, help="Mbit/s that this machine may send.  [default: no limit]"),
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="What to train on.")] = "auto",
    micro_batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Sequences per forward pass.  [default: as many as fit]")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="CPU threads.  [default: torch's choice]")
    ] = None,
    cpu_share: Annotated[
        int, typer.Option(metavar="PERCENT", min=1, max=100, help="How much of the time to compute.")
    ] = 100,
    disk: Annotated[
        float, typer.Option(metavar="GB", min=0.1, help="Disk for documents that are read beside training.")
    ] = 20,
    data_root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Documents, for a run that reads files of this machine. Nothing else is read."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the first time in a run.")] = False,
    until_finished: Annotated[bool, typer.Option("--until-finished", help="End when the run has finished.")] = False,
    rounds: Annotated[int | None, typer.Option(metavar="N", min=1, help="End after this many outer rounds.")] = None,
    screen: Annotated[
        Literal["live", "plain", "none"] | None,
        typer.Option(help="What to show.  [default: live on a terminal, else plain]"),
    ] = None,
) -> None:
    """Train one path of a run until Ctrl+C.

    Downloads the modules of the path from other peers, trains them on this machine's share of the documents, and shares
    outer gradients with the peers whose paths use the same modules. Ctrl+C saves, says goodbye and stops; the same
    command goes on where it stopped.
    """
    with worded_failures(ctrl_c_is_ordinary=True):
        from dipaco_swarm.run.address import RunAddress
        from dipaco_swarm.run.reach import Reach
        from dipaco_swarm.settings import PeerSettings, default_home

        address = RunAddress.parse(run)
        settings = PeerSettings(
            address=address,
            path=path_choice(path),
            home=home or default_home(address.name, "peer"),
            cache=cache,
            listen=listen,
            reachable=reachable,
            bandwidth=None if bandwidth is None else bandwidth * BYTES_PER_MEGABIT,
            cpu_share=cpu_share / 100,
            disk=round(disk * BYTES_PER_GIGABYTE),
            reach=Reach(data_root, fenced=True),
            device=device,
            micro_batch=micro_batch,
            threads=threads,
            until_finished=until_finished,
            rounds=rounds,
            screen=screen_choice(screen),
        )
        from dipaco_swarm.peer.program import run_peer  # torch and hivemind load only when needed

        if sys.stdin.isatty() and not yes:
            _ask_once(settings)
        run_peer(settings)


def _ask_once(settings: "PeerSettings") -> None:
    """Before the first time in a run: say what it asks of this machine; end here if its owner does not want that."""
    from dipaco_swarm.client.visits import terms
    from dipaco_swarm.peer.keeping import MANIFEST_FILE
    from dipaco_swarm.peer.training_workbench import device_of

    if (settings.home / MANIFEST_FILE).exists():
        return
    typer.echo(f"asking what {settings.address.name} wants of this machine ...")
    typer.echo(f"{terms(settings.address, device_of(settings.device)).whole}.")
    typer.echo("What leaves this machine, and what its operator decides: docs/volunteer.md.")
    typer.confirm("Take part?", abort=True)


def main() -> None:
    app(prog_name="dipaco-peer")
