"""Reads and writes of pools: each row's addressing lane and label."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ir_passes.contract.entries import Opaque, PageTable, Pool
from ir_passes.contract.opaque import donors, lengths_of, maps_of
from ir_passes.host.row_ledger import ReservedOwner
from ir_passes.jaxpr import ir
from ir_passes.sanitizer import moves
from ir_passes.sanitizer.judge import Judge
from ir_passes.sanitizer.moves import Addressing, window_of
from ir_passes.sanitizer.paged import check_write
from ir_passes.sanitizer.tags import (
    LABEL,
    UNKNOWN,
    Ints,
    Tags,
    along,
    nobody,
    numpy_of,
    range_along,
    range_of,
    rows_axis,
)
from ir_passes.sanitizer.verdict import UntrackedFault


def read(judge: Judge, eqn: ir.JaxprEqn, values: list[Any], tags: list[Tags | None]) -> Tags | None:
    """Return the tags of a gather or dynamic slice; rows belong to the addressing lanes."""
    first, rest = tags[0], tags[1:]
    assert first is not None
    sliced = eqn.primitive.name == "dynamic_slice"

    def repeated(array: Ints) -> Ints:
        if sliced:
            return moves.dynamic_slice(eqn, array, values[1:])
        return moves.gather(eqn, array, values[1])

    result = first.map(repeated)
    if not first.whole or not moves.partial_rows(eqn, first):
        return result
    window = window_of(eqn, first, None if sliced else values[1])
    lanes = _addressing(judge, window, rest, sliced)
    if lanes is None:
        return judge.lose(eqn, [first], UntrackedFault.READ)[0]
    return Tags(window.spread(lanes), result.rows, first.pools, derived=True)


def write(judge: Judge, eqn: ir.JaxprEqn, values: list[Any], tags: list[Tags | None]) -> Tags | None:
    """Return the tags of a scatter or dynamic update slice.

    A partial write stamps the whole row.
    """
    pool, rest = tags[0], tags[1:]
    assert pool is not None
    sliced = eqn.primitive.name == "dynamic_update_slice"
    window = window_of(eqn, pool, None if sliced else values[1])
    update = rest[0] if sliced else rest[1]
    shape = _rows_of_update(eqn, pool, window, sliced)
    everything = window.column is None or (sliced and shape[window.column] == pool.shape[window.column])
    if everything and update is not None and update.whole:
        holders = slots = nobody(len(shape))
    else:
        lanes = None if everything else _addressing(judge, window, rest[1:] if sliced else rest[:1], sliced)
        if lanes is None or window.column is None:
            return judge.lose(eqn, [pool], UntrackedFault.WRITE)[0]
        column = jnp.asarray(values[2 + window.column] if sliced else values[1][..., window.column], jnp.int32)
        holders, slots = window.spread(lanes), window.spread(column)
        for paged_pool in set(pool.pools) & set(judge.named):
            axis = rows_axis(pool)
            check_write(judge, eqn, paged_pool, column, lanes, 1 if axis is None else pool.shape[axis])
        if eqn.primitive.name not in ("scatter", "dynamic_update_slice"):
            judge.use(eqn, Tags(lanes, moves.addressed(pool.some_rows, column), pool.pools))
            update = None if update is None else judge.use(eqn, update)
    labels, moved = settle(judge, eqn, update, shape, holders, slots)
    if sliced:
        return pool.with_rows(moves.dynamic_update_slice(pool.some_rows, labels, values[2:]))
    return pool.with_rows(moves.scatter(eqn, pool.some_rows, values[1], labels, moved, window))


def call(judge: Judge, eqn: ir.JaxprEqn, declared: Opaque, values: list[Any], tags: list[Tags | None]) -> list | None:
    """Return the tags of a declared operation; None for a pool without row map.

    A lane of length 0 keeps its row; a fresh lane does not read it.
    """
    fresh = None if declared.fresh is None else jnp.asarray(values[declared.fresh])
    lengths = [jnp.asarray(values[k]) for k in lengths_of(declared)]
    active = jnp.ones(judge.lanes, bool) if not lengths else lengths[0] > 0
    lanes, donor_of = along(judge.lanes, 0, 1), donors(declared)
    results: list[Tags | None] = [None] * len(eqn.outvars)
    for k, (entry, tag) in enumerate(zip(declared.inputs, tags, strict=True)):
        if tag is None:
            continue
        if not isinstance(entry, Pool):
            judge.use(eqn, tag)
            continue
        maps = list(maps_of(declared, entry.group))
        if not tag.whole or not maps:
            return None
        for place, by in maps:
            result = next((number for number, donor in donor_of.items() if donor == k), None)
            if isinstance(by, PageTable):
                # The declaration does not tell which pages are written.
                if result is not None:
                    results[result] = tag
                continue
            holders = tags[place]
            column = jnp.asarray(values[place])
            if holders is not None:
                lanes = numpy_of(holders.lanes).broadcast_to(holders.lanes, column.shape)
            if by.role != "write":
                rows = moves.addressed(tag.some_rows, column)
                judge.use(eqn, Tags(lanes, rows, tag.pools), mask=active if fresh is None else active & ~fresh)
            if result is not None and by.role != "read":
                results[result] = tag.with_rows(_stamped(judge, tag.some_rows, lanes, column, active))
    return results


def _stamped(judge: Judge, rows: Ints, lanes: Ints, column: Array, active: Array) -> Array:
    """Return a pool's rows with stamps of active lanes on rows `column`."""
    flat = jnp.asarray(rows).reshape((-1, rows.shape[-1]))
    column = jnp.where(active, column, len(flat))
    labels = flat[:, LABEL:].at[column].set(judge.left(lanes), mode="drop", wrap_negative_indices=False)
    return jnp.concatenate([flat[:, :LABEL], labels], axis=1).reshape(rows.shape)


def settle(
    judge: Judge, where: ir.JaxprEqn | str, tags: Tags | None, shape: tuple[int, ...], holders: Ints, slots: Ints
) -> tuple[Ints, Ints]:
    """Return the labels of written rows, [*shape, 4], and a mask of moved rows.

    Args:
        tags: of written values.
        shape: 1 along every axis within a row.
        holders: owning lanes, or UNKNOWN.
        slots: row numbers.
    """
    holders = numpy_of(holders).broadcast_to(holders, shape)
    if tags is None:
        return judge.left(holders), np.zeros(shape, bool)
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 < tags.shape[axis])
    high, low = range_along(tags.lanes, axes)
    lanes = numpy_of(high, low).where(high == low, high, np.int32(UNKNOWN))
    stamps = judge.left(numpy_of(lanes, holders).where(lanes == UNKNOWN, holders, lanes))
    stamps = numpy_of(stamps).broadcast_to(stamps, (*shape, 4))
    if tags.rows is None:
        judge.compare_lanes(where, "writes a row of two lanes", high, low, slots)
        judge.compare_lanes(where, "writes another lane's row", *range_of([lanes, holders]), slots)
        return stamps, np.zeros(shape, bool)
    labels = tags.rows[..., LABEL:]
    label, min_label = labels.max(axis=axes, keepdims=True), labels.min(axis=axes, keepdims=True)
    # A label may be written to several rows.
    moved = jnp.broadcast_to((label == min_label).all(axis=-1) & (label[..., 0] != ReservedOwner.COMPUTED), shape)
    if tags.pending:
        judge.use(where, tags, mask=~moved)
    high, low = jnp.where(moved, UNKNOWN, high), jnp.where(moved, UNKNOWN, low)
    judge.compare_lanes(where, "writes a row of two lanes", high, low, slots)
    lane_range = range_of([jnp.where(moved, UNKNOWN, lanes), jnp.where(moved, UNKNOWN, holders)])
    judge.compare_lanes(where, "writes another lane's row", *lane_range, slots)
    written = jnp.where(moved[..., None], label, stamps)
    return jnp.broadcast_to(written, (*shape, 4)), moved


def _rows_of_update(eqn: ir.JaxprEqn, pool: Tags, window: Addressing, sliced: bool) -> tuple[int, ...]:
    """Return an update's shape with 1 along axes within a row."""
    shape = list(ir.shape_of(eqn.invars[1 if sliced else 2]))
    places, without = iter(window.window), set[int]()
    if not sliced:
        numbers: Any = eqn.params["dimension_numbers"]
        without = {int(axis) for axis in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)}
    for axis in range(len(pool.shape)):
        if axis not in without and (place := next(places)) is not None and axis != rows_axis(pool):
            shape[place] = 1
    return tuple(shape)


def _addressing(judge: Judge, window: Addressing, tags: list[Tags | None], sliced: bool) -> Ints | None:
    """Return each row number's lane: of its slot map, else its position."""
    if window.column is None:
        return None
    tag = tags[window.column] if sliced else tags[0]
    if tag is not None:
        lanes = tag.lanes
        if not sliced:
            lanes = lanes[..., window.column if lanes.shape[-1] > 1 else 0]
        return numpy_of(lanes).broadcast_to(lanes, window.batch)
    if window.batch.count(judge.lanes) == 1:
        return along(judge.lanes, window.batch.index(judge.lanes), len(window.batch))
    return np.zeros((), np.int32) if judge.lanes == 1 and window.batch == () else None
