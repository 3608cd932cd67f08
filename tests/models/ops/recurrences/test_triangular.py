"""Inverses against float64, also of hard systems, and their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.ops.recurrences.triangular import unit_lower_inverse


@pytest.mark.parametrize("size", [1, 2, 7, 8, 21, 64])
def test_inverts_and_differentiates(size: int) -> None:
    rng = np.random.default_rng(size)
    system = np.tril(rng.normal(size=(2, 3, size, size)) / max(size, 2) ** 0.5, -1).astype(np.float32)
    want = np.linalg.inv(np.eye(size) + system.astype(np.float64))
    np.testing.assert_allclose(jax.jit(unit_lower_inverse)(system), want, rtol=2e-4, atol=2e-4)

    # for L = sum(C * X) with X = (I+A)^-1: dL/dA = -X^T C X^T below the diagonal
    weight = rng.normal(size=system.shape).astype(np.float32)
    by_system = jax.jit(jax.grad(lambda a: jnp.sum(weight * unit_lower_inverse(a))))(system)
    turned = np.swapaxes(want, -1, -2)
    np.testing.assert_allclose(by_system, -np.tril(turned @ weight @ turned, -1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("share", [0.999, 0.5])
def test_equal_keys_lose_no_digits(share: float) -> None:
    """With 64 equal keys a product of the system's powers loses all digits."""
    system = np.tril(np.full((64, 64), share, np.float32), -1)
    right = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    want = np.linalg.solve(np.eye(64) + system.astype(np.float64), right.astype(np.float64))
    np.testing.assert_allclose(jax.jit(unit_lower_inverse)(system) @ right, want, rtol=0, atol=2e-5)
