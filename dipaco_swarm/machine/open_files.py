"""How many files this program may have open: every stream to a peer is one, and systems allow 256 or 1,024 at first."""

import contextlib
import resource

WANTED = 1 << 16, 10_240
"""The second one where a system takes no more, as macOS does."""


def allow_open_files() -> int:
    """As many as this system lets its users have; returns how many. Programs started from now on have them too.

    A group of 256 that reduce takes 510 for an exchange, and its leader 255 more; two rounds go on at once.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in WANTED:
        allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        if allowed > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
            with contextlib.suppress(ValueError, OSError):  # there are fewer than it says
                resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
