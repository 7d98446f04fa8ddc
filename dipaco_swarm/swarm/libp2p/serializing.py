"""What is read of the values that the DHT's nodes send each other: dictionaries of records, and nothing in them.

hivemind reads whatever there is, and its own types within each other as deep as they go: 200 levels, which are some
kilobytes, are more than the stack of a thread holds, and end the process. A type that it does not know it writes a line
about: for a million of them it stands still for half a minute.
"""

import math
from typing import Any, NoReturn

import msgpack
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils import MSGPackSerializer

from dipaco_swarm.swarm.libp2p.identity import MAX_NAME
from dipaco_swarm.swarm.libp2p.storage import MAX_WRITERS_A_KEY
from dipaco_swarm.swarm.records import MAX_RECORD_BYTES

DICTIONARY = MSGPackSerializer._ext_types[DictionaryDHTValue]
"""Its number among msgpack's extension types."""


class RecordSerializer(MSGPackSerializer):  # type: ignore[misc]  # hivemind is untyped
    """`MSGPackSerializer` that reads only what our nodes write: names, and dictionaries of records."""

    @classmethod
    def loads(cls, buf: bytes) -> Any:
        """Raises ValueError when it is anything else."""
        value = msgpack.unpackb(buf, raw=False, max_array_len=0, max_map_len=0)
        if not isinstance(value, msgpack.ExtType):
            return value
        if value.code != DICTIONARY:
            raise ValueError(f"type {value.code} is no dictionary of records")
        return _dictionary(value.data)


def _dictionary(raw: bytes) -> DictionaryDHTValue:
    """Raises ValueError when it is not one of ours."""
    said = msgpack.unpackb(raw, raw=False, ext_hook=_refuse, max_array_len=MAX_WRITERS_A_KEY, max_map_len=0)
    if not isinstance(said, list) or len(said) != 3 or not isinstance(said[2], list):
        raise ValueError("not a dictionary of records")
    read = DictionaryDHTValue()
    with read.freeze():
        for entry in said[2]:
            if not isinstance(entry, list) or len(entry) != 3 or not _is_record(*entry):
                raise ValueError("not a dictionary of records")
            read.store(*entry)
    return read


def _is_record(writer: object, value: object, expiration: object) -> bool:
    return (
        isinstance(writer, str)
        and isinstance(value, bytes)
        and isinstance(expiration, float)
        and len(writer) <= MAX_NAME
        and len(value) <= MAX_RECORD_BYTES
        and math.isfinite(expiration)
    )


def _refuse(code: int, data: bytes) -> NoReturn:
    raise ValueError(f"type {code} in a dictionary of records")
