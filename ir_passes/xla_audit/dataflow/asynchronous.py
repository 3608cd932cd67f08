"""Results of asynchronous operations: the values that a start and a done operation forward.

As in openxla/xla, xla/hlo/analysis/hlo_dataflow_analysis.cc: a start operation returns its operands together with new
values, and the done operation returns the new values. All of them are live in between.
"""

from collections.abc import Sequence

from ir_passes.xla_audit.program import Index

Leaves = dict[Index, int]
"""Values of a result by index."""
COPYING, STARTED, GATHERING, REDUCING = "copy-start", "async-start", "all-gather-start", "all-reduce-start"
CONTINUED, DONE, REDUCED = "async-update", "async-done", "all-reduce-done"
ENTRY = {"copy-done": 0, DONE: 1, "all-gather-done": 1}
"""Done opcode -> the entry of the start operation's result that it returns; other opcodes return all entries."""
KNOWN = frozenset({COPYING, STARTED, CONTINUED, "copy-done", DONE})
"""Opcodes with known operands and live ranges."""
TALKING = ("send", "recv")


def handed_on(opcode: str, operands: Sequence[Leaves]) -> Leaves:
    """Return the result entries that are operands, live until the operation is done.

    Most operations have no such entries.
    """
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
    """Return the result of a done or update operation; None for any other operation."""
    if opcode in (CONTINUED, REDUCED):
        return operands[0]
    if opcode not in ENTRY:
        return None
    return {index[1:]: value for index, value in operands[0].items() if index[:1] == (ENTRY[opcode],)}
