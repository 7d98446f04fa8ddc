"""`dipaco-swarm generate --run`: one text, written by who trains its path, as `serve` has it written."""

from collections.abc import Iterator
from contextlib import contextmanager

from dipaco_swarm.client.sources import run_in_swarm, visit
from dipaco_swarm.client.visits import Tell, check_window
from dipaco_swarm.errors import UnreachableError, UsageError
from dipaco_swarm.gateway.asked import Asked, SilentError
from dipaco_swarm.gateway.gateway import Gateway
from dipaco_swarm.gateway.live import LiveGateway
from dipaco_swarm.gateway.words import Words
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.questions import MAX_NEW, MAX_SEED, MAX_TEMPERATURE, MAX_TOP_K
from dipaco_swarm.training.inference import Sampling

CHECK_SECONDS = 300.0
"""At the end, for what peers have written to be checked."""


class Once:
    """Texts of one gateway, and who wrote them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.writers: set[PeerName] = set()

    @property
    def reroutes(self) -> bool:
        """Whether texts can be routed anew on the way."""
        return self._gateway.reroutes

    def text(self, prompt: str, *, tokens: int, sampling: Sampling, seed: int, window: int | None) -> Iterator[str]:
        """What follows the prompt, in pieces: the same as `client.visits.generate` writes with the same modules.

        Raises UsageError for what cannot be written, UnreachableError when nobody writes it.
        """
        _check_that_peers_take_it(tokens, sampling, seed)
        gateway = self._gateway
        ids = gateway.ids_of(prompt)
        if not ids or not prompt:
            raise UsageError("the prompt is empty; give some text to go on from")
        words = Words(gateway.tokenizer, ids, ())
        try:
            for piece in gateway.answer(Asked(ids, sampling, seed, tokens, window=window)):
                if piece.origin.by:
                    self.writers.add(PeerName(piece.origin.by))
                if text := words.take(piece.written.token):
                    yield text
        except SilentError as error:
            raise UnreachableError(str(error)) from None


@contextmanager
def once(address: RunAddress, window: int | None, tell: Tell) -> Iterator[Once]:
    """Texts of a live run. When the block ends, what peers have written is checked.

    `window`: that texts will be routed with. Raises UsageError when the run cannot do that, and UnreachableError when a
    peer has written what its path does not write.
    """
    check_window(window)
    with visit(address) as (swarm, manifest), checked(LiveGateway(swarm, manifest, address.fingerprint, tell)) as asked:
        if window is not None and not asked.reroutes:
            run_in_swarm(swarm, manifest, address.fingerprint).window_router()  # says why there is none
        yield asked


@contextmanager
def checked(live: LiveGateway) -> Iterator[Once]:
    """Raises UnreachableError at the end when who wrote has not written what its path writes."""
    try:
        asked = Once(live())
        yield asked
    finally:
        live.close(CHECK_SECONDS)
    if liars := asked.writers & live.liars:
        who = sorted(liars)[0][-8:]
        raise UnreachableError(f"peer {who} has not written what its path writes: do not use this text, and ask again")


def _check_that_peers_take_it(tokens: int, sampling: Sampling, seed: int) -> None:
    """Raises UsageError for what cannot be said to a peer, or what it would cut short."""
    bounds = (
        ("--tokens", tokens, MAX_NEW),
        ("--temperature", sampling.temperature, MAX_TEMPERATURE),
        ("--top-k", sampling.top_k or 0, MAX_TOP_K),
        ("--seed", abs(seed), MAX_SEED),
    )
    for name, value, most in bounds:
        if value > most:
            raise UsageError(
                f"{name} {value:g} is more than peers take ({most:g}); add --local to have it written here"
            )
