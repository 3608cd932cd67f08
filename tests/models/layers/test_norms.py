"""Norms against float64: tiny and large rows, weights stored minus one and in bfloat16."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled, random_values
from flax import nnx

from hybridlm.families import l2_norm
from models.layers.norms import GATE_WIDTH, NormConfig, RMSNorm, rms_norm

EPS = 1e-6


def float64_rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


@pytest.mark.parametrize("shape", [(7,), (2, 3, 4, 16)])
@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e-3, 1.0, 1e15])
def test_rms_norm_as_float64(shape: tuple[int, ...], scale: float) -> None:
    rng = np.random.default_rng(len(shape))
    x, weight = (scale * rng.normal(size=shape)).astype(np.float32), rng.normal(size=shape[-1:]).astype(np.float32)
    got = np.asarray(rms_norm(jnp.asarray(x), jnp.asarray(weight), EPS))
    assert got.dtype == np.float32 and np.isfinite(got).all()
    np.testing.assert_allclose(got, float64_rms(x, weight, EPS), rtol=3e-6, atol=1e-30)


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1e-3, 1.0, 1e6])
def test_l2_norm_as_float64(scale: float) -> None:
    x = (scale * np.random.default_rng(0).normal(size=(2, 3, 4, 16))).astype(np.float32)
    want = x.astype(np.float64) / np.sqrt((x.astype(np.float64) ** 2).sum(-1, keepdims=True) + EPS)
    np.testing.assert_allclose(l2_norm(jnp.asarray(x)), want, rtol=3e-6, atol=1e-30)


def test_gated_norm_as_float64() -> None:
    """The gate has the normed input as its input, and its factor."""
    norm: Any = filled(lambda: NormConfig(EPS, 1.0, 1.7).build(12, nnx.Rngs(0)), random_values(0))
    x = np.random.default_rng(0).normal(size=(2, 3, 12)).astype(np.float32)
    down, up = (np.asarray(matrix[...], np.float64) for matrix in (norm.gate_in, norm.gate_out))
    assert down.shape == (GATE_WIDTH, 12) and up.shape == (12, GATE_WIDTH)
    normed = float64_rms(x, 1 + np.asarray(norm.weight[...]), EPS)
    inner = normed @ down.T
    want = 1.7 * normed / (1 + np.exp(-(inner / (1 + np.exp(-inner))) @ up.T))
    np.testing.assert_allclose(norm(jnp.asarray(x)), want, rtol=0, atol=3e-6)
    assert type(NormConfig(EPS, 1.0).build(12, nnx.Rngs(0))) is RMSNorm


def test_eps_is_inside_the_root() -> None:
    """Rows of mean square eps come out with a mean square of one half."""
    x = jnp.full((1, 16), EPS**0.5, jnp.float32)
    np.testing.assert_allclose(rms_norm(x, jnp.ones(16), EPS), 0.5**0.5, rtol=1e-5)
    np.testing.assert_allclose(l2_norm(jnp.full((1, 1), EPS**0.5, jnp.float32)), 0.5**0.5, rtol=1e-5)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_offset_of_the_stored_weight(offset: float) -> None:
    """One is added in float32; a bfloat16 sum would lose small weights (1 + 0.0026)."""
    rng = np.random.default_rng(1)
    stored = jnp.asarray(0.003 * rng.normal(size=64), jnp.bfloat16).astype(jnp.float32)
    x = rng.normal(size=(5, 64)).astype(np.float32)
    norm = RMSNorm(64, EPS, offset)
    norm.weight[...] = stored
    want = float64_rms(x, np.asarray(stored, np.float64) + offset, EPS)
    np.testing.assert_allclose(norm(jnp.asarray(x)), want, rtol=3e-6, atol=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_new_norm_scales_by_one(offset: float) -> None:
    x = np.random.default_rng(2).normal(size=(3, 8)).astype(np.float32)
    np.testing.assert_allclose(RMSNorm(8, EPS, offset)(jnp.asarray(x)), float64_rms(x, np.ones(8), EPS), rtol=3e-6)
