"""The process that reads beside training:  python -m dipaco_swarm.training.reading.reader JOB

    in    a line for each block that training has come to: its number; and what others have routed, as JSON
    out   lines of JSON, see `stream.py`: how far reading has come, or why it cannot go on

It makes that block and the next ones, and waits then. It ends when nobody holds the other end of its input any more.
"""

import errno
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import SwarmError, cannot_write
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.encoding import encoder
from dipaco_swarm.training.packing import Assign
from dipaco_swarm.training.reading.blocks import Blocks
from dipaco_swarm.training.reading.cheap import CheapRouting
from dipaco_swarm.training.reading.making import BlockMaker, Rules, is_trained_on
from dipaco_swarm.training.reading.places import Corpus, Place, corpus_of
from dipaco_swarm.training.reading.shared.inbox import Inbox
from dipaco_swarm.training.reading.shared.shelf import Shelf
from dipaco_swarm.training.reading.shared.subject import SHELF_PART, common_of, is_shared
from dipaco_swarm.training.reading.shared.supply import Terms, shared_supply
from dipaco_swarm.training.reading.store import BlockStore
from dipaco_swarm.training.tokenizer import end_of_text_id, load_tokenizer, stored_as, vocabulary_size

LEAD = 1
"""Blocks that are made before training comes to them."""
NICE = 10
"""Training comes first: beside it we get a tenth of a processor that both want. Only once its first blocks are there:
at a change of stage others wait for these too, and a tenth of a busy processor took minutes to import torch."""


@dataclass(frozen=True)
class Job:
    """What a reader is to do."""

    manifest: str
    """As JSON."""
    path: int
    start: int
    """Which portion this peer begins with: any number."""
    folder: str
    """Of the stream."""
    files: str
    """A folder with the run's files that reading needs, by their digests."""
    rolling: str
    """The folder whose blocks may take `disk` bytes in all."""
    disk: int
    data_root: str | None
    fenced: bool
    """Fields of the `Reach`."""
    device: str
    threads: int | None
    peer: str
    """Our name."""
    shelf: str
    """A folder for what we have routed of this stage, in which there is one of each corpus."""
    shares: str
    """What peers give each other: `routes`, `tokens` or `nothing`."""


Say = Callable[[dict[str, object]], None]


class Needed:
    """The block that training has come to."""

    def __init__(self) -> None:
        self._block: int | None = 0
        self._changed = threading.Condition()

    @property
    def block(self) -> int | None:
        """None: training is over."""
        return self._block

    def come_to(self, block: int | None) -> None:
        with self._changed:
            self._block = block
            self._changed.notify_all()

    def wait(self, block: int) -> None:
        """Until training has gone on from this block."""
        with self._changed:
            self._changed.wait_for(lambda: self._block != block)


def store_of(config: RunConfig, vocabulary: int, folder: Path) -> BlockStore:
    """The folder of a stream of this run."""
    length = config.data.sequence_length
    blocks = Blocks.of(config.inner.batch_sequences, length * stored_as(vocabulary).itemsize)
    return BlockStore(folder, blocks, length, vocabulary)


@dataclass(frozen=True)
class Rolling:
    """How much of the disk blocks may take."""

    folder: Path
    """Of all streams of this peer."""
    disk: int
    """Bytes."""


class Reader:
    """Makes what training needs, and waits."""

    def __init__(
        self,
        maker: BlockMaker,
        store: BlockStore,
        rolling: Rolling,
        most_held: int,
        say: Say,
        shelf: Shelf | None = None,
    ) -> None:
        """`most_held`: pieces to be found that nobody trains on. `shelf`: what is kept for others."""
        self._maker = maker
        self._store = store
        self._rolling = rolling
        self._most_held = most_held
        self._say = say
        self._shelf = shelf

    def work(self, needed: Needed) -> None:
        """Until training is over. Raises SwarmError, and OSError when the disk is full."""
        while (block := self.come_up(needed)) is not None:
            needed.wait(block)

    def come_up(self, needed: Needed) -> int | None:
        """Make what training needs now; the block that it has come to, or None: it is over. Raises as `work`."""
        while (now := needed.block) is not None:
            ahead = self._ahead(now)
            missing = next((block for block in ahead if not self._store.has(block)), None)
            if missing is not None:
                self._say({"hungry": True})
                try:
                    self._maker.make(missing)
                except OSError as error:
                    if error.errno != errno.ENOSPC or not self._make_room(0, ahead):
                        raise
                    continue  # the disk was full of what we can read again
                self._make_room(self._rolling.disk, ahead)
                self._say({"made": missing})
            elif self._most_held and self._store.held is None:
                self._maker.hold_out(self._most_held)
                self._say({"held": True})
            else:
                self._say({"hungry": False})
                break
        return now

    def _make_room(self, cap: int, ahead: list[int]) -> bool:
        for_others = 0 if self._shelf is None else self._shelf.size
        return self._store.make_room(self._rolling.folder, max(0, cap - for_others), ahead)

    def _ahead(self, now: int) -> list[int]:
        """Blocks that are to be there; after the last one come the first ones again, a whole window of them."""
        wanted, count = range(now, now + LEAD + 1), self._store.blocks_in_all
        if count is None:
            return list(wanted)
        soon = [block % count for block in wanted]
        return list(dict.fromkeys([*soon, *(other for block in soon for other in self._store.window(block, epoch=1))]))


def reader_of(job: Job, say: Say, inbox: Inbox | None = None) -> Reader:
    """The reader that a job asks for. Raises SwarmError when the documents or the run's files cannot be used.

    `inbox`: what others have routed comes there.
    """
    manifest, files = Manifest.model_validate_json(job.manifest), Path(job.files)
    reach = Reach(None if job.data_root is None else Path(job.data_root), job.fenced)
    config, early = manifest.rules, manifest.rules.early_stopping
    tokenizer = load_tokenizer((files / manifest.tokenizer).read_bytes())
    path = PathIndex(job.path)
    length, prefix = config.data.sequence_length, config.router.prefix_tokens
    store = store_of(config, vocabulary_size(tokenizer), Path(job.folder))
    corpus = corpus_of(config.data, config.seed, job.start, reach)
    is_together = isinstance(corpus, Corpus) and is_shared(job.shares, store, len(corpus.in_order))
    assign = _assign(manifest, job, is_together)
    routing = CheapRouting(encoder(tokenizer), assign, path, length, prefix, manifest.stage.text_characters)
    rules = Rules(config.data, end_of_text_id(tokenizer), early.share if early is not None else 0.0)

    def tell(place: Place) -> None:
        said = asdict(place)
        del said["pending"], said["spots"]
        say({"place": said, "work": asdict(routing.work)})

    shared = shelf = None
    if is_together and inbox is not None and assign is not None and isinstance(corpus, Corpus):
        common = common_of(manifest, corpus.in_order)
        shelf = Shelf(Path(job.shelf) / common, len(manifest.stage.table), store.vocabulary)
        terms = Terms(
            path=path,
            paths=len(manifest.stage.table),
            start=job.start % len(corpus.in_order),
            peer=job.peer,
            tokens=job.shares == "tokens",
            vocabulary=store.vocabulary,
            shelf_bytes=job.disk // SHELF_PART,
        )
        told = {"portions": len(corpus.in_order), "corpus": common, "shelf": str(shelf.folder), "tokens": terms.tokens}
        say({"shared": told})
        shared = shared_supply(
            terms,
            prefix,
            corpus.in_order,
            routing,
            partial(is_trained_on, rules=rules),
            shelf,
            store.folder,
            inbox,
            say,
        )
    maker = BlockMaker(store, corpus, routing, rules, tell, shared)
    rolling = Rolling(Path(job.rolling), job.disk)
    return Reader(maker, store, rolling, early.max_sequences if early is not None else 0, say, shelf)


def _assign(manifest: Manifest, job: Job, is_together: bool) -> Assign | None:
    if manifest.stage.router is None:
        return None
    from dipaco_swarm.training.features import FULL_BATCH, small_batch  # torch takes seconds and memory
    from dipaco_swarm.training.routed import load_routing

    if job.threads is not None:
        import torch

        torch.set_num_threads(job.threads)
    files = Path(job.files)
    return load_routing(
        manifest,
        manifest.stage,
        lambda digest: (files / digest).read_bytes(),
        device=job.device,
        # alone, what is routed again is the same bit for bit; together nothing is, but for a few texts of others
        batch=small_batch if is_together else lambda prefixes: FULL_BATCH,
    ).assign


def main() -> None:
    """JOB: a file with a `Job` as JSON."""
    needed, inbox, lock = Needed(), Inbox(), threading.Lock()

    def say(line: dict[str, object]) -> None:
        with lock:
            print(json.dumps(line), flush=True)  # noqa: T201 - to the program that started us

    threading.Thread(target=_listen, args=(sys.stdin, needed, inbox), daemon=True).start()
    job = Job(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    try:
        reader = reader_of(job, say, inbox)
        say({"ready": True})
        reader.come_up(needed)
        os.nice(NICE)
        reader.work(needed)
    except SwarmError as error:
        say({"error": str(error)})
    except OSError as error:
        say({"error": str(cannot_write("the documents of the run", Path(job.folder), error))})
    sys.exit(2)


def _listen(lines: TextIO, needed: Needed, inbox: Inbox) -> None:
    for line in lines:
        said = json.loads(line)
        if isinstance(said, int):
            needed.come_to(said)
        else:
            inbox.hear(said)
    os._exit(0)  # whoever started us is gone


if __name__ == "__main__":
    main()
