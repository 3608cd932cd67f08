"""SiLU against its definition in float64, and its gradient where an exponential overflows."""

import jax
import jax.numpy as jnp
import numpy as np

from models.ops.float32 import silu, silu_gated

X = np.array([-1e4, -200.0, -88.0, -30.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 30.0, 1e4], np.float32)


def test_silu_matches_float64() -> None:
    want = X.astype(np.float64) / (1 + np.exp(-X.astype(np.float64).clip(-700)))
    np.testing.assert_allclose(jax.jit(silu)(X), want, rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(jax.jit(silu_gated)(X, np.float32(3) * X), want * 3 * X, rtol=1e-6, atol=1e-25)


def test_gradients_are_finite_everywhere() -> None:
    got = jax.jit(jax.grad(lambda x: jnp.sum(silu(x))))(X)
    sigmoid = 1 / (1 + np.exp(-X.astype(np.float64).clip(-700)))
    np.testing.assert_allclose(got, sigmoid * (1 + X * (1 - sigmoid)), rtol=1e-5, atol=1e-30)
    gate, up = jax.jit(jax.grad(lambda g, u: jnp.sum(silu_gated(g, u)), (0, 1)))(X, np.ones_like(X))
    assert np.isfinite(gate).all() and np.isfinite(up).all()
