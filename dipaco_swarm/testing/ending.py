"""The end of a simulated run: everybody is asked to stop, and then every token is looked for."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.testing.ledger import BEYOND, LEFT_BEHIND, TOO_LATE, Balance, Place, peer_of, trainer_of
from dipaco_swarm.testing.process import SimulatedProcess
from dipaco_swarm.testing.volunteer import SimulatedPeer
from dipaco_swarm.testing.watched import KILLED, NOT_MADE
from dipaco_swarm.training.checkpoint import Checkpoint

if TYPE_CHECKING:
    from dipaco_swarm.testing.world import World

ENDING_SECONDS = 10.0
"""After Ctrl+C, and the inner step that it is in, a program ends within this, whatever it waits for."""
STAGE_OVER = "left over when the stage ended"

Best = Mapping[Place, Claim]
"""What the run ends on."""


async def end_everybody(world: "World") -> Balance:
    """Ctrl+C for all, the operator's node last; then where all tokens are."""
    live = world.live_peers()
    await stop(world, live)
    if world.operator.is_alive:
        await stop(world, [world.operator])
    best = _best(world)
    over = world.stage
    unsaved = {(trainer, place) for trainer, place in world.ledger.trained if place[0] == over}
    for peer in world.peers.values():
        for saved, noted in peer.checkpoints():
            _note_local(world, peer, saved, noted, best)
            unsaved -= {(trainer_of(peer.name, saved.path), (saved.stage, module)) for module in saved.base}
    for trainer, place in list(world.ledger.trained):
        if place[0] < over:
            _write_off(world, trainer, place)
        elif (trainer, place) in unsaved and world.peers[peer_of(trainer)].was_killed:
            # before its first checkpoint, and it came back on another path
            world.ledger.drop(trainer, place, 0, KILLED)
    _check_most_work(world, live, best)
    return world.ledger.balance({place: claim.digest for place, claim in best.items()})


async def stop(world: "World", programs: Sequence[SimulatedProcess]) -> None:
    """Ctrl+C for these; it ends them, and soon, and nothing of them is left."""
    for process in programs:
        process.ask_to_stop()
    for process in programs:
        assert process.program is not None
        try:
            async with asyncio.timeout(max(0.0, process.step_ends - world.now) + ENDING_SECONDS):
                await asyncio.shield(process.program.ended)
        except TimeoutError:
            world.ledger.violate(world.now, "Ctrl+C ends it", f"{process.name} goes on for {ENDING_SECONDS:.0f} s")
            await process.program.ended
        left = world.loop.tasks_of(process.owner)
        if left and process.program.ended.done():
            names = ", ".join(sorted({str(task.get_coro()) for task in left}))
            world.ledger.violate(world.now, "no task left behind", f"{process.name} has ended, and left {names}")


def _best(world: "World") -> Best:
    """Of a stage that is over, what the next one began with; of the last one, the best that is on anybody's disk."""
    best = {
        (stage, module): Claim.of(state)
        for stage in range(world.stage + 1)
        for module, state in world.operator.kept(stage).items()
    }
    for peer in world.peers.values():
        for saved, _ in peer.checkpoints():
            for module, state in saved.base.items():
                place, claim = (saved.stage, module), Claim.of(state)
                if saved.stage == world.stage and (place not in best or claim.beats(best[place])):
                    best[place] = claim
    return best


def _note_local(
    world: "World", peer: SimulatedPeer, saved: Checkpoint, noted: Mapping[ModuleId, int], best: Best
) -> None:
    """What a peer would go on with if it came back: what it saved, less what others have gone on with."""
    if saved.stage < world.stage:
        return
    for module, state in saved.base.items():
        place, trainer = (saved.stage, module), trainer_of(peer.name, saved.path)
        if state.version == world.last_version(place):
            _write_off(world, trainer, place)
            continue
        gone = noted.get(module, -1) >= state.version and best[place].beats(Claim.of(state))
        left = saved.tokens[module]
        if gone:
            part = peer.part_given(saved, module)
            left = 0 if part is None else left - part.tokens
        world.ledger.local[trainer, place] = left
        if peer.is_behind_its_training(saved):
            world.ledger.drop(trainer, place, left, KILLED)
        if gone:
            world.ledger.drop(trainer, place, left, NOT_MADE)
            # what a round of a later version had is more than the checkpoint can tell
            dropped = saved.tokens[module] - left if noted[module] == state.version else 0
            world.ledger.check_given(world.now, trainer, place, state.digest, dropped)


def _write_off(world: "World", trainer: str, place: Place) -> None:
    """What is local of a module that has made its last round never counts."""
    ledger = world.ledger
    trained = ledger.trained[trainer, place]
    done = ledger.done[trainer, place].get(world.last_version(place) or 0, trained)
    ledger.drop(trainer, place, trained - done, _why_left(world, trainer, place))
    ledger.drop(trainer, place, 0, BEYOND)


def _why_left(world: "World", trainer: str, place: Place) -> str:
    """Why a peer has progress with a module that has made its last round."""
    ledger, last = world.ledger, world.last_version(place) or 0
    if (trainer, place, last) in ledger.too_late:
        return TOO_LATE
    has_moved = last not in ledger.done[trainer, place] and (trainer, place[0]) in ledger.moved
    return LEFT_BEHIND if has_moved else STAGE_OVER


def _check_most_work(world: "World", live: Sequence[SimulatedPeer], best: Best) -> None:
    """Nobody who was there to the end has made a version with more work behind it than the one that is left."""
    for peer in live:
        for place, digests in (peer.watched.made if peer.watched is not None else {}).items():
            most = world.ledger.most_work(place, digests)
            if place[0] == world.stage and most > best[place].work:
                what = f"{peer.name} made {place[1]} with {most:,} tokens; {best[place].work:,} are left"
                world.ledger.violate(world.now, "the most work survives", what)
