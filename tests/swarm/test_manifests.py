"""Where the manifest is found when no bootstrap node answers: the directory, in which anybody may write."""

import contextlib
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dipaco_swarm.errors import ManifestError, UnreachableError
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.volunteer import AwaitingManifest
from dipaco_swarm.peer.keeping import MANIFEST_FILE, Keeping
from dipaco_swarm.peer.manifest_watch import first_manifest, newer
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest, sign_manifest
from dipaco_swarm.swarm.records import ManifestRecord
from dipaco_swarm.swarm.states import manifests
from tests.clocks import HandClock
from tests.doors.test_manifest import FINGERPRINT, OPERATOR, STRANGER, deputy, manifest
from tests.hub import Hub


def test_the_manifest_is_found_whoever_else_says_that_there_is_a_newer_one() -> None:
    with (
        Hub(fingerprint=FINGERPRINT) as hub,
        hub.open("holder") as holder,
        hub.open("liar") as liar,
        hub.open("newcomer") as newcomer,
    ):
        signed = sign_manifest(manifest(), OPERATOR)
        holder.publish_manifest(signed)
        for revision, junk in ((10**6, b"no manifest"), (10**6 + 1, bytes(2 << 20))):
            record = ManifestRecord(revision=revision, digest=liar._store.blobs.put(junk))
            liar._portal.run(liar._manifests.tell(record))
        assert newcomer._portal.run(newcomer._manifests.newest()) == signed


def test_junk_that_is_called_a_manifest_is_neither_kept_nor_fetched_again() -> None:
    with (
        Hub(fingerprint=FINGERPRINT) as hub,
        hub.open("liar") as liar,
        hub.open("newcomer") as newcomer,
    ):
        record = ManifestRecord(revision=10**6, digest=liar._store.blobs.put(bytes(1 << 18)))
        liar._portal.run(liar._manifests.tell(record))
        for _ in range(3):
            with contextlib.suppress(ManifestError):
                newcomer._portal.run(newcomer._manifests.newest())
        assert not newcomer._store.blobs.has(record.digest)
        assert newcomer.traffic().received < 2 << 18


def test_what_the_operator_has_signed_is_kept_for_those_who_look_later() -> None:
    signed = sign_manifest(manifest(), OPERATOR)
    with Hub(fingerprint=FINGERPRINT) as hub, hub.open("newcomer") as newcomer:
        with hub.open("holder") as holder:
            record = holder._manifests.take(signed)
            holder._portal.run(holder._manifests.tell(record))
            assert newcomer._portal.run(newcomer._manifests.newest()) == signed
        assert newcomer._store.blobs.get(record.digest) == signed


def test_a_mistake_while_it_looks_does_not_end_the_looking(
    monkeypatch: pytest.MonkeyPatch, mistakes: list[str]
) -> None:
    """A stranger's answer that raised KeyError left a peer with the manifest that it had, for good."""
    signed = sign_manifest(manifest(), OPERATOR)
    monkeypatch.setattr(manifests, "FIRST_PAUSE_SECONDS", 0.02)
    with Hub(fingerprint=FINGERPRINT) as hub, hub.open("holder") as holder, hub.open("peer") as peer:
        newest, looks, found = peer._manifests.newest, [0], threading.Event()

        async def unlucky() -> bytes | None:
            looks[0] += 1
            if looks[0] < 3:
                raise KeyError("what nobody has thought of")
            had = await newest()
            if had is not None:
                found.set()
            return had

        monkeypatch.setattr(peer._manifests, "newest", unlucky)
        holder.publish_manifest(signed)
        peer.follow_manifest()
        assert found.wait(10)
    assert len(mistakes) == 2
    mistakes.clear()


def test_who_answers_with_junk_does_not_keep_a_newcomer_from_the_directory() -> None:
    signed = sign_manifest(manifest(), OPERATOR)
    with (
        Hub(fingerprint=FINGERPRINT) as hub,
        hub.open("holder") as holder,
        hub.open("liar") as liar,
        hub.open("back again", met_before=["liar"]) as back,
    ):
        holder.publish_manifest(signed)
        liar._store.manifest = b"no manifest"
        assert back._portal.run(back._manifests.newest()) == signed


class Around:
    """What `first_manifest` looks at; looks for a manifest find this, one after the other."""

    def __init__(self, *found: bytes | Exception | None, home: Path = Path("nowhere")) -> None:
        self._found = list(found)
        self.said: list[Event] = []
        self.swarm = SimpleNamespace(newest_manifest=self._newest, known_manifest=lambda: None)
        self.clock = HandClock(0.0)
        self.stop = SimpleNamespace(wait=lambda seconds: False)
        self.screen = SimpleNamespace(event=self.said.append)
        self.settings = SimpleNamespace(
            home=home, address=SimpleNamespace(fingerprint=FINGERPRINT, nobody_knows_it="nobody knows it")
        )

    def _newest(self, *, timeout: float) -> bytes | None:
        found = self._found.pop(0) if len(self._found) > 1 else self._found[0]
        if isinstance(found, Exception):
            raise found
        return found


def first(around: Around) -> Manifest | None:
    return first_manifest(cast(Surroundings, around))


def test_a_volunteer_asks_again_when_a_liar_is_all_that_answers() -> None:
    around = Around(ManifestError("not the operator's"), sign_manifest(manifest(), OPERATOR))
    assert first(around) == manifest()
    assert [type(said) for said in around.said] == [AwaitingManifest]


def test_a_volunteer_that_finds_nothing_else_says_what_is_wrong_with_it() -> None:
    with pytest.raises(ManifestError, match="not the operator's"):
        first(Around(ManifestError("not the operator's")))
    with pytest.raises(UnreachableError, match="nobody knows it"):
        first(Around(None))


def test_who_has_been_in_the_run_waits_for_a_node_that_is_still_reading_its_modules(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_FILE).write_bytes(b"of another day")
    nobody: list[UnreachableError | None] = [*[UnreachableError("not here")] * 9, None]
    around = Around(*nobody, sign_manifest(manifest(), OPERATOR), home=tmp_path)
    assert first(around) == manifest()
    assert len(around.said) == len(nobody)


def revised(revision: int, **changes: object) -> Manifest:
    return manifest().model_copy(update={"revision": revision, **changes})


OLD, NEW = (sign_manifest(revised(revision), OPERATOR) for revision in (3, 10))


def test_an_old_manifest_that_is_called_the_newest_is_believed_once_at_most() -> None:
    """It is signed as well, and all four places of a look could be filled with it."""
    with (
        Hub(fingerprint=FINGERPRINT) as hub,
        hub.open("honest") as honest,
        hub.open("newcomer") as newcomer,
    ):
        for name in ("liar", "second", "third", "fourth"):
            liar = hub.swarm(name)
            record = ManifestRecord(revision=2**31 - 1, digest=liar._store.blobs.put(OLD))
            liar._portal.run(liar._manifests.tell(record))
        record = ManifestRecord(revision=10, digest=honest._store.blobs.put(NEW))
        honest._portal.run(honest._manifests.tell(record))
        assert newcomer._portal.run(newcomer._manifests.newest()) == OLD
        assert newcomer._portal.run(newcomer._manifests.newest()) == NEW
        liar._portal.run(liar._manifests.tell(ManifestRecord(revision=2**31 - 1, digest=record.digest)))
        late = hub.swarm("who comes late")
        assert late._portal.run(late._manifests.newest()) == OLD
        assert late._portal.run(late._manifests.newest()) == NEW, "what is wrong is the record, not the manifest"


def kept_after(found: bytes, kept: bytes, home: Path) -> tuple[Manifest | None, bytes]:
    """What a volunteer goes by that had one manifest and finds another, and what it keeps then."""
    (home / MANIFEST_FILE).write_bytes(kept)
    around = Around(found, home=home)
    gone_by = first(around)
    Keeping(cast(Surroundings, around)).keep_manifest()
    return gone_by, (home / MANIFEST_FILE).read_bytes()


def test_who_comes_back_does_not_go_back(tmp_path: Path) -> None:
    assert kept_after(OLD, NEW, tmp_path) == (revised(10), NEW)
    assert kept_after(NEW, OLD, tmp_path) == (revised(10), NEW)
    by_a_deputy = sign_manifest(revised(11), deputy())
    assert kept_after(by_a_deputy, NEW, tmp_path) == (revised(11), by_a_deputy)
    assert newer(revised(10), open_manifest(OLD, FINGERPRINT)) == newer(revised(10), None) == revised(10)


def test_what_is_kept_of_another_run_or_cannot_be_read_counts_for_nothing(tmp_path: Path) -> None:
    anew = manifest().stage.model_copy(update={"seeds": {"L0M0": "d" * 64, "L1M0": "e" * 64}})
    others = (
        sign_manifest(revised(10), STRANGER),
        sign_manifest(revised(10, config=manifest().config.model_copy(update={"name": "other"})), OPERATOR),
        sign_manifest(revised(10, stages=(anew,)), OPERATOR),
        NEW[:-9],
        b"",
    )
    for kept in others:
        assert kept_after(OLD, kept, tmp_path) == (revised(3), OLD)
