"""Instances of random numbers from keys of lanes and shared ones."""

from typing import Any

import jax
import jax.numpy as jnp
from instances.elementwise import PRIMITIVES, Builder
from instances.operands import Layout, Operands
from jax import Array, lax

WORDS = {"threefry2x32": 2, "rbg": 4}


def _keys(operands: Operands, rank: int | None = None) -> tuple[Array, Layout]:
    """Keys of any shape from lanes' words, sometimes of several lanes."""
    impl = operands.one_of(*WORDS)
    layout = operands.layout(operands.below(3, 1) if rank is None else rank, pool=False)
    words = Layout((*layout.shape, WORDS[impl]), layout.axis, layout.rows, layout.inner)
    if operands.chance(0.15) and operands.lanes == WORDS[impl]:
        words = Layout(words.shape, len(layout.shape), operands.lanes)
    return jax.random.wrap_key_data(
        operands.array(words, "uint32", operands.one_of("shared", operands.kind(words))), impl=impl
    ), layout


def _one(operands: Operands) -> Array:
    """One key, of a lane or shared."""
    impl = operands.one_of(*WORDS)
    words = Layout((WORDS[impl],), 0, operands.lanes)
    return jax.random.wrap_key_data(
        operands.array(words, "uint32", operands.one_of("shared", "one", "picked")), impl=impl
    )


def _bits(operands: Operands) -> Array:
    keys = _one(operands) if operands.chance(0.2) else _keys(operands)[0]
    shape = tuple(operands.below(4, 1) for _ in range(operands.below(3)))
    return PRIMITIVES["random_bits"].bind(keys, bit_width=operands.one_of(8, 32), shape=shape)


def _split(operands: Operands) -> Array:
    keys = PRIMITIVES["random_split"].bind(_keys(operands)[0], shape=(operands.below(4, 1),))
    return jax.random.key_data(keys)


def _fold_in(operands: Operands) -> Array:
    keys, layout = _keys(operands)
    data = operands.array(layout, "uint32", operands.one_of("shared", operands.kind(layout)))
    if operands.chance(0.2):
        data = lax.slice_in_dim(data, 0, 1, axis=operands.below(data.ndim))
    elif operands.chance(0.2):
        keys = lax.slice_in_dim(keys, 0, 1, axis=operands.below(keys.ndim))
    return jax.random.key_data(PRIMITIVES["random_fold_in"].bind(keys, data))


def _gamma(operands: Operands) -> Array:
    """Gamma samples of one or many keys; reordered rows are put back."""
    if operands.chance(0.4):
        keys, layout = _keys(operands)
    else:
        keys, layout = _one(operands), operands.layout(pool=False)
    shape = operands.array(layout, "float32", operands.one_of("shared", *["ordered"] * 2, operands.kind(layout)))
    return back(operands, PRIMITIVES["random_gamma"].bind(keys, jnp.abs(shape) + 1, log_space=False), layout)


def back(operands: Operands, array: Array, layout: Layout) -> Array:
    """Rows of a layout out of the order that depends on all lanes."""
    return jnp.take(array, jnp.argsort(operands.order(array.shape[layout.axis])), axis=layout.axis, mode="clip")


def _generator(operands: Operands) -> Any:
    words = Layout((4,), 0, operands.lanes)
    kind = "lanes" if operands.lanes == 4 and operands.chance(0.5) else operands.one_of("shared", "one", "picked")
    return list(lax.rng_bit_generator(operands.array(words, "uint32", kind), (operands.below(4, 1), 2)))


def _seed(operands: Operands) -> Array:
    keys: Any = jax.random.key(0).dtype
    return jax.random.key_data(PRIMITIVES["random_seed"].bind(operands.any("uint32", pool=False)[0], impl=keys._impl))


BUILDERS: dict[str, Builder] = {
    "random_bits": _bits,
    "random_split": _split,
    "random_wrap": lambda o: jax.random.key_data(_keys(o)[0]),
    "random_unwrap": lambda o: jax.random.key_data(_keys(o)[0]),
    "random_seed": _seed,
    "random_clone": lambda o: jax.random.key_data(jax.random.clone(_keys(o)[0])),
    "random_fold_in": _fold_in,
    "random_gamma": _gamma,
    "rng_bit_generator": _generator,
}
