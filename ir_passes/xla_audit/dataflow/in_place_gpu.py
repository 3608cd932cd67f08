"""Fusions of XLA:GPU that may work in place though those of XLA:CPU may not: reductions with other results, and sorts.

Reductions (openxla/xla, xla/backends/gpu/codegen/emitters/reduction.cc, EmitPerThreadElements; that XLA relies on it:
xla/service/gpu/buffer_sharing.cc, FusionCanShareBufferHint). Each element that is reduced is visited once, by one
thread. There the thread computes what is reduced, then the other results of the fusion at that position, and writes
them last. So such a result may lie in the bytes of an operand that is reduced, if the operand is read at the visited
position alone. Reductions that share an operand with a result are computed by the same blocks as the result
(GroupDisjointReductions).

Sorts (xla/backends/gpu/codegen/sort.cc, SortFusion::Emit). Operands of the fusion are copied to the results that are
not in their bytes already, one after the other, and then the results are sorted where they are.
"""

from ir_passes.xla_audit.program import Computation, Index, Instruction

OTHER_EMITTER = b"fusion_backend_config"
"""A key in the backend configuration of custom fusions, which Triton or another emitter computes."""


def computed_first(fusion: Instruction, fused: Computation, index: Index) -> frozenset[int]:
    """Ids of the reductions that read each position before the fusion writes the result `index` there."""
    return reductions_beside(fusion, fused, index) if fusion.fusion_kind == "kInput" else frozenset()


def reductions_beside(fusion: Instruction, fused: Computation, index: Index) -> frozenset[int]:
    """Ids of the reductions that a fusion returns beside the result `index`, over as many elements as that has."""
    outputs = [fused.unviewed(one) for one in fused.results]
    if len(outputs) < 2 or len(index) != 1:
        return frozenset()
    reductions = [one for one in outputs if one.opcode == "reduce"]
    count = fusion.arrays[index].count
    data = [part.array for one in reductions for part in fused.operands(one)[: len(one.operands) // 2]]
    # All of them are visited in the order of the elements in memory, so that as many elements are the same positions.
    if outputs[index[0]].opcode == "reduce" or count < 2 or any(array.count != count for array in data):
        return frozenset()
    # Another result that reads the reduction computes it anew for each of its own elements.
    if not all(_only_returned(one, fused) for one in reductions):
        return frozenset()
    return frozenset(one.id for one in reductions)


def sorted_in_place(fusion: Instruction, fused: Computation, operand: int, index: Index) -> bool:
    """Whether a fusion is a sort whose result `index` is what it sorts of this operand."""
    if fusion.fusion_kind != "kCustom" or OTHER_EMITTER in fusion.backend_config:
        return False
    sort = fused.result
    places = (0,) if index == () else index
    if sort.opcode != "sort" or len(places) != 1 or (index == ()) != (len(sort.operands) == 1):
        return False
    given = fused.operands(sort)[places[0]]
    return given.opcode == "parameter" and given.parameter == operand


def _only_returned(one: Instruction, fused: Computation) -> bool:
    """Whether nothing in a fusion is computed from an instruction."""
    users = fused.users.get(one.id, [])
    return all(user.id == fused.root or (user.opcode == "bitcast" and _only_returned(user, fused)) for user in users)
