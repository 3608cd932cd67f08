"""Fusions of XLA:TPU that may work in place though those of XLA:CPU may not: reductions beside other results.

XLA:TPU is not open, but its programs say of each operation which results it writes over which operands
(`aliasing_operands` in the backend configuration: operands are counted first, then results). Where a pair is there, a
reduction that the same fusion returns may read the operand at the position that is written, as on a GPU: a window is
read, computed with, and written. Any other reading of such an operand stays a finding.
"""

from typing import Any, cast

from ir_passes.files.strict_json import parse_json
from ir_passes.xla_audit.dataflow.in_place_gpu import reductions_beside
from ir_passes.xla_audit.program import Computation, Index, Instruction


def computed_together(fusion: Instruction, fused: Computation, operand: int, index: Index) -> frozenset[int]:
    """Ids of the reductions that read each position of an operand before the result `index` is written there."""
    result = len(fusion.operands) + (index[0] if index else 0)
    if not any({operand, result} <= pair for pair in _aliased(fusion.backend_config)):
        return frozenset()
    return reductions_beside(fusion, fused, index)


def _aliased(config: bytes) -> list[set[int]]:
    """Numbers of operands and results that share bytes, as a backend configuration says; none where it says nothing."""
    try:
        read: Any = parse_json(config)
        lists = read["aliasing_operands"]["lists"]
        return [set(map(int, cast(list[str], one["indices"]))) for one in lists]
    except (ValueError, KeyError, TypeError):
        return []
