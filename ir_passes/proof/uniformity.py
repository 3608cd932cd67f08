"""Arrays that are the same along an axis, which reveal no order of rows.

Rows in an order that depends on all lanes belong each to one lane, but where a row lies does not. A shared array that
differs along that axis reveals where the rows lie: a result of it, put back in order, depends on every lane.
"""

import math

from ir_passes.jaxpr import primitives
from ir_passes.proof.owners import Common, LaneRows, Owner
from ir_passes.proof.values import Value
from ir_passes.proof.walk import Equation

Shape = tuple[int, ...]
_ALIGNED_BY_RULE = {
    "dot_general", "ragged_dot_general", "conv_general_dilated", "gather", "dynamic_slice", "sort", "scan", "while",
    "cond", "shard_map", *primitives.OPAQUE, *primitives.CALLS,
}  # fmt: skip
"""Operations whose rules look at this themselves; in all others operands of equal rank run together."""
REMEDY = "use what does not differ between rows, or undo the order first"


def uniform_axes(site: Equation, operands: list[Value]) -> frozenset[int]:
    """Axes along which the first result of an operation on shared arrays is known to be the same.

    Nothing is known of operations that are not named here: a running sum of ones counts, and random bits of one key
    differ from place to place.
    """
    shape, name, params = site.shape, site.name, site.params
    if name == "iota":
        return frozenset(axis for axis in range(len(shape)) if axis != params["dimension"])
    if name == "broadcast_in_dim":
        dims = {int(to): axis for axis, to in enumerate(params["broadcast_dimensions"])}
        before = site.shapes[0]
        return frozenset(
            axis for axis in range(len(shape)) if axis not in dims or _same(operands[0], before, dims[axis])
        )
    if name == "transpose":
        return frozenset(new for new, old in enumerate(params["permutation"]) if old in operands[0].uniform)
    if name == "reshape":
        return frozenset(range(len(shape))) if constant(operands[0], site.shapes[0]) else frozenset()
    if name not in primitives.ELEMENTWISE:
        return frozenset()
    return frozenset(
        axis
        for axis in range(len(shape))
        if all(not part or _same(value, part, axis) for value, part in zip(operands, site.shapes, strict=True))
    )


def _same(value: Value, shape: Shape, axis: int) -> bool:
    return shape[axis] == 1 or axis in value.uniform


def constant(value: Value, shape: Shape) -> bool:
    """Whether all elements of a shared array are known to be equal."""
    return math.prod(shape) <= 1 or all(_same(value, shape, axis) for axis in range(len(shape)))


def reveals_places(value: Value, shape: Shape, axis: int) -> bool:
    """Whether a shared array may differ along an axis."""
    return isinstance(value.owner, Common) and bool(shape) and not _same(value, shape, axis)


def disordered(owner: Owner) -> bool:
    """Whether rows lie in an order that may depend on all lanes."""
    return isinstance(owner, LaneRows) and owner.order is not None


def reveals_order(site: Equation, owner: Owner, operands: list[Value]) -> bool:
    """Whether a shared operand reveals where rows of the result lie in their order."""
    if not isinstance(owner, LaneRows) or owner.order is None or site.name in _ALIGNED_BY_RULE:
        return False
    for value, shape in zip(operands, site.shapes, strict=True):
        if not isinstance(value.owner, Common) or constant(value, shape):
            continue
        if len(shape) != len(site.shape) or not _same(value, shape, owner.axis):
            return True
    return False
