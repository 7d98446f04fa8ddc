"""A run that changes while we are in it: what its operator does to the run file, a volunteer follows at its post."""

from dataclasses import replace

from dipaco_swarm.algorithm.stages import generations, last_versions
from dipaco_swarm.events.volunteer import RunChanged
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.entering import Post
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.growth import changes_between
from dipaco_swarm.run.manifest import Manifest


class Following:
    """What a volunteer knows of the run file, and has told its person."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._known: Manifest | None = None
        self._rounds: tuple[str, float, int] | None = None
        """What the swarm knows of the run's rounds: codec, norm clip, members."""

    def configure_rounds(self, config: RunConfig) -> None:
        """For a stage whose rounds are other than those before. `config`: as it is in that stage."""
        rounds = config.wire.codec, config.limits.norm_clip, config.limits.max_members
        if rounds != self._rounds:
            self._around.swarm.configure_rounds(*rounds)
            self._rounds = rounds

    def follow(self, post: Post, newest: Manifest) -> Post:
        """The post by the newest manifest; one of a later stage is only spoken of."""
        known, self._known = self._known or post.manifest, newest
        if newest.revision == known.revision:
            return post
        changes = changes_between(known.config, newest.config)
        if changes:
            self._around.screen.event(RunChanged(tuple(map(str, changes))))
            self._around.swarm.limit_members(newest.config.limits.max_members)
        if newest.stage.index != post.peer.stage:
            return post
        post.peer.ends_at(last_versions(newest), newest.lengths)
        post.peer.goes_back(generations(newest.stage))
        return replace(post, manifest=newest)


def end_what_is_over(peer: PathInTraining, newest: Manifest) -> None:
    """In the middle of rounds that are waited for: leave those that come after their module's last one, or that go on
    from what the operator has taken back.

    Who has heard of the end already makes them no more, and would be waited for without end.
    """
    if newest.stage.index == peer.stage:
        peer.ends_at(last_versions(newest))
        peer.goes_back(generations(newest.stage))
    else:
        peer.leave_rounds()
