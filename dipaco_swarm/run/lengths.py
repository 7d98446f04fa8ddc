"""How many inner steps a round has: as many for all its members, also where the operator has changed it on the way."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RoundLengths:
    """Inner steps of the rounds of a stage, by the version of a module that a round starts from."""

    since: tuple[tuple[int, int], ...]
    """(version, inner steps from there on), versions rising from 0."""

    def at(self, version: int) -> int:
        """Of the round that makes `version + 1`."""
        return next(steps for first, steps in reversed(self.since) if first <= version)

    def before(self, version: int) -> int:
        """Of all rounds that made `version`."""
        ends = [first for first, _ in self.since[1:]] + [version]
        return sum(
            steps * max(0, min(version, end) - first) for (first, steps), end in zip(self.since, ends, strict=True)
        )

    def changed(self, version: int, steps: int) -> "RoundLengths":
        """With other ones from a version on."""
        return RoundLengths((*((first, of) for first, of in self.since if first < version), (version, steps)))
