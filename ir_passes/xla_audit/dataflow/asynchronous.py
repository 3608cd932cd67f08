"""Values that asynchronous operations forward.

A start returns operands and new values, live until its done, which returns the new values (openxla/xla,
xla/hlo/analysis/hlo_dataflow_analysis.cc).
"""

from collections.abc import Sequence

from ir_passes.xla_audit.program import Index

Leaves = dict[Index, int]
COPYING, STARTED, GATHERING, REDUCING = "copy-start", "async-start", "all-gather-start", "all-reduce-start"
CONTINUED, DONE, REDUCED = "async-update", "async-done", "all-reduce-done"
ENTRY = {"copy-done": 0, DONE: 1, "all-gather-done": 1}
"""Done opcode -> entry of the start's result that it returns; other opcodes return all."""
KNOWN = frozenset({COPYING, STARTED, CONTINUED, "copy-done", DONE})
"""Asynchronous opcodes with known operands and live ranges."""
TALKING = ("send", "recv")


def handed_on(opcode: str, operands: Sequence[Leaves]) -> Leaves:
    """Return the entries of a start's result that are operands."""
    if opcode == COPYING:
        places = [(1,)]
    elif opcode == GATHERING and len(operands) == 1:
        places = [(0,)]
    elif opcode in (GATHERING, STARTED):
        places = [(0, i) for i in range(len(operands))]
    else:
        return {}
    pairs = zip(places, operands, strict=True)
    return {(*place, *index): value for place, operand in pairs for index, value in operand.items()}


def finished(opcode: str, operands: Sequence[Leaves]) -> Leaves | None:
    """Return the result of a done or update; None for other opcodes."""
    if opcode in (CONTINUED, REDUCED):
        return operands[0]
    if opcode not in ENTRY:
        return None
    return {index[1:]: value for index, value in operands[0].items() if index[:1] == (ENTRY[opcode],)}
