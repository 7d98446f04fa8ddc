"""A clock for tests, which stands still until it is told to go on."""


class HandClock:
    """`machine.clock.Clock`, set by hand. `monotonic` and `boottime` are the same."""

    def __init__(self, now: float = 1000.0, wall: float = 5_000_000.0) -> None:
        self.now = now
        self.at_the_wall = wall

    def monotonic(self) -> float:
        return self.now

    def boottime(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.at_the_wall
