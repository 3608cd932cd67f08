"""Reads and writes of pools under the sanitizer: which lane addresses which row, and what a written row says."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array

from ir_passes import ir, sanitizer_moves
from ir_passes.row_ledger import Owner
from ir_passes.sanitizer_moves import Window, rows_axis, window_of
from ir_passes.sanitizer_tags import SLOT, UNKNOWN, Tags, along, assemble, common_along
from ir_passes.sanitizer_verdict import FIELDS

if TYPE_CHECKING:
    from ir_passes.sanitizer_interpreter import Interpreter


def read(run: "Interpreter", eqn: ir.JaxprEqn, values: list[Any], tags: list[Tags | None]) -> Tags | None:
    """A gather or dynamic slice. Some rows of a pool are for the lanes whose slots address them."""
    first, rest = tags[0], tags[1:]
    assert first is not None
    sliced = eqn.primitive.name == "dynamic_slice"
    if sliced:
        array = sanitizer_moves.dynamic_slice(eqn, first.array, values[1:])
    else:
        array = sanitizer_moves.gather(eqn, first.array, values[1])
    if not first.whole or not sanitizer_moves.partial_rows(eqn, first):
        return first.replace(array)
    window = window_of(eqn, first, None if sliced else values[1])
    lanes = _addressing(run, window, rest, sliced)
    if lanes is None:
        return run.lose(eqn, [first], "reads rows whose numbers are no lane's slot")[0]
    return Tags(assemble(window.spread(lanes), array[..., SLOT], array[..., 2:]), first.pools)


def write(run: "Interpreter", eqn: ir.JaxprEqn, values: list[Any], tags: list[Tags | None]) -> Tags | None:
    """A scatter or dynamic update slice over a pool. A write of part of a row stamps the row."""
    pool, rest = tags[0], tags[1:]
    assert pool is not None
    sliced = eqn.primitive.name == "dynamic_update_slice"
    window = window_of(eqn, pool, None if sliced else values[1])
    update = rest[0] if sliced else rest[1]
    shape = _rows_of_update(eqn, pool, window, sliced)
    everything = window.column is None or (sliced and shape[window.column] == pool.array.shape[window.column])
    if everything and update is not None and update.whole:
        holders = slots = jnp.full((1,) * len(shape), UNKNOWN, jnp.int32)
    else:
        lanes = None if everything else _addressing(run, window, rest[1:] if sliced else rest[:1], sliced)
        if lanes is None or window.column is None:
            return run.lose(eqn, [pool], "writes rows whose numbers are no lane's slot")[0]
        column = jnp.asarray(values[2 + window.column] if sliced else values[1][..., window.column], jnp.int32)
        holders, slots = window.spread(lanes), window.spread(column)
        if eqn.primitive.name not in ("scatter", "dynamic_update_slice"):
            before = sanitizer_moves.addressed(pool.array, column)
            run.use(eqn, Tags(assemble(lanes, before[..., SLOT], before[..., 2:]), pool.pools))
            update = None if update is None else run.use(eqn, update)
    labels, moved = settle(run, eqn, update, shape, holders, slots)
    if sliced:
        return pool.replace(sanitizer_moves.dynamic_update_slice(pool.array, labels, values[2:]))
    return pool.replace(sanitizer_moves.scatter(eqn, pool.array, values[1], labels, moved, window))


def settle(
    run: "Interpreter",
    where: ir.JaxprEqn | str,
    tags: Tags | None,
    shape: tuple[int, ...],
    holders: Array,
    slots: Array,
) -> tuple[Array, Array]:
    """Labels of what is written, [*shape, 4], and whether each is of a row that was moved as it is.

    Args:
        run: the interpreter.
        where: the write.
        tags: of what is written.
        shape: 1 along every axis that belongs to one row.
        holders: the lane whose rows are written, UNKNOWN where that is not known.
        slots: their numbers.
    """
    holders, slots = jnp.broadcast_to(holders, shape), jnp.broadcast_to(slots, shape)
    if tags is None:
        return run.judge.left(holders), jnp.zeros(shape, bool)
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 < tags.array.shape[axis])
    high, low = jnp.max(tags.labels, axis=axes, keepdims=True), jnp.min(tags.labels, axis=axes, keepdims=True)
    moved = jnp.all(high == low, axis=-1) & (high[..., 0] != Owner.COMPUTED)
    if tags.pending:
        run.use(where, tags, mask=~moved)
    moved = jnp.broadcast_to(moved, shape)
    lanes = jnp.broadcast_to(common_along(tags.lanes, axes), shape)
    stranger = ~moved & (lanes != UNKNOWN) & (holders != UNKNOWN) & (lanes != holders)
    stamps = run.judge.left(jnp.where(lanes == UNKNOWN, holders, lanes))
    kind = jnp.full(shape, FIELDS.index("lane"), jnp.int32)
    run.judge.record(where, "writes another lane's row", stranger, lanes, kind, slots, stamps)
    return jnp.where(moved[..., None], jnp.broadcast_to(high, (*shape, 4)), stamps), moved


def _rows_of_update(eqn: ir.JaxprEqn, pool: Tags, window: Window, sliced: bool) -> tuple[int, ...]:
    """Shape of an update, but 1 along the axes that belong to one row."""
    shape = list(ir.shape_of(eqn.invars[1 if sliced else 2]))
    places, without = iter(window.window), set[int]()
    if not sliced:
        numbers: Any = eqn.params["dimension_numbers"]
        without = {int(axis) for axis in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)}
    for axis in range(pool.array.ndim - 1):
        if axis not in without and (place := next(places)) is not None and axis != rows_axis(pool):
            shape[place] = 1
    return tuple(shape)


def _addressing(run: "Interpreter", window: Window, tags: list[Tags | None], sliced: bool) -> Array | None:
    """The lane of each row number: of the slot map that it came from, or its place where there is one per lane."""
    if window.column is None:
        return None
    tag = tags[window.column] if sliced else tags[0]
    if tag is not None:
        lanes = tag.lanes
        if not sliced:
            lanes = lanes[..., window.column if lanes.shape[-1] > 1 else 0]
        return jnp.broadcast_to(lanes, window.batch)
    if window.batch.count(run.lanes) == 1:
        return along(run.lanes, window.batch.index(run.lanes), len(window.batch))
    return jnp.zeros((), jnp.int32) if run.lanes == 1 and window.batch == () else None
