"""Research access: shapes, states that can be read and put back, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridlm

TOKENS = [5, 9, 3, 7, 11, 2, 8, 4]


@pytest.mark.slow
def test_shapes_and_layers(text_lm: hybridlm.LM) -> None:
    out = text_lm.forward(TOKENS)
    assert out.logits.shape == (8, 97) and out.logits.dtype == jnp.float32 and out.states is None
    assert len(out.hidden_states) == text_lm.config.num_layers + 1
    assert {h.shape for h in out.hidden_states} == {(8, text_lm.config.hidden_size)}
    batch = text_lm.forward(np.array([TOKENS, TOKENS[::-1]]))
    assert batch.logits.shape == (2, 8, 97)
    np.testing.assert_allclose(np.asarray(batch.logits)[0], out.logits, atol=2e-3)


def test_a_state_is_put_back(text_lm: hybridlm.LM) -> None:
    whole = text_lm.forward(TOKENS, return_states=True)
    first = text_lm.forward(TOKENS[:4], return_states=True)
    assert first.states is not None and first.states.position == 4
    rest = text_lm.forward(TOKENS[4:], state=first.states, return_states=True)
    np.testing.assert_allclose(rest.logits, np.asarray(whole.logits)[4:], atol=2e-3)
    for a, b in zip(jax.tree.leaves(rest.states), jax.tree.leaves(whole.states), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)
    kept = jax.tree.map(np.asarray, first.states)
    again = text_lm.forward(TOKENS[4:], state=kept)
    np.testing.assert_array_equal(again.logits, rest.logits)
    changed = kept._replace(layers=jax.tree.map(lambda leaf: leaf * np.float32(1.5), kept.layers))
    assert np.abs(np.asarray(text_lm.forward(TOKENS[4:], state=changed).logits - rest.logits)).max() > 0.01


@pytest.mark.slow
def test_gradients_reach_every_parameter_and_are_right(text_lm: hybridlm.LM) -> None:
    def loss(params):
        logits = text_lm.forward(TOKENS, params=params).logits
        return -jnp.mean(jax.nn.log_softmax(logits[:-1])[np.arange(7), np.array(TOKENS[1:])])

    value, gradient = jax.value_and_grad(loss)(text_lm.params)
    assert set(gradient) == set(text_lm.params)
    rng = np.random.default_rng(0)
    for name, g in gradient.items():
        assert np.isfinite(np.asarray(g)).all() and np.abs(np.asarray(g)).max() > 0, name
    params = {name: np.asarray(p) for name, p in text_lm.params.items()}
    direction = {name: rng.normal(size=p.shape).astype(np.float32) for name, p in params.items()}
    slope = sum(float(np.vdot(gradient[name], direction[name])) for name in gradient)
    size = np.float32(1e-3)

    def moved(step: np.float32) -> float:
        return float(loss({name: jnp.asarray(p + step * direction[name]) for name, p in params.items()}))

    assert (moved(size) - moved(-size)) / (2 * size) == pytest.approx(slope, rel=0.05, abs=0.05)
    assert np.isfinite(float(value))


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        ([], TypeError, "expected token ids"),
        ([1.5], TypeError, "float64"),
        ([[[1]]], TypeError, r"\(1, 1, 1\)"),
        ([1, 97], ValueError, r"\[0, 97\), got 1..97"),
        ([-1], ValueError, "got -1..-1"),
        ([1] * 257, ValueError, "0 \\+ 257 tokens are more than the context of 256"),
    ],
)
def test_bad_tokens(text_lm: hybridlm.LM, tokens, error, message: str) -> None:
    with pytest.raises(error, match=message):
        text_lm.forward(tokens)


def test_a_state_of_other_lanes_and_unknown_parameters_are_refused(text_lm: hybridlm.LM) -> None:
    states = text_lm.forward(TOKENS, return_states=True).states
    with pytest.raises(ValueError, match=r"state: has \[1\] lanes, tokens have 2"):
        text_lm.forward(np.ones((2, 3), int), state=states)
    with pytest.raises(ValueError, match="params: expected the names"):
        text_lm.forward(TOKENS, params={"x": jnp.zeros(1)})
