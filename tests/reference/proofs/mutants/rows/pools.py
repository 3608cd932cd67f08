"""Pools: rows outside the map, stale versions, coupled arrays that part, swapped dimensions."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mutants.mutant import Evidence, Kind, mutants_of, wrong
from zoo import attention, gated_delta, rows
from zoo.program import LANES, SLOTS, normal, slot_map, weight
from zoo.rows import advance

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

PLAIN = "rows behind a slot map"
FAULT = Evidence.FAULT
FRAME = (Kind.FRAME, Kind.WRONG_ROW, Kind.CROSS_LANE)
COUPLED = (Kind.COUPLING, Kind.WRONG_ROW)
SQUARE = LaneContract(
    inputs=(Pool("seq", dims=("slot", "key", "value")), SlotMap("seq", SLOTS), Lane(), Shared()),
    outputs=(Lane(), Pool("seq", dims=("slot", "key", "value"))),
)
SIZE = 4


def draw_square(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, SLOTS, SIZE, SIZE), slot_map(rng), normal(rng, LANES, 5), weight(rng, 3 * SIZE, 5)


def square(pool, slots, x, w, read=lambda s: s, write=lambda s: s):
    """Linear attention with keys as long as values, so that a transposed state fits."""
    q, k, v = jnp.split(x @ w.T, 3, axis=-1)
    state = 0.9 * read(pool[slots]) + k[:, :, None] * v[:, None, :]
    return jnp.einsum("nkv,nk->nv", state, q), pool.at[slots].set(write(state))


def transpose(state: jax.Array) -> jax.Array:
    return jnp.swapaxes(state, 1, 2)


def outer_product_swapped(pool, slots, x, w):
    """A kernel that makes v k^T where the pool has k v^T."""
    q, k, v = jnp.split(x @ w.T, 3, axis=-1)
    state = 0.9 * pool[slots] + jnp.swapaxes(k[:, :, None] * v[:, None, :], 1, 2)
    return jnp.einsum("nkv,nk->nv", state, q), pool.at[slots].set(jnp.swapaxes(jnp.swapaxes(state, 1, 2), 1, 2).mT)


def read_after_write(pool, slots, x, w):
    """The snapshot is taken from the version before."""
    new = pool.at[slots].set(advance(pool[slots], x, w))
    return pool[slots].sum(1), new


def two_chains(pool, slots, x, w):
    """Two successors of one version; the first is lost."""
    rows = advance(pool[slots], x, w)
    return pool.at[slots].set(rows)[slots].sum(1), pool.at[slots].add(x.sum(1)[:, None, None])


def write_lost(pool, slots, x, w):
    """The written rows are read, and the pool before the write is returned."""
    return pool.at[slots].set(advance(pool[slots], x, w))[slots].sum(1), pool


def whole_pool_decays(pool, slots, x, w):
    y, pool = rows.plain_step(pool, slots, x, w)
    return y, 0.99 * pool


def others_zeroed(pool, slots, x, w):
    new = advance(pool[slots], x, w)
    return new.sum(1), jnp.zeros_like(pool).at[slots].set(new)


def pool_rolled(pool, slots, x, w):
    y, pool = rows.plain_step(pool, slots, x, w)
    return y, jnp.roll(pool, 1, axis=0)


def copies_one_after_the_other(pools, source, target):
    """A later copy reads an earlier copy's result."""
    for i in range(LANES):
        pools = jax.tree.map(lambda pool, i=i: pool.at[target[i]].set(pool[source[i]]), pools)
    return (pools,)


def written_through_the_read_pointer(pools, source, target):
    return (jax.tree.map(lambda pool: pool.at[source].set(pool[target]), pools),)


def one_map_for_two(a, b, slots_a, slots_b, x):
    """Metadata made for one group of layers is used for another."""
    return rows.two_maps_step(a, b, slots_a, slots_a, x)


def orders_differ(w, pools, slots, x):
    """Convolution in the order of lanes, state in the order of rows."""
    order = jnp.argsort(slots)
    y, conv, state = gated_delta.delta(w, pools["conv"][slots], pools["state"][slots[order]], x)
    return y, {"conv": pools["conv"].at[slots].set(conv), "state": pools["state"].at[slots[order]].set(state)}


def sentinels_differ(w, pools, slots, x):
    """One kernel takes the last row for padding, the other row 0."""
    y, conv, state = gated_delta.delta(w, pools["conv"][slots], pools["state"][slots], x)
    target = jnp.where(slots == SLOTS - 1, 0, slots)
    return y, {"conv": pools["conv"].at[target].set(conv), "state": pools["state"].at[slots].set(state)}


def state_not_written(w, pools, slots, x):
    y, conv, _ = gated_delta.delta(w, pools["conv"][slots], pools["state"][slots], x)
    return y, {"conv": pools["conv"].at[slots].set(conv), "state": pools["state"]}


def layout_not_moved(pools, source, target):
    a, b, layout = pools
    return ((a.at[target].set(a[source]), b.at[target].set(b[source]), layout),)


def caches_swapped(w, pools, slots, positions, x):
    y, pools = attention.slots_step(w, pools, slots, positions, x)
    return y, {"k": pools["v"], "v": pools["k"]}


_plain, _of_square = partial(wrong, PLAIN), mutants_of(PLAIN, Kind.DIMENSIONS, source="sparkinfer#615")
_square = partial(_of_square, evidence=FAULT, contract=SQUARE, draw=draw_square)
MUTANTS = (
    _square("written-transposed", "the state is written transposed", lambda *a: square(*a, write=transpose)),
    _square("read-and-written-transposed", "read as it is, written transposed in another step's layout",
            lambda *a: square(*a, read=transpose, write=lambda s: s)),
    _square("outer-product-swapped", "the update is v k^T, and is put straight twice", outer_product_swapped),
    _plain("read-after-write", "SGLang#24221", "the old version is read after the write", read_after_write, Kind.STALE,
           evidence=FAULT),
    _plain("two-chains", "JAX", "two successors of one version", two_chains, Kind.STALE, evidence=FAULT),
    _plain("write-lost", "JAX", "the pool before the write is returned", write_lost, Kind.STALE, evidence=FAULT),
    _plain("whole-pool-decays", "JAX", "every row of the pool is scaled", whole_pool_decays, *FRAME),
    _plain("others-zeroed", "JAX", "rows of no lane become zero", others_zeroed, *FRAME),
    _plain("pool-rolled", "JAX", "the pool is rolled by one row", pool_rolled, *FRAME),
    wrong("copies, moves and forks", "copies-in-sequence", "sglang-jax", "a copy reads what another has written",
          copies_one_after_the_other, *FRAME, Kind.BOUNDS, Kind.STALE),
    wrong("copies, moves and forks", "read-pointer", "vLLM#56196", "written through the pointer for reading",
          written_through_the_read_pointer, *FRAME),
    wrong("copies, moves and forks", "layout-not-moved", "SGLang-fork#288", "the array of layouts stays behind",
          layout_not_moved, *COUPLED, evidence=Evidence.FAULT),
    wrong("two slot maps", "one-map-for-two", "vLLM#34874", "one group's metadata is used for the other's",
          one_map_for_two, *FRAME, Kind.BOUNDS),
    wrong("gated delta", "orders-differ", "JAX", "convolution and state in different orders of lanes", orders_differ,
          *FRAME),
    wrong("gated delta", "sentinels-differ", "vLLM#39064", "two kernels disagree about the padding row",
          sentinels_differ, *COUPLED, Kind.FRAME, evidence=FAULT),
    wrong("gated delta", "state-not-written", "SGLang#26351, llama.cpp#28019", "one array of a group is not committed",
          state_not_written, *COUPLED, evidence=FAULT),
    wrong("attention", "caches-swapped", "pytorch#198031", "two arrays of a group come back in each other's place",
          caches_swapped, Kind.WRONG_ROW, Kind.DIMENSIONS, Kind.COUPLING),
)  # fmt: skip
