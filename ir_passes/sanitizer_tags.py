"""Tags: what the sanitizer knows, while a step runs, about whose rows a value holds and for which lane.

A tag is six int32: lane, slot, owner, position, layout, epoch. The tags of a value have its rank and one axis more for
the six; along every axis they are as long as the value, or 1 where they are the same all along it. So tags of rows cost
one entry for each row, and follow the value through reshapes, slices and joins by the same operation.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ir_passes.ir import JaxprEqn, shape_of
from ir_passes.row_ledger import Owner

LANE, SLOT, LABEL = 0, 1, 2
COLUMNS = 6
UNKNOWN = -1
"""A lane or slot that is not known."""
_MANY = np.int32(2**31 - 1)


@dataclass(frozen=True)
class Tags:
    """The tags of one value.

    Attributes:
        array: int32 [..., 6], see the module.
        pools: the input pools whose rows it may hold, moved but not yet computed with; empty for everything else.
        whole: it is a version of a pool, with all its rows, rather than rows that lanes have read.
    """

    array: Array
    pools: tuple[int, ...] = ()
    whole: bool = False

    @property
    def lanes(self) -> Array:
        """Lane of each entry, UNKNOWN where there is none; without the last axis."""
        return self.array[..., LANE]

    @property
    def labels(self) -> Array:
        """Owner, position, layout and epoch of each entry, [..., 4]."""
        return self.array[..., LABEL:]

    @property
    def pending(self) -> bool:
        """Whether it may hold rows of a pool whose labels nobody has looked at yet."""
        return bool(self.pools) and not self.whole

    def replace(self, array: Array) -> "Tags":
        """The same kind of value with other tags."""
        return Tags(array, self.pools, self.whole)


def along(size: int, axis: int, rank: int) -> Array:
    """0 .. size-1 along one axis, without the axis of columns."""
    return lax.broadcasted_iota(jnp.int32, tuple(size if i == axis else 1 for i in range(rank)), axis)


def assemble(lanes: Array, slots: Array, labels: Array) -> Array:
    """Tags from their columns; shapes are broadcast."""
    shape = np.broadcast_shapes(lanes.shape, slots.shape, labels.shape[:-1])
    columns = [jnp.broadcast_to(lanes, shape)[..., None], jnp.broadcast_to(slots, shape)[..., None]]
    return jnp.concatenate([*columns, jnp.broadcast_to(labels, (*shape, 4))], axis=-1)


def constant_labels(owner: Owner, rank: int) -> Array:
    """One label for a whole value."""
    return jnp.array([owner, 0, 0, 0], jnp.int32).reshape((1,) * rank + (4,))


def constant(owner: Owner, rank: int) -> Array:
    """Tags of a value that belongs to no lane."""
    nothing = jnp.full((1,) * rank, UNKNOWN, jnp.int32)
    return assemble(nothing, nothing, constant_labels(owner, rank))


def computed(lanes: Array) -> Tags:
    """Tags of something computed for these lanes."""
    return Tags(assemble(lanes, jnp.full_like(lanes, UNKNOWN), constant_labels(Owner.COMPUTED, lanes.ndim)))


def common(lanes: Iterable[Array]) -> Array:
    """The lane on which all agree that know one, UNKNOWN where two differ; shapes are broadcast."""
    high = low = None
    for array in lanes:
        known = jnp.where(array == UNKNOWN, _MANY, array)
        high = array if high is None else jnp.maximum(high, array)
        low = known if low is None else jnp.minimum(low, known)
    assert high is not None and low is not None
    return jnp.where(high == low, high, UNKNOWN)


def common_along(lanes: Array, axes: Sequence[int]) -> Array:
    """The same over axes of one array, which are kept with length 1."""
    high = jnp.max(lanes, axis=tuple(axes), keepdims=True)
    low = jnp.min(jnp.where(lanes == UNKNOWN, _MANY, lanes), axis=tuple(axes), keepdims=True)
    return jnp.where(high == low, high, UNKNOWN)


def ranked(array: Array, rank: int) -> Array:
    """Tags of a scalar as tags of a value of this rank."""
    return array if array.ndim == rank + 1 else array.reshape((1,) * rank + (COLUMNS,))


def keeps_row_layout(eqn: JaxprEqn, tags: Tags) -> bool:
    """Whether a move leaves the order of a row's own axes alone; another order is another layout."""
    if eqn.primitive.name != "transpose" or tags.whole:
        return True
    shape = shape_of(eqn.invars[0])
    inner = [axis for axis in eqn.params["permutation"] if tags.array.shape[axis] == 1 < shape[axis]]
    return inner == sorted(inner)


def move(eqn: JaxprEqn, array: Array) -> list[Array]:
    """Tags of the results of an equation that only moves its first operand."""
    rule = _MOVES.get(eqn.primitive.name)
    return [array] if rule is None else rule(eqn, array)


def _transpose(eqn: JaxprEqn, array: Array) -> list[Array]:
    return [lax.transpose(array, (*eqn.params["permutation"], array.ndim - 1))]


def _broadcast_in_dim(eqn: JaxprEqn, array: Array) -> list[Array]:
    shape = [1] * len(eqn.params["shape"])
    for axis, place in enumerate(eqn.params["broadcast_dimensions"]):
        shape[place] = array.shape[axis]
    return [array.reshape((*shape, COLUMNS))]


def _squeeze(eqn: JaxprEqn, array: Array) -> list[Array]:
    return [lax.squeeze(array, eqn.params["dimensions"])]


def _reshape(eqn: JaxprEqn, array: Array) -> list[Array]:
    old, new = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
    spread, shape = list(array.shape[:-1]), []
    if 0 in old:
        return [constant(Owner.COMPUTED, len(new))]
    i = j = 0
    while i < len(old) or j < len(new):
        i0, j0, before, after = i, j, 1, 1
        if i < len(old):
            before, i = old[i], i + 1
        if j < len(new):
            after, j = new[j], j + 1
        while before != after:
            if before < after:
                before, i = before * old[i], i + 1
            else:
                after, j = after * new[j], j + 1
        if set(array.shape[i0:i]) <= {1}:
            shape += [1] * (j - j0)
        else:
            spread[i0:i] = old[i0:i]
            shape += new[j0:j]
    return [jnp.broadcast_to(array, (*spread, COLUMNS)).reshape((*shape, COLUMNS))]


def _slice(eqn: JaxprEqn, array: Array) -> list[Array]:
    starts, limits = list(eqn.params["start_indices"]), list(eqn.params["limit_indices"])
    strides = list(eqn.params["strides"] or [1] * len(starts))
    for axis in range(array.ndim - 1):
        if array.shape[axis] == 1:
            starts[axis], limits[axis], strides[axis] = 0, 1, 1
    return [lax.slice(array, (*starts, 0), (*limits, COLUMNS), (*strides, 1))]


def _split(eqn: JaxprEqn, array: Array) -> list[Array]:
    axis, sizes = eqn.params["axis"], eqn.params["sizes"]
    if array.shape[axis] == 1:
        return [array] * len(sizes)
    return list(lax.split(array, sizes, axis))


def _rev(eqn: JaxprEqn, array: Array) -> list[Array]:
    return [lax.rev(array, [axis for axis in eqn.params["dimensions"] if array.shape[axis] > 1])]


_MOVES: dict[str, Callable[[JaxprEqn, Array], list[Array]]] = {
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast_in_dim,
    "squeeze": _squeeze,
    "reshape": _reshape,
    "slice": _slice,
    "split": _split,
    "rev": _rev,
}
# Moves of one operand. What the operand is stays what it is, its dtype aside.
MOVES = {
    *_MOVES,
    "convert_element_type",
    "copy",
    "copy_p",
    "device_put",
    "name",
    "pvary",
    "reduce_precision",
    "sharding_constraint",
    "stop_gradient",
}


def concatenate(eqn: JaxprEqn, tags: Sequence[Tags | None]) -> Array:
    """Tags of a concatenation: each operand's beside the others'.

    Values that are only computed, and alike all along the axis, keep one entry for all of it, so that joining features
    costs nothing; but single rows that are stacked keep theirs.
    """
    axis, rank = eqn.params["dimension"], len(shape_of(eqn.outvars[0]))
    arrays = [constant(Owner.COMPUTED, rank) if tag is None else tag.array for tag in tags]
    sizes = [shape_of(atom)[axis] for atom in eqn.invars]
    alike = all(array.shape[axis] == 1 for array in arrays) and not any(tag and tag.pools for tag in tags)
    if alike and max(sizes) > 1:
        return computed(common([array[..., LANE] for array in arrays])).array
    shape = list(np.broadcast_shapes(*[(*array.shape[:axis], 1, *array.shape[axis + 1 :]) for array in arrays]))
    parts = [
        jnp.broadcast_to(array, (*shape[:axis], size, *shape[axis + 1 :]))
        for array, size in zip(arrays, sizes, strict=True)
    ]
    return jnp.concatenate(parts, axis=axis)
