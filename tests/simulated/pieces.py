"""Pieces that a round is cut into, shorter than the product's: a story of four takes a third of the time."""

from dipaco_swarm.swarm.round.codecs.codec import BLOCK

SHORT_PIECE = 8 * BLOCK
"""Numbers. Of few more than these contributions can be compared; of usual ones there are 64 * BLOCK at least."""
