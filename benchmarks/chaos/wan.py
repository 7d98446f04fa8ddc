"""Delay: holds the packets of a line back for a while. One program for all the lines of a laboratory.

    python wan.py       in the network namespace whose iptables rules send packets to queues (-j NFQUEUE)

Reads lines "QUEUE SECONDS" and answers "ok" to each: from then on, packets of that queue go on SECONDS after they came.
It ends when its input does, so it never outlives who started it.

Packets stay in the kernel. Here only a note of each arrives, and one message "let everything up to number 1234 go on"
releases all that are due: what is copied and computed does not depend on the size of the packets, and little on their
number. Packets of a queue never overtake one another, not even when its delay shrinks.
"""

import contextlib
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from typing import Final

TICK_SECONDS: Final = 0.0005
"""Packets that come closer together than this are handled in one go; a delay is met to within about two ticks."""
MAX_PACKETS: Final = 8192
"""A queue holds no more; the kernel drops what comes on top, and counts it."""
NOTES_BYTES: Final = 8 << 20
"""Room for notes not read yet, so that a busy machine loses no packets."""

# from linux/netlink.h, linux/netfilter/nfnetlink.h and nfnetlink_queue.h
NETLINK_NETFILTER: Final = 12
SOL_NETLINK: Final = 270
NETLINK_NO_ENOBUFS: Final = 5
SO_RCVBUFFORCE: Final = 33
NLM_F_REQUEST: Final = 1
NLM_F_ACK: Final = 4
NLMSG_ERROR: Final = 2
PACKET, CONFIG, VERDICT_BATCH = (3 << 8 | kind for kind in (0, 2, 3))
CFG_CMD, CFG_PARAMS, CFG_QUEUE_MAXLEN, CFG_MASK, CFG_FLAGS = 1, 2, 3, 4, 5
CMD_BIND: Final = 1
COPY_META: Final = 1
FLAG_GSO: Final = 4
VERDICT_HDR: Final = 2
NF_ACCEPT: Final = 1

HEADER: Final = struct.Struct("=IHHIIBBH")  # length, type, flags, sequence, port; family, version, queue (big-endian)
NOTE: Final = struct.Struct("=4xH14x4xI")
"""The type of a note, and the number of its packet (big-endian): its first attribute, after the headers."""


def message(kind: int, flags: int, queue: int, *attributes: tuple[int, bytes]) -> bytes:
    """A netlink message about a queue."""
    body = b"".join(
        struct.pack("=HH", 4 + len(value), name) + value + bytes(-len(value) % 4) for name, value in attributes
    )
    return HEADER.pack(HEADER.size + len(body), kind, flags, 0, 0, 0, 0, socket.htons(queue)) + body


class Queue:
    """The packets on their way along one direction of a line."""

    def __init__(self, number: int) -> None:
        self.delay = 0.0
        self._number = number
        self._note = bytearray(4096)
        self._due: deque[tuple[float, int]] = deque()
        """When packets are due, and the number of the last of them."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, NOTES_BYTES)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
        self._ask(CFG_CMD, struct.pack(">BBH", CMD_BIND, 0, socket.AF_INET))
        self._ask(CFG_PARAMS, struct.pack(">IB", 0, COPY_META))
        self._ask(CFG_QUEUE_MAXLEN, struct.pack(">I", MAX_PACKETS))
        self._ask(CFG_FLAGS, struct.pack(">I", FLAG_GSO), (CFG_MASK, struct.pack(">I", FLAG_GSO)))
        self._socket.setblocking(False)

    def _ask(self, name: int, value: bytes, *more: tuple[int, bytes]) -> None:
        self._socket.send(message(CONFIG, NLM_F_REQUEST | NLM_F_ACK, self._number, (name, value), *more))
        answer = self._socket.recv(4096)
        error = struct.unpack_from("=i", answer, 16)[0]
        if struct.unpack_from("=H", answer, 4)[0] != NLMSG_ERROR or error:
            raise OSError(-error, f"the kernel refuses queue {self._number}: {os.strerror(-error)}")

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def due(self) -> float:
        """When the next packets are due; never: infinity."""
        return self._due[0][0] if self._due else float("inf")

    def take(self, now: float) -> None:
        """Notes the packets that have come."""
        note, receive = self._note, self._socket.recv_into
        last = None
        with contextlib.suppress(BlockingIOError):
            while receive(note):
                kind, number = NOTE.unpack_from(note)
                if kind == PACKET:  # the other kind: packets to release were gone already, with their line
                    last = number
        if last is not None:
            self._due.append((now + self.delay, socket.ntohl(last)))

    def release(self, now: float) -> None:
        """Lets the packets go on that are due."""
        last = None
        while self._due and self._due[0][0] <= now:
            last = self._due.popleft()[1]
        if last is not None:
            verdict = (VERDICT_HDR, struct.pack(">II", NF_ACCEPT, last))
            self._socket.send(message(VERDICT_BATCH, NLM_F_REQUEST, self._number, verdict))


def forward(commands: int, answers: int) -> None:
    """Delays packets as told on the file `commands`, until that ends."""
    queues: dict[int, Queue] = {}
    by_file: dict[int, Queue] = {}
    unread = b""
    with select.epoll() as events:
        events.register(commands, select.EPOLLIN)
        while True:
            due = min((queue.due for queue in queues.values()), default=float("inf"))
            ready = events.poll(None if due == float("inf") else max(0.0, due - TICK_SECONDS - time.monotonic()))
            time.sleep(TICK_SECONDS)
            now = time.monotonic()
            for file, _ in ready:
                if file != commands:
                    by_file[file].take(now)
                    continue
                said = os.read(commands, 4096)
                if not said:
                    return
                *lines, unread = (unread + said).split(b"\n")
                for line in lines:
                    number, seconds = line.split()
                    if int(number) not in queues:
                        queue = queues[int(number)] = Queue(int(number))
                        by_file[queue.fileno()] = queue
                        events.register(queue, select.EPOLLIN)
                    queues[int(number)].delay = float(seconds)
                    os.write(answers, b"ok\n")
            for queue in queues.values():
                queue.release(now + TICK_SECONDS)


if __name__ == "__main__":
    os.nice(-10)  # it computes little and is late when it waits for those who compute much
    forward(sys.stdin.fileno(), sys.stdout.fileno())
