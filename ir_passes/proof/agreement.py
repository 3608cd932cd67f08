"""The check inside a step that devices which ought to have the same operands do.

A `shard_map` takes a replicated argument to be the same on all devices; no type and no compiler compares, and nothing
else notices a host that gave one device another. A step that compares it itself can leave every row alone where the
devices differ, and report it.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ir_passes.contract.declared import CROSSING, declassify
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.mesh import varying_axes

_REASON = "whether devices were given the same operands; where they were not, no row changes"


def devices_agree(operands: Any) -> Array:
    """Whether devices that ought to have the same operands have them, bit for bit.

    To be called inside `jax.shard_map(.., check_vma=True)`: an operand ought to be the same along each axis of the mesh
    that its type does not name. One collective for all operands that are split alike. A step that uses it is proved to
    change no row where it is false: `lengths = jnp.where(agree, lengths, 0)`, or `slots = jnp.where(agree, slots,
    rows)` with `mode="drop"`.

    Args:
        operands: a pytree of arrays of 32 bits to an element, as slot maps, lengths and positions are.

    Returns:
        bool [], the same on all devices of the mesh, so that none of them writes where two disagree. Return it as a
        `Shared` output, for the host to raise an error. Where no two devices have the same operand, it is true.

    Raises:
        TypeError: an array of other than 32 bits to an element.
    """
    mesh = jax.sharding.get_abstract_mesh()
    several = [axis for axis in mesh.manual_axes if mesh.shape[axis] > 1]
    words: dict[tuple[str, ...], list[Array]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(operands):
        if leaf.dtype.itemsize != 4:
            where = jax.tree_util.keystr(path)
            raise TypeError(f"devices_agree: operands{where}: expected an array of 32 bits, got {leaf.dtype}")
        alike = tuple(axis for axis in several if axis not in varying_axes(jax.typeof(leaf)))
        words.setdefault(alike, []).append(lax.bitcast_convert_type(leaf, jnp.int32).reshape(-1))
    words.pop((), None)
    if not words:
        return jnp.array(True)
    differ = functools.reduce(jnp.maximum, [_differ(jnp.concatenate(found), over) for over, found in words.items()])
    elsewhere = tuple(axis for axis in several if axis in varying_axes(jax.typeof(differ)))
    if elsewhere:
        differ = lax.pmax(differ, elsewhere)
    return declassify(differ == 0, _REASON)


def _differ(word: Array, over: tuple[str, ...]) -> Array:
    """1 where numbers differ along some axes of the mesh, else 0."""
    # ~x reverses the order, so that one collective finds the greatest and the least
    most, least = jnp.split(lax.pmax(jnp.concatenate([word, ~word]), over), 2)
    return jnp.any(most != ~least).astype(jnp.int32)


def compares_devices(eqn: ir.JaxprEqn) -> bool:
    """Whether an equation makes the result of `devices_agree`."""
    return eqn.primitive.name == "name" and eqn.params["name"] == CROSSING + _REASON
