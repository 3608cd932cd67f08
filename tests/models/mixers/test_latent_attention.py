"""Latent attention (MLA): the absorbed form equals attention over keys and values of every head."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from filled import filled, random_values
from flax import nnx
from mixer_lanes import check_lengths, run

from hybridlm.families import NormConfig, Rope
from models import KV_BLOCK, Devices, kv_blocks
from models.mixers.latent_attention import LatentAttention, LatentAttentionConfig

HIDDEN = 12
PLAIN = LatentAttentionConfig(heads=3, rank=7, shared_size=4, key_size=5, value_size=6)
GATED = LatentAttentionConfig(2, 5, 6, 4, 3, rope=Rope(6, 100.0), head_gate=True)
COMPRESSED = replace(PLAIN, query_rank=9)
GATED_NORMS = replace(COMPRESSED, norm=NormConfig(1e-6, 1.0, 1.7), output_gate=True, row_factor=1.3, score_factor=0.8)
ON_A_TPU = replace(PLAIN, devices=Devices(platform="tpu"))


def layer(config: LatentAttentionConfig) -> LatentAttention:
    return filled(lambda: config.build(HIDDEN, nnx.Rngs(0)), random_values(config.heads, 0.5, 1.5))


def rotated(x: np.ndarray, rope: Rope | None) -> np.ndarray:
    """x [token, .., size] from position 0 on."""
    if rope is None:
        return x
    angle = np.arange(len(x))[:, None] * rope.theta ** (-np.arange(rope.size // 2) / (rope.size // 2))
    angle = angle.reshape((len(x), *(1,) * (x.ndim - 2), -1))
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)


def normed(x: np.ndarray, norm: Any) -> np.ndarray:
    """A norm with its gate, if it has one."""
    of = lambda parameter: np.asarray(parameter[...], np.float64)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps) * (of(norm.weight) + norm.offset)
    if not hasattr(norm, "gate_in"):
        return x
    inner = x @ of(norm.gate_in).T
    inner = inner / (1 + np.exp(-inner)) @ of(norm.gate_out).T
    return norm.factor * x / (1 + np.exp(-inner))


def written_out(mixer: LatentAttention, x: np.ndarray) -> np.ndarray:
    """Compute one sequence [token, hidden] in float64, with the keys and values of every head."""
    c = mixer.config
    tokens = len(x)
    of = lambda parameter: np.asarray(parameter[...], np.float64)
    query_input = x
    if mixer.query_down is not None and mixer.query_norm is not None:
        query_input = normed(x @ of(mixer.query_down).T, mixer.query_norm)
    q = (query_input @ of(mixer.q_proj).T).reshape(tokens, c.heads, c.query_size)
    row = x @ of(mixer.row_proj).T
    latent = c.row_factor * normed(row[:, : c.rank], mixer.row_norm)
    shared = rotated(row[:, c.rank :], c.rope)
    q = np.concatenate([q[..., : c.key_size], rotated(q[..., c.key_size :], c.rope)], axis=-1)
    out = np.zeros((tokens, c.heads, c.value_size))
    for head in range(c.heads):
        key = np.concatenate([latent @ of(mixer.key_up)[head], shared], axis=-1)
        value = latent @ of(mixer.value_up)[head].T
        scores = c.score_factor * q[:, head] @ key.T / np.sqrt(c.query_size)
        scores[np.triu_indices(tokens, 1)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = p / p.sum(-1, keepdims=True) @ value
    if mixer.gate is not None:
        out = out / (1 + np.exp(-(x @ of(mixer.gate).T))).reshape(tokens, c.heads, -1)
    return out.reshape(tokens, -1) @ of(mixer.o_proj).T


@pytest.mark.parametrize("config", [PLAIN, GATED, COMPRESSED, GATED_NORMS, ON_A_TPU])
def test_equals_attention_with_keys_and_values_written_out(config: LatentAttentionConfig) -> None:
    """A sequence longer than a cache block next to a short one, over NaN."""
    mixer, lengths = layer(config), np.array([KV_BLOCK + 5, 3], np.int32)
    x = np.random.default_rng(0).normal(size=(2, KV_BLOCK + 5, HIDDEN)).astype(np.float32)
    x[1, 3:] = np.nan
    state = jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan, leaf.dtype), mixer.init_state(2, 140, np.float32))
    out, new = run(mixer, x, lengths, np.zeros(2, np.int32), state, kv_blocks(KV_BLOCK + 5))
    for lane, length in enumerate(lengths):
        expected = written_out(mixer, x[lane, :length].astype(np.float64))
        np.testing.assert_allclose(np.asarray(out)[lane, :length], expected, atol=2e-5)
    stored = 128 if config is ON_A_TPU else config.rank + config.shared_size
    assert jax.tree.leaves(new)[0].shape == (5, 1, KV_BLOCK, stored)


@pytest.mark.parametrize("config", [PLAIN, COMPRESSED, GATED_NORMS, pytest.param(GATED, marks=pytest.mark.long)])
def test_steps_equal_single_tokens_at_every_length(config: LatentAttentionConfig) -> None:
    check_lengths(layer(config), HIDDEN, (1, 4, KV_BLOCK + 2), 2e-5, {"key": 2e-5}, blocks=2)
