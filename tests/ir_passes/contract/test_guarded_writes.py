"""Guarded writes compute the same as the conditional writes that they replace."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap
from ir_passes.contract.guarded_writes import step_form
from ir_passes.contract.normal_form import flatten
from ir_passes.jaxpr import ir

ROWS, LANES, WIDTH = 5, 2, 3
CONTRACT = LaneContract((Pool("s"), SlotMap("s", ROWS), Lane(), Shared()), Pool("s"))
Write = Callable[..., Any]


def scattered(pool: Any, rows: Any, x: Any, flag: Any) -> Any:
    return jnp.where(flag, pool.at[rows].set(x), pool)


def in_a_loop(pool: Any, rows: Any, x: Any, flag: Any) -> Any:
    def lane(pool: Any, now: Any) -> Any:
        row, x, flag = now
        return jnp.where(flag, pool.at[row, 1:].set(x[1:]), pool), None

    return lax.scan(lane, pool, (rows, x, jnp.stack([flag, ~flag])))[0]


GUARDED: dict[str, Write] = {
    "rows": scattered,
    "cases exchanged": lambda pool, rows, x, flag: lax.select(~flag, pool, pool.at[rows].set(x)),
    "added": lambda pool, rows, x, flag: jnp.where(flag, pool.at[rows].add(x), pool),
    "a column": lambda pool, rows, x, flag: jnp.where(flag, pool.at[rows, 1].multiply(x[:, 0]), pool),
    "a slice": lambda pool, rows, x, flag: jnp.where(flag, lax.dynamic_update_slice(pool, x[:1], (rows[0], 0)), pool),
    "a slice beyond the end": lambda pool, rows, x, flag: jnp.where(
        flag, lax.dynamic_update_slice(pool, x, (rows[0] + ROWS, 1)), pool
    ),
    "a slice before the first row": lambda pool, rows, x, flag: jnp.where(
        flag, lax.dynamic_update_slice(pool, x[:1], (rows[0] - ROWS, 0), allow_negative_indices=False), pool
    ),
    "in a loop": in_a_loop,
}
KEPT: dict[str, Write] = {
    "used twice": lambda pool, rows, x, flag: (lambda new: jnp.where(flag, new, pool) + new)(pool.at[rows].set(x)),
    "another array": lambda pool, rows, x, flag: jnp.where(flag, pool.at[rows].set(x), 2 * pool),
    "a flag for each row": lambda pool, rows, x, flag: jnp.where(jnp.full((ROWS, 1), flag), pool.at[rows].set(x), pool),
    "clamped": lambda pool, rows, x, flag: jnp.where(flag, pool.at[rows].set(x, mode="clip"), pool),
}


def selects_of_pools(program: ir.ClosedJaxpr) -> int:
    eqns = [eqn for eqn in ir.all_eqns(program.jaxpr) if eqn.primitive.name == "select_n"]
    return sum(ir.shape_of(eqn.outvars[0]) == (ROWS, WIDTH) for eqn in eqns)


@pytest.mark.parametrize("name", [*GUARDED, *KEPT])
def test_guarded_writes_compute_the_same(name: str) -> None:
    """Rows with minus zero and nan, flags of both kinds; other selects stay."""
    step, rng = (GUARDED | KEPT)[name], np.random.default_rng(0)
    pool = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    pool[0], pool[1] = -0.0, np.nan
    args = pool, np.array([0, 3], np.int32), rng.normal(size=(LANES, WIDTH)).astype(np.float32), np.bool_(True)
    traced = ir.trace(step, *args)
    form = step_form(traced, CONTRACT.bind(step, args))
    ir.check(form)
    assert (selects_of_pools(form) == 0) == (name in GUARDED)
    assert selects_of_pools(flatten(traced)) > 0
    for flag in (True, False):
        for rows in ([0, 3], [3, 3], [4, 9]):
            now = pool, np.array(rows, np.int32), args[2], np.bool_(flag)
            (old,), (new,) = jax.jit(ir.as_function(traced))(*now), jax.jit(ir.as_function(form))(*now)
            np.testing.assert_array_equal(np.asarray(old).view(np.uint32), np.asarray(new).view(np.uint32))
