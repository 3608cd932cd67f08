"""Queries of whole logits, against float64; for logits that are sharded over devices: test_mesh.py."""

import jax
import numpy as np
import pytest

from hybridlm.sampling.vocab_parallel import Vocabulary


@pytest.mark.parametrize("size", [1, 7, 24, 50, 2048])
def test_the_log_of_all_exponentials_matches_float64(size: int) -> None:
    """Vocabularies around multiples of 16, logits in the thousands, rows without finite values."""
    logits = np.random.default_rng(size).normal(size=(6, size)).astype(np.float32)
    logits[1] *= 3000
    logits[2, : size // 2] = -np.inf
    logits[3] = -np.inf
    logits[4, size // 3] = np.inf
    logits[5, -1] = np.nan
    compiled = jax.jit(Vocabulary(size).log_total)(logits)[:, 0]
    wide = logits[:3].astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    np.testing.assert_allclose(compiled[:3], top[:, 0] + np.log(np.exp(wide - top).sum(axis=1)), rtol=2e-6)
    assert compiled[3] == -np.inf and compiled[4] == np.inf and np.isnan(compiled[5])
