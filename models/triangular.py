"""Unit lower triangular systems by forward substitution, row after row.

`jax.scipy.linalg.solve_triangular` is not used: on a CPU its batched kernel holds a thread of XLA's pool while it waits
for others of the same pool, so two solves that run at once (as in a backward pass) can wait for each other for ever
where the pool has two threads; and it is 3 to 100 times slower than this.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

System = Float32[Array, "*batch row row"]
Columns = Float32[Array, "*batch row column"]


def _substitute(system: Array, right: Array) -> Array:
    def row(i: Array, x: Array) -> Array:
        known = lax.dynamic_index_in_dim(system, i, -2, keepdims=False)
        new = lax.dynamic_index_in_dim(right, i, -2, keepdims=False) - jnp.einsum(
            "...j,...jv->...v", known, x, precision=lax.Precision.HIGHEST
        )
        return lax.dynamic_update_index_in_dim(x, new, i, x.ndim - 2)

    return lax.fori_loop(0, system.shape[-1], row, jnp.zeros_like(right))


@jax.custom_vjp
def solve_unit_lower(system: System, right: Columns) -> Columns:
    """X of (I + system) X = right.

    Args:
        system: strictly lower triangular.
        right: right-hand sides.
    """
    return _substitute(system, right)


def _forward(system: Array, right: Array) -> tuple[Array, tuple[Array, Array]]:
    solution = _substitute(system, right)
    return solution, (system, solution)


def _backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    system, solution = kept
    transposed = jnp.flip(jnp.swapaxes(system, -1, -2), (-1, -2))
    right = jnp.flip(_substitute(transposed, jnp.flip(gradient, -2)), -2)
    outer = jnp.einsum("...iv,...jv->...ij", right, solution, precision=lax.Precision.HIGHEST)
    return -jnp.tril(outer, -1), right


solve_unit_lower.defvjp(_forward, _backward)
