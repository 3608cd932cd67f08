"""Idioms of published steps are proved; each with a planted fault is refused.

The truth comes from disturbing one lane after the other (`isolation_oracle`).

More than 300 lines: one list of idioms with their faults.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from isolation_oracle import leaks
from jax import Array, lax
from jax.sharding import PartitionSpec as P
from zoo.program import slot_map

from ir_passes import (
    IsolationError,
    Lane,
    LaneContract,
    PageTable,
    Pool,
    Shared,
    SlotMap,
    prove_isolation,
)
from ir_passes.proof.violations import ViolationKind

N, ROWS, D = 4, 9, 6
STEP = LaneContract((Lane(), Pool("s"), SlotMap("s", size=ROWS)), (Lane(), Pool("s")))
ACTIVE = LaneContract((*STEP.inputs, Lane()), STEP.outputs)
LENGTHS = LaneContract((*STEP.inputs, Lane(role="length")), STEP.outputs)


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    x, pool = (rng.normal(size=(count, D)).astype(np.float32) for count in (N, ROWS))
    return x, pool, slot_map(rng, lanes=N, slots=ROWS)


def draw_active(rng: np.random.Generator) -> tuple[Any, ...]:
    return *draw(rng), rng.random(N) < 0.5


def draw_lengths(rng: np.random.Generator) -> tuple[Any, ...]:
    return *draw(rng), rng.integers(0, 2, N).astype(np.int32)


def proved(step: Callable[..., Any], contract: LaneContract, draw: Callable[..., Any]) -> None:
    assert leaks(step, contract, draw, seeds=range(4)) == []
    prove_isolation(step, draw(np.random.default_rng(0)), contract)


FAULTS = {
    f"{__file__}:{number}"
    for number, line in enumerate(Path(__file__).read_text().splitlines(), 1)
    if line.endswith("# fault")
}
"""Lines with a fault, or with one for other arguments; no other line is ever refused."""


def refused(step: Callable[..., Any], contract: LaneContract, draw: Callable[..., Any]) -> list[Any]:
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, draw(np.random.default_rng(0)), contract)
    assert {violation.source for violation in error.value.violations} <= FAULTS
    return list(error.value.violations)


def by_index(index: Callable[[Array], Array], x: Array, pool: Array, slots: Array) -> Any:
    rows = index(slots)
    return x, pool.at[rows].set(jnp.tanh(pool[rows] + x))  # fault


@pytest.mark.parametrize("index", [
    lambda slots: jnp.stack([slots[i] for i in range(N)]),
    lambda slots: jnp.concatenate([slots[:2], slots[2:]]),
    lambda slots: jnp.concatenate([slots[i : i + 1] for i in range(N)]),
    lambda slots: jnp.pad(slots, (0, 0)),
])  # fmt: skip
def test_slots_that_are_taken_apart_and_put_together(index: Callable[[Array], Array]) -> None:
    proved(partial(by_index, index), STEP, draw)


@pytest.mark.parametrize("index", [
    lambda slots: jnp.stack([slots[i] for i in (1, 0, 2, 3)]),
    lambda slots: jnp.concatenate([slots[2:], slots[:2]]),
    lambda slots: jnp.stack([slots[0], slots[1], slots[2], slots[2]]),
    lambda slots: jnp.stack([slots[0], slots[1], slots[2], slots[3] - 1]),
])  # fmt: skip
def test_slots_that_are_put_together_otherwise_are_refused(index: Callable[[Array], Array]) -> None:
    assert leaks(partial(by_index, index), STEP, draw, seeds=range(8))
    refused(partial(by_index, index), STEP, draw)


def guarded(instead: int, x: Array, pool: Array, slots: Array, active: Array, **mode: Any) -> Any:
    """The row of an inactive lane is unchanged."""
    return x, pool.at[jnp.where(active, slots, instead)].set(jnp.tanh(pool[slots] + x), **mode)  # fault


UNWRAPPED: dict[str, Any] = {"mode": "drop", "wrap_negative_indices": False}


@pytest.mark.parametrize(("instead", "mode"), [(0, {}), (0, UNWRAPPED), (-1, UNWRAPPED), (ROWS, {"mode": "drop"})])
def test_lanes_that_are_switched_off_write_to_a_row_of_no_lane(instead: int, mode: dict[str, Any]) -> None:
    proved(partial(guarded, instead, **mode), ACTIVE, draw_active)


@pytest.mark.parametrize(
    ("instead", "mode"),
    [(-1, {"mode": "drop"}), (ROWS, {"mode": "clip"}), (1, {})],
)
def test_a_row_that_may_be_a_lanes_is_refused(instead: int, mode: dict[str, Any]) -> None:
    step = partial(guarded, instead, **mode)
    assert leaks(step, ACTIVE, draw_active, seeds=range(12))
    (violation, *_) = refused(step, ACTIVE, draw_active)
    assert violation.kind in (ViolationKind.WRONG_ROW, ViolationKind.BOUNDS)
    if violation.kind == ViolationKind.WRONG_ROW:
        assert "where(active, slots, size)" in violation.remedy


def test_row_0_of_a_map_without_a_null_row_is_a_lanes() -> None:
    full_map = SlotMap("s", size=ROWS, null=False)
    contract = LaneContract((Lane(), Pool("s"), full_map, Lane()), ACTIVE.outputs)
    refused(partial(guarded, 0), contract, draw_active)


def test_the_null_row_is_not_read() -> None:
    """Any lane may have written it, in this step or an earlier one."""

    def step(x: Array, pool: Array, slots: Array, active: Array) -> Any:
        return pool[jnp.where(active, slots, 0)] + x, pool  # fault

    (violation, *_) = refused(step, ACTIVE, draw_active)
    assert violation.kind == ViolationKind.WRONG_ROW

    def filled(x: Array, pool: Array, slots: Array, active: Array) -> Any:
        rows = pool.at[jnp.where(active, slots, ROWS)].get(mode="fill", fill_value=0)
        return rows + x, pool

    proved(filled, ACTIVE, draw_active)


@pytest.mark.parametrize("instead", [0, ROWS])
def test_idle_lanes_write_to_a_row_of_no_lane(instead: int) -> None:
    def step(x: Array, pool: Array, slots: Array, lengths: Array) -> Any:
        return guarded(instead, x, pool, slots, lengths > 0, mode="drop")

    proved(step, LENGTHS, draw_lengths)

    def all_lanes(x: Array, pool: Array, slots: Array, lengths: Array) -> Any:
        return guarded(instead, x, pool, slots, lengths > -1, mode="drop")

    refused(all_lanes, LENGTHS, draw_lengths)


def on_one_device(over: str, shift: int, x: Array, pool: Array, slots: Array, roll: int = 0) -> Any:
    """Rows and lanes over an axis of one device; the other axis has two."""
    mesh = jax.make_mesh((1, 2), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def local(x: Array, pool: Array, slots: Array) -> Any:
        rows = slots - shift * pool.shape[0] * lax.axis_index("data")
        return x, pool.at[rows].set(jnp.tanh(pool[rows] + jnp.roll(x, roll, 0)))  # fault

    spec = P(over)
    return jax.shard_map(local, mesh=mesh, in_specs=(spec,) * 3, out_specs=(spec,) * 2, check_vma=False)(x, pool, slots)


@pytest.mark.parametrize("shift", [0, 1])
def test_an_axis_of_one_device_splits_nothing(shift: int) -> None:
    prove_isolation(partial(on_one_device, "data", shift), draw(np.random.default_rng(0)), STEP)
    refused(partial(on_one_device, "data", shift, roll=1), STEP, draw)


EXPERTS, TOP, WIDE = 4, 2, 7
MOE = LaneContract((Shared(), Shared(), Lane()), (Lane(),))


def draw_moe(rng: np.random.Generator) -> tuple[Any, ...]:
    shapes = (D, EXPERTS), (EXPERTS, D, WIDE), (N, D)
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def experts(count: Callable[..., Array], local: int, router: Array, weights: Array, x: Array) -> Any:
    """Rows sorted by expert; of `local` experts on this device, the others' rows come last."""
    _, chosen = lax.top_k(jax.nn.softmax(x @ router), TOP)
    keys = chosen.reshape(-1)
    if local < EXPERTS:
        keys = jnp.where(keys < local, keys, 2**30)
    order = jnp.argsort(keys)
    y = lax.ragged_dot(x[order // TOP], weights[:local], count(keys, order, local).astype(jnp.int32))  # fault
    y = jnp.where((keys[order] < local)[:, None], y, 0)
    return (y[jnp.argsort(order)].reshape(N, TOP, -1).sum(1),)


@pytest.mark.parametrize(("count", "local"), [
    (lambda keys, order, local: jnp.bincount(keys[order], length=local), EXPERTS),
    (lambda keys, order, local: jnp.bincount(keys, length=local), EXPERTS),
    (lambda keys, order, local: jnp.bincount(keys, length=local), 2),
    (lambda keys, order, local: jnp.bincount(keys[order], length=local), 2),
])  # fmt: skip
def test_rows_sorted_by_expert(count: Callable[..., Array], local: int) -> None:
    proved(partial(experts, count, local), MOE, draw_moe)
    proof = prove_isolation(partial(experts, count, local), draw_moe(np.random.default_rng(0)), MOE)
    assert any(statement.id == "ungrouped-rows" for statement in proof.assumed) == (local < EXPERTS)


PAGES, PAGE = 12, 3
PAGED = LaneContract((Lane(), Pool("p"), PageTable("p", PAGES), Lane(), Lane()), (Lane(), Pool("p")))


def draw_pages(rng: np.random.Generator) -> tuple[Any, ...]:
    """Pages of the lanes alone, positions within them, and lanes that write."""
    x, pool = rng.normal(size=(N, D)).astype(np.float32), rng.normal(size=(PAGES, PAGE, D)).astype(np.float32)
    table = (1 + rng.permutation(PAGES - 1)[: N * 2]).reshape(N, 2).astype(np.int32)
    return x, pool, table, rng.integers(0, 2 * PAGE, N).astype(np.int32), rng.random(N) < 0.5


def written(by: int, mode: str, x: Array, pool: Array, table: Array, position: Array, active: Array) -> Any:
    """An inactive lane adds to its page, to write past the last page."""
    page = jnp.take_along_axis(table, (position // PAGE)[:, None], axis=1, mode="clip")[:, 0]
    return x, pool.at[jnp.where(active, page, page + by), position % PAGE].set(x, mode=mode)  # fault


@pytest.mark.parametrize("by", [PAGES, PAGES + 5])
def test_a_page_is_sent_past_the_end_by_adding_to_it(by: int) -> None:
    proved(partial(written, by, "drop"), PAGED, draw_pages)


@pytest.mark.parametrize(("by", "mode"), [(PAGES - 2, "drop"), (-1, "drop"), (PAGES, "clip")])
def test_a_page_that_is_sent_elsewhere_is_refused(by: int, mode: str) -> None:
    assert leaks(partial(written, by, mode), PAGED, draw_pages, seeds=range(12))
    refused(partial(written, by, mode), PAGED, draw_pages)


def test_a_row_is_sent_past_the_end_by_adding_to_it() -> None:
    def added(by: int, x: Array, pool: Array, slots: Array, active: Array) -> Any:
        return x, pool.at[jnp.where(active, slots, slots + by)].set(jnp.tanh(pool[slots] + x), mode="drop")  # fault

    proved(partial(added, ROWS), ACTIVE, draw_active)
    assert leaks(partial(added, ROWS - 1), ACTIVE, draw_active, seeds=range(12))
    refused(partial(added, ROWS - 1), ACTIVE, draw_active)
