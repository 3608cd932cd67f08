"""Bounded activations against their definitions in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from hybridlm.families import silu_gated
from models.layers.activations import SwigluLimit, bounded_silu_gated

X = np.array([-1e4, -200.0, -88.0, -30.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 30.0, 1e4], np.float32)


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
