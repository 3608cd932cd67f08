"""Arrays that XLA:TPU copies to the chip in slices and uses as one.

The call that does so (`ConcatBitcast`) moves nothing. It is correct if the slices fill the bytes of the result, each
at the position it had in the array; its operands may be in any order.
"""

from collections.abc import Sequence

from ir_passes.xla_audit.dataflow.asynchronous import DONE
from ir_passes.xla_audit.program import Instruction, Module, Slice

JOINING = "ConcatBitcast"
"""Target of the calls."""


def fill(module: Module, call: Instruction, result: Slice | None, parts: Sequence[Slice | None]) -> bool:
    """True if the operands of a call already form its result in memory.

    Args:
        module: the program.
        call: the call.
        result, parts: bytes of the result and of each operand.
    """
    starts = [_cut_at(module, module.instructions[operand]) for operand in call.operands]
    if len({None if start is None else start[0] for start in starts}) != 1:
        return False  # of several arrays
    # An operand that is no slice is a part of a concatenation, in the order of the operands.
    order = [start[1] if start is not None else (number,) for number, start in enumerate(starts)]
    placed = [(place, part) for place, part in zip(order, parts, strict=True) if part is not None]
    if result is None or len(placed) < len(parts):
        return False
    offset = result.offset
    for _, part in sorted(placed, key=lambda pair: pair[0]):
        if (part.allocation, part.offset) != (result.allocation, offset):
            return False
        offset += part.size
    return offset == result.offset + result.size


def _cut_at(module: Module, instruction: Instruction) -> tuple[int, tuple[int, ...]] | None:
    """Return the array and the starts of an asynchronous slice; None for other instructions."""
    if instruction.opcode != DONE:
        return None
    started = module.instructions[instruction.operands[0]]
    root = module.computations[started.called[0]].result
    if root.opcode != "slice":
        return None
    return started.operands[0], tuple(start for start, _, _ in root.slices)
