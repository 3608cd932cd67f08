"""Activations against their definitions in float64, and their gradients where an exponential overflows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridlm.families import silu_gated
from models.layers.activations import SwigluLimit, bounded_silu_gated
from models.ops.float32 import silu

X = np.array([-1e4, -200.0, -88.0, -30.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 30.0, 1e4], np.float32)


def test_silu_matches_float64() -> None:
    want = X.astype(np.float64) / (1 + np.exp(-X.astype(np.float64).clip(-700)))
    np.testing.assert_allclose(jax.jit(silu)(X), want, rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(jax.jit(silu_gated)(X, np.float32(3) * X), want * 3 * X, rtol=1e-6, atol=1e-25)


@pytest.mark.parametrize("of_silu", [False, True])
def test_bounds_are_before_or_after_the_activation(of_silu: bool) -> None:
    """Gates have an upper bound alone, the other inputs both."""
    gate, up = np.meshgrid(np.array([-20.0, -3.0, 0.5, 2.0, 9.0], np.float32), np.array([-9, -1, 0.5, 9], np.float32))
    least = gate.astype(np.float64) if of_silu else np.minimum(gate.astype(np.float64), 2.5)
    factor = least / (1 + np.exp(-least))
    want = (np.minimum(factor, 2.5) if of_silu else factor) * np.clip(up, -2.5, 2.5)
    got = bounded_silu_gated(jnp.asarray(gate), jnp.asarray(up), SwigluLimit(2.5, of_silu))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    x = jnp.asarray(X)
    np.testing.assert_array_equal(bounded_silu_gated(x, x, None), silu_gated(x, x))


def test_gradients_are_finite_everywhere() -> None:
    got = jax.jit(jax.grad(lambda x: jnp.sum(silu(x))))(X)
    sigmoid = 1 / (1 + np.exp(-X.astype(np.float64).clip(-700)))
    np.testing.assert_allclose(got, sigmoid * (1 + X * (1 - sigmoid)), rtol=1e-5, atol=1e-30)
    gate, up = jax.jit(jax.grad(lambda g, u: jnp.sum(silu_gated(g, u)), (0, 1)))(X, np.ones_like(X))
    assert np.isfinite(gate).all() and np.isfinite(up).all()
