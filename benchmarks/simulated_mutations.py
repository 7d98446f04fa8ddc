"""Does every invariant catch what it is for? Rules are taken out of the code, one at a time, and seeds are played.

    python -m benchmarks.simulated_mutations [--seeds 200]

Every other seed overlaps rounds with training. A mutation changes the source of one module as it is imported, in a
process of its own; nothing on the disk changes.
Exit code 1 when a mutation is not caught within so many seeds.
"""

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Mutation:
    """A rule, and the source without it."""

    rule: str
    module: str
    old: str
    new: str
    aim: str = ""
    """One of AIMS, where faults of any kind hardly ever meet what it is for."""


MUTATIONS = (
    Mutation(
        "a committed contribution is not local any more",
        "dipaco_swarm.algorithm.progress",
        "return ModuleProgress(state, given_at=_still_given(progress, state)), state.params",
        "return ModuleProgress(state, progress.tokens, _still_given(progress, state)), state.params",
    ),
    Mutation(
        "what was given to a round that others finished is not given again",
        "dipaco_swarm.algorithm.progress",
        "if state.work > progress.base.work and progress.is_given:",
        "if False:",
        aim="unheard when ready",
    ),
    Mutation(
        "progress stays on top of a newer state",
        "dipaco_swarm.algorithm.progress",
        "return ModuleProgress(state, progress.tokens, _still_given(progress, state)), ours",
        "return ModuleProgress(state, 0, None), ours",
    ),
    Mutation(
        "the state with more work behind it wins",
        "dipaco_swarm.algorithm.plan",
        "return (-self.work, -self.version, self.digest) < (-other.work, -other.version, other.digest)",
        "return (self.work, self.version, self.digest) < (other.work, other.version, other.digest)",
    ),
    Mutation(
        "a member that is behind catches up",
        "dipaco_swarm.algorithm.plan",
        "return None if best.digest == ours.digest else best",
        "return None",
    ),
    Mutation(
        "a leader asks where the missing are before it goes on alone",
        "dipaco_swarm.swarm.round.closing",
        "if not view.seated or not view.missing or view.waited > view.patience:",
        "if True:",
    ),
    Mutation(
        "a leader waits for the missing no longer than the patience",
        "dipaco_swarm.swarm.round.closing",
        "if not view.seated or not view.missing or view.waited > view.patience:",
        "if not view.seated or not view.missing:",
    ),
    Mutation(
        "what an outer gradient is taken from is never written to",
        "dipaco_swarm.algorithm.outer",
        "gradient = outer_gradient(before, self.after[place])",
        "gradient = before.sub_(self.after[place])",
    ),
    Mutation(
        "what is trained is in the outer gradient's tokens",
        "dipaco_swarm.swarm.round.average",
        "return {PeerName(member.peer): member.tokens for member in most}",
        "return {PeerName(member.peer): member.tokens for member in list(most)[:1]}",
    ),
    Mutation(
        "Ctrl+C wakes whoever waits",
        "dipaco_swarm.swarm.calls",
        "            for task in list(self._pending):\n                task.cancel()",
        "            self._interrupted = False",
    ),
    Mutation(
        "a swarm that is left ends its tasks",
        "dipaco_swarm.swarm.networked",
        "        await background.end()\n",
        "        return\n",
    ),
    Mutation(
        "what is too old to count is said",
        "dipaco_swarm.peer.catching_up",
        'around.book.dropped(peer, module, ours, drop_progress(peer, module), "stale")',
        "drop_progress(peer, module)",
    ),
    Mutation(
        "what was given before a crash is not given again after it",
        "dipaco_swarm.algorithm.progress",
        "if age > 0 and saved.is_given:",
        "if False:",
    ),
    Mutation(
        "an average without our part leaves our part with us",
        "dipaco_swarm.outer_round",
        "if peer.swarm.peer in outcome.tokens:",
        "if True:",
        aim="cut while giving",
    ),
    Mutation(
        "who made an average and is stopped knows that the others have its part",
        "dipaco_swarm.swarm.round.exchange",
        "self._reducer.has_told(piece) if owner == self._me else piece in self._sent",
        "piece in self._sent",
        aim="stopped when ready",
    ),
    Mutation(
        "what is trained while a round is made counts for the next one",
        "dipaco_swarm.algorithm.progress",
        "return ModuleProgress(state, since, _still_given(progress, state)), ours",
        "return ModuleProgress(state, 0, _still_given(progress, state)), ours",
    ),
    Mutation(
        "what was given to a round is not in the next one",
        "dipaco_swarm.algorithm.progress",
        "since = progress.tokens - part.tokens",
        "since = progress.tokens",
    ),
    Mutation(
        "a checkpoint tells what was given from what was trained since",
        "dipaco_swarm.training.checkpoint",
        "return part if known else None",
        "return None",
        aim="stopped when ready",
    ),
    Mutation(
        "who waits for the end takes what its rounds have come to",
        "dipaco_swarm.peer.volunteer",
        "case Wait() if peer.in_flight:",
        "case Wait() if False:",
    ),
    Mutation(
        "a checkpoint has the tokens of now",
        "dipaco_swarm.training.checkpoint",
        '"tokens": {str(module): tokens for module, tokens in checkpoint.tokens.items()}',
        '"tokens": {str(module): 0 for module in checkpoint.tokens}',
    ),
)


class _Mutant(importlib.abc.MetaPathFinder):
    """Imports one module with its source changed."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutation.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert isinstance(spec.loader, importlib.machinery.SourceFileLoader)
        spec.loader = _MutantLoader(spec.loader.name, spec.loader.path, self._mutation)
        return spec


class _MutantLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, mutation: Mutation) -> None:
        super().__init__(name, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        source = self.get_data(self.path).decode()
        assert self._mutation.old in source, f"{fullname} does not have the rule any more: {self._mutation.rule}"
        return compile(source.replace(self._mutation.old, self._mutation.new, 1), self.path, "exec")


def hunt(mutation: Mutation, seeds: int, seconds: float) -> tuple[int, str] | None:
    """The first seed in which an invariant fails without the rule, and which; None when none does."""
    sys.meta_path.insert(0, _Mutant(mutation))
    from benchmarks.simulated import play
    from dipaco_swarm.testing.aims import AIMS, ANYTHING

    aim = AIMS[mutation.aim] if mutation.aim else ANYTHING
    for seed in range(seeds):
        try:
            outcome = play(seed, seconds, overlap=seed % 2 == 1, aim=aim)
        except Exception as error:  # noqa: BLE001  # a world that cannot even be played is caught as well
            return seed, f"the world ends: {type(error).__name__}: {error}"
        if outcome.violations:
            first = outcome.violations[0]
            return seed, f"{first.rule}: {first.what}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", metavar="WORDS", help="rules with these words in them")
    options = parser.parse_args()
    mutations = [mutation for mutation in MUTATIONS if options.only in mutation.rule]
    print("| rule taken out | faults aim at | caught at seed | by |\n|---|---|---|---|")
    context = multiprocessing.get_context("spawn")
    missed = 0
    with ProcessPoolExecutor(options.jobs, mp_context=context, max_tasks_per_child=1) as pool:
        hunts = [pool.submit(hunt, mutation, options.seeds, options.seconds) for mutation in mutations]
        for mutation, done in zip(mutations, hunts, strict=True):
            found = done.result()
            missed += found is None
            seed, by = ("-", "**not caught**") if found is None else (str(found[0]), found[1][:150])
            print(f"| {mutation.rule} | {mutation.aim or '-'} | {seed} | {by} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
