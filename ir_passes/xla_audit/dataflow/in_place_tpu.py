"""Fusions that may work in place on XLA:TPU though not on XLA:CPU: reductions.

XLA:TPU is not open source, but its programs record which results each operation writes over which operands
(`aliasing_operands` in the backend configuration; operands are numbered first, then results). If such a pair exists, a
reduction that the same fusion returns may read the operand at the written position, as on a GPU: a window is read,
computed with, and written. Every other read of such an operand stays a finding.
"""

from typing import Any, cast

from ir_passes.files.strict_json import parse_json
from ir_passes.xla_audit.dataflow.in_place_gpu import reductions_beside
from ir_passes.xla_audit.program import Computation, Index, Instruction


def computed_together(fusion: Instruction, fused: Computation, operand: int, index: Index) -> frozenset[int]:
    """Return ids of reductions that read an operand's position before result `index` is written there."""
    result = len(fusion.operands) + (index[0] if index else 0)
    if not any({operand, result} <= pair for pair in _aliased(fusion.backend_config)):
        return frozenset()
    return reductions_beside(fusion, fused, index)


def _aliased(config: bytes) -> list[set[int]]:
    """Return the sets of operands and results that share bytes in a backend configuration.

    A configuration without such sets gives an empty list.
    """
    try:
        read: Any = parse_json(config)
        lists = read["aliasing_operands"]["lists"]
        return [set(map(int, cast(list[str], entry["indices"]))) for entry in lists]
    except (ValueError, KeyError, TypeError):
        return []
