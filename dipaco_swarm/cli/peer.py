"""dipaco-peer: train one path of a run until Ctrl+C."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dipaco_swarm.cli.grouped import Grouped
from dipaco_swarm.cli.peer_home import COMMANDS
from dipaco_swarm.cli.peer_home import app as besides
from dipaco_swarm.cli.words import (
    ANSWERS,
    answers_choice,
    ask_hub_as_nobody,
    compile_choice,
    devices_choice,
    gpu_power_choice,
    hours_choice,
    moments_choice,
    new_app,
    nickname_choice,
    path_choice,
    screen_choice,
    worded_failures,
    yield_choice,
)

if TYPE_CHECKING:
    from dipaco_swarm.settings import Own, PeerSettings

BYTES_PER_MEGABIT = 1e6 / 8
BYTES_PER_GIGABYTE = 1e9
OWN_SHARE, MOST_OWN = 0.2, 0.5
MACHINE, NETWORK, DOCUMENTS = "This machine", "The network", "Documents"
OTHERS, SHOWN = "You and the others", "What it shows, and when it ends"

app = new_app("Train one path of a DiPaCo run, together with everybody who shares its modules.")


@app.command(cls=Grouped, epilog=f"Besides: dipaco-peer {', '.join(COMMANDS)}; each has its own --help.")
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
            metavar="MADDR",
            help="Where to listen, for example /ip4/0.0.0.0/tcp/4002.  [default: any free port]",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    reachable: Annotated[
        Literal["auto", "yes", "no"],
        typer.Option(
            help="Whether others can dial this machine; auto: the bootstrap node tries it.", rich_help_panel=NETWORK
        ),
    ] = "auto",
    bandwidth: Annotated[
        float | None,
        typer.Option(
            metavar="MBIT",
            min=1,
            help="Mbit/s that this machine may send.  [default: no limit]",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="auto|cpu|cuda|cuda:0,cuda:1",
            help="What to train on; several of a kind train the path together.",
            rich_help_panel=MACHINE,
        ),
    ] = "auto",
    micro_batch: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Sequences per forward pass.  [default: as many as fit]", rich_help_panel=MACHINE
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="CPU threads.  [default: torch's choice]", rich_help_panel=MACHINE),
    ] = None,
    dtype: Annotated[
        Literal["auto", "fp32", "bf16"],
        typer.Option(help="Rounding of activations; auto: bf16 where it is faster here.", rich_help_panel=MACHINE),
    ] = "auto",
    moments: Annotated[
        Literal["auto", "8-bit", "32-bit"],
        typer.Option(help="Of the optimizer; auto: 8-bit on a GPU.", rich_help_panel=MACHINE),
    ] = "auto",
    recompute: Annotated[
        Literal["auto", "yes"],
        typer.Option(
            help="Activations twice, for less memory; auto: where a GPU runs out of it.", rich_help_panel=MACHINE
        ),
    ] = "auto",
    compiled: Annotated[
        bool, typer.Option("--compile", help="Use torch.compile: a slow start, then faster.", rich_help_panel=MACHINE)
    ] = False,
    cpu_share: Annotated[
        int,
        typer.Option(
            metavar="PERCENT", min=1, max=100, help="How much of the time to compute.", rich_help_panel=MACHINE
        ),
    ] = 100,
    gpu_power: Annotated[
        int | None,
        typer.Option(
            metavar="WATTS",
            min=1,
            help="Power that each NVIDIA GPU may take meanwhile.  [default: as it is]",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    disk: Annotated[
        float,
        typer.Option(
            metavar="GB", min=0.1, help="Disk for documents that are read beside training.", rich_help_panel=MACHINE
        ),
    ] = 20,
    data_root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Documents, for a run that reads files of this machine. Nothing else is read.",
            rich_help_panel=DOCUMENTS,
        ),
    ] = None,
    own_data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Documents of your own, of which this peer alone trains on. They stay here.",
            rich_help_panel=DOCUMENTS,
        ),
    ] = None,
    own_share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="How much of what it trains on those are, up to 0.5.  [default: 0.2]",
            rich_help_panel=DOCUMENTS,
        ),
    ] = None,
    answers: Annotated[
        str,
        typer.Option(
            metavar="auto|no|N",
            help=f"Write for who asks the run something: N at once; auto: {ANSWERS}.",
            rich_help_panel=OTHERS,
        ),
    ] = "auto",
    hours: Annotated[
        str | None,
        typer.Option(
            metavar="FROM-TO",
            help="Train in these hours alone, by the local time: 22-7.  [default: always]",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    yields: Annotated[
        str,
        typer.Option(
            "--yield",
            metavar="WHAT",
            help="Pause while others want it: cpu, gpu, battery, metered, with commas, or all.",
            rich_help_panel=MACHINE,
        ),
    ] = "no",
    low_priority: Annotated[
        bool,
        typer.Option(
            "--low-priority/--normal-priority",
            help="Others get processor and disk first, or not.",
            rich_help_panel=MACHINE,
        ),
    ] = True,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before the first time in a run.", rich_help_panel=OTHERS)
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="What to call you in the list of who trains; everybody can read it.",
            rich_help_panel=OTHERS,
        ),
    ] = "",
    until_finished: Annotated[
        bool, typer.Option("--until-finished", help="End when the run has finished.", rich_help_panel=SHOWN)
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after this many outer rounds.", rich_help_panel=SHOWN)
    ] = None,
    screen: Annotated[
        Literal["live", "plain", "none"] | None,
        typer.Option(help="What to show.  [default: live on a terminal, else plain]", rich_help_panel=SHOWN),
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

        address, devices = RunAddress.parse(run), devices_choice(device)
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
            own=_own(own_data, own_share, home or default_home(address.name, "peer")),
            answers=answers_choice(answers),
            device=devices[0],
            helpers=devices[1:],
            gpu_power=gpu_power_choice(gpu_power, devices),
            micro_batch=micro_batch,
            threads=threads,
            autocast=None if dtype == "auto" else dtype == "bf16",
            eight_bit=moments_choice(moments),
            recompute=recompute == "yes",
            compiled=compile_choice(wanted=compiled),
            nickname=nickname_choice(name),
            hours=hours_choice(hours),
            yields=yield_choice(yields),
            low_priority=low_priority,
            until_finished=until_finished,
            rounds=rounds,
            screen=screen_choice(screen),
        )
        from dipaco_swarm.peer.program import run_peer  # torch and hivemind load only when needed

        if sys.stdin.isatty() and not yes:
            _ask_once(settings)
        run_peer(settings)


def _own(folder: Path | None, share: float | None, home: Path) -> "Own | None":
    """Raises UsageError."""
    from dipaco_swarm.errors import UsageError
    from dipaco_swarm.settings import Own

    if folder is None:
        if share is not None:
            raise UsageError(f"--own-share {share} of what? Name your documents with --own-data DIR, or leave it out")
        return None
    share = OWN_SHARE if share is None else share
    if not 0 < share <= MOST_OWN:
        raise UsageError(
            f"--own-share {share} must be above 0 and at most {MOST_OWN}: at least half of what a peer trains on are "
            "the run's documents, for the others rely on it"
        )
    return Own(folder, share, home)


def _ask_once(settings: "PeerSettings") -> None:
    """Before the first time in a run: say what it asks of this machine; end here if its owner does not want that."""
    from dipaco_swarm.client.visits import terms
    from dipaco_swarm.peer.keeping import has_been_in_run
    from dipaco_swarm.peer.training_workbench import device_of
    from dipaco_swarm.training.own import look_at

    if has_been_in_run(settings.home):
        return
    typer.echo(f"asking what {settings.address.name} wants of this machine ...")
    typer.echo(f"{terms(settings.address, device_of(settings.device)).whole}.")
    if settings.own is not None:
        typer.echo(f"{look_at(settings.own)}; what your peer learns from them becomes part of the model.")
    typer.echo("What leaves this machine, and what its operator decides: docs/volunteer.md.")
    if not typer.confirm("Take part?"):
        typer.echo("not joined; what is in the run address can still be used")
        raise typer.Exit(1)


def main() -> None:
    ask_hub_as_nobody()
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        besides(prog_name="dipaco-peer")
    else:
        app(prog_name="dipaco-peer")
