"""Certificate of one compiled step: proved and audited claims, assumptions and faults.

Hashes of the traced program, the rewritten program and XLA's HLO are equal in every process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ir_passes.compile import html
from ir_passes.contract.statements import (
    Assumption,
    AuditClaim,
    Claim,
    MeasuredClaim,
    MeasuredFault,
    NotCovered,
    Note,
    Refusal,
    Statement,
    StatementId,
)
from ir_passes.files import record
from ir_passes.jaxpr.collectives import Collective, bytes_sent, exchanged
from ir_passes.proof.violations import ViolationKind
from ir_passes.rewrites.pipeline import PassReport
from ir_passes.xla_audit.findings import FindingKind

FORMAT = 6
STATEMENTS: dict[str, tuple[type[StatementId], ...]] = {
    "proved": (Claim,),
    "audited": (AuditClaim,),
    "measured": (MeasuredClaim,),
    "assumed": (Assumption,),
    "not_covered": (NotCovered,),
    "faults": (ViolationKind, FindingKind, MeasuredFault, Refusal),
    "notes": (Note,),
}
"""Field of a certificate -> enums with its statement ids."""


@dataclass(frozen=True)
class Versions:
    """Versions and settings of an executable.

    Attributes:
        device: device kind.
        compiler: hash of this package's sources.
        flags: JAX and XLA settings, "name=value".
    """

    jax: str
    jaxlib: str
    python: str
    platform: str
    device: str
    compiler: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Fingerprints:
    """sha256 of each form of the step.

    Attributes:
        traced, compiled: jaxpr before and after rewrites.
        contract: bound to the arguments.
        rules: rewrites with options, and declared row-wise and opaque operations.
        hlo: scheduled HLO; None if not read.
        schedule: collectives in order, equal in all processes.
    """

    traced: str
    compiled: str
    contract: str
    rules: str
    hlo: str | None
    schedule: str


@dataclass(frozen=True)
class PoolVerdict:
    """Audit of one pool argument.

    Attributes:
        successor: output in its bytes; None for a read-only pool.
        faults: number of findings.
        copies: copies of arrays of its type per call.
    """

    path: str
    successor: str | None
    bytes: int
    faults: int
    copies: int


@dataclass(frozen=True)
class Memory:
    """Memory of the step, in bytes.

    Attributes:
        temp, temp_lower_bound: XLA's scratch; peak of live scratch.
        aliased: outputs in bytes of arguments.
        copied: pool bytes copied per call.
    """

    temp: int
    temp_lower_bound: int | None
    arguments: int
    outputs: int
    aliased: int
    copied: int


@dataclass(frozen=True)
class Seconds:
    """Seconds of each phase; zero for a reused proof."""

    trace: float
    prove: float
    rewrite: float
    lower: float
    compile: float
    audit: float

    @property
    def checking(self) -> float:
        """Proofs, rewrites and audit, over XLA's compile time."""
        return (self.prove + self.rewrite + self.audit) / self.compile if self.compile else 0.0


@dataclass(frozen=True)
class Certificate:
    """Statements about one executable; equality ignores times, `reused` and `stored`.

    Raises:
        RecordError: a statement id outside its field's list in `STATEMENTS`.

    Attributes:
        format: version of this record.
        equations: number in the compiled jaxpr, on one device.
        contract: entries; one line for equal entries of an argument or field.
        proved: `Claim`s on the compiled jaxpr.
        audited: `AuditClaim`s on XLA's schedule and buffer assignment.
        measured: `MeasuredClaim`s of runs of the step's layers.
        not_audited: reason for a missing audit.
        assumed: `Assumption`s of proof and audit.
        not_covered: `NotCovered` properties.
        faults: `ViolationKind`, `FindingKind`, `MeasuredFault` or `Refusal`; empty unless `certify` is "warn".
        notes: `Note`s of the proof.
        copies: pool-sized copies with source lines.
        neighbours: values next to results of custom calls in memory; bodies of custom calls are unchecked.
        collectives: in the order of the audited program, else of the traced one; () on one device.
        memory: on one device.
        seconds: by phase, when the executable was made.
        reused: the proof is from an earlier certificate.
        stored: the executable is from disk.
    """

    format: int
    step: str
    certify: str
    lanes: int
    equations: int
    versions: Versions
    fingerprints: Fingerprints
    contract: tuple[str, ...]
    proved: tuple[Statement, ...]
    audited: tuple[Statement, ...]
    measured: tuple[Statement, ...]
    not_audited: str | None
    assumed: tuple[Statement, ...]
    not_covered: tuple[Statement, ...]
    faults: tuple[Statement, ...]
    notes: tuple[Statement, ...]
    passes: tuple[PassReport, ...]
    copies: tuple[str, ...]
    neighbours: tuple[str, ...]
    pools: tuple[PoolVerdict, ...]
    collectives: tuple[Collective, ...]
    memory: Memory
    seconds: Seconds = field(compare=False)
    reused: bool = field(compare=False)
    stored: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        for name, kinds in STATEMENTS.items():
            known_ids = {statement_id.value for kind in kinds for statement_id in kind}
            if strangers := sorted({statement.id for statement in getattr(self, name)} - known_ids):
                raise record.RecordError(f"Certificate.{name}: unknown statements {strangers}")

    def __repr__(self) -> str:
        counts = {
            "proved": self.proved,
            "audited": self.audited,
            "not covered": self.not_covered,
            "faults": self.faults,
        }
        summary = ", ".join(f"{len(statements)} {name}" for name, statements in counts.items())
        return f"Certificate({self.step}: {self.state}, {self.lanes} lanes, {self.equations} equations; {summary})"

    @property
    def holds(self) -> bool:
        """True if the step was proved and audited without faults."""
        return bool(self.is_proof and self.audited)

    @property
    def is_proof(self) -> bool:
        """True if the step was proved without faults, perhaps without an audit."""
        return bool(self.proved and not self.faults)

    @property
    def sent(self) -> int | None:
        """Bytes that each device sends per call; None for a data-dependent loop."""
        return bytes_sent(self.collectives)

    @property
    def exchanged(self) -> tuple[str, ...]:
        """Collectives with their numbers, in execution order."""
        return exchanged(self.collectives)

    @property
    def state(self) -> str:
        if self.is_proof and self.not_audited:
            return "proved, NOT AUDITED"
        return "certified" if self.holds else "NOT CERTIFIED"

    def with_measured(self, claims: Sequence[Statement], faults: Sequence[Statement]) -> "Certificate":
        """Return the certificate with measured claims and faults."""
        ids = {claim.id for claim in claims}
        not_covered = tuple(statement for statement in self.not_covered if statement.id not in ids)
        return replace(self, measured=tuple(claims), not_covered=not_covered, faults=(*self.faults, *faults))

    def made_by(self, versions: Versions) -> bool:
        """True if these versions made it, perhaps with more XLA options."""
        flags = versions.flags
        return replace(self.versions, flags=flags) == versions and set(flags) <= set(self.versions.flags)

    def to_json(self) -> str:
        """Return JSON text with a checksum."""
        return record.to_json(self, checksum=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Certificate":
        """Read JSON text of `to_json`; raises RecordError for any fault."""
        return record.from_json(cls, text, checksum=True, format=FORMAT)

    def report(self) -> str:
        """Return the certificate as text."""
        versions, memory, seconds = self.versions, self.memory, self.seconds
        lines = [
            f"{self.step}: {self.state}, {self.lanes} lanes, {self.equations} equations",
            f"  jax {versions.jax}, jaxlib {versions.jaxlib}, Python {versions.python}, "
            f"{versions.platform} ({versions.device})",
            f"  traced {self.fingerprints.traced[:16]}, compiled {self.fingerprints.compiled[:16]}, "
            f"hlo {(self.fingerprints.hlo or 'not read')[:16]}",
        ]
        for heading, statements in self.sections():
            lines += [f"  {heading}:", *(f"    {statement}" for statement in statements)] if statements else []
        lines += ["  executable: from the store; all of this was found when it was compiled"] if self.stored else []
        bound = "" if memory.temp_lower_bound is None else f", of which {memory.temp_lower_bound} live at once"
        lines += [
            f"  scratch: {memory.temp} bytes by XLA{bound}",
            f"  proof {seconds.prove:.3f} s, rewrites {seconds.rewrite:.3f} s, audit {seconds.audit:.3f} s: "
            f"{seconds.checking:.0%} of XLA's {seconds.compile:.3f} s",
        ]
        return "\n".join(lines)

    def sections(self) -> Sequence[tuple[str, tuple[str | Statement, ...]]]:
        """Return (heading, statements) pairs; statements may be empty."""
        return [
            ("contract", self.contract),
            ("proved", self.proved),
            ("audited", self.audited),
            ("measured", self.measured),
            ("not audited", () if self.not_audited is None else (self.not_audited,)),
            ("assumed", self.assumed),
            ("not covered", self.not_covered),
            ("faults", self.faults),
            ("notes", self.notes),
            ("rewrites", tuple(f"{effect.name}: {effect.summary}" for effect in self.passes)),
            ("pool-sized copies", self.copies),
            ("next to the results of custom calls", self.neighbours),
            (f"collectives, in the order of {self.fingerprints.schedule[:16]}", self.exchanged),
        ]

    def _repr_html_(self) -> str:
        """Return HTML with open claims and faults; other sections are folded."""
        versions = self.versions
        remark = (
            f"{self.lanes} lanes, {self.equations:,} equations; jax {versions.jax} on {versions.platform} "
            f"({versions.device})"
        )
        head = html.headed(self.step, self.holds, self.state, remark)
        return head + html.lists(self.sections(), opened=("proved", "audited", "measured", "not audited", "faults"))
