"""Natural steps compile in place with the same results, although XLA would copy a pool."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from rewritten_steps import check_proved, graph_of
from zoo.catalogue import PROGRAMS

from ir_passes import AuditError, Lane, LaneContract, Pool, Shared, SlotMap, compile_step
from ir_passes.jaxpr import ir
from ir_passes.rewrites import DEFAULT_PASSES, write_in_place
from ir_passes.rewrites.pipeline import pass_name
from ir_passes.rewrites.write_order import _never

LANES, WIDTH, ROWS, LAYERS, POSITIONS = 3, 8, 7, 4, 16
SLOTS, PLACES = jnp.array([2, 5, 1], jnp.int32), jnp.array([3, 0, 7], jnp.int32)
ROW_POOL = LaneContract((Pool("s"), SlotMap("s", ROWS), Lane()), (Lane(), Pool("s")))
OWN_ROWS = LaneContract((Pool("s"), Lane()), (Lane(), Pool("s")))
CACHE = LaneContract((Pool("s"), Lane(), Lane()), (Lane(), Pool("s")))
TWO_POOLS = LaneContract((Pool("s"), Pool("t"), Lane(), Lane()), (Lane(), Pool("s"), Pool("t")))
LAYERED = LaneContract((Pool("s", axis=1), Lane(), Lane(), Shared()), (Lane(), Pool("s", axis=1)))


def numbers(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape) * 0.5, jnp.float32)


def read_then_set(pool, slots, x):
    return pool[slots].sum(1), pool.at[slots].set(x)


def two_reads(pool, slots, x):
    return (pool[slots].sum(1) + jnp.sin(pool[slots]).sum(1)), pool.at[slots].set(x)


def tokens_one_by_one(pool, slots, x):
    totals = []
    for t in range(4):
        totals.append(pool[slots].sum((1, 2)))
        pool = pool.at[slots, t].set(x[:, t])
    return jnp.stack(totals, 1), pool


def tokens_in_a_scan(pool, slots, x):
    def token(pool, now):
        x, t = now
        total = pool[slots].sum((1, 2))
        return pool.at[slots, t].set(x), total

    pool, totals = lax.scan(token, pool, (x.swapaxes(0, 1), jnp.arange(4)))
    return totals.swapaxes(0, 1), pool


def lanes_in_a_loop(pool, slots, x):
    def lane(i, carry):
        pool, totals = carry
        row = pool[slots[i]]
        return pool.at[slots[i]].set(row * 0.5 + x[i]), totals.at[i].set(row.sum())

    pool, totals = lax.fori_loop(0, LANES, lane, (pool, jnp.zeros(LANES)))
    return totals, pool


def old_state_returned(state, x):
    return state.sum(1), state * 0.5 + x


def one_hot_write(cache, x, places):
    mask = (jnp.arange(POSITIONS)[None] == places[:, None])[..., None]
    cache = jnp.where(mask, x[:, None], cache)
    return cache.sum(1), cache


def one_hot_before_a_loop(cache, state, x, places):
    """The copy of the one-hot write moves the equations behind it, the loop among them."""
    total, cache = one_hot_write(cache, x, places)
    return total, cache, lax.fori_loop(0, 2, lambda i, state: state * 0.5 + x, state)


def two_pools_in_a_loop(cache, state, x, places):
    """Both pools are read before the loop that updates them."""

    def token(i, pools):
        cache, state = pools
        return cache.at[jnp.arange(LANES), places + i].set(x), state * 0.5 + x

    total = cache.sum(1) + jnp.sin(state).sum(1)[:, None]
    cache, state = lax.fori_loop(0, 3, token, (cache, state))
    return total, cache, state


def row_caches_by_vmap(cache, x, places):
    def lane(cache, x, place):
        return (cache * jnp.arange(POSITIONS, dtype=jnp.float32)[:, None]).sum(0) + cache[place], cache.at[place].set(x)

    return jax.vmap(lane)(cache, x, places)


def layers_in_a_scan(caches, x, places, weights):
    def layer(x, of):
        cache, w = of
        total = cache.sum(1)
        cache = cache.at[jnp.arange(LANES), places].set(x)
        return x + (total + cache.sum(1)) @ w, cache

    return lax.scan(layer, x, (caches, weights))


STEPS: dict[str, tuple[Any, LaneContract, tuple[Any, ...]]] = {
    "read, then set": (read_then_set, ROW_POOL, (numbers(ROWS, WIDTH), SLOTS, numbers(LANES, WIDTH))),
    "two reads": (two_reads, ROW_POOL, (numbers(ROWS, WIDTH), SLOTS, numbers(LANES, WIDTH))),
    "tokens, one by one": (tokens_one_by_one, ROW_POOL,
        (numbers(ROWS, POSITIONS, WIDTH), SLOTS, numbers(LANES, 4, WIDTH))),
    "tokens in a scan": (tokens_in_a_scan, ROW_POOL,
        (numbers(ROWS, POSITIONS, WIDTH), SLOTS, numbers(LANES, 4, WIDTH))),
    "lanes in a loop": (lanes_in_a_loop, ROW_POOL, (numbers(ROWS, WIDTH), SLOTS, numbers(LANES, WIDTH))),
    "old state returned": (old_state_returned, OWN_ROWS, (numbers(LANES, WIDTH), numbers(LANES, WIDTH))),
    "one-hot write": (one_hot_write, CACHE, (numbers(LANES, POSITIONS, WIDTH), numbers(LANES, WIDTH), PLACES)),
    "one-hot write before a loop": (one_hot_before_a_loop, TWO_POOLS,
        (numbers(LANES, POSITIONS, WIDTH), numbers(LANES, WIDTH), numbers(LANES, WIDTH), PLACES)),
    "two pools in a loop": (two_pools_in_a_loop, TWO_POOLS,
        (numbers(LANES, POSITIONS, WIDTH), numbers(LANES, WIDTH), numbers(LANES, WIDTH), PLACES)),
    "row caches by vmap": (row_caches_by_vmap, CACHE,
        (numbers(LANES, POSITIONS, WIDTH), numbers(LANES, WIDTH), PLACES)),
    "layers in a scan": (layers_in_a_scan, LAYERED,
        (numbers(LAYERS, LANES, POSITIONS, WIDTH), numbers(LANES, WIDTH), PLACES, numbers(LAYERS, WIDTH, WIDTH))),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_step_with_a_copy_is_compiled_in_place(name: str) -> None:
    step, contract, args = STEPS[name]
    with pytest.raises(AuditError, match=r"pool-copy|second-pool"):
        compile_step(step, args, contract, passes=())
    compiled = compile_step(step, args, contract)
    assert compiled.passes[-1].name == "write-in-place" and compiled.certificate.holds
    expected = jax.jit(step)(*args)
    got = compiled(*jax.tree.map(jnp.array, args))
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-6)


def test_a_step_without_a_copy_keeps_its_program() -> None:
    args = numbers(LANES, WIDTH), numbers(LANES, WIDTH)
    compiled = compile_step(lambda state, x: (x.sum(1), state + x), args, OWN_ROWS)
    assert [effect.name for effect in compiled.passes] == [*map(pass_name, DEFAULT_PASSES)]


def test_a_copy_that_no_order_avoids_is_reported() -> None:
    args = numbers(LANES, WIDTH), numbers(LANES, WIDTH)
    with pytest.raises(AuditError, match="may_copy"):
        compile_step(lambda state, x: (state, x), args, OWN_ROWS)


@pytest.mark.each_value
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_proved_with_ordered_writes(name: str) -> None:
    program = PROGRAMS[name]
    ordered = write_in_place(graph_of(program.step, program.args(), program.contract))
    assert write_in_place(ordered) is ordered
    ir.check(ordered.program)
    check_proved(ordered)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8", "uint32", "int32", "bool"])
def test_the_flag_is_false_for_every_bit_pattern(dtype: str) -> None:
    draw = np.random.default_rng(0)
    width = 1 if dtype == "bool" else jnp.dtype(dtype).itemsize
    words = draw.integers(0, 256, size=(500, width), dtype=np.uint8)
    values = words[:, 0] > 127 if dtype == "bool" else words.view(jnp.dtype(dtype)).reshape(-1)
    special = [] if dtype == "bool" else [np.zeros(1, jnp.dtype(dtype)), np.ones(1, jnp.dtype(dtype))]
    every = jnp.asarray(np.concatenate([values, *special]))
    assert not jax.vmap(lambda value: _never(value[None]))(every).any()
