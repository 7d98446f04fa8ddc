"""The memory of a program that runs for weeks."""

import ctypes
import gc
import mmap
import sys

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


def share_heaps() -> None:
    """Have the threads of this program share two heaps; for the start of a program.

    The C library of Linux gives each thread one of its own, and each keeps some ten megabytes that the others cannot
    use. Threads come as they are needed: a bootstrap node had one more after an hour, and 15 MB more.
    """
    arena_max, heaps = -8, 2  # M_ARENA_MAX of <malloc.h>
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(arena_max, heaps)


def rest_in_file(address: int, size: int) -> None:
    """Take the pages of a file that is mapped for writing out of our memory; they come back when they are looked at.

    Nothing is lost: the system has what was written. Only whole pages within these bytes are meant. Memory of any other
    kind would lose what it holds.
    """
    _advise(address, size, 4)  # MADV_DONTNEED of <sys/mman.h>


def take_large_pages(address: int, size: int) -> None:
    """Have the system give memory that nobody has written to yet in pages of 2 MB, where it has some.

    It clears a page when it is first written to, and to be asked for each 4 kB takes four times as long as the copy
    that is written. Only whole pages within these bytes are meant.
    """
    _advise(address, size, 14)  # MADV_HUGEPAGE


def give_back_freed() -> None:
    """Have the C library return what is freed to the system; it keeps half a gigabyte for a program that trains.

    That is good from one inner step to the next, and not for what a round has needed once. Takes some milliseconds.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # musl has none
        libc.malloc_trim(0)


def _advise(address: int, size: int, advice: int) -> None:
    page = mmap.PAGESIZE
    start, stop = -(-address // page) * page, (address + size) // page * page
    if sys.platform == "linux" and start < stop:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), advice)
