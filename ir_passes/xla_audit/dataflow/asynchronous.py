"""Results of operations that run beside others: the values that one hands on when it starts and when it is done.

As in openxla/xla, xla/hlo/analysis/hlo_dataflow_analysis.cc: an operation that starts returns its operands beside new
values, and the one that is done returns the new values. All of them are in use in between.
"""

from collections.abc import Sequence

from ir_passes.xla_audit.program import Index

Leaves = dict[Index, int]
"""Values of a result by index."""
COPYING, STARTED, GATHERING, REDUCING = "copy-start", "async-start", "all-gather-start", "all-reduce-start"
CONTINUED, DONE, REDUCED = "async-update", "async-done", "all-reduce-done"
ENTRY = {"copy-done": 0, DONE: 1, "all-gather-done": 1}
"""The entry of what was started that an operation returns when it is done; others return all of it."""
KNOWN = frozenset({COPYING, STARTED, CONTINUED, "copy-done", DONE})
"""Opcodes of which the dataflow knows what they use, and how long."""
TALKING = ("send", "recv")


def handed_on(opcode: str, operands: Sequence[Leaves]) -> Leaves:
    """Return the entries of a result that are operands themselves, in use until the operation is done; none of most."""
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
    """Return the result of an operation that ends another, or goes on with it; None of any other operation."""
    if opcode in (CONTINUED, REDUCED):
        return operands[0]
    if opcode not in ENTRY:
        return None
    return {index[1:]: value for index, value in operands[0].items() if index[:1] == (ENTRY[opcode],)}
