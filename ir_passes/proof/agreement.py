"""`devices_agree`: a check inside a step that devices have equal operands.

`shard_map` assumes that a replicated argument is equal on all devices; neither types nor the compiler check this.
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
    """Compare, bit for bit, the operands that devices ought to share.

    Call it inside `jax.shard_map(.., check_vma=True)`: an operand ought to be equal along each mesh axis that its type
    does not name. It takes one collective for all operands that are split alike. A step that uses it is proved to
    change no row where the result is false: `lengths = jnp.where(agree, lengths, 0)`, or
    `slots = jnp.where(agree, slots, rows)` with `mode="drop"`.

    Args:
        operands: a pytree of arrays with 32-bit elements.

    Returns:
        bool [], equal on all devices of the mesh, so no device writes where two disagree; True if devices share no
            operand. Return it as a `Shared` output, for the host to raise an error.

    Raises:
        TypeError: an array with elements of another width.
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
    differ = functools.reduce(jnp.maximum, [_differ(jnp.concatenate(parts), axes) for axes, parts in words.items()])
    axes = tuple(axis for axis in several if axis in varying_axes(jax.typeof(differ)))
    if axes:
        differ = lax.pmax(differ, axes)
    return declassify(differ == 0, _REASON)


def _differ(word: Array, over: tuple[str, ...]) -> Array:
    # ~x reverses the order, so one collective finds the maximum and the minimum
    maximum, minimum = jnp.split(lax.pmax(jnp.concatenate([word, ~word]), over), 2)
    return jnp.any(maximum != ~minimum).astype(jnp.int32)


def compares_devices(eqn: ir.JaxprEqn) -> bool:
    return eqn.primitive.name == "name" and eqn.params["name"] == CROSSING + _REASON
