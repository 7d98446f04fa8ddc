"""What becomes of objects that hold each other, in a program with much loaded; and of heaps."""

import ctypes
import gc
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from dipaco_swarm.machine.memory import keep_what_is_loaded


class Ring:
    """Holds itself, as the transport of a closed connection does."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Ring.alive += 1

    def __del__(self) -> None:
        Ring.alive -= 1


@pytest.fixture
def much_loaded() -> Iterator[None]:
    loaded = [[] for _ in range(400_000)]  # type: ignore[var-annotated]
    gc.collect()
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    loaded.clear()


def most_alive() -> int:
    """Of rings that are in use long enough to count as old."""
    most = 0
    in_use: deque[Ring] = deque(maxlen=5_000)
    for _ in range(150_000):
        in_use.append(Ring())
        most = max(most, Ring.alive)
    return most


@pytest.mark.usefixtures("much_loaded")
def test_what_is_loaded_does_not_put_off_the_collector() -> None:
    before = most_alive()
    keep_what_is_loaded()
    after = most_alive()
    assert before > 50_000
    assert after < 30_000


HEAPS = """
import ctypes, sys, threading
from dipaco_swarm.machine.memory import share_heaps
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
if sys.argv[2:]:
    share_heaps()
everybody = threading.Barrier(8)
def take() -> None:
    everybody.wait()
    for _ in range(100):
        libc.malloc(1000)
    everybody.wait()
threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_info"), reason="needs glibc")
def test_threads_of_a_program_share_two_heaps(tmp_path: Path) -> None:
    def heaps(*how: str) -> int:
        subprocess.run([sys.executable, "-c", HEAPS, str(tmp_path / "heaps"), *how], check=True)
        return (tmp_path / "heaps").read_text().count("<heap nr=")

    assert heaps("shared") == 2
    assert heaps() > 4
