"""Fusions that may work in place on XLA:GPU though not on XLA:CPU: reductions and sorts.

Reductions with other results (openxla/xla, xla/backends/gpu/codegen/emitters/reduction.cc, EmitPerThreadElements; XLA
relies on it in xla/service/gpu/buffer_sharing.cc, FusionCanShareBufferHint). One thread visits each reduced element
once. The thread computes the reduced element, then the other results of the fusion at that position, and writes them
last. So such a result may share the bytes of a reduced operand if the operand is read only at the visited position.
Reductions that share an operand with a result are computed by the same blocks as the result (GroupDisjointReductions).

Sorts (xla/backends/gpu/codegen/sort.cc, SortFusion::Emit). Operands of the fusion are copied, one after the other, to
the results that are not in their bytes already; then the results are sorted in place.
"""

from ir_passes.xla_audit.program import Computation, Index, Instruction

OTHER_EMITTER = b"fusion_backend_config"
"""A key in the backend configuration of custom fusions, which Triton or another emitter computes."""


def reductions_beside(fusion: Instruction, fused: Computation, index: Index) -> frozenset[int]:
    """Return ids of a fusion's other results that reduce as many elements."""
    outputs = [fused.unviewed(output) for output in fused.results]
    if len(outputs) < 2 or len(index) != 1:
        return frozenset()
    reductions = [reduction for reduction in outputs if reduction.opcode == "reduce"]
    count = fusion.arrays[index].count
    data = [
        part.array for reduction in reductions for part in fused.operands(reduction)[: len(reduction.operands) // 2]
    ]
    # All of them are visited in the order of the elements in memory, so that as many elements are the same positions.
    if outputs[index[0]].opcode == "reduce" or count < 2 or any(array.count != count for array in data):
        return frozenset()
    # Another result that reads the reduction recomputes it for each element.
    if not all(_only_returned(reduction, fused) for reduction in reductions):
        return frozenset()
    return frozenset(reduction.id for reduction in reductions)


def sorted_in_place(fusion: Instruction, fused: Computation, operand: int, index: Index) -> bool:
    """True if a fusion is a sort and sorts this operand into the result `index`."""
    if fusion.fusion_kind != "kCustom" or OTHER_EMITTER in fusion.backend_config:
        return False
    sort = fused.result
    places = (0,) if index == () else index
    if sort.opcode != "sort" or len(places) != 1 or (index == ()) != (len(sort.operands) == 1):
        return False
    sorted_operand = fused.operands(sort)[places[0]]
    return sorted_operand.opcode == "parameter" and sorted_operand.parameter == operand


def _only_returned(instruction: Instruction, fused: Computation) -> bool:
    """True if a fusion only returns an instruction and computes nothing from it."""
    users = fused.users.get(instruction.id, [])
    return all(user.id == fused.root or (user.opcode == "bitcast" and _only_returned(user, fused)) for user in users)
