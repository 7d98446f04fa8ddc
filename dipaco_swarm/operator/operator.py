"""The bootstrap node: publishes the run, answers the first call of newcomers, keeps every module, opens the stages.

It trains nothing and is in nobody's way: peers go on while it is down. Killed and started again it goes on with its
state: the operator's key, the newest manifest and the kept modules are files in its home folder.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tokenizers import Tokenizer

from dipaco_swarm.algorithm.paths import ModuleId, PathTable, grid
from dipaco_swarm.algorithm.plan import Claim, better_claim
from dipaco_swarm.algorithm.routers.router import (
    Router,
    Sample,
    kind_of,
    path_shares,
    router_from_bytes,
    router_to_bytes,
)
from dipaco_swarm.algorithm.stages import ancestor, check_tables, state_at_start, table_of
from dipaco_swarm.algorithm.state import ModuleState, vector_to_bytes
from dipaco_swarm.dashboard.screens import Screen, open_screen
from dipaco_swarm.dashboard.status import status_of
from dipaco_swarm.dashboard.views import BootstrapView
from dipaco_swarm.errors import DamagedError, DataError, HomeError, ManifestError, TrainingError, UnreachableError
from dipaco_swarm.files import make_folder, remove, replace_whole, set_aside, write_whole
from dipaco_swarm.machine.notices import Notices
from dipaco_swarm.machine.sleep import LookForSleep, SleepDetector, never_asleep
from dipaco_swarm.machine.stopping import Stopped, Stopping, stopping_on_signals, until_stopped
from dipaco_swarm.manifest import (
    Manifest,
    RunAddress,
    RunConfig,
    Stage,
    fingerprint_of,
    open_manifest,
    read_run_file,
    sign_manifest,
)
from dipaco_swarm.operator.scores import ScoreCollection
from dipaco_swarm.settings import BootstrapSettings
from dipaco_swarm.snapshots import SnapshotKeeper, keeper_of
from dipaco_swarm.strategies import ROUTERS
from dipaco_swarm.swarm.interface import Announcement, Swarm
from dipaco_swarm.training.bank import load_path, load_state, module_file, save_state
from dipaco_swarm.training.documents import Document, read_documents, split_of
from dipaco_swarm.training.early import run_of
from dipaco_swarm.training.features import Floats, prefix_features
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.routed import feature_network
from dipaco_swarm.training.scoring import sample_from_bytes, sample_to_bytes
from dipaco_swarm.training.shards import EvaluationSet, routing_pieces, routing_prefixes
from dipaco_swarm.training.tokenizer import load_tokenizer, tokenizer_from_path, train_tokenizer, vocabulary_size
from dipaco_swarm.training.window_router import WindowRouter, train_window_router, window_router_to_bytes

log = logging.getLogger(__name__)

T = TypeVar("T")

TOKENIZER_DOCUMENTS = 2000
"""Documents that a tokenizer is trained on, from the training split."""
TICK_SECONDS = 1.0
REPUBLISH_SECONDS = 45.0
"""A DHT record lives at most two minutes; the manifest's is renewed well before."""
GREETING_SECONDS = 15.0
"""Peers that have lost the bootstrap node knock every ten seconds."""
WRITE_AGAIN_SECONDS = 20.0
"""After a full disk; opening a stage is much work to do in vain every second."""
STATE_SECONDS = 600.0
LOOK_UP_SECONDS = 20.0


def serve(settings: BootstrapSettings) -> None:
    """Publish the run of a run file and keep it going until Ctrl+C. Raises SwarmError."""
    from dipaco_swarm.swarm.libp2p.node import NodeSettings
    from dipaco_swarm.swarm.networked import open_swarm

    config = read_run_file(settings.run_file)
    check_tables(config)
    key = load_operator_key(settings.home)
    node = NodeSettings(settings.listen, settings.announce)
    empty = RunAddress(config.name, fingerprint_of(key.public_key()), ())
    with stopping_on_signals() as stop, open_screen(settings.screen) as screen:

        def keep_it_going(stop: Stopping) -> bool:
            """Open the node and serve; whether the swarm was lost."""
            nonlocal node
            with open_swarm(empty, settings.home, node, stop) as swarm:
                stop.tell(swarm.interrupt)
                node = node.settled(swarm.address.bootstraps)
                kept = OperatorHome(settings.home)
                with SleepDetector(swarm.clock) as detector, suppress(Stopped):
                    operator = Operator(config, key, swarm, kept, screen, stop, str(swarm.address), detector.missed)
                    operator.run(until_finished=settings.until_finished)
                return swarm.lost

        until_stopped(keep_it_going, stop, screen.event)
        screen.event("the node is down; the same command goes on from here, peers train on meanwhile")


def load_operator_key(home: Path) -> Ed25519PrivateKey:
    """The operator's signing key, made on first use. Raises HomeError when the folder cannot be used."""
    path = home / "operator.key"
    try:
        make_folder(home, durable=True)
        if not path.exists():
            secret = Ed25519PrivateKey.generate().private_bytes_raw().hex()
            replace_whole(path, secret.encode(), durable=True, private=True)
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text().strip()))
    except OSError as error:
        raise HomeError(
            f"the home folder {home} cannot be used: {error.strerror or error}; "
            "choose another with --home, or make it writable"
        ) from None
    except ValueError:
        raise HomeError(
            f"{path} is not an operator's key; restore it from your copy. A new key would be a new run for everybody"
        ) from None


class OperatorHome:
    """The bootstrap node's memory: manifest, run address and module states as files."""

    def __init__(self, home: Path) -> None:
        self._home = home

    @property
    def home(self) -> Path:
        return self._home

    def manifest(self, fingerprint: str) -> Manifest | None:
        """The manifest that was published last; None before the first."""
        try:
            return open_manifest((self._home / "manifest.json").read_bytes(), fingerprint)
        except FileNotFoundError:
            return None

    def keep_manifest(self, signed: bytes) -> None:
        write_whole(self._home / "manifest.json", signed, durable=True)

    def keep_address(self, address: str) -> None:
        write_whole(self._home / "address.txt", f"{address}\n".encode(), durable=False)

    def tell_to_advance(self) -> None:
        """Have the node that serves from here end the stage of now. Raises HomeError when there is no run here."""
        if not (self._home / "manifest.json").exists():
            raise HomeError(f"there is no run in {self._home} to advance; give the --home that `serve` was given")
        write_whole(self._home / "advance", b"", durable=True)

    def was_told_to_advance(self) -> bool:
        """Whether somebody has said so since we were last asked."""
        return remove(self._home / "advance")

    def state(self, stage: int, module: ModuleId) -> ModuleState | None:
        return load_state(self._file(stage, module))

    def keep_state(self, stage: int, module: ModuleId, state: ModuleState) -> None:
        save_state(self._file(stage, module), state)

    def set_aside(self, stage: int, module: ModuleId) -> Path:
        return set_aside(self._file(stage, module))

    def _file(self, stage: int, module: ModuleId) -> Path:
        return module_file(self._home, stage, module)


class Operator:
    """What the bootstrap node does, on any swarm. `run` is all of it."""

    def __init__(
        self,
        config: RunConfig,
        key: Ed25519PrivateKey,
        swarm: Swarm,
        kept: OperatorHome,
        screen: Screen,
        stop: Stopping,
        address: str,
        missed: LookForSleep = never_asleep,
    ) -> None:
        self._config = config
        self._key = key
        self._swarm = swarm
        self._clock = swarm.clock
        self._kept = kept
        self._screen = screen
        self._stop = stop
        self._address = address
        self._states: dict[ModuleId, ModuleState] = {}
        self._collection: ScoreCollection | None = None
        self._snapshots: SnapshotKeeper | None = None
        self._published = -math.inf
        """When the manifest was published last, by the clock that counts sleep."""
        self._resumed_at = -math.inf
        """When this node went on with what its folder had."""
        self._unwritten: set[ModuleId] = set()
        """Modules that are newer in memory than on the disk."""
        self._write_again_at = -math.inf
        self._on_disk: bytes | None = None
        """The manifest that was written last."""
        self._notices = Notices(screen.event, swarm.clock)
        self._missed = missed

    def run(self, *, until_finished: bool = False) -> None:
        """Begin the run or go on with it; keep modules and open stages until asked to stop."""
        self._kept.keep_address(self._address)  # peers may start, and wait for the manifest, while it is being made
        manifest = self._begin_or_resume()
        if manifest is None:
            return
        self._take_up(manifest)
        self._publish(manifest)
        self._screen.event(f"run address: {self._address}")
        while not self._stop():
            self._notice_sleep()
            manifest = self._where_the_peers_are(manifest)
            self._keep_modules(manifest.stage)
            self._show(manifest, "the run is finished; serving it" if manifest.finished else "keeping modules")
            over = manifest.finished and until_finished and not self._trainers(manifest.stage)
            manifest = self._write(partial(self._goes_on, manifest)) or manifest
            self._write(partial(self._renew, manifest))
            if over:
                break
            self._stop.wait(TICK_SECONDS)
        self._write_again_at = -math.inf
        self._write(partial(self._write_unwritten, manifest.stage))

    def _goes_on(self, manifest: Manifest) -> Manifest:
        """What a tick writes down, and the manifest from now on. Raises HomeError when there is no room for it."""
        self._write_unwritten(manifest.stage)
        self._keep_snapshots(manifest)
        return self._successor(manifest)

    def _write(self, work: Callable[[], T]) -> T | None:
        """Do what writes to the disk; None while that is full: the run goes on, and the work is done later."""
        if self._clock.boottime() < self._write_again_at:
            return None
        try:
            result = work()
        except HomeError as error:
            self._notices.failing("disk", f"{error}; the run goes on")
            self._write_again_at = self._clock.boottime() + WRITE_AGAIN_SECONDS
            return None
        self._notices.recovered("disk", "the disk has room again")
        return result

    def _successor(self, manifest: Manifest) -> Manifest:
        """The manifest that follows, to be published at once; the same one when nothing has changed."""
        successor = None
        if not manifest.finished and self._is_done(manifest.stage):
            successor = self._next(manifest) if self._knows_the_run(manifest.stage) else None
        elif not manifest.finished and self._knows_its_end(manifest.stage) and self._kept.was_told_to_advance():
            successor = self._ending_soon(manifest)
        if successor is None:
            return manifest
        self._published = -math.inf
        return successor

    def _notice_sleep(self) -> None:
        missed = self._missed()
        for line in missed.lines if missed is not None else ():
            self._screen.event(line)
            self._published = -math.inf  # what was said before we slept has expired

    # ------------------------------------------------------------------------------------------------------- beginning

    def _begin_or_resume(self) -> Manifest | None:
        manifest = self._kept.manifest(fingerprint_of(self._key.public_key()))
        if manifest is None:
            return self._begin()
        if manifest.config != self._config:
            raise ManifestError(
                f"the run {manifest.config.name} in this home folder was begun with another run file; give that "
                "run file, or another --home to begin a new run"
            )
        self._resumed_at = self._clock.boottime()
        self._screen.event(f"going on with stage {manifest.stage.index}, revision {manifest.revision}")
        return manifest

    def _knows_the_run(self, stage: Stage) -> bool:
        """Whether peers that may be in a later stage than this folder knows of have had the time to call on us."""
        return self._was_called_on() or bool(self._trainers(stage))

    def _knows_its_end(self, stage: Stage) -> bool:
        """The same, of peers that have made versions while we were away: some of every module must be here."""
        trained = all(state.version for state in self._states.values())
        return self._was_called_on() or (trained and bool(self._trainers(stage)))

    def _was_called_on(self) -> bool:
        """Whether whoever knocks now and then must have done so since this node went on."""
        return self._clock.boottime() - self._resumed_at > GREETING_SECONDS

    def _where_the_peers_are(self, manifest: Manifest) -> Manifest:
        """The peers' manifest, if it is newer than ours: this folder was restored from an older copy.

        To open a stage a second time would tear the run apart. Raises ManifestError when its files are not to be had.
        """
        if self._clock.boottime() - self._resumed_at > 2 * GREETING_SECONDS:
            return manifest
        for index in range(manifest.stage.index + 1, len(self._config.stages)):
            modules = table_of(self._config, index).modules
            self._swarm.look_up(index, modules, timeout=LOOK_UP_SECONDS)
            if not any(said.path is not None for module in modules for said in self._swarm.members(index, module)):
                continue
            signed = self._swarm.newest_manifest(timeout=LOOK_UP_SECONDS)
            newest = None if signed is None else open_manifest(signed, fingerprint_of(self._key.public_key()))
            if newest is None or newest.revision <= manifest.revision:
                continue
            self._screen.event(f"this folder is an older copy of the run; going on with stage {newest.stage.index}")
            try:
                self._take_up(newest)
            except UnreachableError as error:
                raise ManifestError(
                    f"this folder is an older copy of the run, whose peers are in stage {newest.stage.index}, and they "
                    f"do not have all of its files ({error}); restore a newer copy"
                ) from None
            self._published = -math.inf
            return newest
        return manifest

    def _begin(self) -> Manifest:
        """The first manifest: tokenizer, seed modules, first stage."""
        config = self._config
        if config.tokenizer.path is not None:
            tokenizer = tokenizer_from_path(config.tokenizer.path)
        else:
            self._screen.event(f"training a tokenizer of {config.tokenizer.vocab_size:,} tokens")
            tokenizer = train_tokenizer(self._training_texts(), config.tokenizer.vocab_size)
        if any(stage.num_paths != 1 for stage in config.stages):
            # documents that no router can be fitted on should be found now, and not when the warm-up is done
            few = config.router.model_copy(update={"max_documents": 2})
            routing_prefixes(read_documents(config.data), load_tokenizer(tokenizer), config.data, few)
        vocabulary = vocabulary_size(load_tokenizer(tokenizer))
        model = PathModel(build_network(config.model, vocabulary, config.seed), config.levels)
        seeds = [self._swarm.put_blob(vector_to_bytes(model.vector(level))) for level in range(model.num_levels)]
        bare = Manifest(
            revision=0,
            config=config,
            tokenizer=self._swarm.put_blob(tokenizer),
            stages=(self._single_stage(0, seeds, 0),),
            feature_seeds=tuple(seeds),
        )
        if config.stages[0].num_paths == 1:
            return bare
        return bare.model_copy(update={"stages": (self._routed_stage(bare, 0, lambda m: seeds[m.level], 0),)})

    def _training_texts(self) -> Iterator[str]:
        training = (d.text for d in read_documents(self._config.data) if split_of(d.text, self._config.data) == "train")
        return islice(training, TOKENIZER_DOCUMENTS)

    def _single_stage(self, index: int, seeds: list[str], first_step: int) -> Stage:
        stage = self._config.stages[index]
        return Stage(
            index=index,
            table=grid([1] * len(seeds)).rows,
            path_weights=(1.0,),
            router=None,
            seeds={str(ModuleId(level, 0)): seed for level, seed in enumerate(seeds)},
            rounds=self._config.rounds_of(stage),
            first_step=first_step,
        )

    # ------------------------------------------------------------------------------------------------------- keeping

    def _take_up(self, manifest: Manifest) -> None:
        """Hold the newest state that we have of each module of the stage, and say so."""
        stage = manifest.stage
        for module in self._states:
            for earlier in range(stage.index):
                self._swarm.release(earlier, module)
        self._states = {}
        for module in PathTable(stage.table).modules:
            state = self._at_home(stage, module) or state_at_start(stage, module, self._fetch)
            self._states[module] = state
            self._swarm.hold(stage.index, module, state)
        self._announce(stage)

    def _at_home(self, stage: Stage, module: ModuleId) -> ModuleState | None:
        """What we have kept of a module; a damaged file is set aside, as others have the module too."""
        try:
            return self._kept.state(stage.index, module)
        except DamagedError as error:
            log.debug("%s", error)
        aside = self._kept.set_aside(stage.index, module)
        self._screen.event(f"{module} is damaged here; set aside as {aside.name}, to be fetched from the peers")
        return None

    def _keep_modules(self, stage: Stage) -> None:
        """Fetch every module whose group has come further than what we hold; those that few have come first."""
        self._swarm.look_up(stage.index, list(self._states), timeout=LOOK_UP_SECONDS)
        newer: dict[ModuleId, tuple[Claim, int]] = {}
        for module, held in self._states.items():
            members = [s for s in self._swarm.members(stage.index, module) if s.peer != self._swarm.peer]
            claims = [Claim(s.version, s.digest) for s in members if s.version > held.version]
            better = better_claim(Claim(held.version, held.digest), claims)
            if better is not None:
                # who trains it will have it a moment from now as well; who has stopped training may be about to leave
                stay = sum(1 for s in members if s.path is not None and Claim(s.version, s.digest) == better)
                newer[module] = better, stay
        for module in sorted(newer, key=lambda module: newer[module][1]):
            if self._stop():
                return
            state = self._swarm.fetch_state(
                stage.index,
                module,
                newer[module][0].digest,
                timeout=STATE_SECONDS,
                parameters=len(self._states[module].params),
            )
            if state is None:
                continue
            self._states[module] = state
            self._swarm.hold(stage.index, module, state)
            if not newer[module][1]:
                self._announce(stage)  # at once: somebody may be waiting for it
            self._unwritten.add(module)
            self._write(partial(self._write_unwritten, stage))
        if newer:
            self._announce(stage)

    def _write_unwritten(self, stage: Stage) -> None:
        """Put on the disk what was fetched. Raises HomeError; what is not there yet stays for the next time."""
        for module in sorted(self._unwritten):
            self._kept.keep_state(stage.index, module, self._states[module])
            self._unwritten.discard(module)

    def _keep_snapshots(self, manifest: Manifest) -> None:
        """With early stopping, keep the best snapshot of each path for serving."""
        if self._config.early_stopping is None:
            return
        if self._snapshots is None:
            run = run_of(self._config.name, fingerprint_of(self._key.public_key()))
            self._snapshots = keeper_of(manifest, self._swarm, self._kept.home, run, self._fetch)
        for line in self._snapshots.collect(self._states, self._is_done(manifest.stage)):
            self._screen.event(line)

    def _announce(self, stage: Stage) -> None:
        self._swarm.announce(
            [
                Announcement(self._swarm.peer, stage.index, module, None, state.version, state.digest)
                for module, state in self._states.items()
            ]
        )

    def _trainers(self, stage: Stage) -> set[str]:
        return {
            said.peer
            for module in self._states
            for said in self._swarm.members(stage.index, module)
            if said.path is not None
        }

    # -------------------------------------------------------------------------------------------------------- stages

    def _is_done(self, stage: Stage) -> bool:
        """Whether we hold every module of the stage at its last version."""
        return stage.rounds is not None and all(state.version >= stage.rounds for state in self._states.values())

    def _ending_soon(self, manifest: Manifest) -> Manifest:
        """The manifest when the operator has said that the stage is to end: with the rounds that are under way."""
        stage = manifest.stage
        versions = [state.version for state in self._states.values()]
        rounds = max(versions) + 1 if self._trainers(stage) else min(versions)
        if not rounds:
            self._screen.event("told to advance, but not every module of this stage has been trained yet; not now")
            return manifest
        ending = stage.model_copy(update={"rounds": min(rounds, stage.rounds or rounds)})
        self._screen.event(f"told to advance: stage {stage.index} ends when every module has version {ending.rounds}")
        return manifest.model_copy(
            update={"revision": manifest.revision + 1, "stages": (*manifest.stages[:-1], ending)}
        )

    def _next(self, manifest: Manifest) -> Manifest | None:
        """The manifest after a stage is done: the next stage, or the end. None while scores are still coming in."""
        index = manifest.stage.index + 1
        if index == len(self._config.stages):
            router = self._window_router(manifest) if self._config.rerouting is not None else None
            if self._config.rerouting is not None and router is None and self._stop():
                return None  # asked to stop: the same command trains it anew
            self._screen.event("the last stage is done: the run is finished")
            end = {"revision": manifest.revision + 1, "finished": True, "window_router": router}
            return manifest.model_copy(update=end)
        if ROUTERS[self._config.stages[index].router].needs_scores:
            if manifest.scoring is None:
                return self._ask_for_scores(manifest)
            if not self._scores_are_in(manifest):
                return None
        before = PathTable(manifest.stage.table)
        blobs = {module: self._swarm.put_blob(vector_to_bytes(s.params)) for module, s in self._states.items()}
        first_step = manifest.stage.first_step + (manifest.stage.rounds or 0) * self._config.rounds.inner_steps
        if manifest.stage.router is None and manifest.stage.index == 0:
            # the dense model of the warm-up is what the router reads prefixes with, from now on and unchanged
            features = tuple(blobs[ModuleId(level, 0)] for level in range(before.num_levels))
            manifest = manifest.model_copy(update={"feature_seeds": features})
        if self._config.stages[index].num_paths == 1:
            stage = self._single_stage(index, [blobs[ModuleId(lv, 0)] for lv in range(before.num_levels)], first_step)
        else:
            stage = self._routed_stage(manifest, index, lambda m: blobs[ancestor(m, before)], first_step)
        if stage.table == manifest.stage.table:  # the modules go on as they were
            momenta = {str(m): self._swarm.put_blob(vector_to_bytes(s.momentum)) for m, s in self._states.items()}
            stage = stage.model_copy(update={"momenta": momenta})
        successor = manifest.model_copy(
            update={"revision": manifest.revision + 1, "stages": (*manifest.stages, stage), "scoring": None}
        )
        self._collection = None
        self._snapshots = None
        self._take_up(successor)
        self._screen.event(f"stage {index} is open: {len(stage.table)} paths")
        return successor

    def _routed_stage(
        self, manifest: Manifest, index: int, seed_of: Callable[[ModuleId], str], first_step: int
    ) -> Stage:
        """Fit the stage's router on the routing sample, and describe the stage."""
        config, stage = self._config, self._config.stages[index]
        table = table_of(config, index)
        self._show(manifest, f"fitting the router of stage {index}")
        self._screen.event(f"fitting a {stage.router} router for {table.num_paths} paths")
        tokenizer = load_tokenizer(self._fetch(manifest.tokenizer))
        prefixes = self._sample(tokenizer).tokens[:, : config.router.prefix_tokens]
        network = feature_network(config, vocabulary_size(tokenizer), manifest.feature_seeds, self._fetch)
        features = prefix_features(network, prefixes)
        router, blob = self._fitted_router(manifest, stage.router, features, table)
        shares = path_shares(router, features, stage.overlap)
        self._screen.event(f"router fitted on {len(prefixes):,} prefixes; shares of the paths: {_percent(shares)}")
        return Stage(
            index=index,
            table=table.rows,
            path_weights=shares,
            router=self._swarm.put_blob(blob),
            overlap=stage.overlap,
            seeds={str(module): seed_of(module) for module in table.modules},
            rounds=config.rounds_of(stage),
            first_step=first_step,
        )

    def _fitted_router(self, manifest: Manifest, name: str, features: Floats, table: PathTable) -> tuple[Router, bytes]:
        """A stage's router and its bytes. Where scores teach nothing, the one of now goes on and nobody is stranded."""
        scores = None
        if ROUTERS[name].needs_scores:
            assert self._collection is not None, "scores are collected before a stage that is fitted on them"
            scores = self._collection.matrix()
        kind, config = kind_of(name), self._config
        try:
            router = kind.fit(Sample(features, scores), table, config.router, config.seed)
        except DataError as error:
            if ROUTERS[name].paths != "before":
                raise
            self._screen.event(f"keeping the router of stage {manifest.stage.index}, for none can be learned: {error}")
            assert manifest.stage.router is not None, "there are several paths, so there is a router"
            blob = self._fetch(manifest.stage.router)
            return router_from_bytes(blob, len(manifest.stage.table)), blob
        return router, router_to_bytes(kind, router)

    # a discriminative re-route: the peers score the routing sample first

    def _sample(self, tokenizer: Tokenizer) -> EvaluationSet:
        return routing_pieces(read_documents(self._config.data), tokenizer, self._config.data, self._config.router)

    def _ask_for_scores(self, manifest: Manifest) -> Manifest:
        """Publish the routing sample, to be scored by everybody under the path that they train."""
        sample = self._sample(load_tokenizer(self._fetch(manifest.tokenizer)))
        digest = self._swarm.put_blob(sample_to_bytes(sample))
        self._screen.event(f"asking the peers to score {len(sample.lengths):,} pieces under their paths")
        return manifest.model_copy(update={"revision": manifest.revision + 1, "scoring": digest})

    def _scores_are_in(self, manifest: Manifest) -> bool:
        """Look at what has come in; True when every path has its scores."""
        if self._collection is None:
            assert manifest.scoring is not None
            vocabulary = vocabulary_size(load_tokenizer(self._fetch(manifest.tokenizer)))
            sample = sample_from_bytes(self._fetch(manifest.scoring), vocabulary, self._config.data.sequence_length)
            model = PathModel(build_network(self._config.model, vocabulary, self._config.seed), self._config.levels)
            self._collection = ScoreCollection(manifest, self._swarm, sample, model, self._states)
        members = (said for m in self._states for said in self._swarm.members(manifest.stage.index, m))
        self._collection.collect({said.path for said in members if said.path is not None})
        missing = len(self._collection.missing)
        self._show(manifest, f"collecting scores, {missing} of {len(manifest.stage.table)} paths to come")
        return missing == 0

    # routing every W tokens at test time

    def _window_router(self, manifest: Manifest) -> str | None:
        """The blob of a window router for the stage's paths; None when asked to stop, or when its training failed."""
        table = PathTable(manifest.stage.table)
        tokenizer = load_tokenizer(self._fetch(manifest.tokenizer))
        vocabulary = vocabulary_size(tokenizer)
        self._screen.event(f"training the window router of {table.num_paths} paths")
        shown = 0.0

        def on_progress(share: float) -> None:
            nonlocal shown
            if self._stop():
                raise Stopped
            if self._clock.monotonic() - shown > TICK_SECONDS:
                shown = self._clock.monotonic()
                self._show(manifest, f"training the window router, {100 * share:.0f} %")
            self._renew(manifest)

        network = feature_network(self._config, vocabulary, manifest.feature_seeds, self._fetch)
        router = WindowRouter(network, table.num_paths)
        model = PathModel(build_network(self._config.model, vocabulary, self._config.seed), self._config.levels)
        try:
            documents = self._until_stopped(read_documents(self._config.data))
            sample = routing_pieces(documents, tokenizer, self._config.data, self._config.router)
            load = lambda path: load_path(model, table, path, self._states)  # noqa: E731
            right = train_window_router(router, sample, load, self._config, on_progress)
        except Stopped:
            return None
        except TrainingError as error:
            self._screen.event(f"the run goes on without a window router: {error}")
            return None
        self._screen.event(f"window router trained; right about {100 * right:.0f} % of the windows it had not seen")
        return self._swarm.put_blob(window_router_to_bytes(router))

    def _until_stopped(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The same documents; raises Stopped when asked to stop."""
        for document in documents:
            if self._stop():
                raise Stopped
            yield document

    def _fetch(self, digest: str) -> bytes:
        try:
            return self._swarm.fetch_blob(digest, timeout=STATE_SECONDS)
        except UnreachableError:
            if self._stop():
                raise Stopped from None
            raise

    def _publish(self, manifest: Manifest) -> None:
        signed = sign_manifest(manifest, self._key)
        if signed != self._on_disk:  # before anybody hears of it: a node that is started again must not know less
            self._kept.keep_manifest(signed)
            self._on_disk = signed
        self._swarm.publish_manifest(signed)
        self._published = self._clock.boottime()

    def _renew(self, manifest: Manifest) -> None:
        """Publish the manifest again when its record is about to grow old."""
        if self._clock.boottime() - self._published > REPUBLISH_SECONDS:
            self._publish(manifest)

    def _show(self, manifest: Manifest, activity: str) -> None:
        traffic = self._swarm.traffic()
        status = status_of(self._swarm, manifest)
        rounds = manifest.stage.rounds
        progress = None if rounds is None else min(1.0, status.version_min / rounds)
        self._screen.show(BootstrapView(self._address, activity, status, progress, traffic.sent, traffic.received))


def _percent(shares: tuple[float, ...]) -> str:
    if len(shares) > 16:
        return f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %"
    return ", ".join(f"{100 * share:.0f}" for share in shares) + " %"
