"""Live ranges in branches of conditionals, and `ConcatBitcast` calls, on XLA:TPU.

One branch runs, so XLA:TPU overwrites in one branch a value of another. It copies arrays to the chip in slices and
joins them by `ConcatBitcast` without moves: correct if each slice is at its position in the result, in any order of
operands.
"""

from collections.abc import Callable, Mapping, Sequence

from ir_passes.xla_audit.dataflow.asynchronous import DONE
from ir_passes.xla_audit.program import Instruction, Module, Slice

ConditionalBranch = tuple[int, int, Mapping[int, int]]
"""First and last tick of a branch, and each value read in it -> last tick."""
Branches = tuple[int, list[ConditionalBranch]]
"""Tick before a conditional's first branch, and its branches in clock order."""


def gaps_of(
    conditionals: Sequence[Branches], find: Callable[[int], int], start: Sequence[int], stop: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """Return for each value the ticks of branches that no longer need it.

    `find` gives the representative, `start` and `stop` ticks of definition and last reader.
    """
    gaps: dict[int, list[tuple[int, int]]] = {}
    for enter, branches in conditionals:
        end = branches[-1][1]
        last: list[dict[int, int]] = []
        for _, _, readers in branches:
            last.append({})
            for value, tick in readers.items():
                last[-1][find(value)] = max(last[-1].get(find(value), 0), tick)
        for value in {value for read in last for value in read}:
            if start[value] > enter or stop[value] > end:
                continue
            for (first, end_of_branch, _), read in zip(branches, last, strict=True):
                dead = read.get(value, first - 1) + 1
                if dead <= end_of_branch < stop[value]:
                    gaps.setdefault(value, []).append((dead, end_of_branch))
    return gaps


JOINING = "ConcatBitcast"


def fill(module: Module, call: Instruction, result: Slice | None, parts: Sequence[Slice | None]) -> bool:
    """True if the operands of a call already form its result in memory."""
    starts = [_cut_at(module, module.instructions[operand]) for operand in call.operands]
    if len({None if start is None else start[0] for start in starts}) != 1:
        return False  # slices of several arrays
    # An operand that is no slice is a part of a concatenation, in operand order.
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
    """Return array and starts of an asynchronous slice, or None."""
    if instruction.opcode != DONE:
        return None
    started = module.instructions[instruction.operands[0]]
    root = module.computations[started.called[0]].result
    if root.opcode != "slice":
        return None
    return started.operands[0], tuple(start for start, _, _ in root.slices)
