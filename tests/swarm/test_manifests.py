"""Where the manifest is found when no bootstrap node answers: the directory, in which anybody may write."""

from dipaco_swarm.run.signature import sign_manifest
from dipaco_swarm.swarm.records import ManifestRecord
from tests.doors.test_manifest import FINGERPRINT, OPERATOR, manifest
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
