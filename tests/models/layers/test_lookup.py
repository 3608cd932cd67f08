"""Token embedding: out-of-vocabulary ids give NaN."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packed_weights import weight_of

from ir_passes.jaxpr import ir
from models.layers.embedding import embedding_rows


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_word_has_its_row_and_one_that_is_none_is_no_number(dtype: str, platform: str) -> None:
    table = np.random.default_rng(0).normal(size=(7, 5)).astype(dtype)
    table[3] = [0, -0.0, np.inf, jnp.finfo(dtype).smallest_subnormal, -1]
    words = np.array([[6, 0, 3], [3, 7, 1]])
    result = np.asarray(jax.jit(embedding_rows, static_argnums=2)(table, words, platform))
    assert result.shape == (2, 3, 5) and result.dtype == np.float32
    assert np.isnan(result[1, 1]).all()
    for place in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2)):
        assert result[place].tobytes() == table[words[place]].astype(np.float32).tobytes()


def test_a_packed_table_looks_up_its_numbers() -> None:
    table, words = weight_of((6, 32), 2, ("int4", False, True)), jnp.array([[5, 0], [3, 3]])
    numbers = np.asarray(table.astype(jnp.float32))
    np.testing.assert_array_equal(jax.jit(embedding_rows)(table, words), numbers[words])


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_a_narrow_table_is_not_converted_in_every_step(platform: str) -> None:
    """No result is as large as the table; TPUs would recompute it in every step."""
    table, words = jnp.zeros((64, 16), jnp.bfloat16), jnp.zeros((2, 3), jnp.int32)
    program = jax.make_jaxpr(lambda table, words: embedding_rows(table, words, platform))(table, words)
    sizes = [math.prod(ir.shape_of(var)) for eqn in ir.all_eqns(program.jaxpr) for var in eqn.outvars]
    assert sizes and max(sizes) < table.size
