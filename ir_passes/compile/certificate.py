"""Certificate of one compiled step: claims proved and audited, assumptions, and programs.

It holds for one executable: it names the traced program, the rewritten program and XLA's HLO by hashes that are equal
in every process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ir_passes.compile import html
from ir_passes.compile.known_statements import STATEMENTS, unknown_ids
from ir_passes.contract.statements import Statement
from ir_passes.files import record
from ir_passes.jaxpr.collectives import Collective, Exchanging
from ir_passes.rewrites.pipeline import PassReport

FORMAT = 6


@dataclass(frozen=True)
class Versions:
    """Versions and settings of an executable.

    Attributes:
        platform, device: such as "cpu", and the device kind.
        compiler: hash of this package's sources.
        flags: settings of XLA, "name=value".
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
        traced: jaxpr of the function.
        compiled: rewritten jaxpr, which was lowered.
        contract: bound to the arguments.
        rules: rewrites with options, and declared row-wise and opaque operations.
        hlo: scheduled HLO; None if not read.
        schedule: collectives in order, equal in all processes of a step.
    """

    traced: str
    compiled: str
    contract: str
    rules: str
    hlo: str | None
    schedule: str


@dataclass(frozen=True)
class PoolVerdict:
    """One pool of the arguments.

    Attributes:
        path: of the argument.
        successor: output in its bytes; None for a pool that is only read.
        faults: findings of the audit.
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
        temp, temp_lower_bound: XLA's scratch, and the most live at once.
        arguments, outputs, aliased: of the executable; aliased outputs are in argument bytes.
        copied: pool bytes copied per call, each copy once.
    """

    temp: int
    temp_lower_bound: int | None
    arguments: int
    outputs: int
    aliased: int
    copied: int


@dataclass(frozen=True)
class Seconds:
    """Seconds of each phase; a stored proof took none."""

    trace: float
    prove: float
    rewrite: float
    lower: float
    compile: float
    audit: float

    @property
    def checking(self) -> float:
        """Seconds of proofs, rewrites and audit, over XLA's compile time."""
        return (self.prove + self.rewrite + self.audit) / self.compile if self.compile else 0.0


@dataclass(frozen=True)
class Certificate(Exchanging):
    """Statements about one executable. Equality ignores times.

    Raises:
        RecordError: a statement with an id outside its field's list (`STATEMENTS`).

    Attributes:
        format: of this record.
        step: function name.
        certify: "error", "warn" or "off".
        lanes: N.
        equations: equations of the compiled jaxpr, of one device.
        versions, fingerprints: of the program.
        contract: entries; one line for equal entries of an argument or field.
        proved: `Claim`s on the compiled jaxpr.
        audited: `AuditClaim`s on XLA's schedule and buffer assignment.
        measured: `MeasuredClaim`s of runs of the step's layers.
        not_audited: reason without an audit.
        assumed: `Assumption`s of proof and audit: declared operations, declassified values, slot maps.
        not_covered: `NotCovered` properties.
        faults: by `ViolationKind`, `FindingKind`, `MeasuredFault`, or "not-audited"; empty unless `certify` is "warn".
        notes: `Note`s of the proof.
        passes: in order.
        copies: pool-sized copies, with their lines.
        neighbours: values next to results of custom calls in memory, whose bodies are unchecked.
        pools: of the arguments.
        collectives: in the order of the compiled program, or the traced one without an audit; None on one device.
        memory: scratch and arguments on one device, in bytes.
        seconds: by phase, when the executable was made.
        reused: a stored proof.
        stored: a stored executable.
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
        for name in STATEMENTS:
            if strangers := unknown_ids(name, getattr(self, name)):
                raise record.RecordError(f"Certificate.{name}: unknown statements {strangers}")

    def __repr__(self) -> str:
        """Return one line; see `report`."""
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
        """Whether the step was proved and audited without faults."""
        return bool(self.is_proof and self.audited)

    @property
    def is_proof(self) -> bool:
        """Whether the step was proved without faults, perhaps without an audit."""
        return bool(self.proved and not self.faults)

    @property
    def state(self) -> str:
        if self.is_proof and self.not_audited:
            return "proved, NOT AUDITED"
        return "certified" if self.holds else "NOT CERTIFIED"

    def with_measured(self, claims: Sequence[Statement], faults: Sequence[Statement]) -> "Certificate":
        """Return the certificate with measured claims, which leave `not_covered`, and faults."""
        ids = {claim.id for claim in claims}
        not_covered = tuple(statement for statement in self.not_covered if statement.id not in ids)
        return replace(self, measured=tuple(claims), not_covered=not_covered, faults=(*self.faults, *faults))

    def made_by(self, versions: Versions) -> bool:
        """Whether these versions made it, perhaps with more XLA options."""
        flags = versions.flags
        return replace(self.versions, flags=flags) == versions and set(flags) <= set(self.versions.flags)

    def to_json(self) -> str:
        """Return JSON text with a checksum, for `from_json`."""
        return record.to_json(self, checksum=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Certificate":
        """Read a certificate.

        Raises:
            RecordError: another format, a missing, unknown or wrong field or id, or a changed text.
        """
        return record.from_json(cls, text, checksum=True, format=FORMAT)

    def report(self) -> str:
        """Return the certificate as text for people."""
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
        """Return all statements under their headings; sections may be empty."""
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
        """Return HTML: claims and faults are open, the rest is folded."""
        versions = self.versions
        remark = (
            f"{self.lanes} lanes, {self.equations:,} equations; jax {versions.jax} on {versions.platform} "
            f"({versions.device})"
        )
        head = html.headed(self.step, self.holds, self.state, remark)
        return head + html.lists(self.sections(), opened=("proved", "audited", "measured", "not audited", "faults"))
