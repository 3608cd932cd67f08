"""Mixture of experts (MoE) against float64 NumPy, token by token: activations, shared experts, latent width."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled, random_values
from flax import nnx

from hybridlm.families import LaneInfo
from models import Devices
from models.layers.activations import SwigluLimit
from models.layers.mlp import Activation
from models.layers.moe import MoeConfig
from models.layers.router import RouterConfig

HIDDEN = 10
TOKENS = 32
"""Tokens of a lane with more rows than are multiplied one by one on a CPU."""
ROUTER = RouterConfig(5, 3, normalise=True)
CASES = {
    "gated shared": MoeConfig(ROUTER, 6, shared_width=7, shared_gate=True),
    "plain shared": MoeConfig(ROUTER, 6, shared_width=7),
    "no shared": MoeConfig(ROUTER, 6),
    "relu squared": MoeConfig(ROUTER, 6, shared_width=7, activation="relu2"),
    "latent": MoeConfig(ROUTER, 6, shared_width=7, activation="relu2", latent=4),
    "latent with gates": MoeConfig(ROUTER, 6, latent=4),
    "bounded gates": MoeConfig(ROUTER, 6, shared_width=7, limit=SwigluLimit(0.3), shared_limit=SwigluLimit(0.3)),
    "bounded SiLU": MoeConfig(ROUTER, 6, shared_width=7, limit=SwigluLimit(0.2, of_silu=True)),
    "bounded shared": MoeConfig(ROUTER, 6, shared_width=7, shared_limit=SwigluLimit(0.1, of_silu=True)),
}


def feed_forward(
    x: np.ndarray, gate: np.ndarray | None, up: np.ndarray, down: np.ndarray, limit: SwigluLimit | None
) -> np.ndarray:
    inner = up @ x
    if gate is None:
        return down @ np.maximum(inner, 0) ** 2
    bound, of_silu = (np.inf, False) if limit is None else limit
    gates = gate @ x if of_silu else np.minimum(gate @ x, bound)
    factors = gates / (1 + np.exp(-gates))
    return down @ ((np.minimum(factors, bound) if of_silu else factors) * np.clip(inner, -bound, bound))


def expected(config: MoeConfig, weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    logits = w["router.weight"] @ x
    chosen = np.argsort(-logits)[: config.router.per_token]
    share = np.exp(logits[chosen]) / np.exp(logits[chosen]).sum()
    visible = x if config.latent is None else w["latent_in"] @ x
    out = np.zeros_like(visible)
    for expert, factor in zip(chosen, share, strict=True):
        if config.activation == "swiglu":
            gate, up = np.split(w["gate_up_proj"][expert], 2)
        else:
            gate, up = None, w["up_proj"][expert]
        out += factor * feed_forward(visible, gate, up, w["down_proj"][expert], config.limit)
    if config.latent is not None:
        out = w["latent_out"] @ out
    if config.shared_width:
        gate, up, down = (w.get(f"shared_expert.{part}_proj") for part in ("gate", "up", "down"))
        assert up is not None and down is not None
        shared = feed_forward(x, gate, up, down, config.shared_limit)
        out = out + (shared / (1 + np.exp(-w["shared_expert_gate"] @ x)) if config.shared_gate else shared)
    return out


@pytest.mark.parametrize("name", CASES)
def test_equals_its_definition(name: str) -> None:
    """Row counts above and below a form's limit give the same rows."""
    config, rng, weights = CASES[name], np.random.default_rng(1), {}

    def value(path: str, shape: tuple[int, ...]) -> np.ndarray:
        weights[path] = (rng.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)
        return weights[path]

    moe = filled(lambda: config.build(HIDDEN, nnx.Rngs(0)), value)
    x = rng.normal(size=(2, TOKENS, HIDDEN)).astype(np.float32)
    want = np.stack([[expected(config, weights, row.astype(np.float64)) for row in lane] for lane in x])
    for tokens, in_blocks in ((TOKENS, True), (1, False)):
        operands = moe, x[:, :tokens], np.full(2, tokens)
        np.testing.assert_allclose(run(*operands), want[:, :tokens], rtol=0, atol=2e-5)
        assert ("scan[" in str(jax.make_jaxpr(run)(*operands))) == in_blocks


@jax.jit
def run(moe: Any, x: jax.Array, lengths: jax.Array) -> jax.Array:
    """Run the layer on lanes of these lengths."""
    lengths = lengths.astype(jnp.int32)
    valid = jnp.arange(x.shape[1])[None] < lengths[:, None]
    return moe(x, LaneInfo(lengths, lengths, valid, lengths > 0, 1), None)[0]


PLATFORMS = {
    f"{platform}, {kernels}": Devices(platform=platform, kernels=kernels)
    for platform, kernels in (("cpu", "off"), ("gpu", "off"), ("gpu", "interpret"), ("tpu", "off"))
}


@pytest.mark.each_value
@pytest.mark.parametrize("activation", ["swiglu", "relu2"])
@pytest.mark.parametrize("tokens", [1, TOKENS])
@pytest.mark.parametrize("devices", PLATFORMS.values(), ids=PLATFORMS)
def test_idle_lanes_and_padding_visit_no_expert(devices: Devices, tokens: int, activation: Activation) -> None:
    """Real tokens keep their bits; where every matrix is NaN, only real tokens are."""
    config = MoeConfig(RouterConfig(6, 3), 16, activation=activation, devices=devices)
    moe = filled(lambda: config.build(32, nnx.Rngs(0)), random_values(1))
    x = np.random.default_rng(2).normal(size=(5, tokens, 32)).astype(np.float32)
    lengths = np.array([tokens, 0, 1, 0, tokens // 2])
    real = np.arange(tokens)[None] < lengths[:, None]
    complete, result = np.asarray(run(moe, x, np.full(5, tokens))), np.asarray(run(moe, x, lengths))
    assert result[real].tobytes() == complete[real].tobytes() and complete.all()
    assert not result[~real].any()
    for name in ("gate_up_proj", "up_proj", "down_proj"):
        if hasattr(moe, name):
            setattr(moe, name, nnx.Param(jnp.full_like(getattr(moe, name)[...], jnp.nan)))
    spoiled = np.asarray(run(moe, x, lengths))
    assert np.isnan(spoiled[real]).all() and not spoiled[~real].any()
