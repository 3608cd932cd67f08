"""Queries of whole logits, against float64, and of logits that are sharded over devices."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import hybridlm
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


@pytest.mark.slow
def test_what_is_asked_of_split_logits_is_what_whole_ones_say() -> None:
    """Logits with ties between devices, with NaN and -inf."""
    rng = np.random.default_rng(0)
    logits = rng.integers(-3, 3, size=(12, 16)).astype(np.float32)
    logits[3, 5] = np.nan
    logits[4, 2:9] = -np.inf
    logits[5, 13] = np.inf
    token = rng.integers(16, size=12).astype(np.int32)
    token[6:] = logits[6:].argmax(axis=1)
    full, contents = Vocabulary(16), Vocabulary(4, devices=4)

    def asked(vocabulary: Vocabulary, logits: Any, token: Any) -> Any:
        best = [vocabulary.best(logits, count) for count in (1, 3, 6)]
        likely = vocabulary.is_most_likely(logits, token)
        return vocabulary.whole(logits), vocabulary.log_total(logits), vocabulary.logit(logits, token), best, likely

    over = jax.shard_map(
        partial(asked, contents), mesh=hybridlm.mesh(model=4), in_specs=(P(None, "model"), P()), out_specs=P()
    )
    actual, expected = jax.jit(over)(logits, token), asked(full, jnp.array(logits), jnp.array(token))
    good = np.arange(12) != 3  # top_k of NaN is not defined
    for item, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(item)[good], np.asarray(other)[good], rtol=1e-6)
    assert not actual[-1][3] and actual[-1][6:].all() and np.isnan(actual[1][3])
