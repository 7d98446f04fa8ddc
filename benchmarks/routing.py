"""What routing costs as paths grow: fitting the router, routing documents, publishing and fetching router and table.

    python -m benchmarks.routing [--quick]

Product k-means on square grids of 4, 16, 64 and 256 paths. Features are drawn: a mixture of as many Gaussians as there
are paths, 896 wide, the width of the paper's paths. Router and manifest then go from one libp2p node to another, on
127.0.0.1. Prints a table and writes it to benchmarks/results/routing-HARDWARE.md.
"""

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.reduce import hardware
from dipaco_swarm.algorithm.paths import grid
from dipaco_swarm.algorithm.routers.product_k_means import PRODUCT_K_MEANS
from dipaco_swarm.algorithm.routers.router import (
    Floats,
    Router,
    Sample,
    path_shares,
    router_from_bytes,
    router_to_bytes,
)
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.config import RouterConfig
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.run.signature import fingerprint_of, open_manifest, sign_manifest
from dipaco_swarm.swarm.libp2p.opening import open_swarm
from dipaco_swarm.swarm.libp2p.settings import NodeSettings
from dipaco_swarm.swarm.networked import NetworkedSwarm

RESULTS = Path(__file__).parent / "results"
WIDTH = 896
CHUNK = 20_000
REPETITIONS = 3
LOOPBACK = NodeSettings(listen="/ip4/127.0.0.1/tcp/0")


@dataclass(frozen=True)
class Row:
    """What one number of paths costs."""

    paths: int
    fit_seconds: float
    route_seconds: float
    router_bytes: int
    manifest_bytes: int
    publish_seconds: float
    fetch_seconds: float


def documents(count: int, centres: Floats, seed: int) -> Iterator[Floats]:
    """Features of `count` documents around the centres, fp32, in chunks of (CHUNK, WIDTH)."""
    generator = np.random.default_rng(seed)
    for start in range(0, count, CHUNK):
        rows = min(CHUNK, count - start)
        noise = generator.standard_normal((rows, WIDTH), dtype=np.float32)
        yield centres[generator.integers(len(centres), size=rows)] + noise


def measure(side: int, fitted_on: int, routed: int, folder: Path) -> Row:
    table = grid([side, side])
    paths = table.num_paths
    centres = 2 * np.random.default_rng(paths).standard_normal((paths, WIDTH), dtype=np.float32)
    sample = np.concatenate(list(documents(fitted_on, centres, seed=1)))

    started = time.perf_counter()
    router = PRODUCT_K_MEANS.fit(Sample(sample), table, RouterConfig(max_documents=fitted_on), seed=0)
    fit_seconds = time.perf_counter() - started
    shares = path_shares(router, sample[:20_000])
    del sample

    route_seconds = 0.0
    for chunk in documents(routed, centres, seed=2):
        started = time.perf_counter()
        router.route(chunk)
        route_seconds += time.perf_counter() - started
    return Row(paths, fit_seconds, route_seconds, *published(router, table.rows, shares, folder))


def published(
    router: Router, rows: tuple[tuple[int, ...], ...], shares: tuple[float, ...], folder: Path
) -> tuple[int, int, float, float]:
    """Bytes of router and signed manifest, and median seconds to publish both and to have both on another node."""
    key = Ed25519PrivateKey.generate()
    address = RunAddress("routing", fingerprint_of(key.public_key()), ())
    config = parse_run_file((Path(__file__).parents[1] / "bootstrap" / "runs" / "demo-2x2.toml").read_text())
    blob = router_to_bytes(PRODUCT_K_MEANS, router)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        operator = stack.enter_context(open_swarm(address, place / "operator", LOOPBACK))
        publishing, fetching, size = [], [], 0
        for repetition in range(REPETITIONS):
            started = time.perf_counter()
            digest = operator.put_blob(blob)
            seeds = {f"L{level}M{index}": digest for row in rows for level, index in enumerate(row)}
            stage = Stage(index=0, table=rows, path_weights=shares, router=digest, seeds=seeds)
            manifest = Manifest(revision=repetition, config=config, tokenizer=digest, stages=(stage,))
            signed = sign_manifest(manifest, key)
            operator.publish_manifest(signed)
            publishing.append(time.perf_counter() - started)
            size = len(signed)
            peer = stack.enter_context(open_swarm(operator.address, place / f"peer-{repetition}", LOOPBACK))
            fetching.append(fetch(peer, address.fingerprint, len(rows)))
    return len(blob), size, median(publishing), median(fetching)


def fetch(peer: NetworkedSwarm, fingerprint: str, paths: int) -> float:
    """Seconds until a peer has manifest and router, both checked."""
    started = time.perf_counter()
    signed = peer.newest_manifest(timeout=30)
    assert signed is not None, "the node is there"
    stage = open_manifest(signed, fingerprint).stage
    assert stage.router is not None, "this stage has one"
    router_from_bytes(peer.fetch_blob(stage.router, timeout=30), paths)
    return time.perf_counter() - started


def table_of(rows: Sequence[Row], fitted_on: int, routed: int) -> str:
    lines = [
        f"| paths | fit on {fitted_on:,}, s | route {routed:,}, s | router, bytes | manifest, bytes | publish, ms "
        "| fetch, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.paths} | {row.fit_seconds:.1f} | {row.route_seconds:.1f} | {row.router_bytes:,} | "
            f"{row.manifest_bytes:,} | {1000 * row.publish_seconds:.0f} | {1000 * row.fetch_seconds:.0f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the documents; 4 and 16 paths; no file")
    options = parser.parse_args(arguments)
    fitted_on, routed = (10_000, 100_000) if options.quick else (100_000, 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(side, fitted_on, routed, Path(folder)) for side in ((2, 4) if options.quick else (2, 4, 8, 16))]
    text = (
        f"# Routing: {platform.machine()}, {hardware()}\n\nFeatures of {WIDTH} numbers; load average at the end "
        f"{os.getloadavg()[0]:.1f}.\n\n"
        f"{table_of(rows, fitted_on, routed)}\n"
    )
    print(text)
    if not options.quick:
        place = RESULTS / f"routing-{hardware()}.md"
        place.write_text(text)
        print(f"written to benchmarks/results/{place.name}")


if __name__ == "__main__":
    main()
