"""Research access: shapes, states that can be read and put back, gradients."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import treescope
from random_checkpoint import FAMILIES, write_random_checkpoint

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


@pytest.mark.slow
def test_a_state_is_put_back(text_lm: hybridlm.LM) -> None:
    outputs = text_lm.forward(TOKENS, return_states=True)
    first = text_lm.forward(TOKENS[:4], return_states=True)
    assert first.states is not None and first.states.position == 4
    rest = text_lm.forward(TOKENS[4:], state=first.states, return_states=True)
    np.testing.assert_allclose(rest.logits, np.asarray(outputs.logits)[4:], atol=2e-3)
    for a, b in zip(jax.tree.leaves(rest.states), jax.tree.leaves(outputs.states), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)
    tree = jax.tree.map(np.asarray, first.states)
    repeat = text_lm.forward(TOKENS[4:], state=tree)
    np.testing.assert_array_equal(repeat.logits, rest.logits)
    changed = jax.tree.map(lambda leaf: leaf * np.float32(1.5), tree)
    assert np.abs(np.asarray(text_lm.forward(TOKENS[4:], state=changed).logits - rest.logits)).max() > 0.01


def test_one_array_of_a_state_is_replaced(text_lm: hybridlm.LM) -> None:
    state = text_lm.forward(TOKENS, return_states=True).states
    assert state is not None
    name, recurrent = "layers[0][0].recurrent", state.layers[0][0].recurrent
    changed = state.replace({name: jnp.zeros_like(recurrent)})
    assert changed.position == 8 and not np.asarray(changed.layers[0][0].recurrent).any()
    leaves = jax.tree.leaves(state)
    other = [new is not old for new, old in zip(jax.tree.leaves(changed), leaves, strict=True)]
    assert sum(other) == 1 and np.asarray(recurrent).any()
    with pytest.raises(ValueError) as error:
        state.replace({name: np.zeros((1, 2), np.float32), "layers[9][0].recurrent": recurrent})
    assert f"{name}: expected float32[1,8,8,16]" in str(error.value) and "layers[9][0].recurrent:" in str(error.value)


def test_logits_of_hidden_states(text_lm: hybridlm.LM) -> None:
    """The last hidden states give `forward`'s logits for any leading axes, with gradients."""
    out = text_lm.forward(TOKENS)
    lens = text_lm.logits(jnp.stack(out.hidden_states))
    assert lens.shape == (text_lm.config.num_layers + 1, 8, 97) and lens.dtype == jnp.float32
    np.testing.assert_allclose(lens[-1], out.logits, atol=2e-3)
    assert np.abs(np.asarray(lens[0] - out.logits)).max() > 0.1
    row = np.asarray(out.hidden_states[-1])[3]
    np.testing.assert_allclose(text_lm.logits(row), lens[-1, 3], atol=2e-3)
    weights = text_lm.params | {"norm.weight": text_lm.params["norm.weight"] * 0}
    assert not np.array_equal(text_lm.logits(row, params=weights), lens[-1, 3])
    slope = jax.grad(lambda x: text_lm.logits(x)[5])(jnp.asarray(row))
    assert slope.shape == row.shape and np.isfinite(np.asarray(slope)).all() and np.asarray(slope).any()


@pytest.mark.parametrize("wrong", [np.zeros((2, 3), np.float32), np.zeros(2), [0.5], "a", np.float32(1)])
def test_other_arrays_are_no_hidden_states(text_lm: hybridlm.LM, wrong: Any) -> None:
    with pytest.raises(TypeError, match="^hidden: expected float32"):
        text_lm.logits(wrong)


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
    moved = lambda step: float(loss({name: jnp.asarray(p + step * direction[name]) for name, p in params.items()}))
    assert (moved(size) - moved(-size)) / (2 * size) == pytest.approx(slope, rel=0.05, abs=0.05)
    assert np.isfinite(float(value))


@pytest.mark.parametrize(("tokens", "error", "message"), [
    ([], TypeError, "expected token ids"),
    ([1.5], TypeError, "float64"),
    ([[[1]]], TypeError, r"\(1, 1, 1\)"),
    ([1, 97], ValueError, r"\[0, 97\), got 1..97"),
    ([-1], ValueError, "got -1..-1"),
    ("a text", TypeError, "encode"),
    ([[1, 2], [3]], ValueError, "lengths 2, 1"),
    ([1] * 257, ValueError, "0 \\+ 257 tokens are more than the context of 256"),
])  # fmt: skip
def test_bad_tokens(text_lm: hybridlm.LM, tokens, error, message: str) -> None:
    with pytest.raises(error, match=message):
        text_lm.forward(tokens)


def test_traced_ids_outside_the_vocabulary_give_nan(text_lm: hybridlm.LM) -> None:
    run = jax.jit(lambda tokens: text_lm.forward(tokens)[::3])  # logits and log-probabilities
    for wrong in (-1, 97, -(2**31)):
        logits, logprobs = run(np.array([5, wrong, 4], np.int32))
        assert np.isnan(logits).all(1).tolist() == [False, True, True] and np.isnan(logprobs).all()
    logits, _ = jax.jit(lambda tokens: text_lm.forward(tokens)[::3])(np.array([5, 96, 4], np.uint8))
    np.testing.assert_allclose(logits, text_lm.forward([5, 96, 4]).logits, atol=1e-5)


def test_a_state_of_other_lanes_and_unknown_parameters_are_refused(text_lm: hybridlm.LM) -> None:
    states = text_lm.forward(TOKENS, return_states=True).states
    with pytest.raises(ValueError, match=r"state: has \[1\] lanes, tokens have 2"):
        text_lm.forward(np.ones((2, 3), int), state=states)
    with pytest.raises(ValueError, match="params: expected the names"):
        text_lm.forward(TOKENS, params={"x": jnp.zeros(1)})


def test_arrays_of_other_shapes_are_refused(text_lm: hybridlm.LM) -> None:
    # XLA would broadcast a norm of one number, and a state of one head.
    states = text_lm.forward(TOKENS, return_states=True).states
    assert states is not None
    params = text_lm.params | {"norm.weight": text_lm.params["norm.weight"][:1]}
    wide: Any = text_lm.params | {"norm.weight": np.asarray(text_lm.params["norm.weight"], np.float64)}
    for run in (text_lm.forward, text_lm.logits):
        with pytest.raises(
            ValueError, match=r"params: expected the shapes of lm.params; norm.weight: expected \[\d+\], "
        ):
            run(TOKENS, params=params)
        with pytest.raises(TypeError, match=r"params: expected arrays of float32, .* for norm.weight$"):
            run(TOKENS, params=wide)
    for change in (lambda x: x[:, :1], lambda x: x.astype(jnp.float16)):
        layers = jax.tree.map(change, states.layers)
        with pytest.raises(ValueError, match=r"state: layers\[0\]\[0\].*expected float32.*behind the lanes, got f"):
            text_lm.forward(TOKENS, state=hybridlm.SequenceState(states.position, layers))
    with pytest.raises(ValueError, match="state: expected the arrays that forward of this model returns"):
        text_lm.forward(TOKENS, state=hybridlm.SequenceState(3, states.layers[:1]))


def flat(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]


# By default recipes of docs/research.md take gradients by each of them.
@pytest.mark.long
def test_every_mode_by_parameters_embeddings_and_states(text_lm: hybridlm.LM) -> None:
    """Forward and reverse mode agree on a random direction; every array counts."""
    first = text_lm.forward(TOKENS[:5], return_states=True)
    embeddings = text_lm.forward(TOKENS[5:], state=first.states).hidden_states[0]
    operands = (text_lm.params, embeddings, first.states)

    def loss(params, embeddings, states):
        out = text_lm.forward(
            TOKENS[5:], params=params, embeddings=embeddings, state=states, return_states=True, logits=False
        )
        assert out.states is not None and out.logits is None
        return out.logprobs.sum() + sum(jnp.sum(jnp.tanh(leaf)) for leaf in jax.tree.leaves(out.states))

    rng = np.random.default_rng(0)
    moves = jax.tree.map(lambda x: 1e-2 * rng.normal(size=x.shape).astype(x.dtype), operands)
    gradient = jax.grad(loss, argnums=(0, 1, 2))(*operands)
    table = gradient[0].pop("embed_tokens")  # nothing is looked up in it
    assert not np.asarray(table).any() and all(np.abs(leaf).max() > 0 for leaf in flat(gradient))
    moves[0].pop("embed_tokens")
    slope = sum(np.vdot(a, b) for a, b in zip(flat(gradient), flat(moves), strict=True))
    moves[0]["embed_tokens"] = jnp.zeros_like(table)
    assert float(jax.jvp(loss, operands, moves)[1]) == pytest.approx(slope, rel=1e-3)
    value, linear = jax.linearize(loss, *operands)
    assert float(linear(*moves)) == pytest.approx(slope, rel=1e-3) and float(value) == float(loss(*operands))


@pytest.mark.long
def test_second_derivatives_are_gradients_of_jvp(text_lm: hybridlm.LM) -> None:
    """JAX forgets the derivative of a kernel in a loop after `jax.grad`, and refuses `jax.jvp` of it."""
    embeddings = text_lm.forward(TOKENS).hidden_states[0]
    move = np.random.default_rng(0).normal(size=embeddings.shape).astype(np.float32) / 100

    def loss(embeddings: Any) -> Any:
        return text_lm.forward(TOKENS, embeddings=embeddings, logits=False).logprobs.sum()

    product = jax.grad(lambda x: jax.jvp(loss, (x,), (move,))[1])(embeddings)
    difference = (jax.grad(loss)(embeddings + move / 2) - jax.grad(loss)(embeddings - move / 2)).block_until_ready()
    np.testing.assert_allclose(product, difference, atol=0.02 * np.abs(difference).max())


@pytest.mark.slow
def test_mapped_and_sharded(text_lm: hybridlm.LM) -> None:
    """Values only; a long test checks gradients through `vmap` and `shard_map`."""
    tokens = jnp.array([TOKENS, TOKENS[::-1], TOKENS, TOKENS[2:] + TOKENS[:2]], jnp.int32)
    logprobs = lambda params, tokens: text_lm.forward(tokens, params=params, logits=False).logprobs
    lanes = jax.P("data")
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("data",), axis_types=auto, devices=jax.devices()[:2])
    sharded = jax.jit(jax.shard_map(logprobs, mesh=mesh, in_specs=(jax.P(), lanes), out_specs=lanes))
    mapped = jax.vmap(logprobs, in_axes=(None, 0))
    expected = logprobs(text_lm.params, tokens)
    for form in (sharded, mapped):
        np.testing.assert_allclose(form(text_lm.params, tokens), expected, atol=1e-4)
    outer = sharded(text_lm.params, tokens.at[0, 3].set(97))
    assert np.isnan(np.asarray(outer[0])).any() and np.isfinite(np.asarray(outer[1:])).all()


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_in_every_mode_mapped_and_sharded(tmp_path: Path, name: str) -> None:
    """Both modes by parameters, embeddings and states, also under `vmap` and `shard_map`."""
    directory = write_random_checkpoint(name, tmp_path, **FAMILIES[name])
    lm = hybridlm.load(directory, lanes=4, context=64, chunk=4, dtype="float32", compilation_cache=False)
    rng = np.random.default_rng(1)
    tokens = jnp.asarray(rng.integers(3, 60, (4, 10)), jnp.int32)
    first = lm.forward(tokens[:, :4], return_states=True)
    rest = tokens[:, 4:]
    embeddings = lm.forward(rest, state=first.states).hidden_states[0]
    operands = (lm.params, embeddings, first.states)

    def loss(params: Any, embeddings: Any, states: Any) -> Any:
        out = lm.forward(rest, params=params, embeddings=embeddings, state=states, return_states=True, logits=False)
        assert out.states is not None
        return out.logprobs.sum() + sum(jnp.sum(jnp.tanh(leaf)) for leaf in jax.tree.leaves(out.states))

    moves = jax.tree.map(lambda x: 1e-2 * rng.normal(size=x.shape).astype(x.dtype), operands)
    gradient = jax.grad(loss, argnums=(0, 1, 2))(*operands)
    assert all(max(np.abs(leaf).max() for leaf in flat(part)) > 0 for part in gradient)
    slope = sum(np.vdot(a, b) for a, b in zip(flat(gradient), flat(moves), strict=True))
    assert float(jax.jvp(loss, operands, moves)[1]) == pytest.approx(slope, rel=2e-3)
    assert float(jax.linearize(loss, *operands)[1](*moves)) == pytest.approx(slope, rel=2e-3)
    logprobs = lambda params, tokens: lm.forward(tokens, params=params, logits=False).logprobs

    def value_and_gradient(fn: Any) -> list[Any]:
        value, by_params = jax.value_and_grad(lambda params: fn(params, tokens).sum())(lm.params)
        return [float(value), *flat(by_params)]

    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("data",), axis_types=auto, devices=jax.devices()[:2])
    lanes = jax.P("data")
    sharded = jax.jit(jax.shard_map(logprobs, mesh=mesh, in_specs=(jax.P(), lanes), out_specs=lanes))
    expected = value_and_gradient(logprobs)
    for other in (sharded, jax.vmap(logprobs, in_axes=(None, 0))):
        for a, b in zip(value_and_gradient(other), expected, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-3 * max(1.0, float(np.abs(b).max())))


def test_bad_embeddings(text_lm: hybridlm.LM) -> None:
    size = text_lm.config.hidden_size
    for settings in (
        np.zeros((3, size + 1), np.float32),
        np.zeros((3, size), np.float16),
        np.zeros((0, size), np.float32),
    ):
        with pytest.raises(TypeError, match="embeddings: expected float32"):
            text_lm.forward(embeddings=settings)
    with pytest.raises(ValueError, match=r"expected those of tokens \(1, 8\), got \(1, 3\)"):
        text_lm.forward(TOKENS, embeddings=np.zeros((3, size), np.float32))
    with pytest.raises(TypeError, match="got neither"):
        text_lm.forward()
    with pytest.raises(ValueError, match="chunk: expected"):
        text_lm.forward(TOKENS, chunk=0)


def test_states_outputs_and_parameters_print_themselves(text_lm: hybridlm.LM) -> None:
    """Names, dtypes and shapes, and no numbers."""
    out = text_lm.forward(TOKENS, return_states=True)
    assert repr(out.states).startswith("SequenceState(position=8\n  layers[0][0].conv")
    assert "layers[0][0].recurrent float32[1, 8, 8, 16]" in " ".join(repr(out.states).split())
    assert "['logits'] float32[8, 97]" in " ".join(repr(out).split()) and len(repr(out)) < 2000
    for output in (out.states, out, text_lm):
        html = output._repr_html_()  # type: ignore[union-attr]
        assert "<pre>" in html and len(html) < 20_000
    assert "layers.0.branches.1.inner.down_proj" in text_lm._repr_html_()


@pytest.mark.filterwarnings("ignore:The chararray class:DeprecationWarning")  # of treescope itself
def test_treescope_shows_them(text_lm: hybridlm.LM) -> None:
    """Treescope (with flax) shows names and summarises large arrays."""
    out = text_lm.forward(TOKENS, return_states=True)
    score = text_lm.score([TOKENS], states=True)[0]
    output = {"recurrent=<jax.Array float32(1, 8, 8, 16)": out.states, "hidden_states=(": out, "LM(qwen3_5": text_lm}
    output |= {"'layers.0.branches.1.inner.down_proj': <jax.Array": text_lm.params, "captured=Captured(": score}
    output |= {"Certificate(": next(iter(text_lm.certificates.values()))}
    for words, item in output.items():
        text = treescope.render_to_text(item)
        assert words in text and len(text) < 20_000
        assert "<" in treescope.render_to_html(item)
