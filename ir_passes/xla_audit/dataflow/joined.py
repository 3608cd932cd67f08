"""Arrays that XLA:TPU brings to the chip slice by slice, side by side, and then takes for the whole array.

The call that does so (`ConcatBitcast`) moves nothing. It is right if the slices fill the bytes of the result, each
at the place that it was cut from; its operands may be in any order.
"""

from collections.abc import Sequence

from ir_passes.xla_audit.dataflow.asynchronous import DONE
from ir_passes.xla_audit.program import Instruction, Module, Slice

JOINING = "ConcatBitcast"
"""Target of the calls."""


def fill(module: Module, one: Instruction, whole: Slice | None, parts: Sequence[Slice | None]) -> bool:
    """Whether the operands of a call are its result where they lie.

    Args:
        module: the program.
        one: the call.
        whole, parts: bytes of the result and of each operand.
    """
    starts = [_cut_at(module, module.instructions[operand]) for operand in one.operands]
    if len({None if start is None else start[0] for start in starts}) != 1:
        return False  # of several arrays
    # What is no slice is one part of a concatenation, in the order of the operands.
    order = [start[1] if start is not None else (number,) for number, start in enumerate(starts)]
    found = [(place, part) for place, part in zip(order, parts, strict=True) if part is not None]
    if whole is None or len(found) < len(parts):
        return False
    at = whole.offset
    for _, part in sorted(found, key=lambda pair: pair[0]):
        if (part.allocation, part.offset) != (whole.allocation, at):
            return False
        at += part.size
    return at == whole.offset + whole.size


def _cut_at(module: Module, one: Instruction) -> tuple[int, tuple[int, ...]] | None:
    """The array that a slice beside other operations was cut from, and where; None of anything else."""
    if one.opcode != DONE:
        return None
    started = module.instructions[one.operands[0]]
    root = module.computations[started.called[0]].result
    if root.opcode != "slice":
        return None
    return started.operands[0], tuple(start for start, _, _ in root.slices)
