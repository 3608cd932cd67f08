"""Indexed attention: the chosen blocks, and attention over them in float64."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled, random_values
from flax import nnx
from mixer_lanes import check_lengths, run

from hybridlm.families import Rope
from models import KV_BLOCK, Devices, kv_blocks
from models.mixers.attention import AttentionConfig, QkNorm
from models.mixers.indexed_attention import IndexedAttention, IndexedAttentionConfig, best_blocks

HIDDEN = 12
ATTENTION = AttentionConfig(4, 2, 6, Rope(4, 100.0), QkNorm(1e-6, offset=1.0), output_gate=True)
SPARSE = IndexedAttentionConfig(ATTENTION, index_heads=5, index_size=7, block=4, chosen=3, eps=1e-6)
WIDE_BLOCKS = replace(SPARSE, block=32, chosen=1)
SINGLE_POSITIONS = replace(SPARSE, block=1, chosen=9)
ALL = replace(SPARSE, chosen=1000)
ON_A_TPU = replace(SPARSE, attention=replace(ATTENTION, devices=Devices(platform="tpu")))
CONFIGS = [SPARSE, WIDE_BLOCKS, SINGLE_POSITIONS, ALL, ON_A_TPU]


def layer(config: IndexedAttentionConfig) -> IndexedAttention:
    return filled(lambda: config.build(HIDDEN, nnx.Rngs(0)), random_values(config.block, 0.5, 1.5))


def test_best_blocks_of_equal_scores_are_the_first() -> None:
    scores = np.array([[[3, 1, 3, 3, 9, 9], [0, 0, 0, 0, 0, 0], [2, np.nan, np.nan, 1, 1, 1]]], np.float32)
    chosen = np.asarray(best_blocks(jnp.asarray(scores), jnp.array([[4, 6, 1]], jnp.int32), 2))
    assert [np.flatnonzero(mask).tolist() for mask in chosen[0]] == [[0, 2], [0, 1], [0]]


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1 + weight)


def turned(x: np.ndarray, positions: np.ndarray, rope: Rope) -> np.ndarray:
    """x [token, .., size]; the first `rope.size` values turn by half-split pairs."""
    half = rope.size // 2
    angle = (positions[:, None] * rope.theta ** (-np.arange(half) / half)).reshape(-1, *(1,) * (x.ndim - 2), half)
    a, b = x[..., :half], x[..., half : rope.size]
    parts = [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle), x[..., rope.size :]]
    return np.concatenate(parts, axis=-1)


def written_out(mixer: IndexedAttention, x: np.ndarray) -> tuple[np.ndarray, int]:
    """Compute one sequence [token, hidden] in float64, query by query; return also the attended positions."""
    c, a, tokens = mixer.indexer, mixer.config, len(x)
    assert a.rope is not None and mixer.q_norm is not None and mixer.k_norm is not None
    of, place = lambda parameter: np.asarray(parameter[...], np.float64), np.arange(tokens)
    q, gate = np.split((x @ of(mixer.q_proj).T).reshape(tokens, a.heads, -1), 2, axis=-1)
    k, v = ((x @ of(part).T).reshape(tokens, a.kv_heads, -1) for part in (mixer.k_proj, mixer.v_proj))
    q = turned(normed(q, of(mixer.q_norm.weight)), place, a.rope)
    k = turned(normed(k, of(mixer.k_norm.weight)), place, a.rope)
    index = (x @ of(mixer.index_proj).T).reshape(tokens, c.index_heads + 1, c.index_size)
    index_q = turned(normed(index[:, :-1], of(mixer.index_q_norm.weight)), place, a.rope)
    means = np.stack([index[i : i + c.block, -1].mean(0) for i in range(0, tokens, c.block)])
    starts = np.arange(0, tokens, c.block)
    index_k = turned(normed(means, of(mixer.index_k_norm.weight)), starts, a.rope)
    out, attended = np.zeros((tokens, a.heads, a.head_dim)), 0
    for t in range(tokens):
        complete = (t + 1) // c.block
        scores = np.maximum(index_k[:complete] @ index_q[t].T, 0).sum(-1)
        blocks = sorted(range(complete), key=lambda b: (-scores[b], b))[: c.chosen]
        seen = [p for b in blocks for p in range(b * c.block, (b + 1) * c.block)] + [*range(complete * c.block, t + 1)]
        attended += len(seen)
        for head in range(a.heads):
            row = k[seen, head // 2] @ q[t, head] / np.sqrt(a.head_dim)
            p = np.exp(row - row.max())
            out[t, head] = p / p.sum() @ v[seen, head // 2]
    out = out / (1 + np.exp(-gate))
    return out.reshape(tokens, -1) @ of(mixer.o_proj).T, attended


@pytest.mark.parametrize("config", CONFIGS)
def test_equals_attention_over_chosen_positions(config: IndexedAttentionConfig) -> None:
    """A sequence longer than a page next to a short one, over NaN."""
    mixer, count = layer(config), KV_BLOCK + 7
    lengths = np.array([count, 6], np.int32)
    x = np.random.default_rng(0).normal(size=(2, count, HIDDEN)).astype(np.float32)
    x[1, 6:] = np.nan
    state = jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan, leaf.dtype), mixer.init_state(2, 140, np.float32))
    out, new = run(mixer, x, lengths, np.zeros(2, np.int32), state, kv_blocks(count))
    positions = []
    for lane, length in enumerate(lengths):
        expected, attended = written_out(mixer, x[lane, :length].astype(np.float64))
        positions.append(attended)
        np.testing.assert_allclose(np.asarray(out)[lane, :length], expected, atol=2e-5)
    dense = count * (count + 1) // 2
    assert positions[0] == dense if config is ALL else positions[0] < dense * 0.75
    assert new.index.shape == (5, 1, KV_BLOCK, 128 if config is ON_A_TPU else config.index_size)


@pytest.mark.slow
@pytest.mark.parametrize("config", [SPARSE, pytest.param(WIDE_BLOCKS, marks=pytest.mark.long)])
def test_steps_equal_single_tokens_at_every_length(config: IndexedAttentionConfig) -> None:
    fields = {"key": 2e-5, "value": 2e-5, "index": 2e-5}
    check_lengths(layer(config), HIDDEN, (1, 4, KV_BLOCK + 2), 2e-5, fields, blocks=2)


@pytest.mark.slow
def test_more_blocks_change_no_bit() -> None:
    mixer, lengths = layer(SPARSE), np.array([30, 5], np.int32)
    x, zeros = np.random.default_rng(1).normal(size=(2, 30, HIDDEN)).astype(np.float32), np.zeros(2, np.int32)
    few, many = (np.asarray(run(mixer, x, lengths, zeros, mixer.init_state(2, 600, np.float32), n)[0]) for n in (1, 5))
    assert few[0].tobytes() == many[0].tobytes() and few[1, :5].tobytes() == many[1, :5].tobytes()
