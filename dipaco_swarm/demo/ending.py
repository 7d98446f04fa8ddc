"""The end of the demo: everything that needs torch, once the run is over."""

from collections.abc import Sequence
from pathlib import Path

import torch

from dipaco_swarm.client.sources import open_run
from dipaco_swarm.demo.report import Story
from dipaco_swarm.demo.results import compare, export_and_check, write_samples
from dipaco_swarm.demo.scene import agreement_of, events_at
from dipaco_swarm.events.training import Steps
from dipaco_swarm.run.config import RunConfig


def conclude(folder: Path, config: RunConfig, homes: Sequence[Path]) -> Story:
    """Score the models, write some text, export the busiest path."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two threads are hardly faster here, and many times slower where others use the cores
    with open_run(folder / "bootstrap") as run:
        shares = run.manifest.stage.path_weights
    comparison, pieces = compare(folder / "bootstrap", folder / "dense")
    busiest = max(comparison.pieces, key=lambda path: comparison.pieces[path])
    exported = export_and_check(folder / "bootstrap", busiest, pieces, folder / "model")
    story = Story(
        config=config,
        shares=shares,
        homes=tuple(homes),
        comparison=comparison,
        agreement=agreement_of(homes),
        samples=write_samples(folder / "bootstrap"),
        exported=exported,
        dense_tokens=_tokens([folder / "dense"]),
        swarm_tokens=_tokens(homes),
    )
    torch.set_num_threads(threads)
    return story


def _tokens(homes: Sequence[Path]) -> int:
    """Tokens that were trained on, as these homes wrote them down."""
    return sum(
        max((event.tokens for event in events_at(home) if isinstance(event, Steps)), default=0) for home in homes
    )
