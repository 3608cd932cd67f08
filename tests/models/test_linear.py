"""The row-wise matrix product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.linear import linear

run = jax.jit(linear)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (3, 4)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_accumulates_in_float32_whatever_the_rows(shape: tuple[int, int], dtype) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(7, 300)).astype(dtype)
    x = rng.normal(size=(*shape, 300)).astype(dtype).astype(np.float32)
    got = run(x, weight)
    want = x.astype(np.float64) @ weight.astype(np.float64).T
    assert got.shape == (*shape, 7) and got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_a_narrow_weight_is_not_widened_and_a_single_row_is_padded() -> None:
    weight = jnp.zeros((64, 32), jnp.bfloat16)
    text = jax.jit(linear).lower(jnp.zeros((1, 1, 32)), weight).as_text()
    assert "tensor<64x32xf32>" not in text
    assert "tensor<2x32xbf16>" in text


@pytest.mark.parametrize("outputs", [1, 2, 5, 33])
@pytest.mark.parametrize("count", [2, 3, 12, 28])
def test_a_row_has_the_same_bits_at_every_place(outputs: int, count: int) -> None:
    rng = np.random.default_rng(outputs)
    weight, x = (rng.normal(size=(n, 32)).astype(np.float32) for n in (outputs, count))
    y = np.asarray(run(x, weight))
    for _ in range(4):
        order = rng.permutation(count)
        assert np.asarray(run(x[order], weight)).tobytes() == y[order].tobytes()
