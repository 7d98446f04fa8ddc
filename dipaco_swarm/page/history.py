"""Samples of a run's whole life in one SQLite file: the last hour every five seconds, and the older the coarser.

Each kind of sample is made of those one finer, again with each of them, so that a program that is killed leaves what it
has seen. A file holds some ten thousand samples, however long the run; with 256 paths that is some ten megabytes.
"""

import logging
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

NAN = float("nan")


@dataclass(frozen=True)
class Tier:
    """One kind of sample."""

    seconds: int
    """A sample is of so long..."""
    kept: int
    """... and so many are kept."""


TIERS = (Tier(5, 720), Tier(60, 1440), Tier(600, 2016), Tier(7200, 8760))
"""An hour, a day, two weeks, two years."""
MOST_EVENTS = 2000
MOST_PEERS = 5000

MEANS = ("loss", "heldout", "speed", "counted", "goodput", "trained", "peers", "staffed")
"""Of a coarser sample: the mean of the finer ones."""
LASTS = ("stage", "tokens", "version")
"""The last of them; the first fields of a sample."""
COLUMNS = (*LASTS, *MEANS)


@dataclass(frozen=True)
class Sample:
    """How a run was at one time; None: nobody can say."""

    at: float
    """Seconds since the epoch."""
    stage: int
    tokens: int
    """Counted so far, of all peers and stages."""
    version: float
    """Mean over the stage's modules."""
    peers: float
    """That train."""
    staffed: float
    """Paths with a peer."""
    speed: float
    """Tokens a second, as peers say."""
    counted: float | None = None
    """Tokens a second that came into versions lately."""
    goodput: float | None = None
    """Of the tokens trained, what counted; 0 to 1."""
    trained: float | None = None
    """Share of the time that peers trained, 0 to 1."""
    loss: float | None = None
    heldout: float | None = None
    """Loss on held-out documents, nats per token."""
    paths: tuple[float | None, ...] = ()
    """Loss of each path."""


@dataclass(frozen=True)
class Contributor:
    """What is known of a peer, over all times that it was here."""

    peer: str
    nickname: str
    path: int
    first: float
    """Seconds since the epoch."""
    last: float
    offered: float
    """Seconds that it was there to train."""
    counted: float
    """Tokens."""


@dataclass(frozen=True)
class Noted:
    """An event as the page shows it."""

    id: int
    at: float
    kind: str
    line: str


class History:
    """The file. From any thread. Never raises for a full disk: a curve has a gap then."""

    def __init__(self, file: Path | None) -> None:
        """`file`: None keeps it in memory, for a guest. A damaged file is set aside, and begun anew."""
        self._file = file
        self._lock = threading.Lock()
        self._database = self._opened()
        self._silent = False

    def close(self) -> None:
        self._database.close()

    def note(self, sample: Sample) -> None:
        """Write down how the run is now, and let go of what is too old."""
        self._attempt(lambda: self._note(sample))

    def note_event(self, at: float, kind: str, line: str) -> None:
        def write() -> None:
            with self._database as database:
                added = database.execute("INSERT INTO events (at, kind, line) VALUES (?, ?, ?)", (at, kind, line[:500]))
                database.execute("DELETE FROM events WHERE id <= ?", ((added.lastrowid or 0) - MOST_EVENTS,))

        self._attempt(write)

    def note_contributors(self, contributors: Iterable[Contributor]) -> None:
        """Write these over what was known of them. Of too many, those with the least go."""
        rows = [(c.peer, c.nickname, c.path, c.first, c.last, c.offered, c.counted) for c in contributors]

        def write() -> None:
            with self._database as database:
                database.executemany("INSERT OR REPLACE INTO peers VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
                database.execute(
                    "DELETE FROM peers WHERE peer IN (SELECT peer FROM peers ORDER BY counted DESC, last DESC "
                    "LIMIT -1 OFFSET ?)",
                    (MOST_PEERS,),
                )

        self._attempt(write)

    def remember(self, key: str, value: float) -> None:
        """Keep one number, to go on from after a restart."""

        def write() -> None:
            with self._database as database:
                database.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?)", (key, value))

        self._attempt(write)

    def remembered(self) -> dict[str, float]:
        return {str(key): float(value) for key, value in self._all("SELECT key, value FROM numbers")}

    def contributors(self) -> list[Contributor]:
        rows = self._all("SELECT peer, nickname, path, first, last, offered, counted FROM peers")
        return [Contributor(*row) for row in rows]

    def events(self, most: int) -> list[Noted]:
        """The last ones, the oldest first."""
        rows = self._all("SELECT id, at, kind, line FROM events ORDER BY id DESC LIMIT ?", (most,))
        return [Noted(*row) for row in reversed(rows)]

    def since(self) -> float | None:
        """When the first sample was; None before that."""
        return self.remembered().get("since")

    def samples(self, start: float, end: float, tier: int) -> list[Sample]:
        """From one time to another, as fine as that tier, and coarser where that is all that is left."""
        begun, found = self.since() or start, list[Sample]()
        for index in range(tier, len(TIERS)):
            with self._lock:
                rows = self._read(index, start, found[0].at if found else end)
            if found:  # what begins in the time of a coarser sample is told by the finer ones
                rows = [row for row in rows if max(row.at, begun) < found[0].at - TIERS[index].seconds / 2]
            found = [*rows, *found]
        return [replace(sample, at=begun) if sample.at < begun else sample for sample in found]

    # ------------------------------------------------------------------------------------------------------ the file

    def _all(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        with self._lock:
            return self._database.execute(query, values).fetchall()

    def _opened(self) -> sqlite3.Connection:
        try:
            return _prepared(self._file)
        except sqlite3.DatabaseError as error:
            if self._file is None or isinstance(error, sqlite3.OperationalError):
                log.warning("the history cannot be written (%s); curves begin anew with this start", error)
                return _prepared(None)
            aside = self._file.with_suffix(".damaged")
            log.warning("%s is damaged, and set aside as %s; curves begin anew", self._file.name, aside.name)
            for ending in ("", "-wal", "-shm"):
                part = self._file.with_name(self._file.name + ending)
                if part.exists():
                    part.replace(aside.with_name(aside.name + ending))
            return _prepared(self._file)

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            with self._lock:
                write()
        except sqlite3.Error as error:
            if not self._silent:
                log.warning("the history cannot be written just now: %s; the run goes on", error)
            self._silent = True
        else:
            self._silent = False

    def _note(self, sample: Sample) -> None:
        with self._database as database:
            database.execute("INSERT OR IGNORE INTO numbers VALUES ('since', ?)", (sample.at,))
            _write(database, 0, _begin(sample.at, TIERS[0]), sample)
            for index, tier in enumerate(TIERS):
                if index:
                    begin = _begin(sample.at, tier)
                    finer = self._read(index - 1, begin, begin + tier.seconds)
                    if finer:
                        _write(database, index, begin, merged(finer))
                oldest = sample.at - tier.seconds * tier.kept
                database.execute("DELETE FROM samples WHERE tier = ? AND at < ?", (index, oldest))

    def _read(self, tier: int, start: float, end: float) -> list[Sample]:
        rows = self._database.execute(
            f"SELECT at, {', '.join(COLUMNS)}, paths FROM samples WHERE tier = ? AND at >= ? AND at < ? ORDER BY at",
            (tier, start, end),
        )
        return [_sample(at, values, paths) for at, *values, paths in rows]


def merged(samples: Sequence[Sample]) -> Sample:
    """One sample for several that follow each other."""
    last = samples[-1]
    means = {name: _mean([getattr(sample, name) for sample in samples]) for name in MEANS}
    same = [sample.paths for sample in samples if len(sample.paths) == len(last.paths)]  # of one stage
    paths = tuple(_mean(losses) for losses in zip(*same, strict=True))
    lasts = {name: getattr(last, name) for name in LASTS}
    return Sample(at=samples[0].at, **lasts, **means, paths=paths)  # type: ignore[arg-type]


def thinned(samples: Sequence[Sample], most: int) -> list[Sample]:
    """The same time in no more samples than that: as many in each as it takes."""
    each = -(-len(samples) // most) or 1
    return [merged(samples[begin : begin + each]) for begin in range(0, len(samples), each)]


def tier_of(seconds: float, most: int) -> int:
    """The finest kind of sample of which so long a time has no more than `most`."""
    fits = (index for index, tier in enumerate(TIERS) if seconds / tier.seconds <= most)
    return next(fits, len(TIERS) - 1)


def _prepared(file: Path | None) -> sqlite3.Connection:
    """The database with its tables. Raises sqlite3.DatabaseError when the file is damaged, or cannot be made."""
    database = sqlite3.connect(":memory:" if file is None else file, check_same_thread=False, timeout=2.0)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        columns = ", ".join(f"{name} REAL" for name in COLUMNS)
        database.executescript(
            f"""
            CREATE TABLE IF NOT EXISTS samples (tier INTEGER, at REAL, {columns}, paths BLOB, PRIMARY KEY (tier, at))
                WITHOUT ROWID;
            CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL, kind TEXT, line TEXT);
            CREATE TABLE IF NOT EXISTS peers (peer TEXT PRIMARY KEY, nickname TEXT, path INTEGER, first REAL, last REAL,
                offered REAL, counted REAL);
            CREATE TABLE IF NOT EXISTS numbers (key TEXT PRIMARY KEY, value REAL);
            """
        )
        with closing(database.execute("PRAGMA quick_check(1)")) as checked:
            if checked.fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("torn")
    except sqlite3.Error:
        database.close()
        raise
    return database


def _write(database: sqlite3.Connection, tier: int, begin: float, sample: Sample) -> None:
    marks = ", ".join("?" * (len(COLUMNS) + 3))
    values = [getattr(sample, name) for name in COLUMNS]
    database.execute(
        f"INSERT OR REPLACE INTO samples (tier, at, {', '.join(COLUMNS)}, paths) VALUES ({marks})",
        (tier, begin, *values, _packed(sample.paths)),
    )


def _sample(at: float, values: Sequence[float | None], paths: bytes) -> Sample:
    stage, tokens, version, *means = values
    named = dict(zip(MEANS, means, strict=True))
    return Sample(at, int(stage or 0), int(tokens or 0), version or 0.0, paths=_unpacked(paths), **named)  # type: ignore[arg-type]


def _begin(at: float, tier: Tier) -> float:
    return at // tier.seconds * tier.seconds


def _packed(losses: Sequence[float | None]) -> bytes:
    return struct.pack(f"<{len(losses)}f", *(NAN if loss is None else loss for loss in losses))


def _unpacked(data: bytes) -> tuple[float | None, ...]:
    return tuple(None if loss != loss else loss for (loss,) in struct.iter_unpack("<f", data))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
