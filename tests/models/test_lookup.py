"""Rows of an embedding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridlm._product_times import CONVERTED, FUSED
from models.linear import Form, Product, linear, product_forms
from models.lookup import embedding_rows


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_word_has_its_row_and_one_that_is_none_is_no_number(dtype: str) -> None:
    table = np.random.default_rng(0).normal(size=(7, 5)).astype(dtype)
    table[3] = [0, -0.0, np.inf, jnp.finfo(dtype).smallest_subnormal, -1]
    words = np.array([[6, 0, 3], [3, 7, 1]])
    found = np.asarray(jax.jit(embedding_rows)(table, words))
    assert found.shape == (2, 3, 5) and found.dtype == np.float32
    assert np.isnan(found[1, 1]).all()
    for place in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2)):
        assert found[place].tobytes() == table[words[place]].astype(np.float32).tobytes()


@pytest.mark.parametrize("form", CONVERTED)
def test_a_narrow_table_that_is_a_head_too_is_nowhere_written_in_float32(form: Form) -> None:
    """Where XLA fuses products with conversions, those have to have no other use."""
    table, words = jax.ShapeDtypeStruct((512, 256), "bfloat16"), jax.ShapeDtypeStruct((8,), "int32")

    def step(table: jax.Array, words: jax.Array) -> jax.Array:
        with product_forms({Product(8, 512, 256, "bfloat16"): form}):
            return linear(jnp.tanh(embedding_rows(table, words)), table)

    text = jax.jit(step).lower(table, words).compile(compiler_options=dict(FUSED)).as_text() or ""
    entry = text[text.index("\nENTRY ") :]
    assert "bf16[512,256]" in entry and "f32[512,256]" not in entry and "__ynn_fusion" in entry
