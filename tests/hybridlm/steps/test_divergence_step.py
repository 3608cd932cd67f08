"""Steps that compare two models: terms near and far from zero, bounded memory, and no lane reaches another."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparison import js, kl, log_softmax
from filled import ONE_LAYER
from perturbation import influence

import hybridlm
from hybridlm.sampling import Vocabulary
from hybridlm.steps.divergence import DIVERGENCE_CONTRACT, divergence_step, js_terms, kl_terms
from hybridlm.steps.score import MIN_HEAD_ROWS
from hybridlm.steps.structure import flatten
from ir_passes import compile_step
from models import family_of

RNG = np.random.default_rng(2)


@pytest.mark.parametrize("noise", [1e-3, 0.05, 1.0, 30.0])
def test_terms_do_not_cancel_where_models_are_close(noise: float) -> None:
    """Close models, such as a quantised copy: a KL of 1e-7 keeps its digits."""
    a = (3 * RNG.normal(size=(4, 960))).astype(np.float32)
    b = (a + noise * RNG.normal(size=a.shape)).astype(np.float32)
    p, q = (log_softmax(x).astype(np.float32) for x in (a, b))

    @jax.jit
    def summed(p: Any, q: Any) -> list[Any]:
        total = Vocabulary(p.shape[1]).sum
        return [total(p.shape, lambda cut, f=f: f(cut(p), cut(q)))[:, 0] for f in (kl_terms, js_terms)]

    wide, other = log_softmax(a), log_softmax(b)
    for result, want in zip(summed(p, q), (kl(wide, other), js(wide, other)), strict=True):
        np.testing.assert_allclose(result, want, rtol=2e-3 if noise < 0.01 else 2e-5)


def test_divergence_of_tokens_with_probability_zero() -> None:
    p, q = np.array([np.log(0.5), np.log(0.5), -np.inf, -np.inf]), np.log([0.25] * 4)
    first, second = (jnp.asarray(x[None], jnp.float32) for x in (p, q))
    np.testing.assert_allclose(kl_terms(first, second).sum(), np.log(2), rtol=1e-6)
    assert np.isposinf(kl_terms(second, first).sum())
    np.testing.assert_allclose(js_terms(first, second).sum(), js(p, q), rtol=1e-6)
    np.testing.assert_allclose(js_terms(second, first).sum(), js(p, q), rtol=1e-6)
    assert kl_terms(first, first).sum() == js_terms(first, first).sum() == 0


def test_the_logits_of_a_chunk_are_never_held_at_once() -> None:
    vocab, rows = 248_320, 2048
    config = ONE_LAYER | {"vocab_size": vocab, "tie_word_embeddings": True}
    family = family_of(config)
    structure, params = flatten(family.abstract(family.read_config(config)))
    hidden = jax.ShapeDtypeStruct((4, rows // 4, 8), jnp.float32)
    step = divergence_step(structure, structure)
    memory = jax.jit(step).lower(params, params, hidden, hidden).compile().memory_analysis()
    assert memory is not None
    # Two sets of logits of a block, and as much again for derived arrays.
    assert memory.temp_size_in_bytes < 5 * MIN_HEAD_ROWS * vocab * 4 < rows * vocab * 4


def test_no_lane_of_a_comparison_reaches_another(text_lm: hybridlm.LM, larger_lm: hybridlm.LM) -> None:
    sides = (
        (text_lm.engine, text_lm.text_model.structure),
        (larger_lm.engine, larger_lm.text_model.structure),
    )
    rng = np.random.default_rng(0)
    hidden = [rng.normal(size=(3, 5, side.config.hidden_size)).astype(np.float32) for side in (text_lm, larger_lm)]
    args = (text_lm.engine.params, larger_lm.engine.params, *hidden)
    step = divergence_step(sides[0][1], sides[1][1])
    run: Any = compile_step(step, args, DIVERGENCE_CONTRACT)
    bound = DIVERGENCE_CONTRACT.bind(step, args)
    change = lambda path, row, rng: np.where(rng.random(row.shape) < 0.5, np.nan, row).astype(row.dtype)
    result = influence(run, args, bound, change)
    assert result.leaks == []
    assert not {(lane, "everything") for lane in range(3)} & set(result.inert)
