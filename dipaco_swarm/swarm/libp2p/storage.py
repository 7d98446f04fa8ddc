"""What our node keeps of the DHT for others: hivemind's storage, with bounds.

hivemind keeps whatever is signed until it expires. Names cost nothing, so there are bounds on what one writer has, on
what stands under one key, and on all of it. A full key takes nothing new, and goes on renewing what is in it. Where all
of it is full, who has many records makes room for who has few: else eight names would fill it.
"""

import heapq
import math
from typing import Any

from hivemind.dht import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.utils.timed_storage import TimedStorage, get_dht_time

MAX_KEYS_A_WRITER = 4096
"""Under so many keys one peer may write: a keeper says that it has every module of the bank."""
MAX_WRITERS_A_KEY = 1536
"""Members of a group, and who says that it is one; more than anybody listens to, and together less than 4 MiB."""
MANY = 512
"""Nobody is pushed out who has no more: nor a keeper, by a crowd of which each has one."""
LOOK_SECONDS = 1.0
FEW_LEFT = 64
"""Traces of records that were renewed."""
MAX_RECORDS = 1 << 15
"""Of all writers under all keys: 64 MiB at the very most."""


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]  # hivemind is untyped
    """`DHTLocalStorage` for records, each of which has a writer, that keeps only so many."""

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[str, dict[DHTID, float]] = {}
        """Writer -> key -> when what it wrote there expires."""
        self._many: set[str] = set()
        """Who has more than MANY of them."""
        self._records = 0
        """How many these are, of which some may have expired."""
        self._looked = -math.inf
        """When we last looked which have."""

    def store(self, key: DHTID, value: Any, expiration_time: float, subkey: str | None = None) -> bool:
        # hivemind stores its dictionaries by the same name
        if subkey is None and not isinstance(value, DictionaryDHTValue):
            return False
        return bool(super().store(key, value, expiration_time, subkey))

    def store_subkey(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        keys = self._of.get(subkey, {})
        if keys.get(key, math.inf) < get_dht_time():  # whoever comes back has to find room like all others
            del keys[key]
            self._records -= 1
        # what is not newer would leave a trace in hivemind's heap all the same, as often as it is sent
        if expiration_time <= keys.get(key, -math.inf):
            return False
        if key not in keys and not self._has_room(key, subkey):
            return False
        if not super().store_subkey(key, subkey, value, expiration_time):
            return False
        keys = self._of.setdefault(subkey, {})
        self._records += key not in keys
        keys[key] = expiration_time
        if len(keys) > MANY:
            self._many.add(subkey)
        _tidy(self)
        if (entry := self.get(key)) is not None:
            _tidy(entry.value)
        return True

    def _has_room(self, key: DHTID, writer: str) -> bool:
        """Whether something new may be stored."""
        if len(self._of.get(writer, {})) >= MAX_KEYS_A_WRITER or self._records >= MAX_RECORDS:
            self._forget_expired()
        entry = self.get(key)
        writers = len(entry.value) if entry is not None and isinstance(entry.value, DictionaryDHTValue) else 0
        mine = len(self._of.get(writer, {}))
        if mine >= MAX_KEYS_A_WRITER or writers >= MAX_WRITERS_A_KEY:
            return False
        return self._records < MAX_RECORDS or self._makes_room(mine)

    def _makes_room(self, mine: int) -> bool:
        """Whether somebody has many, and more than who comes: it loses the record that expires first."""
        self._many = {writer for writer in self._many if len(self._of.get(writer, ())) > MANY}
        most = max(self._many, key=lambda writer: len(self._of[writer]), default=None)
        if most is None or len(self._of[most]) <= mine + 1:
            return False
        keys = self._of[most]
        first = min(keys, key=keys.__getitem__)
        del keys[first]
        self._records -= 1
        entry = self.get(first)
        if entry is not None and isinstance(entry.value, DictionaryDHTValue):
            del entry.value[most]
        return True

    def _forget_expired(self) -> None:
        now = get_dht_time()
        if now - self._looked < LOOK_SECONDS:
            return  # it takes time, and a flood comes by the thousand
        self._looked = now
        live = ((writer, {k: until for k, until in keys.items() if until > now}) for writer, keys in self._of.items())
        self._of = {writer: keys for writer, keys in live if keys}
        self._records = sum(map(len, self._of.values()))


def _tidy(timed: TimedStorage) -> None:
    """Let go of what each renewal leaves in hivemind's heap until it would have expired, however often one comes."""
    if len(timed.expiration_heap) > 2 * len(timed.data) + FEW_LEFT:
        timed.expiration_heap = list(timed.key_to_heap.values())
        heapq.heapify(timed.expiration_heap)


def bound_storage(node: DHTNode) -> None:
    """Have a node keep only so much, from now on."""
    before, bounded = node.protocol.storage, BoundedStorage()
    for key, entry in before.items():  # others may have written as soon as it was there
        for writer, record in entry.value.items() if isinstance(entry.value, DictionaryDHTValue) else ():
            bounded.store_subkey(key, writer, record.value, record.expiration_time)
    node.protocol.storage, node.protocol.cache = bounded, BoundedStorage()
