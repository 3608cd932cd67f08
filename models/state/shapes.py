"""Names of dimensions and array types of the model code.

| name | meaning |
|---|---|
| lane | N, lanes of the static batch of a step |
| token | T, tokens per lane of a step |
| hidden | width of the residual stream |
| channel | channels of a short convolution |
| tap | K-1 inputs that a short convolution of kernel K keeps |
| head, kv_head | query heads, key/value heads of attention (GQA: fewer of the latter) |
| key_head, value_head | heads (groups in SSD) of the keys and queries, and of the values of a linear recurrence |
| key, value | size of a key and of a value vector of one head |
| row | rows of a pool, one for each sequence; or of a row-wise operation: any product of lanes and tokens |
| page, place | pages of a KV cache, and the positions of one page |
| block | entries of a lane in a page table: `KV_BLOCK` positions of its sequence each |

Activations and recurrent state are float32; convolution inputs and the KV cache have the cache dtype.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Float32, Int32

Tokens = Int32[Array, "lane token"]
Lengths = Int32[Array, "lane"]
Positions = Int32[Array, "lane"]
Activations = Float32[Array, "lane token hidden"]
Stream = Float32[Array, "lane token ... hidden"]
"""Residual stream, with a dimension of sources where branches read a mix of them."""
TokenMask = Bool[Array, "lane token"]
LaneMask = Bool[Array, "lane"]
ConvState = Float[Array, "row tap channel"]
RecurrentState = Float32[Array, "row value_head value key"]
KeyCache = Float[Array, "page kv_head place key"]
ValueCache = Float[Array, "page kv_head place value"]


HeadKind = Literal["attention", "recurrent"]
"""Kind of a head's mixer; a layer may have one mixer of each kind."""


class Hooks:
    """Functions at sites of a forward pass; the pass continues with their results."""

    def residual(self, x: Activations, index: int) -> Activations:
        """Return the residual stream after the embedding (index 0), or after layer `index - 1`."""
        return x

    def heads(
        self, x: Float32[Array, "lane token head size"], layer: int, kind: HeadKind
    ) -> Float32[Array, "lane token head size"]:
        """Return the outputs of a mixer's heads, before the projection."""
        return x

    def experts(
        self, weight: Float32[Array, "lane token choice"], expert: Int32[Array, "lane token choice"], layer: int
    ) -> Float32[Array, "lane token choice"]:
        return weight


class LaneInfo(NamedTuple):
    """Lanes of a step.

    Attributes:
        lengths: number of real tokens among the T of a lane, then padding; 0 for an idle lane.
        positions: position in its sequence of each lane's first token.
        valid: mask of the real tokens, `arange(T) < lengths[:, None]`.
        fresh: lanes at the beginning of a sequence (position 0, length > 0): they start from zero state.
        kv_blocks: number of KV cache blocks for attention in all lanes: an int32 scalar operand in a compiled step, a
            Python int in a differentiable loop.
        verifying: the step verifies drafts: recurrences return their token inputs instead of a new state.
        slots: the row of each lane in the pools, distinct; idle lanes have rows too, with unchanged bits. None: row i
            for lane i.
        pages: page table of the KV caches (`models.state.pages`); None: `own_pages`.
        embedded: the residual stream before the first layer, if a layer reads it.
        tokens: token ids, 0 at padding, if a layer reads them.
    """

    lengths: Lengths
    positions: Positions
    valid: TokenMask
    fresh: LaneMask
    kv_blocks: Int32[Array, ""] | int
    verifying: bool = False
    hooks: Hooks | None = None
    layer: int = 0
    slots: Int32[Array, "lane"] | None = None
    pages: Int32[Array, "lane block"] | None = None
    embedded: Activations | None = None
    tokens: Tokens | None = None

    @property
    def token_positions(self) -> Int32[Array, "lane token"]:
        """Position of each token in its sequence."""
        return self.positions[:, None] + jnp.arange(self.valid.shape[1], dtype=jnp.int32)[None]

    def hooked_heads(
        self, x: Float32[Array, "lane token head size"], kind: HeadKind
    ) -> Float32[Array, "lane token head size"]:
        return x if self.hooks is None else self.hooks.heads(x, self.layer, kind)


def over_last(vector: Array, like: Array) -> Array:
    """Reshape `vector` [size] to the rank of `like`, to broadcast along its last dimension."""
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)
