"""Random keys across lanes, and integers beyond their apparent bounds."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from mutants.mutant import Kind, mutants_of
from zoo import rows
from zoo.program import LANES

PLAIN = "rows behind a slot map"


def _bits(x: Array) -> Array:
    return lax.bitcast_convert_type(x, jnp.uint32)


def key_of_four_lanes(pool, slots, x, w):
    """One number of each of the four lanes is one word of the key."""
    y, pool = rows.plain_step(pool, slots, x, w)
    _, random = lax.rng_bit_generator(_bits(x[:, 0]), (LANES, 1))
    return y + (random % 7).astype(jnp.float32), pool


def keys_across_lanes(pool, slots, x, w):
    """Words are along the wrong axis: each key mixes all lanes."""
    y, pool = rows.plain_step(pool, slots, x, w)
    keys = jax.random.wrap_key_data(_bits(x[:, :3]).T, impl="rbg")
    random = jax.vmap(lambda key: jax.random.bits(key, (LANES,)))(keys)
    return y + (random.T % 7).sum(1, keepdims=True).astype(jnp.float32), pool


def typed_keys(x: Array, generator: str = "threefry2x32") -> Array:
    """A key of each lane, of numbers that are its own."""
    return jax.vmap(lambda seed: jax.random.key(seed, impl=generator))(lax.bitcast_convert_type(x[:, 0], jnp.int32))


def _drawn(keys: Callable[[Array], Array]) -> Any:
    """Noise by the keys."""

    def step(pool, slots, x, w):
        y, pool = rows.plain_step(pool, slots, x, w)
        return y + jax.vmap(lambda key: jax.random.normal(key, y.shape[1:]))(keys(x)), pool

    return step


def key_of_lane_0(pool, slots, x, w):
    """One lane's key serves the whole step."""
    y, pool = rows.plain_step(pool, slots, x, w)
    return y + jax.random.normal(typed_keys(x)[0], y.shape), pool


def summed_over_vmap(pool, slots, x, w):
    """Return as many sums as there are lanes; each is over all lanes."""
    y, pool = rows.plain_step(pool, slots, x, w)
    sums = jax.vmap(lambda row: lax.psum(row[:LANES], "lanes"), axis_name="lanes", out_axes=None)(x)
    return y + sums[:, None], pool


def _neighbour_where(flag: Callable[[Array], Array]) -> Any:
    """Read the previous lane if a number exceeds its apparent maximum."""

    def step(pool, slots, x, w):
        return rows.plain_step(pool, slots, jnp.where(flag(x)[:, None], jnp.roll(x, 1, axis=0), x), w)

    return step


def _put_together(x: Array) -> Array:
    """Ones and twos: the bits of both are three."""
    return lax.reduce_or(1 + (x[:, :2] > 0).astype(jnp.int32), (1,)) > 2


def _left_over(x: Array) -> Array:
    """Fives and sixes: the bits that both have are four."""
    return lax.reduce_and(5 + (x[:, :2] > 0).astype(jnp.int32), (1,)) < 5


def _applied(x: Array) -> Array:
    """Apply a function to one of many zeros."""
    return jnp.zeros((LANES, 2), jnp.int32).at[:, 0].apply(lambda number: number + 1)[:, 0] > 0


def _nothing(x: Array) -> Array:
    """The greatest of no number at all."""
    return lax.reduce_max(jnp.zeros((LANES, 0), jnp.int32), (1,)) < 0


def one_count_for_all(pool, slots, x, w):
    """A count of one stretched over lanes: all write the first row."""
    count = lax.div_p.bind(lax.iota(jnp.int32, 1), jnp.ones(LANES, jnp.int32))
    y, pool = rows.plain_step(pool, slots, x, w)
    return jnp.zeros_like(y).at[count].set(y), pool


_wrong = mutants_of(PLAIN, Kind.CROSS_LANE)
MUTANTS = (
    _wrong("key-of-four-lanes", "the words of one key are numbers of four lanes", key_of_four_lanes),
    _wrong("keys-across-lanes", "each key has one word of every lane", keys_across_lanes),
    _wrong("typed-keys-rolled", "keys are split, and each lane draws by its neighbour's",
           _drawn(lambda x: jnp.roll(jax.vmap(jax.random.split)(typed_keys(x))[:, 1], 1))),
    _wrong("typed-key-of-lane-0", "the key of lane 0 is taken for the step's", key_of_lane_0),
    _wrong("batch-of-generator-keys", "XLA's generator is given a key for each lane, and JAX gives it the first",
           _drawn(lambda x: typed_keys(x, "rbg"))),
    _wrong("psum-under-vmap", "a sum over the axis that vmap names, of the length of the lanes", summed_over_vmap),
    _wrong("bits-of-both", "the bits of one and two are three", _neighbour_where(_put_together)),
    _wrong("bits-in-both", "the bits that five and six share are four", _neighbour_where(_left_over)),
    _wrong("applied-in-place", "a function is applied to a zero that counts as written", _neighbour_where(_applied)),
    _wrong("greatest-of-nothing", "the greatest of no numbers is the least there is", _neighbour_where(_nothing)),
    _wrong("one-count-for-all", "a count of one is stretched to all lanes", one_count_for_all),
)  # fmt: skip
