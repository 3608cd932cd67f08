"""The certificate of one compiled step: claims proved and audited, assumptions, and programs.

A certificate holds for one executable: it names the traced program, the program that was compiled after the rewrites
and the HLO that XLA made of it, by hashes that are the same in every process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ir_passes.compile.known_statements import STATEMENTS, unknown_ids
from ir_passes.contract.statements import Statement
from ir_passes.files import record
from ir_passes.jaxpr.collectives import Collective, Exchanging
from ir_passes.report import html
from ir_passes.rewrites.pipeline import PassReport

FORMAT = 6


@dataclass(frozen=True)
class Versions:
    """The versions and settings that made the executable.

    Attributes:
        platform, device: as "cpu" and the kind of the device.
        compiler: hash of this package's sources: rules of the proof, rewrites, audit.
        flags: settings that change what XLA makes, as "name=value".
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
        traced: the jaxpr of the function.
        compiled: the jaxpr after the rewrites, which was lowered.
        contract: the contract bound to the arguments.
        rules: the rewrites with their options, and the declared row-wise and opaque operations.
        hlo: the scheduled HLO; None if it was not read.
        schedule: the collectives in their order: processes that run the step together must have the same.
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
        successor: path of the output that is written into its bytes; None for a pool that is only read.
        bytes: of the whole pool.
        faults: findings of the audit that name it.
        copies: copies of an array of its type in one call.
    """

    path: str
    successor: str | None
    bytes: int
    faults: int
    copies: int


@dataclass(frozen=True)
class Memory:
    """Bytes of the step's memory.

    Attributes:
        temp, temp_lower_bound: scratch that XLA allocates, most live at once in its schedule.
        arguments, outputs, aliased: of the executable; aliased are outputs in the bytes of arguments.
        copied: pool bytes that one call copies, each copy counted once; allowed copies are listed in `copies`.
    """

    temp: int
    temp_lower_bound: int | None
    arguments: int
    outputs: int
    aliased: int
    copied: int


@dataclass(frozen=True)
class Seconds:
    """Seconds of each phase; a proof found in the store took none."""

    trace: float
    prove: float
    rewrite: float
    lower: float
    compile: float
    audit: float

    @property
    def checking(self) -> float:
        """Seconds of proofs, rewrites and audit as a fraction of XLA's compile time."""
        return (self.prove + self.rewrite + self.audit) / self.compile if self.compile else 0.0


@dataclass(frozen=True)
class Certificate(Exchanging):
    """The statements about one executable. Equality compares all fields except the times.

    Raises:
        RecordError: a statement has an id that is not in the list of its field (`STATEMENTS`).

    Attributes:
        format: format of this record.
        step: name of the function.
        certify: "error", "warn" or "off".
        lanes: N.
        equations: number of equations of the compiled jaxpr, of one device.
        versions, fingerprints: versions that made the program, and hashes of the program.
        contract: the entries; one line for all arrays of an argument, or of its field, with equal entries.
        proved: claims that hold of the compiled jaxpr; ids of `Claim`.
        audited: claims that hold of XLA's schedule and buffer assignment; ids of `AuditClaim`.
        measured: claims that runs of the step's layers showed; ids of `MeasuredClaim`.
        not_audited: why there was no audit; None if there was one.
        assumed: assumptions of proof and audit: declared operations, declassified values, slot maps; ids of
            `Assumption`.
        not_covered: properties that neither checks; ids of `NotCovered`.
        faults: violations and findings, under the ids of `ViolationKind`, `FindingKind` and `MeasuredFault`, or
            "not-audited"; empty unless `certify` is "warn".
        notes: remarks of the proof; ids of `Note`.
        passes: the rewrites in order.
        copies: pool-sized copies, with the line that made them.
        neighbours: the values next to results of custom calls in memory; the bodies of the calls were not checked.
        pools: every pool among the arguments.
        collectives: exchanges between devices, in the order of the compiled program; of the traced one if `audited` is
            empty. None on one device.
        memory: bytes of the step's scratch and arguments, on one device.
        seconds: seconds of each phase, when the executable was made.
        reused: the proof was taken from the store.
        stored: the executable was taken from the store, with the certificate of its compilation.
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
        """Return one line; `report` has every statement."""
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
        """Whether the step was proved and audited and nothing was found."""
        return bool(self.is_proof and self.audited)

    @property
    def is_proof(self) -> bool:
        """True if the step was proved without faults; its program may not have been audited."""
        return bool(self.proved and not self.faults)

    @property
    def state(self) -> str:
        """A verdict in a few words."""
        if self.is_proof and self.not_audited:
            return "proved, NOT AUDITED"
        return "certified" if self.holds else "NOT CERTIFIED"

    def with_measured(self, claims: Sequence[Statement], faults: Sequence[Statement]) -> "Certificate":
        """Return the certificate with measured claims of the step's layers.

        Args:
            claims: claims that hold; statements of their ids leave `not_covered`.
            faults: faults of claims that do not hold.
        """
        ids = {claim.id for claim in claims}
        not_covered = tuple(statement for statement in self.not_covered if statement.id not in ids)
        return replace(self, measured=tuple(claims), not_covered=not_covered, faults=(*self.faults, *faults))

    def made_by(self, versions: Versions) -> bool:
        """Return True if these versions made it; XLA may have been given more options."""
        flags = versions.flags
        return replace(self.versions, flags=flags) == versions and set(flags) <= set(self.versions.flags)

    def to_json(self) -> str:
        """Return JSON text with a checksum, for `from_json`."""
        return record.to_json(self, checksum=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Certificate":
        """Read the certificate from JSON text.

        Raises:
            RecordError: another format, a field or an id of a statement is missing, unknown or of another type, or the
                text was changed since it was written.
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
        """Return all statements under their headings; some sections may be empty."""
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
        """Return HTML for notebooks: claims and faults are open, the rest folds behind its heading."""
        versions = self.versions
        remark = (
            f"{self.lanes} lanes, {self.equations:,} equations; jax {versions.jax} on {versions.platform} "
            f"({versions.device})"
        )
        head = html.headed(self.step, self.holds, self.state, remark)
        return head + html.lists(self.sections(), opened=("proved", "audited", "measured", "not audited", "faults"))
