"""Statements of proofs, audits and certificates: a stable id for tools, a sentence for people.

Sentences may be reworded. Ids of faults are in `ir_passes.ViolationKind`, `ir_passes.FindingKind` and subclasses of
`StatedError`.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Self


@dataclass(frozen=True, order=True)
class Statement:
    """A statement about a step.

    Attributes:
        id: stable, as "non-interference".
        about: argument, function or line; "" for the whole step.
    """

    id: str
    about: str
    sentence: str

    def __str__(self) -> str:
        about = f" ({self.about})" if self.about else ""
        return f"{self.id}{about}: {self.sentence}"


class StatementId(StrEnum):
    """Closed list of statements; `sentence` has details in braces."""

    sentence: str

    def __new__(cls, id: str, sentence: str) -> Self:
        member = str.__new__(cls, id)
        member._value_ = id
        member.sentence = sentence
        return member

    def statement(self, about: str = "", **details: object) -> Statement:
        """Return the statement with `details` for the braces of the sentence."""
        return Statement(self.value, about, self.sentence.format(**details))

    def fault(self, about: str, message: str) -> Statement:
        """Return a fault with this id.

        Args:
            about: argument, lane or token; "" for the whole call.
            message: place, expected and actual value, remedy.
        """
        return Statement(self.value, about, message)


class StatedError(Exception):
    """An error with an id for each fault.

    Args:
        where: the failed call.
        advice: a remedy for all faults.
    """

    def __init__(self, *faults: Statement, where: str = "", advice: str = ""):
        self.faults, self._around = faults, {"where": where, "advice": advice}
        text = "; ".join(f"{fault.about}: {fault.sentence}" if fault.about else fault.sentence for fault in faults)
        super().__init__(f"{where}: {text}" if where else f"{text}; {advice}" if advice else text)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of all faults."""
        return tuple(fault.id for fault in self.faults)

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle would call the class with the message
        return partial(type(self), **self._around), self.faults


class Claim(StatementId):
    """Properties of a traced program that the proof shows."""

    NON_INTERFERENCE = (
        "non-interference",
        "Row i of every output and the pool rows of lane i depend only on lane i and on shared inputs.",
    )
    FRAME = "frame", "Pool rows that the slot map does not name are unchanged."
    LINEAR_USE = (
        "linear-use",
        "Every version of a pool has at most one successor, and is not read once that is written.",
    )
    COUPLING = "coupling", "All pools of one group are written at the same rows."
    BOUNDS = "bounds", "Every row index is in bounds, or the access drops it."
    CONSTANTS = "constants", "No row index and no pool is a constant of the program."
    DIMENSIONS = (
        "dimensions",
        "An array that is written to a pool with named dimensions has its dimensions in the pool's order.",
    )
    IDLE = "idle", "A lane of length 0 keeps its pool rows."
    INACTIVE = "inactive", "A lane whose entry in the mask of active lanes is False keeps its pool rows."
    BEYOND_COUNT = "beyond-count", "A lane whose number is not below the number of active lanes keeps its pool rows."
    ACCEPTED = "accepted", "The number of accepted tokens is never negative, and 0 for an idle lane."
    AGREEMENT = (
        "agreement",
        "If devices were given different values for the operands that the step compares, no pool row changes.",
    )


class AuditClaim(StatementId):
    """Properties of XLA's scheduled HLO and buffer assignment that the audit checks."""

    POOLS_IN_PLACE = (
        "pools-in-place",
        "The successor of every pool is written into that pool's buffer, and no other input buffer is overwritten.",
    )
    NO_POOL_COPIES = (
        "no-pool-copies",
        "No array outside a pool's buffer has the elements of all its rows but one, in any dtype, shape or layout, "
        "except for the copies in this certificate, the new rows of pools with a row per lane, rows that inputs "
        "name, and pools of one number per lane.",
    )
    DISJOINT_BUFFERS = (
        "disjoint-buffers",
        "Values that are live at the same time share no byte, and each lies within its allocation.",
    )
    NO_READ_AFTER_WRITE = "no-read-after-write", "No operation overwrites bytes that it has yet to read."
    COLLECTIVES = (
        "collectives",
        "The collectives are those of the traced program: the same operations, between the same devices, on as many "
        "elements (each operand of a collective that XLA combined counts by itself). XLA adds others only along axes "
        "where the caller allows it.",
    )
    SCRATCH = "scratch", "The scratch memory is within its limit, a multiple of the bytes that are live at once."


class MeasuredClaim(StatementId):
    """Properties measured by runs of a step's layers on random weights and tokens."""

    ACCEPTED_TOKENS_ONLY = (
        "accepted-tokens-only",
        "Only accepted tokens change the kept state: for every number of accepted drafts, other rejected drafts leave "
        "the same bits, and the state is that of a step which reads the accepted tokens alone. One layer of each kind "
        "was run, with random weights, on one device.",
    )


class MeasuredFault(StatementId):
    """Faults of layers that were run."""

    REJECTED_TOKENS = "rejected-tokens", "Rejected drafts change the kept state, or outputs of tokens before them."
    NOT_THE_ACCEPTED = (
        "not-the-accepted",
        "The kept state, or an output, is not that of a step which reads the accepted tokens alone.",
    )


class Assumption(StatementId):
    """Declarations of the caller that the proof assumes."""

    SLOT_MAP = "slot-map", "Its entries are in [0, {size}); {which} are distinct{null}."
    DISJOINT_ROWS = (
        "disjoint-rows",
        "Its active entries are no entries of another slot map of the same pools. SlotOwner.bind(..., beside=...) "
        "checks it on the host, and the sanitizer in the step.",
    )
    PAGE_TABLE = (
        "page-table",
        "Its entries are in [0, {size}). A page that a lane writes to is its own: no other lane{device} names it in a "
        "page table of the same pools{null}. Pages that several lanes name are read only.",
    )
    PACKED = (
        "packed",
        "Token t belongs to the lane that it says, as those of the same step do; the number of tokens of a lane is "
        "shared. Tokens after the last one are padding, which belongs to no lane and is outside every claim. {empty}",
    )
    MASKED_SUM = (
        "masked-sum",
        "In this sum over the tokens of all lanes, those of other lanes add finite values times zero, which changes "
        "nothing but the sign of a sum that is zero. The device's default precision of products, bfloat16 for float32 "
        "on a TPU, rounds none of them to infinity.",
    )
    ROW_WISE = "row-wise", "The body of this function is not looked into: it is declared row-wise."
    DECLASSIFIED = "declassified", "A value made of several lanes counts as shared, for the reason given."
    DIMENSIONS_NAMED = "dimensions-named", "name_dims gives an array these dimension names."
    SORTED_INDICES = "sorted-indices", "Shared indices are sorted: the call says indices_are_sorted=True."
    UNGROUPED_ROWS = "ungrouped-rows", "Rows behind the last group of a ragged product are zeros."
    REPLICATED_ARGUMENTS = "replicated-arguments", "Arguments replicated over several devices are equal on all of them."
    OPAQUE = "opaque", "The operation does what its declaration says."
    COMPUTED_GRID = (
        "computed-grid",
        "The kernel's computed grid has no negative length, and no more steps than blocks or numbers of blocks.",
    )
    WRITTEN_RESULTS = (
        "written-results",
        "No output depends on what a block of the kernel's results holds before it is written, each time it begins.",
    )
    OPAQUE_IDLE = (
        "opaque-idle",
        "The operation does what its declaration says, and keeps the rows of lanes of length 0.",
    )


class Note(StatementId):
    """Remarks on a proof, not faults."""

    DIMENSIONS_NOT_PROVED = (
        "dimensions-not-proved",
        "These pools have no dims in the contract. It is not proved that each dimension is written with what belongs "
        "there, or that no position is a constant of the program.",
    )
    DEBUG_CALLBACK = (
        "debug-callback",
        "This callback may see values of all lanes on the host. It returns nothing to the step.",
    )
    INDEX_INSIDE_ROW = (
        "index-inside-row",
        "An index of this operation along axis {axis} of a pool may be out of bounds; it stays inside the row.",
    )
    KERNEL_READ = (
        "kernel-read",
        "The body of this kernel is proved with the rest: loads, stores and blocks of each step of its grid.",
    )
    REPLICATED_RESULTS = (
        "replicated-results",
        "check_vma is False: a result replicated over several devices is taken to be that of any one of them.",
    )
    OUTSIDE_CODE = "outside-code", "The layers of this step are defined by another distribution: {origin}."


class NotCovered(StatementId):
    """Properties that neither the proof nor the audit checks."""

    MACHINE_CODE = "machine-code", "The machine code below XLA's scheduled HLO, drivers and hardware."
    BITWISE_EQUALITY = (
        "bitwise-equality",
        "Bitwise equality between different compiled shapes, numbers of lanes or numbers of devices.",
    )
    CALLER = "caller", "What the caller does with slot maps, lengths and pools between two calls."
    NAN_BITS = (
        "nan-bits",
        "The sign and payload of a nan in a float of 16 bits or less: XLA may change them where it only moves the nan.",
    )
    ACCEPTED_TOKENS_ONLY = (
        "accepted-tokens-only",
        "Not checked here: only accepted tokens change the kept state. `hybridlm verify --model` runs the layers of a "
        "model; `unaccepted_reach` measures a step of your own.",
    )
    ISOLATION = "isolation", "Isolation of the lanes: there is no proof."
    COMPILED_PROGRAM = "compiled-program", "The program that XLA makes of the step: {why}."
    ASYNCHRONOUS = (
        "asynchronous",
        "The timing of this asynchronous operation: its operands count as read when it starts.",
    )


class Refusal(StatementId):
    """Faults of a compilation that are neither a violation nor a finding."""

    NOT_AUDITED = "not-audited", "The program was not audited: {why}"


ALWAYS_PROVED = (Claim.NON_INTERFERENCE, Claim.FRAME, Claim.LINEAR_USE, Claim.COUPLING, Claim.BOUNDS, Claim.CONSTANTS)
"""Claims of every proof; others depend on the contract."""
NEVER_COVERED = NotCovered.MACHINE_CODE, NotCovered.BITWISE_EQUALITY, NotCovered.CALLER, NotCovered.NAN_BITS
