"""What a node keeps of the DHT for others: only what is a signed record of ours, and only so much of it."""

import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer

from dipaco_swarm.swarm import records
from dipaco_swarm.swarm.libp2p import storage
from dipaco_swarm.swarm.libp2p.dht import SignedRecords, _signed_part
from dipaco_swarm.swarm.libp2p.identity import Identity, _key_in, load_identity, public_key
from dipaco_swarm.swarm.libp2p.serializing import DICTIONARY, RecordSerializer
from dipaco_swarm.swarm.libp2p.storage import BoundedStorage
from dipaco_swarm.swarm.records import MAX_RECORD_BYTES

GOODBYE = records.encode(records.Goodbye())
KEY = DHTID.generate(source="a key")


def key(number: int) -> DHTID:
    return DHTID.generate(source=number)


def soon(seconds: float = 60.0) -> float:
    return time.time() + seconds


@pytest.fixture
def writer(tmp_path: Path) -> Identity:
    return load_identity(tmp_path)


def signed(writer: Identity, payload: bytes, expiration: float, subkey: Any = None) -> DHTRecord:
    signature = writer.sign(_signed_part(KEY.to_bytes(), expiration, payload))
    name = msgpack.packb(writer.peer if subkey is None else subkey)
    return DHTRecord(KEY.to_bytes(), name, msgpack.packb([payload, signature]), expiration)


def test_a_signed_record_is_kept(writer: Identity) -> None:
    assert SignedRecords().validate(signed(writer, GOODBYE, soon()))


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1e12, 3600.0])
def test_a_record_does_not_live_for_ever(writer: Identity, seconds: float) -> None:
    assert not SignedRecords().validate(signed(writer, GOODBYE, soon(seconds)))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x91\xc2",  # as many fields as a goodbye
        b"\x91" * 1000,
        b"\x00" * (MAX_RECORD_BYTES + 1),
        GOODBYE + b"\x00",
        records.encode(records.Statement(statement=b"x" * 512))[:-1],
    ],
)
def test_what_is_no_record_is_kept_by_nobody(writer: Identity, payload: bytes) -> None:
    assert not SignedRecords().validate(signed(writer, payload, soon()))


@pytest.mark.parametrize("name", ["", 7, ["x"], "x" * 4_000_000, "1" * 52, b"\xff"])
def test_a_writer_has_the_name_of_its_key(writer: Identity, name: object) -> None:
    began = time.process_time()
    assert not SignedRecords().validate(signed(writer, GOODBYE, soon(), name))
    assert time.process_time() - began < 1


def test_names_that_are_too_long_are_not_remembered(writer: Identity) -> None:
    _key_in.cache_clear()
    for length in (81, 10_000):
        assert not SignedRecords().validate(signed(writer, GOODBYE, soon(), "x" * length))
        assert public_key("x" * length) is None
    assert _key_in.cache_info().currsize == 0


def test_a_full_node_looks_seldom_for_what_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MAX_RECORDS", 20_000)
    kept = BoundedStorage()
    assert all(kept.store_subkey(key(i % 100), f"name {i}", b"x", soon()) for i in range(20_000))
    began = time.process_time()
    assert not any(kept.store_subkey(KEY, f"more {i}", b"x", soon()) for i in range(1000))
    assert time.process_time() - began < 1, "it took 4 ms for each"


def test_one_writer_fills_only_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MAX_KEYS_A_WRITER", 3)
    kept = BoundedStorage()
    assert [kept.store_subkey(key(i), "loud", b"x", soon()) for i in range(5)] == [True] * 3 + [False] * 2
    assert kept.store_subkey(key(0), "loud", b"y", soon(70.0)), "what it has may be renewed"
    assert kept.store_subkey(key(4), "other", b"x", soon())


def test_a_flood_pushes_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MAX_RECORDS", 100)
    kept = BoundedStorage()
    assert kept.store_subkey(KEY, "first", b"x", soon())
    assert sum(kept.store_subkey(key(i), f"name {i}", b"x", soon()) for i in range(1000)) == 99
    assert kept.store_subkey(KEY, "first", b"y", soon(70.0))
    assert kept.get(KEY).value.get("first").value == b"y"


def test_who_has_many_makes_room_and_who_has_few_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MAX_RECORDS", 100)
    monkeypatch.setattr(storage, "MANY", 20)
    kept = BoundedStorage()
    assert all(kept.store_subkey(key(i), "keeper", b"x", soon()) for i in range(20))
    assert all(kept.store_subkey(key(i), "loud", b"x", soon(30.0 + i)) for i in range(80))
    crowd = sum(kept.store_subkey(key(i % 7), f"name {i}", b"x", soon()) for i in range(1000))
    assert crowd == 60, "loud has as many as keeper now"
    assert all("keeper" in kept.get(key(i)).value for i in range(20))
    assert sum("loud" in kept.get(key(i)).value for i in range(80) if kept.get(key(i)) is not None) == 20
    assert not kept.store_subkey(key(99), "loud", b"x", soon())


def test_only_so_many_write_under_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MAX_WRITERS_A_KEY", 10)
    kept = BoundedStorage()
    assert sum(kept.store_subkey(KEY, f"name {i}", b"x", soon()) for i in range(100)) == 10


def test_what_has_expired_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MAX_RECORDS", 10)
    kept = BoundedStorage()
    for i in range(10):
        assert kept.store_subkey(key(i), f"name {i}", b"x", soon(0.2))
    assert not kept.store_subkey(KEY, "late", b"x", soon())
    monkeypatch.setattr(storage, "get_dht_time", lambda: soon(1.0))
    assert kept.store_subkey(KEY, "late", b"x", soon())


def test_who_comes_back_after_its_record_has_expired_has_to_find_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else crowds that take turns would fill a key with more than anybody reads, and nobody in it would be seen."""
    monkeypatch.setattr(storage, "MAX_WRITERS_A_KEY", 10)
    kept = BoundedStorage()
    assert kept.store_subkey(KEY, "member", b"x", soon())
    for number, wave in enumerate("abab"):
        for i in range(20):
            kept.store_subkey(KEY, f"{wave}{i}", b"x", soon(0.05))
        assert len(kept.get(KEY).value.data) == 10
        assert kept.store_subkey(KEY, "member", b"x", soon(70.0 + number)), "and who is in it stays"
        time.sleep(0.1)
    assert kept._records == sum(map(len, kept._of.values()))


def test_a_record_that_is_renewed_again_and_again_leaves_little() -> None:
    kept, expiration = BoundedStorage(), soon()
    assert all(kept.store_subkey(KEY, "writer", b"x", expiration + i / 1e4) for i in range(10_000))
    for timed in kept, kept.get(KEY).value:
        assert len(timed.expiration_heap) < 100
    assert kept.get(KEY).value.get("writer").expiration_time == expiration + 9_999 / 1e4


def test_a_record_that_is_sent_again_and_again_leaves_no_trace() -> None:
    kept, expiration = BoundedStorage(), soon()
    assert kept.store_subkey(KEY, "writer", b"x", expiration)
    assert not any(kept.store_subkey(KEY, "writer", b"x", expiration) for _ in range(1000))
    assert len(kept.get(KEY).value.expiration_heap) == 1


def test_what_has_no_writer_is_not_kept() -> None:
    assert not BoundedStorage().store(KEY, b"x", soon())


def test_a_dictionary_is_read_as_it_was_written() -> None:
    written = DictionaryDHTValue()
    for i in range(5):
        written.store(f"name {i}", b"%d" % i, soon())
    read = RecordSerializer.loads(RecordSerializer.dumps(written))
    assert isinstance(read, DictionaryDHTValue)
    assert dict(read.items()) == dict(written.items())


def tuple_of_one_hash(number: int) -> msgpack.ExtType:
    """Of -1 and -2, which have one hash."""
    numbers = [-1 - (number >> bit & 1) for bit in range(15)]
    return msgpack.ExtType(MSGPackSerializer._TUPLE_EXT_TYPE_CODE, msgpack.packb(numbers))


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([[tuple_of_one_hash(i), b"", soon()] for i in range(1 << 14)], id="one hash"),
        pytest.param([["x", b"", math.nan]], id="lives for ever"),
        pytest.param([["x", b"\x00" * (MAX_RECORD_BYTES + 1), soon()]], id="large"),
        pytest.param([["x" * 1000, b"", soon()]], id="long name"),
        pytest.param([[f"{i}", b"", soon()] for i in range(100_000)], id="many"),
        pytest.param([["x", b""]], id="short"),
        pytest.param(7, id="no list"),
    ],
)
def test_a_dictionary_of_anything_else_is_refused_at_once(entries: object) -> None:
    raw = msgpack.packb(msgpack.ExtType(DICTIONARY, msgpack.packb([10, soon(), entries])))
    began = time.process_time()
    with pytest.raises(ValueError, match=r"dictionary|exceeds"):
        RecordSerializer.loads(raw)
    assert time.process_time() - began < 1


def within_itself(code: int, times: int) -> bytes:
    inner: bytes = msgpack.packb([0, 0.0, []])
    for _ in range(times):
        inner = msgpack.packb([0, 0.0, msgpack.ExtType(code, inner)])
    whole: bytes = msgpack.packb(msgpack.ExtType(code, inner))
    return whole


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(within_itself(DICTIONARY, 300), id="dictionaries in dictionaries"),
        pytest.param(within_itself(MSGPackSerializer._TUPLE_EXT_TYPE_CODE, 300), id="tuples in tuples"),
        pytest.param(msgpack.packb(msgpack.ExtType(DICTIONARY, within_itself(7, 1))), id="another type in one"),
        pytest.param(b"\xdd" + (1 << 20).to_bytes(4, "big") + b"\xd4\x05\x00" * (1 << 20), id="a million of a type"),
        pytest.param(b"\x91" * 100_000, id="lists in lists"),
        pytest.param(msgpack.packb({"x": 1}), id="a map"),
    ],
)
def test_what_ends_the_process_or_takes_long_is_not_read(value: bytes) -> None:
    """In a process of its own: 300 of hivemind's types within each other are more than a thread's stack holds."""
    code = (
        "import sys, threading\n"
        "from dipaco_swarm.swarm.libp2p.serializing import RecordSerializer\n"
        "value, refused = sys.stdin.buffer.read(), []\n"
        "def read():\n"
        "    try:\n"
        "        RecordSerializer.loads(value)\n"
        "    except ValueError:\n"
        "        refused.append(True)\n"
        "thread = threading.Thread(target=read)\n"
        "thread.start()\n"
        "thread.join()\n"
        "sys.exit(0 if refused else 3)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], input=value, capture_output=True, timeout=60)
    assert ended.returncode == 0, ended.stderr[-500:]
    assert len(ended.stderr) < 1000


def test_a_key_has_one_name(writer: Identity) -> None:
    """Else one who is banned goes on under the same with a blank behind it, and whoever names it says what is none."""
    for name in (writer.peer + " ", writer.peer + "\n", writer.peer + "\u2028"):
        assert public_key(name) is None
        assert not SignedRecords().validate(signed(writer, GOODBYE, soon(), name))


def test_names_are_read() -> None:
    assert RecordSerializer.loads(RecordSerializer.dumps("a name")) == "a name"
