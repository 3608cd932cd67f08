"""Solutions against float64, also of hard systems, and their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.triangular import solve_unit_lower


@pytest.mark.parametrize("size", [1, 2, 7, 8, 21, 64])
def test_solves_and_differentiates(size: int) -> None:
    rng = np.random.default_rng(size)
    system = np.tril(rng.normal(size=(2, 3, size, size)) / max(size, 2) ** 0.5, -1).astype(np.float32)
    right = rng.normal(size=(2, 3, size, 5)).astype(np.float32)
    whole = np.eye(size) + system.astype(np.float64)
    want = np.linalg.solve(whole, right.astype(np.float64))
    np.testing.assert_allclose(jax.jit(solve_unit_lower)(system, right), want, rtol=2e-4, atol=2e-4)

    # for L = sum(C * X): dL/dright = (I+A)^-T C, dL/dA = -(I+A)^-T C X^T below the diagonal
    weight = rng.normal(size=right.shape).astype(np.float32)
    by_system, by_right = jax.jit(jax.grad(lambda a, b: jnp.sum(weight * solve_unit_lower(a, b)), (0, 1)))(
        system, right
    )
    y = np.linalg.solve(np.swapaxes(whole, -1, -2), weight.astype(np.float64))
    np.testing.assert_allclose(by_right, y, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(by_system, -np.tril(y @ np.swapaxes(want, -1, -2), -1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("share", [0.999, 0.5])
def test_equal_keys_lose_no_digits(share: float) -> None:
    """The system of 64 equal keys with one write strength: a product of its powers loses all of them."""
    system = np.tril(np.full((64, 64), share, np.float32), -1)
    right = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    want = np.linalg.solve(np.eye(64) + system.astype(np.float64), right.astype(np.float64))
    np.testing.assert_allclose(jax.jit(solve_unit_lower)(system, right), want, rtol=0, atol=2e-5)
