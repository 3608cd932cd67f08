"""Pools of a group are coupled if branches, loops and whole operations write the rows of all lanes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax

from ir_passes import (
    IsolationError,
    Lane,
    LaneContract,
    PageTable,
    Pool,
    Shared,
    SlotMap,
    ViolationKind,
    prove_isolation,
)

LANES, ROWS, SIZE = 4, 9, 8
CONTRACT = LaneContract(
    (Pool("rows"), Lane(role="length"), Lane(), SlotMap("rows", ROWS, null=False)), (Lane(), Pool("rows"))
)
ARGUMENTS = (
    (jnp.zeros((ROWS, SIZE)), jnp.zeros((ROWS, SIZE))), jnp.ones(LANES, jnp.int32), jnp.zeros((LANES, SIZE)),
    jnp.arange(LANES, dtype=jnp.int32),
)  # fmt: skip
Write = Callable[[Array, Array, Array, Array], Array]


def at_once(pool: Array, lengths: Array, x: Array, slots: Array) -> Array:
    """Write the rows of all lanes by one scatter."""
    rows = pool.at[slots].get(mode="promise_in_bounds")
    rows = jnp.where((lengths > 0)[:, None], rows + x, rows)
    return pool.at[slots].set(rows, mode="promise_in_bounds", unique_indices=True)


def added(pool: Array, length: Any, x: Array, slot: Any) -> Array:
    """Write the row of one lane."""
    row = lax.dynamic_slice_in_dim(pool, slot, 1)
    return lax.dynamic_update_slice_in_dim(pool, jnp.where(length > 0, row + x[None], row), slot, 0)


def in_a_loop(pool: Array, lengths: Array, x: Array, slots: Array) -> Array:
    """Write the rows of the lanes one after the other."""
    return lax.scan(lambda pool, lane: (added(pool, *lane), None), pool, (lengths, x, slots))[0]


def in_two_loops(pool: Array, lengths: Array, x: Array, slots: Array) -> Array:
    """Write each half of each row in a separate loop."""

    def lane(pool: Array, lane: Any) -> tuple[Array, None]:
        length, _, slot = lane

        def half(pool: Array, first: Any) -> tuple[Array, None]:
            row = lax.dynamic_slice(pool, (slot, first), (1, SIZE // 2))
            row = jnp.where(length > 0, row + 1.0, row)
            return lax.dynamic_update_slice(pool, row, (slot, first)), None

        return lax.scan(half, pool, jnp.arange(2, dtype=jnp.int32) * (SIZE // 2))[0], None

    return lax.scan(lane, pool, (lengths, x, slots))[0]


def by_branch(pool: Array, lengths: Array, x: Array, slots: Array) -> Array:
    """Write the rows of the lanes that say so."""

    def lane(pool: Array, lane: Any) -> tuple[Array, None]:
        return lax.cond(lane[0] > 0, lambda pool: added(pool, *lane), lambda pool: pool, pool), None

    return lax.scan(lane, pool, (lengths, x, slots))[0]


def first_lanes(pool: Array, lengths: Array, x: Array, slots: Array) -> Array:
    """Write the rows of half of the lanes."""
    half = LANES // 2
    return in_a_loop(pool, lengths[:half], x[:half], slots[:half])


def violations(write: Write, other: Write) -> set[ViolationKind]:
    def step(pools: Any, lengths: Any, x: Any, slots: Any) -> Any:
        first, second = pools
        return x, (write(first, lengths, x, slots), other(second, lengths, x, slots))

    try:
        proof = prove_isolation(step, ARGUMENTS, CONTRACT)
    except IsolationError as error:
        return {violation.kind for violation in error.violations}
    assert "coupling" in {statement.id for statement in proof.proved}
    return set()


@pytest.mark.parametrize("other", [at_once, in_a_loop, in_two_loops])
def test_a_loop_over_all_lanes_writes_the_rows_of_all(other: Write) -> None:
    assert violations(in_a_loop, other) == set()


@pytest.mark.parametrize("write", [at_once, in_a_loop])
@pytest.mark.parametrize("other", [by_branch, first_lanes])
def test_lanes_that_skip_one_of_the_pools_are_kinds_of(write: Write, other: Write) -> None:
    assert violations(write, other) == {ViolationKind.COUPLING}


@pytest.mark.parametrize("write", [at_once, in_a_loop, in_two_loops, by_branch, first_lanes])
def test_each_form_writes_only_rows_of_its_lanes(write: Write) -> None:
    """Run: another lane's row, and a row without a lane, keep their numbers."""
    (pool, _), lengths, x, slots = ARGUMENTS
    new = jax.jit(write)(pool, lengths.at[1].set(0), x + 1.0, slots)
    busy = [0] if write is first_lanes else [0, 2, 3]
    assert set(map(int, jnp.flatnonzero(new.any(axis=1)))) == set(busy)


FLAGGED = LaneContract((Pool("rows"), Pool("rows"), SlotMap("rows", ROWS), Shared()), (Pool("rows"), Pool("rows")))


def put(pool: Array, slots: Array) -> Array:
    return pool.at[slots].set(1.0, mode="drop")


def if_flagged(pool: Array, slots: Array, flag: Array) -> Array:
    return lax.cond(flag > 0, put, lambda pool, _: pool, pool, slots)


def unless_flagged(pool: Array, slots: Array, flag: Array) -> Array:
    return lax.cond(flag > 0, lambda pool, _: pool, put, pool, slots)


def in_both_branches(pool: Array, slots: Array, flag: Array) -> Array:
    return lax.cond(flag > 0, put, lambda pool, slots: pool.at[slots].set(2.0, mode="drop"), pool, slots)


def flag_times(pool: Array, slots: Array, flag: Array) -> Array:
    return lax.fori_loop(0, flag, lambda _, pool: put(pool, slots), pool)


def until_flagged(pool: Array, slots: Array, flag: Array) -> Array:
    return lax.while_loop(lambda carry: carry[1] < 0, lambda carry: (put(carry[0], slots), carry[1] + 2), (pool, flag))[
        0
    ]


def no_times(pool: Array, slots: Array, flag: Array) -> Array:
    return lax.scan(lambda pool, _: (put(pool, slots), None), pool, jnp.arange(0))[0]


def kinds_of(step: Callable[..., Any], args: tuple[Any, ...], contract: LaneContract) -> set[ViolationKind]:
    try:
        prove_isolation(step, args, contract)
    except IsolationError as error:
        return {violation.kind for violation in error.violations}
    return set()


@pytest.mark.parametrize("first", [if_flagged, unless_flagged, flag_times, until_flagged, no_times, in_both_branches])
@pytest.mark.parametrize(
    "second", [lambda pool, slots, flag: put(pool, slots), if_flagged, flag_times, in_both_branches]
)
def test_a_write_that_may_not_happen_is_coupled_with_its_like_only(first: Any, second: Any) -> None:
    """Run: a proved step writes both pools or none."""

    def step(a: Array, b: Array, slots: Array, flag: Array) -> Any:
        return first(a, slots, flag), second(b, slots, flag)

    pool, slots = jnp.zeros((ROWS, SIZE)), jnp.arange(1, LANES + 1, dtype=jnp.int32)
    kinds = kinds_of(step, (pool, pool, slots, jnp.int32(0)), FLAGGED)
    assert kinds <= {ViolationKind.COUPLING}
    run = jax.jit(step)
    writes = [[bool(new[1:].any()) for new in run(pool, pool, slots, jnp.int32(flag))] for flag in (-1, 0, 1)]
    assert kinds or all(a == b for a, b in writes)
    assert not kinds or first is not second


PAGES, PAGE = 9, 2
PAGED = LaneContract((Pool("kv"), Pool("kv"), PageTable("kv", PAGES), Lane()), (Pool("kv"), Pool("kv")))


@pytest.mark.parametrize("offset", [0, 1, PAGE])
@pytest.mark.parametrize("flat", [False, True])
def test_keys_and_values_in_other_pages_are_not_coupled(offset: int, flat: bool) -> None:
    """Run: values `offset` positions after their keys reach other rows."""

    def written(pool: Array, table: Array, position: Array) -> Array:
        page = jnp.take_along_axis(table, (position // PAGE)[:, None], 1, mode="clip")[:, 0]
        if flat:
            return pool.at[page * PAGE + position % PAGE].set(1.0, mode="drop")
        return pool.at[page, position % PAGE].set(1.0, mode="drop")

    def step(keys: Array, values: Array, table: Array, position: Array) -> Any:
        return written(keys, table, position), written(values, table, position + offset)

    contract = replace(PAGED, inputs=(*PAGED.inputs[:2], PageTable("kv", PAGES, page_size=PAGE if flat else 1), Lane()))
    pool = jnp.zeros((PAGES * PAGE,) if flat else (PAGES, PAGE))
    table, position = jnp.arange(1, 9, dtype=jnp.int32).reshape(LANES, 2), jnp.array([0, 1, 0, 1], jnp.int32)
    keys, values = (new.reshape(PAGES, -1).any(1) for new in jax.jit(step)(pool, pool, table, position))
    kinds = kinds_of(step, (pool, pool, table, position), contract)
    assert kinds == (set() if offset == 0 else {ViolationKind.COUPLING})
    assert bool((keys == values).all()) == (offset == 0)


def captured(pool: Array, slots: Array) -> Array:
    return lax.scan(lambda new, _: (new.at[slots].set(pool[slots] + 1, mode="drop"), None), pool, jnp.arange(3))[0]


def captured_in_a_while(pool: Array, slots: Array) -> Array:
    def body(carry: Any) -> Any:
        return carry[0].at[slots].set(pool[slots] + 1, mode="drop"), carry[1] + 1

    return lax.while_loop(lambda carry: carry[1] < 3, body, (pool, 0))[0]


def written_anew(pool: Array, slots: Array) -> Array:
    return lax.scan(lambda _, x: (pool.at[slots].set(x, mode="drop"), None), pool, jnp.arange(3.0))[0]


def beside_the_new(pool: Array, slots: Array) -> Array:
    def body(carry: Any, _: Any) -> Any:
        return (carry[0].at[slots].set(carry[1][slots] + 1, mode="drop"), carry[1]), None

    return lax.scan(body, (pool, pool), jnp.arange(3))[0][0]


def carried_on(pool: Array, slots: Array) -> Array:
    return lax.scan(lambda new, _: (new.at[slots].set(new[slots] + 1, mode="drop"), None), pool, jnp.arange(3))[0]


@pytest.mark.parametrize(("step", "rises_by"), [
    (captured, 1), (captured_in_a_while, 1), (written_anew, 2), (beside_the_new, 1), (carried_on, 3),
])  # fmt: skip
def test_a_loop_reads_the_version_that_its_last_iteration_wrote(step: Any, rises_by: int) -> None:
    """Run: an iteration that reads an old version loses the writes of the others."""
    pool, slots = jnp.zeros((ROWS, SIZE)), jnp.arange(1, LANES + 1, dtype=jnp.int32)
    assert float(jax.jit(step)(pool, slots).max()) == rises_by
    contract = LaneContract((Pool("rows"), SlotMap("rows", ROWS)), Pool("rows"))
    assert kinds_of(step, (pool, slots), contract) == (set() if step is carried_on else {ViolationKind.STALE})
