"""The change of basis keeps inner products, and leaves no number of a vector far larger than the others."""

import jax.numpy as jnp
import numpy as np
import pytest

from hybridlm.sampling.rotation import rotated, rotation_error

SIZES = (2, 7, 64, 70, 768, 1024)


@pytest.mark.parametrize("size", SIZES)
def test_inner_products_stay_within_what_float32_takes(size: int) -> None:
    rng = np.random.default_rng(size)
    x, y = rng.normal(size=(2, 9, size)).astype(np.float32)
    x[3], y[4] = 1e3 * np.eye(size)[1], 1e-3 * x[4]
    found = np.asarray(rotated(jnp.asarray(x)), np.float64) @ np.asarray(rotated(jnp.asarray(y)), np.float64).T
    expected = x.astype(np.float64) @ y.astype(np.float64).T
    norms = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(y, axis=1)[None]
    assert (np.abs(found - expected) <= rotation_error(size) * norms).all()
    assert 0 < rotation_error(size) < 2e-3


@pytest.mark.parametrize("size", (70, 768, 1024))
def test_one_large_number_is_spread_over_all(size: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, size)).astype(np.float32)
    x[np.arange(20), rng.integers(0, size, 20)] = 30.0
    found = np.asarray(rotated(jnp.asarray(x)))
    rms = np.sqrt(np.square(x).mean(axis=1))
    assert (np.abs(x).max(axis=1) > 7 * rms).all() and (np.abs(found).max(axis=1) < 5 * rms).all()


def test_constant_vectors_and_those_of_one_frequency_are_spread_too() -> None:
    place = np.arange(1024)
    x = np.stack([np.ones(1024), np.cos(np.pi * 3 * (2 * (place % 32) + 1) / 64)]).astype(np.float32)
    found = np.asarray(rotated(jnp.asarray(x)))
    assert (np.abs(found).max(axis=1) < 5 * np.sqrt(np.square(x).mean(axis=1))).all()


def test_each_row_is_rotated_by_itself() -> None:
    x = np.random.default_rng(1).normal(size=(5, 70)).astype(np.float32)
    order = [3, 0, 4, 1, 2]
    poisoned = x.copy()
    poisoned[2] = np.nan
    every = np.asarray(rotated(jnp.asarray(x)))
    np.testing.assert_allclose(np.asarray(rotated(jnp.asarray(x[order]))), every[order], rtol=1e-6, atol=1e-6)
    kept = [0, 1, 3, 4]
    np.testing.assert_array_equal(np.asarray(rotated(jnp.asarray(poisoned)))[kept], every[kept])
