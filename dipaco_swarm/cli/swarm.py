"""dipaco-swarm: look at a run, use what it learned, try it all on one machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dipaco_swarm.cli.words import (
    EXIT_INTERRUPTED,
    ask_hub_as_nobody,
    new_app,
    screen_choice,
    worded_failures,
    write_text,
)

if TYPE_CHECKING:  # only for signatures that typer never reads
    from types import ModuleType

    from dipaco_swarm.dashboard.views import SwarmStatus
    from dipaco_swarm.run.address import RunAddress

app = new_app("Look at a DiPaCo run, use what it has learned, or try all of it on this machine.")

Run = Annotated[str | None, typer.Option(metavar="ADDRESS", help="The run address: fetch what is needed from peers.")]
Home = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The home folder of a peer or bootstrap node: no network.")
]

Best = Annotated[
    bool, typer.Option("--best", help="Of each path the snapshot with the lowest loss on its shard, if there is one.")
]


Reroute = Annotated[
    int | None,
    typer.Option(metavar="W", help="Route anew every W tokens, with the run's window router.  [default: once]"),
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to put chart, sample and model.")] = Path("demo-out"),
) -> None:
    """The whole story on this machine: bootstrap node, peers, stages, and a dense model to compare with."""
    with worded_failures():
        from dipaco_swarm.demo.story import run_demo

        code = run_demo(out)
    raise typer.Exit(code)


@app.command()
def simulate(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file, as for dipaco-bootstrap serve.")],
    peers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many peers.  [default: one for each path]")
    ] = None,
    home: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to keep the run; `eval --home DIR/bootstrap` and so on use it.")
    ] = Path("simulate-out"),
    seed: Annotated[int | None, typer.Option(metavar="N", min=0, help="Instead of the run file's seed.")] = None,
    screen: Annotated[
        Literal["live", "plain", "none"] | None,
        typer.Option(help="What to show.  [default: live on a terminal, else plain]"),
    ] = None,
) -> None:
    """A whole run in this process, bootstrap node and peers, without a network: for experiments."""
    with worded_failures():
        from dipaco_swarm.dashboard.drawing import draw
        from dipaco_swarm.simulate import run_simulation

        result = run_simulation(run_file, home, peers=peers, seed=seed, screen=screen_choice(screen))
        if result is None:
            raise typer.Exit(EXIT_INTERRUPTED)
        _print(draw(result))


@app.command()
def status(
    run: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The run address: joins as a guest.")] = None,
    page: Annotated[str | None, typer.Option(metavar="URL", help="Or the run's page, which answers at once.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Who trains what: coverage of the path table, versions, pace, and which modules are in danger."""
    with worded_failures():
        from dipaco_swarm.dashboard.drawing import draw

        seen = _status(run, page)
        if as_json:
            typer.echo(seen.to_json())
        else:
            _print(draw(seen))


def _status(run: str | None, page: str | None) -> "SwarmStatus":
    """Raises UsageError unless exactly one of both is given."""
    from dipaco_swarm.errors import UsageError
    from dipaco_swarm.run.address import RunAddress

    if run is not None and page is None:
        address = RunAddress.parse(run)
        from dipaco_swarm.client import visits

        return visits.status(address)
    if page is not None and run is None:
        from dipaco_swarm.client.page_status import status_at

        return status_at(page)
    given = "both were given" if run is not None else "neither was given"
    raise UsageError(f"say whose status: --run ADDRESS (joins the swarm) or --page URL (asks its page); {given}")


@app.command()
def page(
    run: Annotated[str, typer.Option(metavar="ADDRESS", help="The run address.")],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Of this machine, where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any free one.")] = 8080,
) -> None:
    """Show the run to browsers, as a guest: who trains what, curves from now on, what is left, who did how much."""
    with worded_failures(ctrl_c_is_ordinary=True):
        from dipaco_swarm.run.address import RunAddress
        from dipaco_swarm.settings import Web, check_web

        address = RunAddress.parse(run)
        check_web()
        from dipaco_swarm.client.watching import show_page

        show_page(address, Web(host, port, by_two_options=True))


@app.command("eval")
def evaluate(
    run: Run = None,
    home: Home = None,
    data: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Documents to score.  [default: the run's held-out documents]")
    ] = None,
    best: Best = False,
    reroute: Reroute = None,
    ask_peers: Annotated[
        bool, typer.Option("--ask-peers", help="With --run: who trains a path scores its documents; no download.")
    ] = False,
    lm_eval: Annotated[
        str | None,
        typer.Option("--lm-eval", metavar="TASKS", help="Tasks of lm-evaluation-harness, or .yaml files, by commas."),
    ] = None,
    path: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="With --lm-eval: this path reads everything.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="With --lm-eval: so many documents of each task.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Routed perplexity: every document scored by its own path, per path and in all. Or tasks that others use."""
    with worded_failures():
        source = _source(run, home)
        _check_evaluation(lm_eval, data=data, reroute=reroute, path=path, limit=limit)
        if ask_peers:
            _check_peers_can_score(source, best=best, reroute=reroute, lm_eval=lm_eval)
        if lm_eval is not None:
            harness = _harness()
            found = harness.run_tasks(source, [name.strip() for name in lm_eval.split(",")], path, limit, best=best)
            if as_json:
                typer.echo(found.to_json())
            else:
                _print(found)
            return
        if data is None:
            ask_hub_as_nobody()
        from dipaco_swarm.dashboard.drawing import draw

        if ask_peers and not isinstance(source, Path):
            from dipaco_swarm.gateway.scoring import evaluate_by_peers

            result = evaluate_by_peers(source, data, _tell)
        else:
            from dipaco_swarm.client import visits

            result = visits.evaluate(source, data, window=reroute, best=best, tell=_tell)
        if as_json:
            typer.echo(result.to_json())
        else:
            _print(draw(result))


def _check_evaluation(
    lm_eval: str | None, *, data: str | None, reroute: int | None, path: int | None, limit: int | None
) -> None:
    """Raises UsageError for options that do not go together."""
    from dipaco_swarm.errors import UsageError

    if lm_eval is None and (path is not None or limit is not None):
        raise UsageError("--path and --limit are for --lm-eval; without it every document is scored by its own path")
    if lm_eval is not None and (data is not None or reroute is not None):
        raise UsageError("--lm-eval brings its own documents, and each keeps its path; leave out --data and --reroute")


def _check_peers_can_score(source: "RunAddress | Path", **others: object) -> None:
    """Raises UsageError for what peers are not asked. `others`: options, of which none may be given."""
    from dipaco_swarm.errors import UsageError

    if isinstance(source, Path):
        raise UsageError("--ask-peers asks the peers of a live run; give --run ADDRESS, or leave it out")
    if given := [name for name, value in others.items() if value]:
        name = f"--{given[0].replace('_', '-')}"
        raise UsageError(f"--ask-peers scores documents with the newest modules of their paths; leave out {name}")


def _harness() -> "ModuleType":
    """What speaks with lm-evaluation-harness. Raises UsageError when that is not installed."""
    from importlib import import_module
    from importlib.util import find_spec

    from dipaco_swarm.errors import UsageError

    if find_spec("lm_eval") is None:
        raise UsageError("--lm-eval needs lm-evaluation-harness: pip install -c constraints.txt '.[lm-eval]'")
    return import_module("dipaco_swarm.client.harness")


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on from.")],
    run: Run = None,
    home: Home = None,
    tokens: Annotated[int, typer.Option(metavar="N", min=1, help="How many tokens to write.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 0.8,
    top_k: Annotated[int, typer.Option(metavar="N", min=0, help="Choose among the N likeliest tokens; 0: all.")] = 40,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same text.")] = 0,
    best: Best = False,
    reroute: Reroute = None,
    local: Annotated[
        bool, typer.Option("--local", help="With --run: fetch the path and write here; no peer sees the prompt.")
    ] = False,
) -> None:
    """Route the prompt by its first tokens, and have the path it belongs to go on with it."""
    with worded_failures():
        source = _source(run, home)
        if isinstance(source, Path) or local or best:
            from dipaco_swarm.client import visits

            pieces = visits.generate(
                source,
                prompt,
                tokens=tokens,
                temperature=temperature,
                top_k=top_k,
                seed=seed,
                window=reroute,
                best=best,
                tell=_tell,
            )
            write_text(prompt, pieces)
            return
        from dipaco_swarm.gateway.once import once
        from dipaco_swarm.training.inference import Sampling

        sampling = Sampling(temperature, top_k or None)
        with once(source, reroute, _tell) as asked:  # at its end what was written is checked
            write_text(prompt, asked.text(prompt, tokens=tokens, sampling=sampling, seed=seed, window=reroute))


@app.command()
def serve(
    run: Run = None,
    home: Home = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Of this machine, where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", envvar="DIPACO_API_KEY", help="Clients have to show it.", show_envvar=True),
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Jinja template: conversations become prompts by it.")
    ] = None,
    best: Best = False,
) -> None:
    """Ask the model in a browser, or from programs: /v1/completions and /v1/chat/completions, as OpenAI says it."""
    with worded_failures(ctrl_c_is_ordinary=True):
        source = _source(run, home)
        from dipaco_swarm.settings import Web, check_web

        check_web()
        from dipaco_swarm.gateway.program import Opening
        from dipaco_swarm.gateway.program import serve as serve_run

        serve_run(source, Opening(Web(host, port, by_two_options=True), api_key, chat_template, best), _tell)


@app.command()
def export(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
    run: Run = None,
    home: Home = None,
    path: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="One path, as an ordinary transformers folder.")
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Each path, as a folder of its own in DIR.")] = False,
    best: Best = False,
    dtype: Annotated[Literal["fp32", "bf16"], typer.Option(help="Of the parameters that are written.")] = "fp32",
    measure: Annotated[bool, typer.Option("--measure", help="Score held-out documents, for the model card.")] = False,
    push: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Upload the folder to the Hugging Face hub.")
    ] = None,
) -> None:
    """Write the model: whole, with its router and a loader; or one path, or each path."""
    with worded_failures():
        from dipaco_swarm.errors import UsageError

        source = _source(run, home)
        if path is not None and each:
            raise UsageError(
                "--path N writes one path and --each all of them; give one of the two, or none for the model"
            )
        from dipaco_swarm.client import exporting

        wanted = exporting.Wanted(best, dtype, measure)
        if path is not None:
            exporting.export(source, path, out, wanted, _tell)
            typer.echo(f'wrote path {path} to {out}; AutoModelForCausalLM.from_pretrained("{out}") loads it')
        elif each:
            count = exporting.export_all(source, out, wanted, _tell)
            typer.echo(f"wrote {count} paths to {out}/path-0 and so on; transformers loads each of them")
        else:
            count = exporting.export_whole(source, out, wanted, _tell)
            typer.echo(
                f'wrote the model with its {count} paths to {out}; python {out}/dipaco_model.py "A prompt" uses it'
            )
        if push is not None:
            from dipaco_swarm.client.publishing import push as push_folder

            typer.echo(f"pushed to {push_folder(out, push)}")


@app.command()
def doctor(
    run: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Also ask this run's bootstrap nodes how they see this machine."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="MADDR", help="What dipaco-peer will be given.  [default: any free port]")
    ] = None,
    trial: Annotated[
        bool, typer.Option("--trial/--no-trial", help="Train a path of the run for ten seconds, or not.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Can this machine take part, how fast, can others dial it? Every check says what to do if not."""
    with worded_failures():
        from dipaco_swarm.doctor import examine
        from dipaco_swarm.run.address import RunAddress

        address = RunAddress.parse(run) if run is not None else None
        if trial and address is not None:
            from dipaco_swarm.client import visits

            report = examine(address, listen, visits.prospect)
        else:
            report = examine(address, listen)
        if as_json:
            typer.echo(report.to_json())
        else:
            _print(report)
    raise typer.Exit(0 if report.ok else 1)


def _source(run: str | None, home: Path | None) -> "RunAddress | Path":
    """Where modules come from: the swarm, or a folder. Raises UsageError unless it is exactly one of the two."""
    from dipaco_swarm.errors import UsageError
    from dipaco_swarm.run.address import RunAddress

    if run is not None and home is None:
        return RunAddress.parse(run)
    if home is not None and run is None:
        return home
    given = "both were given" if run is not None else "neither was given"
    raise UsageError(f"say where the modules are: --run ADDRESS (the swarm) or --home DIR (this machine); {given}")


def _tell(line: str) -> None:
    """Beside the result, not in it."""
    typer.echo(line, err=True)


def _print(renderable: object) -> None:
    from rich.console import Console

    Console().print(renderable)


def main() -> None:
    app(prog_name="dipaco-swarm")
