"""How long things take and how long we wait: five base numbers, and everything else that follows from them.

Only what must be a fixed number is here. Where a pace can be learned (answers, gaps on a stream, training, the pieces
of a transfer), the wait follows what was learned, and these numbers are its floor and its ceiling.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds. The defaults are for home lines; a swarm in one process may use shorter ones."""

    heartbeat: float = 5.0
    """A peer repeats its announcements, and reads those of its groups, this often while something changes there."""
    pulse: float = 0.5
    """Both ends of a quiet control stream say this often that they are alive."""
    answer: float = 4.0
    """A peer with a live loop on a line of today answers a question in much less."""
    dial: float = 10.0
    """A stream to a peer is open by then, or the peer cannot be reached."""
    stall: float = 30.0
    """A stream on which nothing moves for so long, in the middle of something, is broken."""

    # membership: announcements in the directory

    @property
    def calm(self) -> float:
        """The same where nothing has changed for long."""
        return 3 * self.heartbeat

    @property
    def lifetime(self) -> float:
        """An announcement outlives its peer by at most this; three words, so that a busy minute loses nobody."""
        return 3 * self.calm

    @property
    def busy_lifetime(self) -> float:
        """The same of a peer that was fetching a state: its line may have no room for a word meanwhile."""
        return 2 * self.lifetime

    @property
    def long_ago(self) -> float:
        """Who was heard since then may be somewhere still; a group in which nobody was is of a stage that is over."""
        return 120 * self.heartbeat

    @property
    def in_touch(self) -> float:
        """Who has lost the bootstrap nodes knocks there this often, and follows the manifest not much less often."""
        return 2 * self.heartbeat

    def pause(self, unchanged: float) -> float:
        """Until something is said or read again that has been the same for so long: at most a tenth of that."""
        return min(self.calm, max(self.heartbeat, 0.1 * unchanged))

    @property
    def rest(self) -> float:
        """Who holds a module for others reads about it this often: nothing that is said there moves it."""
        return 2 * self.calm

    def manifest_pause(self, unchanged: float) -> float:
        """Between two looks for a newer manifest, when there was none for so long."""
        return 0.6 * self.pause(unchanged)

    @property
    def look_up(self) -> float:
        """Reading what is announced about a group, or said about a topic, takes at most this."""
        return 4 * self.heartbeat

    @property
    def unheard(self) -> float:
        """Somebody who has not been heard for this long is said to be silent; stages end and begin in less."""
        return self.in_touch

    @property
    def greeting(self) -> float:
        """By then everybody has been in touch once: after a restart, or a sleep, others that are there were heard."""
        return 1.5 * self.in_touch

    @property
    def clock_tolerance(self) -> float:
        """A clock that is further off than this makes announcements expire before they are said a second time."""
        return self.lifetime - 2 * self.calm

    # the failure detector: control streams and questions

    @property
    def silence(self) -> float:
        """Floor of the silence after which a peer counts as gone; gaps seen on the stream raise it."""
        return 16 * self.pulse

    @property
    def max_silence(self) -> float:
        """However slowly a peer has been talking, it counts as gone after this."""
        return self.stall

    @property
    def max_answer(self) -> float:
        """Ceiling of the adaptive timeout of a question."""
        return 5 * self.answer

    @property
    def forget_silence(self) -> float:
        """Timeouts are forgotten after an announcement's lifetime: who is announced again is asked again."""
        return self.lifetime

    # a round

    @property
    def ask_again(self) -> float:
        """How often a leader asks missing members where they are."""
        return 2 * self.pulse

    @property
    def slow_floor(self) -> float:
        """Nobody is dropped for being slow within this time, however fast the others were."""
        return 10 * self.pulse

    @property
    def standstill(self) -> float:
        """Abort when no member has received a byte for this long and no straggler can be named."""
        return 30 * self.pulse

    @property
    def leader_grace(self) -> float:
        """A leader that is alive and decides nothing is given up this long after it should have."""
        return self.stall

    # states and blobs

    @property
    def undecided(self) -> float:
        """Where no claim about a module has a majority for this long, the one with more work behind it is taken."""
        return 3 * self.lifetime

    @property
    def unsent(self) -> float:
        """Before training, an announced state that no holder has sent for this long is given up."""
        return self.lifetime

    @property
    def unsent_again(self) -> float:
        """In training, a state that nobody sent is asked for again after this."""
        return 2 * self.heartbeat

    @property
    def reader_idle(self) -> float:
        """A reader of a state that asks for nothing this long, because others send the rest, is let go."""
        return 2 * self.stall
