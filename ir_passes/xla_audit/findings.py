"""Faults of a compiled step, and errors of unreadable executables."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ir_passes.contract.statements import MeasuredFault, Statement, StatementId
from ir_passes.xla_audit.program import Instruction, Module


class FindingKind(StatementId):
    """Faults of a compiled step."""

    NOT_IN_PLACE = "not-in-place", "The successor of a pool is not written into that pool's buffer."
    WRONG_SUCCESSOR = "wrong-successor", "The buffer of a pool is donated to another output than its successor."
    OVERWRITTEN = "input-overwritten", "An input that has no successor is overwritten."
    POOL_COPY = "pool-copy", "A whole pool, or all its rows but one, is copied or converted."
    SECOND_POOL = "second-pool", "A whole pool, or all its rows but one, is computed outside its buffer."
    OVERLAP = "overlap", "Values that are live at the same time share bytes."
    UNPLACED = "unplaced", "A value has no place in the buffer assignment."
    MISPLACED = "misplaced", "A value does not lie within its allocation."
    CARRY_MOVED = "carry-moved", "A value that a loop carries lies elsewhere after an iteration."
    READ_AFTER_WRITE = "read-after-write", "An in-place operation reads bytes that it has overwritten."
    COLLECTIVE = "collective", "A collective of the compiled program is none of the traced program's."
    MISSING_COLLECTIVE = "missing-collective", "A collective of the traced program is not in the compiled program."
    SCRATCH = "scratch", "The scratch memory is far above the bytes that are live at once."


@dataclass(frozen=True)
class Finding:
    """A fault of a compiled step.

    Attributes:
        where: HLO instruction, JAX's operation name, source line.
        pools: paths.
    """

    kind: FindingKind | MeasuredFault
    where: str
    message: str
    remedy: str
    pools: tuple[str, ...] = ()

    @property
    def statement(self) -> Statement:
        """The finding as a fault of a certificate."""
        text = f"{self.kind.sentence}\n  {self.message}\n  at {self.where}\n  {self.remedy}"
        return Statement(self.kind.value, ", ".join(self.pools), text)

    def __str__(self) -> str:
        return f"{self.kind}: {self.statement.sentence}"


class AuditError(RuntimeError):
    """XLA's program violates its contract; carries all findings."""

    def __init__(self, findings: tuple[Finding, ...]):
        self.findings = findings
        faults = "\n".join(map(str, findings))
        super().__init__(f"the compiled step failed its audit with {len(findings)} finding(s):\n{faults}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.findings,)


def origin(instruction: Instruction, module: Module) -> tuple[str, str]:
    """Return JAX's operation name and source line, perhaps of the nearest reader or operand.

    XLA's copies have neither.
    """
    for nearest in (_readers, _operands):
        visited: set[int] = set()
        level = [instruction]
        while level:
            for candidate in level:
                if candidate.source:
                    return candidate.op_name, candidate.source
            visited.update(candidate.id for candidate in level)
            level = [
                neighbour
                for candidate in level
                for neighbour in nearest(candidate, module)
                if neighbour.id not in visited
            ]
    return instruction.op_name, ""


def where(instruction: Instruction, module: Module) -> str:
    op_name, source = origin(instruction, module)
    inherited = "" if instruction.source or not source else "for "
    parts = (
        f"%{instruction.name} ({instruction.opcode} {instruction.array})",
        inherited + op_name if op_name else "",
        source,
    )
    return ", ".join(part for part in parts if part)


def _readers(instruction: Instruction, module: Module) -> list[Instruction]:
    return module.computations[instruction.computation].users.get(instruction.id, [])


def _operands(instruction: Instruction, module: Module) -> list[Instruction]:
    return [
        operand
        for operand in module.computations[instruction.computation].instructions
        if operand.id in instruction.operands
    ]


class HloError(ValueError):
    """An executable does not expose a part, or the part is damaged."""


# fmt: off
UNEXPECTED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError
)
# fmt: on
"""Errors of inconsistent references, shapes or numbers."""


@contextmanager
def hlo_errors(part: str) -> Iterator[None]:
    try:
        yield
    except HloError:
        raise
    except UNEXPECTED as error:
        raise HloError(
            f"{part} cannot be read; is it damaged, or did its field numbers change? {type(error).__name__}: {error}"
        ) from error
