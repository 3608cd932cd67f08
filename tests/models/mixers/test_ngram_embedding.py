"""N-gram embeddings on residual streams: chunks, single tokens, accepted drafts, equations in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_lanes import check_accepted_drafts, check_single_tokens, run, run_with_residuals
from filled import filled, random_values
from flax import nnx

from hybridlm.families import MlpConfig, Rope, StreamsConfig
from models import Decoder, DecoderConfig
from models.mixers.attention import AttentionConfig, QkNorm
from models.mixers.indexed_attention import IndexedAttentionConfig
from models.mixers.ngram_embedding import NgramEmbeddingConfig

HIDDEN, STREAMS, END = 6, 3, 2
NGRAMS = NgramEmbeddingConfig(8, STREAMS, 3, (3_000_001, 5_000_003, 7_000_001), (11, 13, 17, 19), 64, 2, END, 1e-6)
INDEXED = IndexedAttentionConfig(AttentionConfig(2, 2, 4, Rope(4, 1e4), QkNorm(1e-6, 1.0)), 4, 4, 2, 2, 1e-6)
LAYERS = ((NGRAMS, INDEXED, MlpConfig(6)), (MlpConfig(6),), (NGRAMS, INDEXED))
LENGTHS = np.array([9, 3, 1, 0], np.int32)


def model(layers: Any = LAYERS) -> Decoder:
    config = DecoderConfig(
        "qwen4_exp", 13, HIDDEN, 64, layers, 1e-6, 1.0, False, (END,), "float32", (), streams=StreamsConfig(STREAMS, 4)
    )
    return filled(lambda: Decoder(config, nnx.Rngs(0)), random_values(0))


def tokens(count: int) -> np.ndarray:
    """Random ids, some of them the end of a text."""
    return np.random.default_rng(1).integers(0, 6, (len(LENGTHS), count)).astype(np.int32)


def poisoned(decoder: Decoder) -> Any:
    """A state of NaN, and of token ids that no vocabulary has."""

    def filled_with(leaf: Any) -> Any:
        return jnp.full_like(leaf, jnp.nan if leaf.dtype == jnp.float32 else 7_777_777)

    return jax.tree.map(filled_with, decoder.init_state(4, 16, jnp.float32))


@pytest.mark.slow
def test_chunks_equal_single_tokens() -> None:
    """Lanes of different lengths, with tokens of no vocabulary in padding."""
    decoder, ids = model(), tokens(9)
    ids[np.arange(9)[None] >= LENGTHS[:, None]] = 7_777_777
    check_single_tokens(decoder, ids, LENGTHS, poisoned(decoder))


@pytest.mark.slow
@pytest.mark.parametrize("accepted", range(5))
def test_state_after_accepted_drafts(accepted: int) -> None:
    check_accepted_drafts(model(), tokens(8), accepted)


def test_equations() -> None:
    """One layer of n-grams and an MLP: every sum of each token in float64."""
    decoder, ids = model(((NGRAMS, MlpConfig(6)),)), tokens(9)[:1]
    ids[0] = [3, 4, 5, END, 3, 4, 5, 3, 4]
    state = decoder.init_state(1, 16, jnp.float32)
    hidden, new = jax.device_get(run(decoder, ids, np.array([9], np.int32), np.zeros(1, np.int32), state))
    of = lambda parameter: np.asarray(parameter[...], np.float64)

    def normed(x: np.ndarray, weight: Any) -> np.ndarray:
        x = x.reshape(len(x), STREAMS, HIDDEN)
        return (x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)).reshape(len(x), -1) * (1 + of(weight))

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    def mixed(x: np.ndarray, mixer: Any) -> tuple[np.ndarray, np.ndarray]:
        n = normed(x, mixer.weight)
        low = n @ of(mixer.down).T / STREAMS
        gates = sigmoid(low * sigmoid(low) @ of(mixer.up).T)
        return (gates * n).reshape(len(x), STREAMS, HIDDEN).mean(1), n

    x = np.tile(of(decoder.embed_tokens)[ids[0]], (1, STREAMS))
    ngrams, mlp = (branch.inner for branch in decoder.layers[0].branches)
    history, embedded = [END, END, *ids[0].tolist()], []
    for t in range(9):
        window, ended = [], False
        for back in range(3):
            ended = ended or (back > 0 and history[t + 2 - back] == END)
            window.append(END if ended else history[t + 2 - back])
        rows = []
        for head, table in enumerate(NGRAMS.tables):
            number = 0
            for token, factor in list(zip(window, NGRAMS.factors, strict=True))[: 2 + head // 2]:
                number ^= token * factor
            rows.append(of(ngrams.table)[sum(NGRAMS.tables[:head]) + number % table])
        embedded.append(np.concatenate(rows))
    e = np.stack(embedded)
    key, query = normed(e @ of(ngrams.key_proj).T, ngrams.key_norm), normed(x, ngrams.query_norm)
    score = (key * query).reshape(9, STREAMS, HIDDEN).sum(-1) / np.sqrt(HIDDEN)
    gate = sigmoid(np.sign(score) * np.sqrt(np.maximum(np.abs(score), 1e-6)))
    value = (gate[..., None] * (e @ of(ngrams.value_proj).T)[:, None]).reshape(9, -1)
    inputs = np.concatenate([np.zeros((6, STREAMS * HIDDEN)), normed(value, ngrams.conv_norm)])
    conv = np.sum([inputs[3 * j : 3 * j + 9] * of(ngrams.conv1d)[:, 0, j] for j in range(3)], axis=0)
    x = x + value + conv * sigmoid(conv)
    connection = decoder.layers[0].branches[1].connection
    inner, n = mixed(x, connection)
    up, gate = inner @ of(mlp.up_proj).T, inner @ of(mlp.gate_proj).T
    out = (up * gate * sigmoid(gate)) @ of(mlp.down_proj).T
    assert connection is not None
    weights = 2 * sigmoid(n @ of(connection.inject).T / STREAMS)
    x = x + (weights[..., None] * out[:, None]).reshape(9, -1)
    np.testing.assert_allclose(hidden[0], mixed(x, decoder.norm)[0], atol=2e-5)
    np.testing.assert_allclose(new[0][0].ngram_conv[0], inputs[-6:], atol=2e-5)
    assert new[0][0].tokens.tolist() == [[3, 4]]


def test_streams_begin_equal_and_differ_behind_the_layers() -> None:
    decoder = model()
    hidden, residuals = jax.device_get(run_with_residuals(decoder, tokens(9)))
    first, *later = (x.reshape((4, 9, STREAMS, HIDDEN)) for x in residuals)
    assert hidden.shape == (4, 9, HIDDEN) and decoder.config.residual_size == HIDDEN * STREAMS
    assert len(later) == len(LAYERS) and (first == first[:, :, :1]).all()
    assert all(
        np.abs(streams[:, :, i] - streams[:, :, j]).max() > 0.1 for streams in later for i, j in ((0, 1), (1, 2))
    )
