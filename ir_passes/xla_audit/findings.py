"""What an audit can find wrong with a compiled step."""

from dataclasses import dataclass
from enum import StrEnum

from ir_passes.xla_audit.program import Instruction, Module


class FindingKind(StrEnum):
    """The fault of a compiled step."""

    NOT_IN_PLACE = "pool not in place"
    WRONG_SUCCESSOR = "pool donated to another output"
    OVERWRITTEN = "input overwritten"
    POOL_COPY = "pool-sized copy"
    SECOND_POOL = "second pool"
    OVERLAP = "live values overlap"
    MISPLACED = "value not where it has to be"
    READ_AFTER_WRITE = "in-place operation reads what it has overwritten"
    COLLECTIVE = "undeclared collective"
    SCRATCH = "scratch far above the lower bound"


@dataclass(frozen=True)
class Finding:
    """One fault.

    Attributes:
        where: the HLO instruction, JAX's name of the operation, the source line.
        message: what is wrong, expected and got.
        remedy: what to do.
        pools: paths of the pools that it is about.
    """

    kind: FindingKind
    where: str
    message: str
    remedy: str
    pools: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}\n  at {self.where}\n  {self.remedy}"


class AuditError(RuntimeError):
    """XLA's program does not do what the step's contract says; carries every finding.

    Attributes:
        findings: all of them.
    """

    def __init__(self, findings: tuple[Finding, ...]):
        self.findings = findings
        faults = "\n".join(map(str, findings))
        super().__init__(f"the compiled step failed its audit with {len(findings)} finding(s):\n{faults}")


def origin(one: Instruction, module: Module) -> tuple[str, str]:
    """JAX's name of the operation and the source line of an instruction.

    XLA's own instructions, its copies above all, have none: then those of the nearest reader that has, or else of the
    nearest operand.
    """
    for nearest in (_readers, _operands):
        seen: set[int] = set()
        level = [one]
        while level:
            for candidate in level:
                if candidate.source:
                    return candidate.op_name, candidate.source
            seen.update(candidate.id for candidate in level)
            level = [after for candidate in level for after in nearest(candidate, module) if after.id not in seen]
    return one.op_name, ""


def where(one: Instruction, module: Module) -> str:
    """An instruction for a message."""
    op_name, source = origin(one, module)
    inherited = "" if one.source or not source else "for "
    parts = (f"%{one.name} ({one.opcode} {one.array})", inherited + op_name if op_name else "", source)
    return ", ".join(part for part in parts if part)


def _readers(one: Instruction, module: Module) -> list[Instruction]:
    return module.computations[one.computation].users.get(one.id, [])


def _operands(one: Instruction, module: Module) -> list[Instruction]:
    return [each for each in module.computations[one.computation].instructions if each.id in one.operands]
