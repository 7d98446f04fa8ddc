"""dipaco-bootstrap: write a run file, and serve it."""

import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dipaco_swarm.cli.words import EXIT_ERROR, new_app, screen_choice, web_choice, worded_failures

if TYPE_CHECKING:
    from dipaco_swarm.operator.home import OperatorHome

MAX_WHY = 200

WebOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Serve a page of the run there, for browsers: 127.0.0.1:8080."),
]

app = new_app("Open a DiPaCo run: write its run file, publish it, keep its modules, lead it through its stages.")


@app.command()
def init(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file when it exists.")] = False,
) -> None:
    """Write a commented run file: a small run that works on laptops, every section explained."""
    with worded_failures():
        write_run_file(run_file, force=force)
        typer.echo(f"wrote {run_file}; read it, change it, then: dipaco-bootstrap serve {run_file}")


@app.command()
def check(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file; nothing is opened or written.")],
    peers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="That will take part.  [default: one a path]")
    ] = None,
    uplink: Annotated[float, typer.Option(metavar="MBIT", min=0.01, help="Of each of them, Mbit/s.")] = 20.0,
    tokens_per_second: Annotated[
        float | None, typer.Option(metavar="N", min=0.01, help="That each of them trains on.")
    ] = None,
    documents: Annotated[int, typer.Option(metavar="N", min=0, help="To read and to route; 0: none.")] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what a run file means, and all that is wrong with it: sizes, a round's time, some documents routed."""
    with worded_failures():
        from dipaco_swarm.cli.checking import run_check

        ok = run_check(run_file, peers, uplink, tokens_per_second, documents, as_json=as_json)
    raise typer.Exit(0 if ok else EXIT_ERROR)


@app.command()
def serve(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file; `init` writes one.")],
    home: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Operator's key and modules.  [default: ~/.local/share/dipaco/NAME/bootstrap]"
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="MADDR", help="Where to listen; the port must be open to the outside.")
    ] = "/ip4/0.0.0.0/tcp/4001",
    announce: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MADDR", help="Address that others should dial, if it differs (NAT, container). Repeatable."
        ),
    ] = None,
    until_finished: Annotated[bool, typer.Option("--until-finished", help="End when the run has finished.")] = False,
    web: WebOption = None,
    push_best: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Upload the model to the Hugging Face hub now and then.")
    ] = None,
    push_every: Annotated[int, typer.Option(metavar="N", min=1, help="Versions between two uploads.")] = 50,
    log: Annotated[
        str | None, typer.Option(metavar="trackio:PROJECT", help="Have an experiment tracker draw the curves as well.")
    ] = None,
    screen: Annotated[
        Literal["live", "plain", "none"] | None,
        typer.Option(help="What to show.  [default: live on a terminal, else plain]"),
    ] = None,
) -> None:
    """Publish the run, keep its modules, drive its stages; prints the run address that volunteers need."""
    with worded_failures(ctrl_c_is_ordinary=True):
        from dipaco_swarm.run.file import read_run_file
        from dipaco_swarm.settings import BootstrapSettings, Push, Tracking, default_home

        push = None if push_best is None else Push.parse(push_best, push_every)
        config = read_run_file(run_file)  # before anything heavy: a typo should cost no waiting
        settings = BootstrapSettings(
            run_file=run_file,
            home=home or default_home(config.name, "bootstrap"),
            listen=listen,
            announce=tuple(announce or ()),
            until_finished=until_finished,
            screen=screen_choice(screen),
            web=web_choice(web),
            push=push,
            tracking=None if log is None else Tracking.parse(log),
        )
        from dipaco_swarm.operator.program import serve as serve_run  # torch and hivemind load only when needed

        serve_run(settings)


@app.command()
def advance(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file that is being served.")],
    home: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that `serve` keeps.  [default: as for serve]")
    ] = None,
) -> None:
    """End the current stage: the node that serves the run opens the next one when the rounds under way are done."""
    with worded_failures():
        _node_of(run_file, home).tell_to_advance()
        typer.echo("told the node; its screen says when the stage ends, and one that is down will do it when it is up")


@app.command()
def extend(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file, as it is to be from now on.")],
    home: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that `serve` keeps.  [default: as for serve]")
    ] = None,
) -> None:
    """Change a run that has begun, or finished: more rounds, further stages. Everybody follows without a restart."""
    with worded_failures():
        from dipaco_swarm.cli.extending import tell_to_extend

        tell_to_extend(run_file, home)


@app.command()
def shard(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file that is being served.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder, or one where this was interrupted.")],
    home: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that `serve` keeps.  [default: as for serve]")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where texts are routed.")] = "auto",
) -> None:
    """Split the run's documents by path, once for everybody, with the router of the stage that runs."""
    with worded_failures():
        from dipaco_swarm.cli.sharding import device_named, split_corpus

        split_corpus(run_file, out, home, device_named(device))


HomeOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The folder that `serve` keeps.  [default: as for serve]")
]
RunFileArgument = Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file that is being served.")]
RunOrFolderArgument = Annotated[
    Path, typer.Argument(metavar="RUN.toml|DIR", help="The run file, or the folder that `serve` keeps.")
]
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the peer: it says it when it starts, and `status --json`.")
]
TOLD = "the node that serves the run does it within seconds; one that is down, when it is up"


@app.command()
def anchors(
    run: RunOrFolderArgument,
    home: HomeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the copies of all modules that the run can go back to, and what is known of each."""
    with worded_failures():
        from dipaco_swarm.cli.anchors import list_anchors

        list_anchors(run, home, as_json=as_json)


@app.command()
def rollback(
    run_file: RunFileArgument,
    to: Annotated[int, typer.Option("--to", metavar="ANCHOR", min=1, help="Its number; `anchors` lists them.")],
    module: Annotated[
        list[str] | None, typer.Option("--module", metavar="L0M1", help="Only with this one. Repeatable.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Take a run back to an anchor: what was trained since counts no more. Everybody follows without a restart."""
    with worded_failures():
        from dipaco_swarm.cli.anchors import tell_to_go_back

        tell_to_go_back(run_file, to, module or (), home)


@app.command()
def invite(
    run_file: RunFileArgument,
    count: Annotated[int, typer.Option(min=1, max=1000, help="Invitations; each admits one peer, once.")] = 1,
    home: HomeOption = None,
) -> None:
    """Print run addresses with an invitation in them, one a line, for a run with `[admission] kind = "invited"`."""
    with worded_failures():
        from dipaco_swarm.cli.admitting import print_invitations

        print_invitations(_node_of(run_file, home), count)


@app.command()
def withdraw(
    run_file: RunFileArgument,
    addresses: Annotated[list[str] | None, typer.Argument(metavar="[ADDRESS]...", help="As `invite` printed.")] = None,
    unused: Annotated[bool, typer.Option("--all", help="All that nobody has used.")] = False,
    home: HomeOption = None,
) -> None:
    """Take back invitations. Whom one has admitted stays admitted: that ends with `ban`."""
    with worded_failures():
        from dipaco_swarm.cli.admitting import withdraw as take_back

        take_back(_node_of(run_file, home), addresses or [], unused=unused)
        typer.echo(TOLD)


@app.command()
def admitted(
    run: RunOrFolderArgument,
    home: HomeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List who is admitted, by you or by an invitation, a name a line."""
    with worded_failures():
        from dipaco_swarm.cli.admitting import list_admitted

        list_admitted(run, home, as_json=as_json)


@app.command()
def admit(run_file: RunFileArgument, name: NameArgument, home: HomeOption = None) -> None:
    """Admit a peer by its name; a ban of it ends."""
    with worded_failures():
        from dipaco_swarm.cli.bans import warn_of_own_ban
        from dipaco_swarm.run.orders import Admit

        node, named = _node_of(run_file, home), _peer_name(name)
        node.order(Admit(name=named))
        typer.echo(TOLD)
        warn_of_own_ban(node, named)


@app.command()
def ban(
    run_file: RunFileArgument,
    name: NameArgument,
    why: Annotated[str, typer.Option(help="Said to that peer, and to whoever asks.")] = "",
    home: HomeOption = None,
) -> None:
    """Have nobody listen to a peer any more; what it has contributed stays."""
    with worded_failures():
        from dipaco_swarm.errors import UsageError
        from dipaco_swarm.run.orders import Ban

        node, banned = _node_of(run_file, home), _peer_name(name)
        if any(place.endswith(f"/{banned}") for place in node.address().bootstraps):
            raise UsageError(f"{banned} is a bootstrap node of this run: nobody would find the others any more")
        node.order(Ban(name=banned, why=why[:MAX_WHY]))
        typer.echo(TOLD)


@app.command()
def forgive(run_file: RunFileArgument, name: NameArgument, home: HomeOption = None) -> None:
    """End a ban. In a run of invited peers the peer needs to be admitted as well."""
    with worded_failures():
        from dipaco_swarm.cli.bans import warn_of_own_ban
        from dipaco_swarm.run.orders import Forgive

        node, named = _node_of(run_file, home), _peer_name(name)
        node.order(Forgive(name=named))
        typer.echo(TOLD)
        warn_of_own_ban(node, named)


app.command("unban", hidden=True)(forgive)


@app.command()
def bans(
    run: RunOrFolderArgument,
    home: HomeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: with what proves each.")] = False,
) -> None:
    """List who is banned, by you or by the node that serves the run, and why."""
    with worded_failures():
        from dipaco_swarm.cli.bans import list_bans

        list_bans(run, home, as_json=as_json)


@app.command()
def standby(
    run: Annotated[str, typer.Option(metavar="ADDRESS", help="The run address.")],
    home: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Its key and its modules.  [default: ~/.local/share/dipaco/NAME/standby]"),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="MADDR", help="Where to listen; the port must be open to the outside.")
    ] = "/ip4/0.0.0.0/tcp/4001",
    announce: Annotated[
        list[str] | None, typer.Option(metavar="MADDR", help="Address that others should dial, if it differs.")
    ] = None,
    web: WebOption = None,
    screen: Annotated[
        Literal["live", "plain", "none"] | None,
        typer.Option(help="What to show.  [default: live on a terminal, else plain]"),
    ] = None,
) -> None:
    """Be a second bootstrap node: serve the manifest, introduce newcomers, keep modules, take over when told."""
    with worded_failures(ctrl_c_is_ordinary=True):
        from dipaco_swarm.cli.standing_by import home_of_standby
        from dipaco_swarm.run.address import RunAddress
        from dipaco_swarm.settings import StandbySettings

        settings = StandbySettings(
            address=RunAddress.parse(run),
            home=home_of_standby(run, home),
            listen=listen,
            announce=tuple(announce or ()),
            screen=screen_choice(screen),
            web=web_choice(web),
        )
        from dipaco_swarm.operator.program import stand_by  # torch and hivemind load only when needed

        stand_by(settings)


@app.command()
def appoint(
    run_file: RunFileArgument,
    node: Annotated[str, typer.Argument(metavar="STANDBY", help="What the standby says of itself: KEY@MULTIADDR.")],
    home: HomeOption = None,
) -> None:
    """Let a standby take over one day, and put it into the run address."""
    with worded_failures():
        from dipaco_swarm.cli.standing_by import appointment

        _node_of(run_file, home).order(appointment(node))
        typer.echo(TOLD)


@app.command()
def promote(
    run: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The run address.")] = None,
    home: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder that `standby` keeps.")] = None,
) -> None:
    """On a standby's machine: let it lead the run. The node that led before stands by when it is back."""
    with worded_failures():
        from dipaco_swarm.cli.standing_by import home_of_standby
        from dipaco_swarm.operator.home import OperatorHome

        OperatorHome(home_of_standby(run, home)).tell_to_take_over()
        typer.echo("told the standby; its screen says when it leads the run, and one that is down will when it is up")


def _node_of(run_file: Path, home: Path | None) -> "OperatorHome":
    from dipaco_swarm.cli.operator_home import folder_of
    from dipaco_swarm.operator.home import OperatorHome

    return OperatorHome(folder_of(run_file, home))


def _peer_name(name: str) -> str:
    """Raises UsageError when it is none."""
    from dipaco_swarm.errors import UsageError

    if not re.fullmatch(r"[1-9A-HJ-NP-Za-km-z]{40,60}", name):
        raise UsageError(
            f"{name!r} is not the name of a peer; it looks like 12D3KooWQ...; a peer says its own when it starts, "
            "and `dipaco-swarm status --json` those of all"
        )
    return name


def write_run_file(path: Path, *, force: bool) -> None:
    """Write the run file template. Raises UsageError when the file exists and `force` is not given."""
    from dipaco_swarm.errors import UsageError
    from dipaco_swarm.files import replace_whole

    template = files("dipaco_swarm.cli").joinpath("run_template.toml").read_text(encoding="utf-8")
    if path.exists() and not force:
        raise UsageError(f"{path} exists already; choose another name, or overwrite it with --force")
    try:
        replace_whole(path, template.encode(), durable=False)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose a folder that exists and is yours") from None


def main() -> None:
    app(prog_name="dipaco-bootstrap")
