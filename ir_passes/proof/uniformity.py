"""Axes of shared arrays with equal elements: they reveal no order of rows.

Rows sorted by data of all lanes still belong to one lane each, but their positions do not. A shared array that varies
along their axis reveals the positions: combined with the rows, and put back in order, it makes the result depend on
every lane.
"""

import math
from collections.abc import Sequence

from ir_passes.jaxpr import ir, primitives
from ir_passes.proof.owners import Common, LaneRows, Owner
from ir_passes.proof.values import Value

Shape = tuple[int, ...]
_ALIGNED_BY_RULE = {
    "dot_general", "ragged_dot_general", "conv_general_dilated", "gather", "dynamic_slice", "sort", "scan", "while",
    "cond", "shard_map", *primitives.OPAQUE, *primitives.CALLS,
}  # fmt: skip
"""Operations with this check in their rules; others align axes of operands with equal rank."""


def uniform_axes(eqn: ir.JaxprEqn, operands: Sequence[Value], shapes: Sequence[Shape]) -> frozenset[int]:
    """Return axes of the first result with equal elements, for shared operands.

    Other operations have no such axis: a running sum of ones counts, random bits of one key differ.
    """
    name, params, shape = eqn.primitive.name, eqn.params, ir.shape_of(eqn.outvars[0])
    axes = range(len(shape))
    if name == "broadcast_in_dim":
        dims = {int(new): old for old, new in enumerate(params["broadcast_dimensions"])}
        return frozenset(axis for axis in axes if axis not in dims or _same(operands[0], shapes[0], dims[axis]))
    if name not in primitives.ELEMENTWISE:
        return frozenset()
    sides = [(value, part) for value, part in zip(operands, shapes, strict=True) if part]
    return frozenset(axis for axis in axes if all(_same(value, part, axis) for value, part in sides))


def _same(value: Value, shape: Shape, axis: int) -> bool:
    return shape[axis] == 1 or axis in value.uniform


def constant(value: Value, shape: Shape) -> bool:
    return math.prod(shape) <= 1 or all(_same(value, shape, axis) for axis in range(len(shape)))


def reveals_places(value: Value, shape: Shape, axis: int) -> bool:
    """Whether a shared array may vary along an axis."""
    return isinstance(value.owner, Common) and bool(shape) and not _same(value, shape, axis)


def disordered(owner: Owner) -> bool:
    """Whether the order of the rows may depend on all lanes."""
    return isinstance(owner, LaneRows) and owner.order is not None


def reveals_order(eqn: ir.JaxprEqn, owner: Owner, operands: Sequence[Value], shapes: Sequence[Shape]) -> bool:
    """Whether a shared operand reveals the order of the result's rows."""
    if not isinstance(owner, LaneRows) or owner.order is None or eqn.primitive.name in _ALIGNED_BY_RULE:
        return False
    rank = len(ir.shape_of(eqn.outvars[0]))
    return any(
        isinstance(value.owner, Common)
        and not constant(value, shape)
        and (len(shape) != rank or not _same(value, shape, owner.axis))
        for value, shape in zip(operands, shapes, strict=True)
    )
