"""The head of scoring steps: extreme logits, and bounded memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparison import log_softmax
from filled import ONE_LAYER, filled
from flax import nnx

from hybridlm.steps.score import MIN_HEAD_ROWS, score_tokens
from models import family_of


def test_log_softmax_of_extreme_logits_is_not_cut_off() -> None:
    """Weights that make logits of thousands: the log-probabilities are as large, and finite."""
    family = family_of(ONE_LAYER)
    rng = np.random.default_rng(0)
    head = (3000 * rng.normal(size=(50, 8))).astype(np.float32)
    model = filled(
        lambda: family.build(family.read_config(ONE_LAYER), nnx.Rngs(0)),
        lambda name, shape: head if name == "lm_head" else np.zeros(shape, np.float32),
    )
    rows = rng.normal(size=(7, 8)).astype(np.float32)
    targets = rng.integers(0, 50, 7).astype(np.int32)
    scored = jax.jit(lambda rows, targets: score_tokens(model, rows, targets, 0))(rows[None], targets[None])
    logits = rows.astype(np.float64) @ head.astype(np.float64).T
    want = log_softmax(logits)[np.arange(7), targets]
    assert want.min() < -1e4
    np.testing.assert_allclose(scored.logprob[0], want, rtol=1e-6, atol=2e-2)


@pytest.mark.parametrize("rows", [1024, 4096])
def test_the_logits_of_all_rows_are_never_held_at_once(rows: int) -> None:
    vocab = 248_320
    config = ONE_LAYER | {"vocab_size": vocab, "tie_word_embeddings": True}
    family = family_of(config)
    graph, state = nnx.split(nnx.eval_shape(lambda: family.build(family.read_config(config), nnx.Rngs(0))))
    hidden = jax.ShapeDtypeStruct((4, rows // 4, 8), jnp.float32)
    targets = jax.ShapeDtypeStruct((4, rows // 4), jnp.int32)
    head = lambda state, hidden, targets: score_tokens(nnx.merge(graph, state), hidden, targets, 5)
    memory = jax.jit(head).lower(state, hidden, targets).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 2 * MIN_HEAD_ROWS * vocab * 4 < rows * vocab * 4
