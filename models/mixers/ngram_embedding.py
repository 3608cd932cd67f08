"""Embeddings of hashed n-grams, added to all residual streams (per-layer embedding of Qwen4-Exp)."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float32, Int32

from models.layers.embedding import embedding_rows
from models.layers.initial import matrix
from models.layers.ngrams import hashed_rows, next_window, previous_tokens
from models.layers.norms import grouped_rms_norm
from models.layers.short_conv import layer_conv
from models.ops.layout import unfused
from models.ops.linear import linear
from models.sharding.devices import MODEL, SINGLE_DEVICE, Devices, all_reduce, local_rows
from models.sharding.shard_sizes import shard_config
from models.sharding.sharded_dim import Segment, shard_outputs
from models.state.rows import put_rows, take_rows
from models.state.shapes import ConvState, LaneInfo
from models.state.state import Stateful, name_dims, state_array


@dataclass(frozen=True)
class NgramEmbeddingConfig:
    """Sizes of a layer of n-gram embeddings.

    Attributes:
        width: values of a token's n-grams (`ple_embed_dim`), equally many of each table.
        streams: residual streams.
        kernel: of the convolution over every `len(factors)`-th token (`ple_conv_kernel_size`).
        factors: multiplier of each token of an n-gram, as many as the longest n-gram has tokens.
        tables: sizes of the hash tables.
        rows: of all tables, with padding.
        parts: tensors of the tables in files (`split_ngram_parts`).
        end: id of the token that ends a text, which n-grams do not cross.
        eps: of the norms, with weights minus one.
    """

    width: int
    streams: int
    kernel: int
    factors: tuple[int, ...]
    tables: tuple[int, ...]
    rows: int
    parts: int
    end: int
    eps: float
    devices: Devices = SINGLE_DEVICE

    @property
    def taps(self) -> int:
        """Tokens before a token's longest n-gram."""
        return len(self.factors) - 1

    @property
    def dilated(self) -> int:
        """Taps of the convolution, those in between included."""
        return (self.kernel - 1) * len(self.factors) + 1

    def with_tables_of(self, size: int) -> "NgramEmbeddingConfig":
        """Return the config with small tables, for measurements of the state."""
        return replace(self, tables=(size,) * len(self.tables), rows=size * len(self.tables))

    def shard(self, devices: Devices) -> "NgramEmbeddingConfig":
        """Return one device's config: its rows of the tables, all projections."""
        return shard_config(self, devices, "rows")

    def build(self, hidden: int, rngs: nnx.Rngs) -> "NgramEmbedding":
        return NgramEmbedding(self, hidden, rngs)


class NgramState(NamedTuple):
    """State of n-gram embeddings, with a row for each sequence.

    Attributes:
        tokens: the last tokens, int32; `end` before a sequence.
        ngram_conv: last inputs of the convolution; the dtype of caches.
    """

    tokens: Int32[Array, "row tap"]
    ngram_conv: ConvState


class NgramEmbedding(Stateful):
    """Gated values of n-grams plus their convolution, added to all streams."""

    summed_over = ()
    norms_input = True
    reads_tokens = True

    def __init__(self, config: NgramEmbeddingConfig, hidden: int, rngs: nnx.Rngs):
        c = config
        self.config, self.hidden = c, hidden
        channels = c.streams * hidden
        rows = shard_outputs(Segment(c.rows, c.rows))
        self.table = matrix(rngs, c.rows, c.width // len(c.tables), sharded=(rows,))
        self.key_proj = matrix(rngs, channels, c.width)
        self.value_proj = matrix(rngs, hidden, c.width)
        self.key_norm, self.query_norm, self.conv_norm = (
            nnx.Param(jnp.zeros((channels,), jnp.float32)) for _ in range(3)
        )
        self.conv1d = matrix(rngs, channels, 1, c.kernel)

    def state_arrays(self) -> Any:
        c = self.config
        tokens = state_array(jnp.int32, role="token", tap=c.taps)
        return NgramState(tokens, state_array(role="conv", tap=c.dilated - 1, channel=c.streams * self.hidden))

    def __call__(
        self, x: Float32[Array, "lane token streams"], info: LaneInfo, state: NgramState
    ) -> tuple[Float32[Array, "lane token streams"], Any]:
        c = self.config
        assert info.tokens is not None, "a layer that reads the tokens: expected them in info.tokens"
        history = self._history(info.tokens, info, state)
        embedded = self._embedded(previous_tokens(history, c.taps, c.end), info)
        query = self._normed(x, self.query_norm)
        key = self._normed(linear(embedded, self.key_proj[...], c.devices), self.key_norm)
        shape = (*x.shape[:2], c.streams, self.hidden)
        score = jnp.sum((key * query).reshape(shape), axis=-1, keepdims=True) / math.sqrt(self.hidden)
        score = jnp.sign(score) * jnp.sqrt(jnp.maximum(jnp.abs(score), 1e-6))
        value = linear(embedded, self.value_proj[...], c.devices)[:, :, None]
        value = (jax.nn.sigmoid(score) * value).reshape(x.shape)
        inputs = self._normed(value, self.conv_norm)
        mixed, conv = layer_conv(inputs, self._taps(), state.ngram_conv, info, devices=c.devices)
        # A verifying step returns what `commit` replays in place of a state.
        if info.verifying:
            return value + mixed, NgramState(info.tokens, inputs)
        return value + mixed, NgramState(self._next(history, info, state), conv)

    def commit(self, pending: NgramState, info: LaneInfo, state: NgramState) -> NgramState:
        _, conv = layer_conv(pending.ngram_conv, self._taps(), state.ngram_conv, info, devices=self.config.devices)
        return NgramState(self._next(self._history(pending.tokens, info, state), info, state), conv)

    def _history(
        self, tokens: Int32[Array, "lane token"], info: LaneInfo, state: NgramState
    ) -> Int32[Array, "lane all"]:
        """Return the state's tokens and new ones in one array (ops/layout: in place)."""
        window = jnp.where(info.fresh[:, None], self.config.end, take_rows(state.tokens, info.slots))
        return unfused(jnp.concatenate([window, tokens], axis=1), self.config.devices.platform)

    def _embedded(self, previous: list[Array], info: LaneInfo) -> Float32[Array, "lane token width"]:
        c = self.config
        number, axes = hashed_rows(previous, c.factors, c.tables), c.devices.several((MODEL,))
        mask = info.valid[:, :, None]
        if axes:
            local, number = local_rows(number, MODEL, c.rows)
            mask = mask & local
        values = embedding_rows(self.table[...], jnp.where(mask, number, 0), c.devices.platform)
        values = all_reduce(jnp.where(mask[..., None], values, 0.0), axes)
        return values.reshape((*values.shape[:2], c.width))

    def _next(self, history: Int32[Array, "lane all"], info: LaneInfo, state: NgramState) -> Int32[Array, "row tap"]:
        window = name_dims(next_window(history, self.config.taps, info.lengths), None, "tap")
        old = take_rows(state.tokens, info.slots)
        return put_rows(state.tokens, info.slots, jnp.where((info.lengths > 0)[:, None], window, old))

    def _normed(
        self, x: Float32[Array, "lane token streams"], weight: nnx.Param
    ) -> Float32[Array, "lane token streams"]:
        c = self.config
        return grouped_rms_norm(x, weight[...] + 1.0, c.streams, c.eps, c.devices, 1)

    def _taps(self) -> Array:
        """Return the weight of the convolution with zeros for the tokens in between."""
        weight, gap = self.conv1d[...], len(self.config.factors)
        spread = jnp.pad(weight[..., None], ((0, 0),) * 3 + ((0, gap - 1),))
        return spread.reshape((len(weight), 1, -1))[:, :, : self.config.dilated]
