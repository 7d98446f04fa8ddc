"""Use a trained run from Python: route a prompt, let its path go on writing.

    python examples/route_and_generate.py HOME "def read_lines(path):"

HOME is the home folder of a bootstrap node (every module) or of a peer (its own path only); no network is used.
"""

import sys
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.training.inference import Sampling, generate_tokens
from dipaco_swarm.training.tokenizer import end_of_text_id, prompt_ids


def main(home: Path, prompt: str) -> None:
    with open_run(home) as run:
        # 1. The router reads the beginning of the prompt, and names a path.
        routing = run.routing()
        ids = prompt_ids(routing.tokenizer, prompt)
        prefix = np.array([ids[: run.manifest.config.router.prefix_tokens]])
        path = PathIndex(int(routing.paths(prefix)[0]))
        modules = ", ".join(str(module) for module in run.table.modules_of(path))
        print(f"path {path} of {run.table.num_paths}: {modules}")

        # 2. The modules of that path, put together, are an ordinary transformers model.
        network = run.load(run.model(), path)

        # 3. Which goes on writing.
        generator = torch.Generator().manual_seed(0)
        new = generate_tokens(network, ids, Sampling(0.8, 40), generator, end_of_text_id(routing.tokenizer))
        print(routing.tokenizer.decode([*ids, *islice(new, 40)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
