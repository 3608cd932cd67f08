"""Inverses of unit lower triangular matrices, for the WY form of the delta rule.

The inverse of [[A, 0], [B, C]] is [[A', 0], [-C' B A', C']] with inverses A', C': small blocks are inverted by forward
substitution and joined two by two. The product (I + N)(I + N^2).. loses digits.

`jax.scipy.linalg.solve_triangular` can deadlock on a CPU: its batched kernel waits inside XLA's pool. It is also 3 to
100 times slower.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

from models.ops.float32 import full_einsum

BLOCK = 8

System = Float32[Array, "*batch row row"]


def _rows_inverse(system: Array) -> Array:
    """Return (I + system)^-1 by forward substitution: `x_i = e_i - sum_{j<i} system_ij x_j`."""
    size = system.shape[-1]
    index = [lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in range(2)]
    unit = jnp.broadcast_to((index[0] == index[1]).astype(system.dtype), system.shape)
    rows = [unit[..., 0, :]]
    for i in range(1, size):
        row = unit[..., i, :]
        for j in range(i):
            row = row - system[..., i, j, None] * rows[j]
        rows.append(row)
    return jnp.stack(rows, axis=-2)


def _inverse(system: Array) -> Array:
    rows = system.shape[-1]
    size = min(BLOCK, rows)
    padded = size
    while padded < rows:
        padded *= 2
    # Padding by the unit matrix does not change the inverse of the rest.
    system = jnp.pad(system, [(0, 0)] * (system.ndim - 2) + [(0, padded - rows)] * 2)

    def blocks(size: int, below: int) -> Array:
        """Return the diagonal blocks, or the blocks below every second one."""
        starts = range(0, padded, size * (1 + below))
        return jnp.stack([system[..., i + below * size :, i:][..., :size, :size] for i in starts], axis=-3)

    inverse = _rows_inverse(blocks(size, 0))
    while size < padded:
        upper, lower = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        corner = -full_einsum("...ij,...jk,...kl->...il", lower, blocks(size, 1), upper)
        top = jnp.concatenate([upper, jnp.zeros_like(upper)], axis=-1)
        inverse = jnp.concatenate([top, jnp.concatenate([corner, lower], axis=-1)], axis=-2)
        size *= 2
    return inverse[..., 0, :rows, :rows]


@jax.custom_jvp
def unit_lower_inverse(system: System) -> System:
    """Return (I + system)^-1 of a strictly lower triangular system, differentiable."""
    return _inverse(system)


@unit_lower_inverse.defjvp
def _derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    inverse = unit_lower_inverse(*primals)
    return inverse, -full_einsum("...ij,...jk,...kl->...il", inverse, jnp.tril(tangents[0], -1), inverse)
