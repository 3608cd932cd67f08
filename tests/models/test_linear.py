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


def test_few_rows_of_a_narrow_weight_are_multiplied_from_the_left() -> None:
    """Or XLA:CPU would read the weight more slowly, or convert it to float32 in every step."""
    weights = jnp.zeros((96, 64), jnp.bfloat16), jnp.zeros((64, 96), jnp.bfloat16)
    plain = jax.jit(
        lambda x, w: jax.lax.dot_general(x, w, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    )
    if "f32[96,64]" in (plain.lower(jnp.zeros((4, 64), jnp.bfloat16), weights[0]).compile().as_text() or ""):
        pytest.skip("this CPU multiplies in float32 whatever the form")
    for rows in (1, 4, 32):
        hlo = jax.jit(lambda x, a, b: x + linear(jnp.tanh(linear(x, a)), b)).lower(jnp.zeros((rows, 64)), *weights)
        text = hlo.compile().as_text() or ""
        assert "f32[96,64]" not in text and "f32[64,96]" not in text
        products = [line for line in text.splitlines() if " dot(" in line]
        assert len(products) == 2 and all(f",{max(rows, 2)}]{{1,0}} dot(" in line for line in products), products


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("outputs", [1, 2, 5, 33])
@pytest.mark.parametrize("count", [2, 3, 12, 28])
def test_a_row_has_the_same_bits_at_every_place(count: int, outputs: int, dtype) -> None:
    rng = np.random.default_rng(outputs)
    weight, x = (rng.normal(size=(n, 32)).astype(np.float32) for n in (outputs, count))
    weight = weight.astype(dtype)
    y = np.asarray(run(x, weight))
    for _ in range(4):
        order = rng.permutation(count)
        assert np.asarray(run(x[order], weight)).tobytes() == y[order].tobytes()
