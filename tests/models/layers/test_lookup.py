"""Token embedding: out-of-vocabulary ids give NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.layers.embedding import embedding_rows


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_word_has_its_row_and_one_that_is_none_is_no_number(dtype: str, platform: str) -> None:
    table = np.random.default_rng(0).normal(size=(7, 5)).astype(dtype)
    table[3] = [0, -0.0, np.inf, jnp.finfo(dtype).smallest_subnormal, -1]
    words = np.array([[6, 0, 3], [3, 7, 1]])
    found = np.asarray(jax.jit(embedding_rows, static_argnums=2)(table, words, platform))
    assert found.shape == (2, 3, 5) and found.dtype == np.float32
    assert np.isnan(found[1, 1]).all()
    for place in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2)):
        assert found[place].tobytes() == table[words[place]].astype(np.float32).tobytes()
