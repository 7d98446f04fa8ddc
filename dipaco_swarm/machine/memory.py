"""The memory of a program that runs for weeks."""

import gc

YOUNG, MIDDLE, OLD = 700, 10, 2
"""Python's own numbers, but the last: it looks at old objects after ten looks at those of middle age."""


def keep_what_is_loaded() -> None:
    """Have Python's collector look at what was made since, and no more at what is loaded; for the start of a program.

    Each connection that was closed leaves its socket's objects, which hold each other until the collector looks at old
    objects. It does when a quarter of all are new: with torch and hivemind loaded a hundred thousand, which takes
    hours, and then half a second in which nothing else runs. Without what is loaded it is a tenth of both.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # counts what a quarter is of
    gc.set_threshold(YOUNG, MIDDLE, OLD)
