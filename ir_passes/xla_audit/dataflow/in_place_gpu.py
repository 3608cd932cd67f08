"""Fusions that may work in place on XLA:GPU only: reductions and sorts.

Reductions with other results (openxla/xla, xla/backends/gpu/codegen/emitters/reduction.cc, EmitPerThreadElements;
xla/service/gpu/buffer_sharing.cc, FusionCanShareBufferHint): one thread visits each reduced element once, and writes
the fusion's other results there last. Such a result may share a reduced operand's bytes if the operand is read only at
the visited position. Both are computed by the same blocks (GroupDisjointReductions).

Sorts (xla/backends/gpu/codegen/sort.cc, SortFusion::Emit). operands are copied to results with other bytes, which are
then sorted in place.
"""

from ir_passes.xla_audit.program import Computation, Index, Instruction

OTHER_EMITTER = b"fusion_backend_config"
"""Backend configuration key of custom fusions, computed by another emitter such as Triton."""


def reductions_beside(fusion: Instruction, fused: Computation, index: Index) -> frozenset[int]:
    """Return the fusion's other results that reduce as many elements."""
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
    """Whether a fusion sorts this operand into result `index`."""
    if fusion.fusion_kind != "kCustom" or OTHER_EMITTER in fusion.backend_config:
        return False
    sort = fused.result
    places = (0,) if index == () else index
    if sort.opcode != "sort" or len(places) != 1 or (index == ()) != (len(sort.operands) == 1):
        return False
    sorted_operand = fused.operands(sort)[places[0]]
    return sorted_operand.opcode == "parameter" and sorted_operand.parameter == operand


def _only_returned(instruction: Instruction, fused: Computation) -> bool:
    """Whether a fusion only returns an instruction."""
    users = fused.users.get(instruction.id, [])
    return all(user.id == fused.root or (user.opcode == "bitcast" and _only_returned(user, fused)) for user in users)
