"""Tags: owners and lanes of the rows in a value.

Each entry has a lane, and from a pool the row's number and label. Tags have the value's rank (and a column axis), with
length 1 along axes of equal tags, and follow the value by the same operations. Lanes known while tracing are NumPy
arrays and cost nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ir_passes.host.row_ledger import ReservedOwner
from ir_passes.jaxpr.ir import JaxprEqn, shape_of

Ints = np.ndarray | Array
"""int32; a NumPy array if known while tracing."""
SLOT, LABEL = 0, 1
COLUMNS = 5
"""A row's number, owner, position, layout and epoch."""
UNKNOWN = -1
"""An unknown lane or row number."""
_MANY = np.int32(2**31 - 1)


@dataclass(frozen=True)
class Tags:
    """Tags of a value.

    Attributes:
        lanes: int32, UNKNOWN for no lane.
        rows: int32 [..., 5], None for computed values.
        pools: input pools of moved rows in the value.
        whole: a version of a pool with all rows, not read rows.
        derived: the value depends on a pool.
    """

    lanes: Ints
    rows: Ints | None = None
    pools: tuple[int, ...] = ()
    whole: bool = False
    derived: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.lanes.shape if self.rows is None else np.broadcast_shapes(self.lanes.shape, self.rows.shape[:-1])

    @property
    def pending(self) -> bool:
        """True if the value may hold pool rows with uncompared labels."""
        return bool(self.pools) and not self.whole

    @property
    def some_rows(self) -> Ints:
        return constant_row(ReservedOwner.COMPUTED, self.lanes.ndim) if self.rows is None else self.rows

    def map(self, operation: Callable[[Ints], Ints]) -> "Tags":
        rows = None if self.rows is None else operation(self.rows)
        return replace(self, lanes=operation(self.lanes[..., None])[..., 0], rows=rows)

    def of_lanes(self, mask: Ints) -> Ints:
        """Return a mask of entries without a lane, or with one in `mask`, bool [N]."""
        selected = numpy_of(mask, self.lanes).take(mask, self.lanes.clip(0), axis=0)
        return (self.lanes == UNKNOWN) | selected

    def with_rows(self, rows: Ints) -> "Tags":
        return replace(self, rows=rows)


def rows_axis(tags: Tags) -> int | None:
    """Return the axis of a pool with a tag per row, or None."""
    return next((axis for axis, size in enumerate(tags.shape) if size > 1), None)


def pools_of(tags: Iterable[Tags | None]) -> tuple[int, ...]:
    return tuple(sorted({pool for tag in tags if tag is not None for pool in tag.pools}))


def numpy_of(*arrays: Any) -> Any:
    """Return numpy if all arrays are known while tracing, else jax.numpy."""
    return np if all(isinstance(array, np.ndarray) for array in arrays) else jnp


def along(size: int, axis: int, rank: int) -> np.ndarray:
    return np.arange(size, dtype=np.int32).reshape(tuple(size if i == axis else 1 for i in range(rank)))


def nobody(rank: int) -> np.ndarray:
    return np.full((1,) * rank, UNKNOWN, np.int32)


def constant_row(owner: ReservedOwner, rank: int) -> np.ndarray:
    return np.array([UNKNOWN, owner, 0, 0, 0], np.int32).reshape((1,) * rank + (COLUMNS,))


def numbered(slots: Ints, labels: Ints) -> Ints:
    shape = np.broadcast_shapes(slots.shape, labels.shape[:-1])
    numbers = jnp.broadcast_to(slots, shape)[..., None]
    return jnp.concatenate([numbers, jnp.broadcast_to(labels, (*shape, 4))], axis=-1)


def computed(lanes: Ints, derived: bool = False) -> Tags:
    if isinstance(lanes, np.ndarray) and lanes.size:
        for axis, size in enumerate(lanes.shape):
            first = lanes[(slice(None),) * axis + (slice(0, 1),)]
            if size > 1 and np.array_equal(lanes, np.broadcast_to(first, lanes.shape)):
                lanes = first
    return Tags(lanes, derived=derived)


def zero(rank: int) -> Tags:
    """Return the tags of zeros, a beginning sequence's state."""
    return Tags(nobody(rank), constant_row(ReservedOwner.FRESH, rank))


def range_of(lanes: Iterable[Ints]) -> tuple[Ints, Ints]:
    """Return each entry's largest and smallest known lane, else UNKNOWN and a large number."""
    high: Ints | None = None
    low: Ints | None = None
    for array in lanes:
        lower = numpy_of(array).where(array == UNKNOWN, _MANY, array)
        high = array if high is None else numpy_of(high, array).maximum(high, array)
        low = lower if low is None else numpy_of(low, lower).minimum(low, lower)
    assert high is not None and low is not None
    return high, low


def common(lanes: Iterable[Ints]) -> Ints:
    """Return the only known lane of each entry, else UNKNOWN; shapes broadcast."""
    high, low = range_of(lanes)
    return numpy_of(high, low).where(high == low, high, np.int32(UNKNOWN))


def range_along(lanes: Ints, axes: Sequence[int]) -> tuple[Ints, Ints]:
    """Reduce `range_of` over axes, kept with length 1."""
    lower = numpy_of(lanes).where(lanes == UNKNOWN, _MANY, lanes)
    return lanes.max(axis=tuple(axes), keepdims=True), lower.min(axis=tuple(axes), keepdims=True)


def common_along(lanes: Ints, axes: Sequence[int]) -> Ints:
    """Reduce `common` over axes, kept with length 1."""
    high, low = range_along(lanes, axes)
    return numpy_of(high, low).where(high == low, high, np.int32(UNKNOWN))


def ranked(tags: Tags, rank: int) -> Tags:
    """Return a scalar's tags as tags of this rank."""
    if tags.lanes.ndim == rank:
        return tags
    return tags.map(lambda array: array.reshape((1,) * rank + array.shape[-1:]))


def keeps_row_layout(eqn: JaxprEqn, tags: Tags) -> bool:
    """True if a move keeps the order of a row's axes."""
    if eqn.primitive.name != "transpose" or tags.whole:
        return True
    shape = shape_of(eqn.invars[0])
    inner = [axis for axis in eqn.params["permutation"] if tags.shape[axis] == 1 < shape[axis]]
    return inner == sorted(inner)


def joins_places(eqn: JaxprEqn, tags: Tags) -> bool:
    """True if a bitcast to a wider dtype joins elements with different tags."""
    narrower = len(shape_of(eqn.outvars[0])) < len(tags.shape)
    return eqn.primitive.name == "bitcast_convert_type" and narrower and tags.shape[-1] > 1


def move(eqn: JaxprEqn, tags: Tags) -> list[Tags]:
    if eqn.primitive.name in ("split", "unstack"):
        return _split(eqn, tags)
    rule = _MOVES.get(eqn.primitive.name)
    return [tags if rule is None else tags.map(lambda array: rule(eqn, array))]


def _transpose(eqn: JaxprEqn, array: Ints) -> Ints:
    return array.transpose((*eqn.params["permutation"], array.ndim - 1))


def _broadcast_in_dim(eqn: JaxprEqn, array: Ints) -> Ints:
    shape = [1] * len(eqn.params["shape"])
    for axis, place in enumerate(eqn.params["broadcast_dimensions"]):
        shape[place] = array.shape[axis]
    return array.reshape((*shape, array.shape[-1]))


def _reshape(eqn: JaxprEqn, array: Ints) -> Ints:
    old, new, columns = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0]), array.shape[-1]
    spread, shape = list(array.shape[:-1]), []
    if 0 in old:
        return np.full((*(1,) * len(new), columns), UNKNOWN, np.int32)
    i = j = 0
    while i < len(old) or j < len(new):
        i0, j0, old_size, new_size = i, j, 1, 1
        if i < len(old):
            old_size, i = old[i], i + 1
        if j < len(new):
            new_size, j = new[j], j + 1
        while old_size != new_size:
            if old_size < new_size:
                old_size, i = old_size * old[i], i + 1
            else:
                new_size, j = new_size * new[j], j + 1
        if set(array.shape[i0:i]) <= {1}:
            shape += [1] * (j - j0)
        else:
            spread[i0:i] = old[i0:i]
            shape += new[j0:j]
    return numpy_of(array).broadcast_to(array, (*spread, columns)).reshape((*shape, columns))


def _slice(eqn: JaxprEqn, array: Ints) -> Ints:
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or [1] * len(starts)
    cuts = [slice(*cut) for cut in zip(starts, limits, strides, strict=True)]
    return array[tuple(slice(0, 1) if size == 1 else cut for size, cut in zip(array.shape, cuts, strict=False))]


def _split(eqn: JaxprEqn, tags: Tags) -> list[Tags]:
    axis, single = eqn.params["axis"], eqn.primitive.name == "unstack"
    sizes = [1] * len(eqn.outvars) if single else eqn.params["sizes"]

    def part(array: Ints, start: int, end: int) -> Ints:
        array = array if array.shape[axis] == 1 else array[(slice(None),) * axis + (slice(start, end),)]
        return array.squeeze(axis) if single else array

    return [
        tags.map(lambda array, start=end - size, end=end: part(array, start, end))
        for size, end in zip(sizes, np.cumsum(sizes).tolist(), strict=True)
    ]


def _tile(eqn: JaxprEqn, array: Ints) -> Ints:
    reps = [1 if size == 1 else rep for size, rep in zip(array.shape, eqn.params["reps"], strict=False)]
    return numpy_of(array).tile(array, (*reps, 1))


def _bitcast(eqn: JaxprEqn, array: Ints) -> Ints:
    added = len(shape_of(eqn.outvars[0])) - len(shape_of(eqn.invars[0]))
    return array if added == 0 else array[..., None, :] if added > 0 else array[..., 0, :]


_MOVES: dict[str, Callable[[JaxprEqn, Ints], Ints]] = {
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast_in_dim,
    "squeeze": lambda eqn, array: array.squeeze(tuple(eqn.params["dimensions"])),
    "reshape": _reshape,
    "slice": _slice,
    "rev": lambda eqn, array: array[
        tuple(slice(None, None, -1 if i in eqn.params["dimensions"] else 1) for i in range(array.ndim - 1))
    ],
    "tile": _tile,
    "bitcast_convert_type": _bitcast,
}


def concatenate(eqn: JaxprEqn, tags: Sequence[Tags | None]) -> Tags:
    """Return the tags of a concatenation or stack.

    Equal computed lanes keep one entry, so joined features cost nothing.
    """
    stack, rank = eqn.primitive.name == "stack", len(shape_of(eqn.outvars[0]))
    axis = eqn.params["axis" if stack else "dimension"]
    present = [Tags(nobody(rank - stack)) if tag is None else tag for tag in tags]
    if stack:
        present = [tag.map(lambda array: numpy_of(array).expand_dims(array, axis)) for tag in present]
    sizes = [1 if stack else shape_of(atom)[axis] for atom in eqn.invars]
    pools = pools_of(present)
    derived = any(tag.derived for tag in present)

    def join(arrays: list[Ints]) -> Ints:
        shape = np.broadcast_shapes(*[(*array.shape[:axis], 1, *array.shape[axis + 1 :]) for array in arrays])
        xp = numpy_of(*arrays)
        ends = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
        return xp.concatenate([xp.broadcast_to(a, end) for a, end in zip(arrays, ends, strict=True)], axis=axis)

    lanes = [tag.lanes for tag in present]
    alike = numpy_of(*lanes) is jnp and all(array.shape[axis] == 1 for array in lanes)
    if not pools and alike and max(sizes) > 1:
        return computed(common(lanes), derived)
    if all(tag.rows is None for tag in present):
        return computed(join(lanes), derived)
    versions = all(tag.whole for tag in present)
    return Tags(join(lanes), join([tag.some_rows for tag in present]), pools, versions, derived)
