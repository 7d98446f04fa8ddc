"""A program that gives way: others get processor and disk before it."""

import logging
import os
import sys

log = logging.getLogger(__name__)

NICE = 10
"""Beside a program of normal priority it gets a tenth of a processor; alone, all of it."""
LAST = 7
"""Of the eight priorities of the disk's ordinary class, on Linux."""


def give_way() -> None:
    """For this program and what it starts from now on; for the start of it. Does nothing where the system cannot."""
    if not hasattr(os, "setpriority"):
        return
    os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    if sys.platform != "linux":
        return
    import psutil

    try:
        psutil.Process().ionice(psutil.IOPRIO_CLASS_BE, value=LAST)
    except (psutil.Error, OSError) as error:  # some containers do not let anybody
        log.debug("the disk's priority stays as it is: %s", error)
