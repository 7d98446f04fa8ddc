"""The run file, the signed manifest, the run address: what is refused, and what the refusal says."""

import json
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dipaco_swarm.errors import AddressError, ManifestError, RunFileError
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.file import parse_run_file, read_run_file
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.run.signature import (
    Deputy,
    delegation_to,
    fingerprint_of,
    fingerprint_of_signer,
    keys_in,
    open_manifest,
    public_hex,
    sign_manifest,
    signer_of,
)
from dipaco_swarm.run.table import path_table_problem

GOOD = """
name = "small"
[model]
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 2
num_attention_heads = 2
[[levels]]
blocks = [0]
embedding = true
[[levels]]
blocks = [1]
head = true
[data]
source = "python"
[[stages]]
router = "single"
rounds = 3
[[stages]]
router = "product-k-means"
modules = [2, 2]
"""

OPERATOR = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
FINGERPRINT = fingerprint_of(OPERATOR.public_key())
PLACE = "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooWHmZ7sYfVX5tCz1eLQkq3R8bPw6uJd4aNcG2xT9vBsmKp"


DEPUTY = Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34)))


def deputy() -> Deputy:
    """Whom the operator lets sign."""
    return Deputy(DEPUTY, public_hex(OPERATOR), delegation_to(public_hex(DEPUTY), OPERATOR))


def manifest() -> Manifest:
    stage = Stage(
        index=0, table=((0, 0),), path_weights=(1.0,), router=None, seeds={"L0M0": "a" * 64, "L1M0": "b" * 64}
    )
    return Manifest(revision=0, config=parse_run_file(GOOD), tokenizer="c" * 64, stages=(stage,))


# ---------------------------------------------------------------------------------------------------------- run files


def test_a_good_run_file_is_read_and_the_rest_has_defaults() -> None:
    config = parse_run_file(GOOD)
    assert config.name == "small"
    assert config.stages[1].modules == (2, 2)
    assert config.rounds.inner_steps == 150


TABLE = 'router = "product-k-means"\nmodules = [2, 2]'

BAD = {
    "text for a number": ("hidden_size = 16", 'hidden_size = "16"', "model.hidden_size", "valid integer (got '16')"),
    "fraction for a count": ("hidden_size = 16", "hidden_size = 16.5", "model.hidden_size", "got 16.5"),
    "yes for a number": ("hidden_size = 16", "hidden_size = true", "model.hidden_size", "got True"),
    "nothing": ("hidden_size = 16\n", "", "model: hidden_size", "required"),
    "zero": ("hidden_size = 16", "hidden_size = 0", "model.hidden_size", "greater than 0"),
    "width and heads": ("heads = 2", "heads = 3", "hidden_size=16", "num_attention_heads=3"),
    "not a number": ('source = "python"', 'source = "python"\nholdout = nan', "data.holdout", "got nan"),
    "a date for a name": ('name = "small"', "name = 2024-01-01", "name", "valid string"),
    "a name with capitals": ('name = "small"', 'name = "My Run"', "name", "My Run"),
    "a seed too large": ('name = "small"', f'name = "small"\nseed = {2**64}', "seed", str(2**64)),
    "unknown key": ("hidden_size = 16", "hidden_size = 16\nhiden = 1", "model.hiden", "not known"),
    "length kept twice": ("[data]", '[outer]\naveraging = "radial"\n[data]', "outer", "set rescale = false"),
    "two ends of a stage": ('"single"', '"single"\ntokens = 5', "stages[0]", "give one of them"),
    "unknown section": ("[data]", "[dat]", "dat", "not known"),
    "unknown codec": ("[data]", '[wire]\ncodec = "fp8"\n[data]', "wire.codec", "'int4' or 'e3m0' (got 'fp8')"),
    "a number for a codec": ("[data]", "[wire]\ncodec = 8\n[data]", "wire.codec", "'int4' or 'e3m0' (got 8)"),
    "unknown router": ('"single"', '"singel"', "stages[0].router", "got 'singel'"),
    "a source without files": ('"python"', '"text"', "data", "needs path"),
    "too few columns": ("modules = [2, 2]", "modules = [2, 2, 1]", "stages[1]", "2 levels"),
    "a level without modules": ("modules = [2, 2]", "modules = [2, 0]", "stages[1]", "at least one module"),
    "a word for a count": ("modules = [2, 2]", 'modules = [2, "all"]', "stages[1].modules[1]", "got 'all'"),
    "modules and paths": ("modules = [2, 2]", "modules = [2, 2]\npaths = [[0, 0]]", "stages[1]", "either modules or"),
    "neither": ("modules = [2, 2]", "", "stages[1]", "either modules or paths"),
    "one path that branches": (TABLE, 'router = "single"\nmodules = [2, 2]', "stages[1]", "leave out modules"),
    "k-means of one": (TABLE, 'router = "k-means"\nmodules = [1, "path"]', "stages[1]", "at least two paths"),
    "product of three": (TABLE, 'router = "product-k-means"\nmodules = [2, 1]', "stages[1]", "exactly 2 levels"),
    "rows of two lengths": (TABLE, 'router = "k-means"\npaths = [[0, 0], [0]]', "stages[1]", "path 1 has 1 levels"),
    "the same row twice": (TABLE, 'router = "k-means"\npaths = [[0, 0], [0, 0]]', "stages[1]", "paths 0 and 1 take"),
    "a gap": (TABLE, 'router = "k-means"\npaths = [[0, 0], [0, 2]]', "stages[1]", "level 1 has no module 1"),
    "below zero": (TABLE, 'router = "k-means"\npaths = [[0, -1], [0, 0]]', "stages[1]", "negative"),
    "no rows": (TABLE, 'router = "k-means"\npaths = []', "stages[1]", "empty"),
    "a block nobody has": ("blocks = [1]", "blocks = []", "levels", "no level has [1]"),
    "a block twice": ("blocks = [1]", "blocks = [0, 1]", "levels", "twice: [0]"),
    "a block too many": ("blocks = [1]", "blocks = [1, 2]", "levels", "the model has no [2]"),
    "no head": ("head = true\n", "", "head=true", "now 0"),
    "two heads": ("embedding = true", "embedding = true\nhead = true", "head=true", "now 2"),
    "no path for a text": ("[2, 2]", "[2, 2]\noverlap = 0", "stages[1].overlap", "got 0"),
    "more paths for a text than there are": ("[2, 2]", "[2, 2]\noverlap = 5", "stages[1].overlap=5", "has 4 paths"),
    "one path twice": ("rounds = 3", "rounds = 3\noverlap = 2", "stages[0].overlap=2", "has 1 path;"),
    "a prefix as long as the text": ("[data]", "[router]\nprefix_tokens = 256\n[data]", "router.prefix_tokens", "256"),
    "nothing to reroute": ("[data]", "[rerouting]\n[data]", "rerouting needs", "stages[1] has"),
    "a window of nothing": ("[data]", "[rerouting]\nwindow = 0\n[data]", "rerouting.window", "got 0"),
    "a text longer than the model": ('"python"', '"python"\nsequence_length = 2048', "data.sequence_length", "2048"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_run_file_is_refused_with_field_and_reason(case: str) -> None:
    before, after, field, reason = BAD[case]
    assert GOOD.count(before) >= 1
    with pytest.raises(RunFileError) as refused:
        parse_run_file(GOOD.replace(before, after, 1), "run.toml")
    message = str(refused.value)
    assert message.startswith("run.toml: ")
    assert field in message
    assert reason in message
    assert "\n" not in message
    assert "literal" not in message  # pydantic's own words for a union


def test_a_discriminative_stage_overlaps_within_the_paths_it_takes_over() -> None:
    stage = '[[stages]]\nrouter = "discriminative"\noverlap = '
    assert parse_run_file(f"{GOOD}\n{stage}4").stages[2].overlap == 4
    with pytest.raises(RunFileError, match=r"stages\[2\].overlap=5 but the stage has 4 paths"):
        parse_run_file(f"{GOOD}\n{stage}5")


def test_a_manifest_from_before_shards_could_overlap_is_still_read() -> None:
    old = json.loads(manifest().canonical_bytes())
    del old["stages"][0]["overlap"], old["config"]["stages"][0]["overlap"], old["config"]["stages"][1]["overlap"]
    assert Manifest.model_validate_json(json.dumps(old)) == manifest()


def test_text_that_is_not_toml_is_refused_with_the_place() -> None:
    with pytest.raises(RunFileError, match=r"not valid TOML.*line 1"):
        parse_run_file("name small")


def test_many_mistakes_are_three_and_a_count() -> None:
    with pytest.raises(RunFileError, match=r"and \d+ more$"):
        parse_run_file("[model]")


def test_a_missing_run_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="dipaco-bootstrap init"):
        read_run_file(tmp_path / "none.toml")


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_unreadable_run_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "run.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(RunFileError, match="cannot be read"):
        read_run_file(path)


def test_path_table_rules_accept_shared_and_path_specific_levels() -> None:
    assert path_table_problem([[0, 0, 0], [0, 1, 1], [0, 0, 2]]) is None


# ----------------------------------------------------------------------------------------------------------- manifests


def test_canonical_bytes_are_stable() -> None:
    once = manifest()
    again = Manifest.model_validate_json(once.canonical_bytes())
    assert again == once
    assert again.canonical_bytes() == once.canonical_bytes()
    # sorted and without spaces, whatever order the fields were written in
    shuffled = json.dumps(dict(reversed(json.loads(once.canonical_bytes()).items())), indent=3)
    assert Manifest.model_validate_json(shuffled).digest() == once.digest()


def test_a_manifest_from_before_the_window_router_is_read() -> None:
    old = json.loads(manifest().canonical_bytes())
    assert old.pop("window_router", "absent") is None
    assert old["config"].pop("rerouting", "absent") is None
    body = json.dumps(old)
    envelope = json.loads(sign_manifest(manifest(), OPERATOR))
    envelope |= {"manifest": body, "signature": OPERATOR.sign(body.encode()).hex()}
    assert open_manifest(json.dumps(envelope).encode(), FINGERPRINT) == manifest()


def test_rerouting_needs_a_last_stage_of_several_paths_that_ends() -> None:
    ends = GOOD.replace("[data]", "[rerouting]\nwindow = 16\n[data]") + "rounds = 2\n"
    rerouting = parse_run_file(ends).rerouting
    assert rerouting is not None
    assert (rerouting.window, rerouting.steps) == (16, 2000)
    with pytest.raises(RunFileError, match=r'stages\[2\] has router="single" and rounds=2: the window router chooses'):
        parse_run_file(ends + '[[stages]]\nrouter = "single"\nrounds = 2\n')


def test_the_digest_depends_on_every_constant_of_the_run() -> None:
    other = parse_run_file(GOOD.replace("[data]", "[outer]\nmomentum = 0.8\n[data]"))
    assert manifest().model_copy(update={"config": other}).digest() != manifest().digest()


def test_what_the_operator_signed_opens() -> None:
    assert open_manifest(sign_manifest(manifest(), OPERATOR), FINGERPRINT) == manifest()


def test_a_strangers_manifest_is_refused_with_both_fingerprints() -> None:
    with pytest.raises(ManifestError) as refused:
        open_manifest(sign_manifest(manifest(), STRANGER), FINGERPRINT)
    assert FINGERPRINT in str(refused.value)
    assert fingerprint_of(STRANGER.public_key()) in str(refused.value)


def test_an_altered_manifest_is_refused() -> None:
    envelope = json.loads(sign_manifest(manifest(), OPERATOR))
    envelope["manifest"] = envelope["manifest"].replace('"revision":0', '"revision":9')
    with pytest.raises(ManifestError, match="altered"):
        open_manifest(json.dumps(envelope).encode(), FINGERPRINT)


def test_an_altered_signature_is_refused() -> None:
    envelope = json.loads(sign_manifest(manifest(), OPERATOR))
    envelope["signature"] = ("00" if envelope["signature"][:2] != "00" else "01") + envelope["signature"][2:]
    with pytest.raises(ManifestError, match="altered"):
        open_manifest(json.dumps(envelope).encode(), FINGERPRINT)


def test_a_strangers_key_under_the_operators_signature_is_refused() -> None:
    ours, theirs = (json.loads(sign_manifest(manifest(), key)) for key in (OPERATOR, STRANGER))
    with pytest.raises(ManifestError, match="altered"):
        open_manifest(json.dumps(theirs | {"public_key": ours["public_key"]}).encode(), FINGERPRINT)


@pytest.mark.parametrize(
    "signed", [b"", b"\x00\xff", b"[]", b"7", b'"text"', b"{}", b'{"public_key": 1, "signature": "", "manifest": ""}',
               b'{"public_key": "00", "signature": "", "manifest": ""}', b"[" * 100_000]
)  # fmt: skip
def test_bytes_that_are_no_manifest_are_refused(signed: bytes) -> None:
    with pytest.raises(ManifestError, match="not a signed manifest"):
        open_manifest(signed, FINGERPRINT)


def test_a_manifest_of_another_version_says_what_it_has_that_we_do_not_know() -> None:
    body = json.dumps(json.loads(manifest().canonical_bytes()) | {"format": 2})
    envelope = json.loads(sign_manifest(manifest(), OPERATOR))
    envelope |= {"manifest": body, "signature": OPERATOR.sign(body.encode()).hex()}
    with pytest.raises(ManifestError, match=r"format.*update"):
        open_manifest(json.dumps(envelope).encode(), FINGERPRINT)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"path_weights": (0.5, 0.5)}, "2 path weights for 1 paths"),
        ({"path_weights": (0.9,)}, "sum to one"),
        ({"seeds": {"L0M0": "a" * 64}}, "one seed for each module"),
        ({"table": ((0, 1),)}, "no module 0"),
        ({"overlap": 2}, "overlap=2 but there are 1 paths"),
    ],
)
def test_a_stage_that_does_not_fit_itself_is_refused(change: dict[str, object], reason: str) -> None:
    fields = {"index": 0, "table": ((0, 0),), "path_weights": (1.0,), "router": None}
    fields |= {"seeds": {"L0M0": "a" * 64, "L1M0": "b" * 64}}
    with pytest.raises(ValueError, match=reason):
        Stage(**(fields | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("decays", "reason"),
    [
        ((((10, 1.0),),), "1 levels, but the model has 2"),
        ((((10, 1.0), (10, 0.0)), ()), "places of level 0 do not rise"),
        (((), ((0, 1.0),)), "places of level 1 do not rise"),
        ((((10, -1.0),), ()), "level 0 is negative"),
    ],
)
def test_places_of_weight_decay_that_cannot_be_are_refused(decays: tuple[object, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Manifest.model_validate({**dict(manifest()), "decays": decays})


# ----------------------------------------------------------------------------------------------------------- addresses


def test_an_address_survives_writing_and_reading() -> None:
    address = RunAddress(
        "small",
        FINGERPRINT,
        (PLACE, "/dns4/boot.example.org/tcp/4001/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"),
    )
    assert RunAddress.parse(str(address)) == address


def test_an_address_may_be_pasted_with_spaces_and_line_breaks() -> None:
    text = str(RunAddress("small", FINGERPRINT, (PLACE,)))
    assert RunAddress.parse(f"  {text[:50]}\n {text[50:]}\n") == RunAddress("small", FINGERPRINT, (PLACE,))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a run address"),
        ("small", "is not a run address"),
        (f"http://small:{FINGERPRINT}@{PLACE}", "is not a run address"),
        (f"dipaco:small:{FINGERPRINT}", "is not a run address"),
        (f"dipaco:Small:{FINGERPRINT}@{PLACE}", "the name 'Small'"),
        (f"dipaco::{FINGERPRINT}@{PLACE}", "the name ''"),
        (f"dipaco:small:{FINGERPRINT[:-1]}@{PLACE}", "fingerprint"),
        (f"dipaco:small:{FINGERPRINT.upper()}@{PLACE}", "fingerprint"),
        (f"dipaco:small:{FINGERPRINT}@", "no bootstrap node"),
        (f"dipaco:small:{FINGERPRINT}@203.0.113.7:4001", "not a multiaddr"),
        (f"dipaco:small:{FINGERPRINT}@/ip4/203.0.113.7/tcp/4001", "/p2p/PEER"),
        (f"dipaco:small:{FINGERPRINT}@{PLACE},/ip4", "'/ip4'"),
    ],
)
def test_a_malformed_address_says_which_part_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(AddressError, match=re.escape(reason)):
        RunAddress.parse(text)


@pytest.mark.parametrize(
    ("rounds", "overlaps"),
    [
        ("", True),
        ('pacing = "paced"', True),
        ("overlap = false", False),
        ('pacing = "synchronous"', False),
        ('pacing = "synchronous"\noverlap_steps = 2', True),
    ],
)
def test_paced_rounds_overlap_unless_the_run_file_says_otherwise(rounds: str, overlaps: bool) -> None:
    assert parse_run_file(f"{GOOD}\n[rounds]\ninner_steps = 10\n{rounds}").rounds.overlaps == overlaps


@pytest.mark.parametrize(
    ("rounds", "message"),
    [
        ('pacing = "synchronous"\noverlap = true', "say overlap_steps"),
        ("overlap_steps = 2", "paced rounds overlap anyway"),
        ('pacing = "synchronous"\noverlap_steps = 10', "must be less than inner_steps=10"),
    ],
)
def test_overlap_has_the_key_of_its_pacing(rounds: str, message: str) -> None:
    with pytest.raises(RunFileError, match=message):
        parse_run_file(f"{GOOD}\n[rounds]\ninner_steps = 10\n{rounds}")


def test_a_deputy_of_the_operator_signs_for_it() -> None:
    signed = sign_manifest(manifest(), deputy())
    assert open_manifest(signed, FINGERPRINT) == manifest()
    assert signer_of(signed) == FINGERPRINT == fingerprint_of_signer(deputy())
    assert keys_in(signed) == (public_hex(OPERATOR), public_hex(DEPUTY))
    assert keys_in(sign_manifest(manifest(), OPERATOR)) == (public_hex(OPERATOR), public_hex(OPERATOR))


@pytest.mark.parametrize("signer", [
    Deputy(STRANGER, public_hex(OPERATOR), delegation_to(public_hex(DEPUTY), OPERATOR)),  # another's appointment
    Deputy(STRANGER, public_hex(OPERATOR), delegation_to(public_hex(STRANGER), STRANGER)),  # its own
    Deputy(DEPUTY, public_hex(OPERATOR), "00" * 64),
])  # fmt: skip
def test_whom_the_operator_has_not_appointed_signs_nothing(signer: Deputy) -> None:
    with pytest.raises(ManifestError, match="altered after the operator signed it"):
        open_manifest(sign_manifest(manifest(), signer), FINGERPRINT)


def test_an_appointment_is_for_one_run() -> None:
    other = Ed25519PrivateKey.from_private_bytes(bytes(range(3, 35)))
    elsewhere = Deputy(DEPUTY, public_hex(OPERATOR), delegation_to(public_hex(DEPUTY), other))
    with pytest.raises(ManifestError):
        open_manifest(sign_manifest(manifest(), elsewhere), FINGERPRINT)


def test_a_deputys_manifest_cannot_be_altered() -> None:
    envelope = json.loads(sign_manifest(manifest(), deputy()))
    envelope["manifest"] = envelope["manifest"].replace('"revision":0', '"revision":7')
    with pytest.raises(ManifestError, match="altered"):
        open_manifest(json.dumps(envelope).encode(), FINGERPRINT)
