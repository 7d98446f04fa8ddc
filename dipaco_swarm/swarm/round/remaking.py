"""Whether a reducer's average is what its inputs make: made anew by anybody, from what the reducer itself has signed.

What is compared is not bytes but vectors: the mean and its encoding are the same bytes on every machine, but a rule
that measures lengths (radial, robust) may round otherwise on another one. A lie is far above that, or harmless. Where a
rule decides by a bound, somebody may contribute what lies on the edge of it: on one machine it is above, on another one
below. So the average is made as machines on either side of all edges make it, and whoever has made something in between
has told no lie.
"""

import hashlib
from collections.abc import Mapping, Sequence

from torch import Tensor

from dipaco_swarm.algorithm.averaging.rule import Averaging, averaging_of
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.swarm.checks import Accusation
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.round.codecs.codec import Buffer, Codec
from dipaco_swarm.swarm.round.reduction import (
    is_acceptable,
    length_of,
    mask_of,
    piece_average,
    piece_bounds,
)
from dipaco_swarm.swarm.round.seals import (
    IsSignedBy,
    Subject,
    digest_of_inputs,
    digest_of_piece,
    digest_of_pieces,
    digest_of_rules,
)

ROUNDING = 0.01
"""Part of its length by which an average may be further off than its encoding makes it; nobody is harmed by less."""
ENCODING = 1.01
"""... and so many times what encoding it loses here: a number between two levels is as near to one as to the other."""
LONGER = 1.001
"""A length that was just acceptable where it was measured is so here."""


def is_wrong(
    said: Accusation,
    average: Buffer,
    inputs: Mapping[int, Buffer],
    group: ModuleGroup,
    codec: Codec,
    run: str,
    is_signed_by: IsSignedBy,
) -> bool:
    """Whether it convicts the reducer. `average`: bytes of the piece. `inputs`: member -> bytes of its contribution.

    Raises ValueError when it is not the reducer's word: then it says nothing about anybody but who shows it.
    """
    about, start, stop = word_of_reducer(said, group, codec, run, is_signed_by)
    if dict(said.pieces).get(said.piece) != digest_of_piece(said.mask, average):
        raise ValueError("another average than the reducer has signed")
    contributions: dict[int, Tensor] = {}
    for given in said.inputs:
        data, entry = inputs[given.member], said.roster.members[given.member]
        if hashlib.sha256(data).digest() != given.digest:
            raise ValueError("bytes that the reducer has not signed")
        # from here on the reducer says itself that this was in it
        if not is_signed_by(entry.peer, about.input(said.generation, said.piece, given.digest), given.signature):
            return True
        try:
            contribution = codec.decode(data, stop - start)
        except ValueError:
            return True
        if not is_acceptable(length_of(contribution) / LONGER, entry):
            return True
        contributions[given.member] = contribution
    try:
        sealed = codec.decode(average, stop - start)
    except ValueError:
        return True
    rule = averaging_of(group.averaging)
    return not (
        _is_made_by([rule], said, contributions, sealed, group, codec)
        or _is_made_by(rule.on_other_machines(), said, contributions, sealed, group, codec)
    )


def _is_made_by(
    rules: Sequence[Averaging],
    said: Accusation,
    contributions: Mapping[int, Tensor],
    sealed: Tensor,
    group: ModuleGroup,
    codec: Codec,
) -> bool:
    """Whether a sealed average is what one of these rules makes of contributions, or what lies between them."""
    made = [piece_average(said.roster.members, said.roster.doubts, group, rule)(contributions) for rule in rules]
    masks = {mask_of(each.members) for each in made}
    if not made or (len(masks) == 1 and said.mask not in masks):
        return False
    spread = length_of(made[0].average - made[-1].average)
    encoded = [codec.decode(codec.encode(each.average), len(sealed)) for each in made]
    return any(is_same(each.average, sealed, ours, spread) for each, ours in zip(made, encoded, strict=True))


def is_same(average: Tensor, sealed: Tensor, encoded: Tensor, spread: float = 0.0) -> bool:
    """Whether what a reducer has sealed differs from an average by no more than machines do; fp32 (n,) each.

    `encoded`: what our own codec makes of it. `spread`: by how much they differ in what they decide.
    """
    lost, off = length_of(encoded - average), length_of(sealed - average)
    return off <= ENCODING * lost + ROUNDING * length_of(average) + spread


def word_of_reducer(
    said: Accusation, group: ModuleGroup, codec: Codec, run: str, is_signed_by: IsSignedBy
) -> tuple[Subject, int, int]:
    """What it is about, and the bounds of the piece. Raises ValueError when the reducer has not signed all of it.

    Looked at before any byte of what is shown is taken.
    """
    members = said.roster.members
    start, stop = piece_bounds(said.piece, said.roster.piece_parameters, said.parameters)
    order = [given.member for given in said.inputs]
    if not (
        said.reducer < len(members)
        and start < stop
        and order == sorted({*order})
        and order[-1] < len(members)
        and all(member.path in group.path_weights for member in members)
    ):
        raise ValueError("a piece that there is not")
    about = Subject.of(run, said.stage, ModuleId.parse(said.module), said.version, said.roster)
    sealed = about.statement(said.generation, digest_of_pieces(dict(said.pieces)))
    rules = digest_of_rules(group, codec.name, said.parameters)
    listed = about.inputs(said.generation, said.piece, digest_of_inputs(said.inputs, rules))
    peer = members[said.reducer].peer
    if not (is_signed_by(peer, sealed, said.seal) and is_signed_by(peer, listed, said.shown)):
        raise ValueError("what the reducer has not signed")
    return about, start, stop
