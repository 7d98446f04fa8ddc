"""What the defences cost when nobody attacks: the product's own functions, timed one after the other in this process.

Signatures, their bytes, and the robust mean against the plain one, for one member and one round of one module.
"""

import hashlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.reduce import hardware
from dipaco_swarm.algorithm.averaging.rule import Member, averaging_of
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.swarm.framing import PIECE, SEAL, encode
from dipaco_swarm.swarm.libp2p.identity import Identity, is_signed_by
from dipaco_swarm.swarm.proofs import Seal, SealsAre
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from dipaco_swarm.swarm.round.reduction import piece_parameters
from dipaco_swarm.swarm.round.seals import Subject
from dipaco_swarm.swarm.round.showing import CHECKED
from dipaco_swarm.swarm.round.suspecting import LONGEST_WAIT, fit_of

SIZES = (2, 4, 8, 16)
PARAMETERS = 10_000_000
"""Of the module."""
ROUND_SECONDS = 600.0
"""Of training in a round, as community runs have it."""
TIMES = 40
SIGNATURE_MS = 5.0
"""CPU of signatures a round and member, at most, at..."""
AT = 8
"""... so many members."""
CERTIFICATE_BYTES = 2000
"""All that shows what a version's reducers have signed, at the most members that are measured."""
TIME_SHARE, BYTES_SHARE = 0.02, 0.03


@dataclass(frozen=True)
class Cost:
    """Of one member of a group, in one round."""

    members: int
    signing_ms: float
    """CPU: its own signatures, and checking the others'."""
    hashing_ms: float
    """CPU: of what it contributes, and of what is contributed to its pieces, so that it can be signed."""
    checking_ms: float
    """CPU of pieces that it makes anew after a round, on average; beside training."""
    mean_ms: float
    robust_ms: float
    """CPU of averaging its share of the pieces."""
    sealed_bytes: int
    """That it sends for its signatures: its seal to all others, and one with each contribution."""
    checked_bytes: int
    """That it shows as a reducer after a round, on average."""
    sent_bytes: int
    """Contributions and averages that it sends."""
    certificate: int
    """Bytes of all seals of the round in one message."""

    @property
    def time_share(self) -> float:
        """Of the time of a round."""
        spent = self.signing_ms + self.hashing_ms + self.checking_ms + self.robust_ms - self.mean_ms
        return spent / 1000 / ROUND_SECONDS

    @property
    def bytes_share(self) -> float:
        return (self.sealed_bytes + self.checked_bytes) / self.sent_bytes

    @property
    def missed(self) -> list[str]:
        """The aims that are not met, in a word each."""
        found = []
        if self.members == AT and self.signing_ms > SIGNATURE_MS:
            found.append("signatures")
        if self.time_share > TIME_SHARE:
            found.append("time")
        if self.bytes_share > BYTES_SHARE:
            found.append("bytes")
        if self.certificate > CERTIFICATE_BYTES:
            found.append("certificate")
        return found


def cost_of(members: int, parameters: int = PARAMETERS, times: int = TIMES) -> Cost:
    """Measure it. `times`: of which the median is taken."""
    keys = [Identity(Ed25519PrivateKey.generate(), Path()) for _ in range(members)]
    about = Subject("a" * 32, 0, ModuleId(0, 0), 20, bytes(32))
    statements = [about.statement(0, bytes([member]) * 32) for member in range(members)]
    seals = [key.sign(statement) for key, statement in zip(keys, statements, strict=True)]

    size = piece_parameters(parameters, members)
    pieces = parameters / size / members
    said = about.input(0, 0, bytes(32))
    given = round(pieces * (members - 1))

    def sign() -> None:
        """Its seal and the others'; what it contributes to their pieces, and they to its."""
        keys[0].sign(about.statement(0, bytes(32)))
        for key, statement, seal in list(zip(keys, statements, seals, strict=True))[1:]:
            assert is_signed_by(key.peer, statement, seal)
        for _ in range(given):
            assert is_signed_by(keys[0].peer, said, keys[0].sign(said))

    contributions = {member: torch.randn(size) for member in range(members)}
    roster = [Member(PathIndex(member), 1000, 1 / members, 1.0) for member in range(members)]

    def averaging(rule: str) -> float:
        average = averaging_of(rule).prepare(roster, 1000.0)
        return pieces * cpu_ms(lambda: average(contributions), times)

    header = len(PIECE.pack(SEAL, 0, 0, len(seals[0])))
    shown = [Seal(reducer=i, generation=0, digest=bytes(32), signature=seal) for i, seal in enumerate(seals)]
    codec = codec_of("int8")
    piece = codec.encode(contributions[0])
    encoded = len(piece) / size * parameters

    def check() -> None:
        """One piece made anew."""
        for _ in range(members):
            hashlib.sha256(piece).digest()
            codec.decode(piece, size)
        codec.encode(averaging_of("robust").prepare(roster, 1000.0)(contributions).average)

    def compare() -> None:
        """How much of ours is in one piece."""
        fit_of(contributions[0], codec.decode(piece, size))

    looks = CHECKED * parameters / size / members + 1 / LONGEST_WAIT
    return Cost(
        members=members,
        signing_ms=cpu_ms(sign, times),
        hashing_ms=2 * given * cpu_ms(lambda: hashlib.sha256(piece).digest(), times),
        checking_ms=looks * cpu_ms(check, times) + pieces * members * cpu_ms(compare, times),
        mean_ms=averaging("mean"),
        robust_ms=averaging("robust"),
        sealed_bytes=(members - 1) * (header + len(seals[0])) + given * len(seals[0]),
        checked_bytes=round(looks * len(piece) * (members - 1)),
        sent_bytes=round(2 * encoded * (members - 1) / members),
        certificate=len(encode(SealsAre(seals=tuple(shown)))),
    )


def cpu_ms(work: Callable[[], object], times: int) -> float:
    """Milliseconds of this process' CPU, the median."""
    found = []
    for _ in range(times):
        began = time.process_time()
        work()
        found.append(1000 * (time.process_time() - began))
    return statistics.median(found)


HEAD = (
    "| members | CPU of signatures | of digests | of checks | of the mean, of the robust one | of a round's time "
    "| bytes of signatures | of checks | of what it sends | all seals of a version | |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(cost: Cost) -> str:
    """As Markdown."""
    verdict = "**missed**: " + ", ".join(cost.missed) if cost.missed else "met"
    return (
        f"| {cost.members} | {cost.signing_ms:.2f} ms | {cost.hashing_ms:.1f} ms | {cost.checking_ms:.1f} ms | "
        f"{cost.mean_ms:.0f}, {cost.robust_ms:.0f} ms | {100 * cost.time_share:.3f} % | {cost.sealed_bytes} | "
        f"{cost.checked_bytes} | {100 * cost.bytes_share:.2f} % | "
        f"{cost.certificate} bytes | {verdict} |"
    )


def page(costs: list[Cost]) -> str:
    """The report, as Markdown."""
    about = (
        f"`python -m benchmarks.hostile --cost`: one member and one round of one module of {PARAMETERS:,} parameters, "
        f"int8, with {ROUND_SECONDS:.0f} s of training; CPU time of one thread, medians of {TIMES}. "
        "Checks: the pieces that are drawn, and as often as can be one that is odd, always in vain. Aims: signatures "
        f"below {SIGNATURE_MS:.0f} ms at {AT} members, {100 * TIME_SHARE:.0f} % of the time, {100 * BYTES_SHARE:.0f} % "
        f"of the bytes; all that the reducers of a version have signed below {CERTIFICATE_BYTES} bytes (it is kept by "
        "who was in the round, and sent when averages differ; there is no other certificate)."
    )
    title = f"# What the defences cost when nobody attacks: {hardware()}"
    return "\n".join([title, "", about, "", HEAD, *map(line, costs)]) + "\n"
