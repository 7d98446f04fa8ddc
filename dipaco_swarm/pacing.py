"""What the pacing of a run (`algorithm/pacing/`) is shown of a path in training, and what it says is due."""

from dipaco_swarm.algorithm.pacing.pacing import GroupView, Other, Pacing, pacing_of
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.path_in_training import PathInTraining


def pacing_of_run(peer: PathInTraining) -> Pacing:
    return pacing_of(peer.rules.rounds.pacing)


def modules_due(peer: PathInTraining) -> list[ModuleId]:
    """The modules whose round is due now, in level order."""
    pacing = pacing_of_run(peer)
    open_modules = [module for module in peer.modules if not peer.module_is_done(module)]
    return [module for module in open_modules if pacing.is_due(view_of_group(peer, module))]


def view_of_group(peer: PathInTraining, module: ModuleId) -> GroupView:
    """Where the module's group stands, as this peer sees it."""
    progress = peer.progress[module]
    return GroupView(
        path=peer.path,
        version=progress.version,
        tokens=progress.tokens,
        failed_at=progress.failed_at,
        gathering=peer.swarm.is_gathering(peer.stage, module, progress.version),
        others=tuple(
            Other(said.path, said.version, said.tokens, speaks=said.catching_up or said.awake)
            for said in peer.swarm.members(peer.stage, module)
            if said.path is not None and said.trains and said.peer != peer.swarm.peer
        ),
        round_tokens=peer.rules.round_tokens,
    )
