"""Derivatives of every mixer and feed-forward layer against differences of the same program in float64.

The traced programs of values and of derivatives are both run by NumPy in float64, so that neither rounding nor XLA is
in the way: a rule that is wrong, or leaves a path out, differs in the first digits.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled
from flax import nnx
from mixer_lanes import info
from numpy_interpreter import evaluate, float64

from hybridlm.families import (
    AttentionConfig,
    GatedDeltaNetConfig,
    GatedShortConvConfig,
    KimiDeltaAttentionConfig,
    LatentAttentionConfig,
    Mamba2Config,
    MlpConfig,
    MoeConfig,
    QkNorm,
    Rope,
    RouterConfig,
)
from ir_passes.jaxpr import ir

HIDDEN, TOKENS, POSITION = 6, 5, 3
STEP = 1e-5
LAYERS: dict[str, Any] = {
    "gated delta net": GatedDeltaNetConfig(1, 2, 4, 3, 3, 1e-6, strongest_write=2.0),
    "kimi delta attention": KimiDeltaAttentionConfig(2, 4, 3, 1e-6, 3),
    "kimi delta attention, bounded": KimiDeltaAttentionConfig(2, 4, 3, 1e-6, None, lower_bound=-5.0),
    "mamba2": Mamba2Config(4, 3, 2, 5, 3, 1e-6),
    "short convolution": GatedShortConvConfig(3, HIDDEN),
    "attention": AttentionConfig(2, 1, 4, Rope(4, 1e4), QkNorm(1e-6), output_gate=True),
    "latent attention": LatentAttentionConfig(2, 4, 2, 3, 4, Rope(2, 1e4), head_gate=True),
    "experts": MoeConfig(RouterConfig(6, 2, normalise=True), 3, shared_width=4, shared_gate=True),
    "sigmoid-routed experts": MoeConfig(RouterConfig(6, 2, "sigmoid", bias=True), 3),
    "mlp": MlpConfig(5),
}


def program(config: Any, lengths: tuple[int, ...]) -> tuple[Callable[..., Any], list[np.ndarray], Any]:
    """Return `f(x, state and parameters) -> (real outputs, new state)`, its arguments and tree."""
    rng = np.random.default_rng(0)

    def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
        return (rng.normal(size=shape) * (1.0 if len(shape) == 1 else shape[-1] ** -0.5)).astype(np.float32)

    graph, params = nnx.split(filled(lambda: config.build(HIDDEN, nnx.Rngs(0)), value))
    counts, positions = np.array(lengths, np.int32), np.full(len(lengths), POSITION, np.int32)
    layer = nnx.merge(graph, params)
    state = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), layer.init_state(len(lengths), 16, jnp.float32)
    )
    x = rng.normal(size=(len(lengths), TOKENS, HIDDEN)).astype(np.float32)

    @jax.checkpoint
    def run(x: jax.Array, state: Any, params: Any) -> Any:
        inputs = info(jnp.asarray(counts), jnp.asarray(positions), TOKENS, 1)
        out, updated = nnx.merge(graph, params)(x, inputs, state)
        return jnp.where(inputs.valid[:, :, None], out, 0.0), updated

    leaves, tree = jax.tree.flatten((x, state, params))
    flat = [np.asarray(leaf) for leaf in leaves]
    return lambda *leaves: tuple(jax.tree.leaves(run(*jax.tree.unflatten(tree, leaves)))), flat, tree


def in_float64(fn: Callable[..., Any], args: list[np.ndarray], runs: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Results of a float32 function in float64, with a leading axis of runs."""
    traced = ir.closed(jax.make_jaxpr(fn)(*args))
    with float64():
        return evaluate(traced, [np.stack(each).astype(np.float64) for each in zip(*runs, strict=True)])


@pytest.mark.parametrize("name", LAYERS)
def test_every_derivative_is_the_difference(name: str) -> None:
    """Derivatives by the input, each state array and each parameter equal differences."""
    run, args, _ = program(LAYERS[name], (TOKENS, 2))
    rng = np.random.default_rng(1)
    exact = [arg.astype(np.float64) for arg in args]
    moves = [rng.normal(size=arg.shape) for arg in args]
    runs = []
    for i, move in enumerate(moves):
        runs += [[*exact[:i], exact[i] + size * move, *exact[i + 1 :]] for size in (STEP, -STEP)]
    result = in_float64(run, args, runs)
    weights = [rng.normal(size=array.shape[1:]) for array in result]
    slopes = np.sum(
        [(item * w).reshape((len(runs), -1)).sum(1) for item, w in zip(result, weights, strict=True)], axis=0
    )
    slopes = (slopes[::2] - slopes[1::2]) / (2 * STEP)

    def gradient(*args: jax.Array) -> Any:
        results, result = jax.vjp(run, *args)
        return result(tuple(jnp.asarray(weight, x.dtype) for weight, x in zip(weights, results, strict=True)))

    by_reverse = in_float64(gradient, args, [exact])
    reverse = np.array([np.vdot(item[0], move) for item, move in zip(by_reverse, moves, strict=True)])
    # The correction of a router decides which experts are chosen, and nothing else.
    assert np.sum(np.abs(slopes) < 1e-6) == ("sigmoid-routed" in name), "every array counts"
    np.testing.assert_allclose(reverse, slopes, rtol=1e-5, atol=1e-6)

    def forward(*pair: jax.Array) -> Any:
        half = len(pair) // 2
        return jax.jvp(run, pair[:half], pair[half:])[1]

    def linear(*pair: jax.Array) -> Any:
        half = len(pair) // 2
        return jax.linearize(run, *pair[:half])[1](*pair[half:])

    for mode in (forward, linear):
        tangents = in_float64(mode, args * 2, [exact + moves])
        slope = sum(np.vdot(item[0], weight) for item, weight in zip(tangents, weights, strict=True))
        np.testing.assert_allclose(slope, slopes.sum(), rtol=1e-5)
