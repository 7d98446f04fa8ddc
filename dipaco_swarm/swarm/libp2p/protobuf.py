"""Messages of libp2p itself: framed as its daemon frames them, and read without knowing their type."""

import io
from collections.abc import Mapping

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.proto import serialize_length_prefixed
from google.protobuf.unknown_fields import UnknownFieldSet

_NUMBER, _BYTES = 0, 2
"""Types on the wire."""

Fields = Mapping[int, int | bytes]


def framed(message: Message) -> bytes:
    """A message with its length before it."""
    written = io.BytesIO()
    serialize_length_prefixed(message, written)
    return written.getvalue()


def fields(message: bytes) -> Fields:
    """Number -> value of the fields of a message of numbers and strings. Raises ValueError when it is something else.

    Of a field that is repeated, the last one.
    """
    try:
        found = UnknownFieldSet(Empty.FromString(message))
    except DecodeError:
        raise ValueError(f"not a message: {message.hex()}") from None
    if any(field.wire_type not in (_NUMBER, _BYTES) for field in found):
        raise ValueError(f"not a message of numbers and strings: {message.hex()}")
    return {field.field_number: field.data for field in found}
