"""Notation and the named array types of the model code.

A dimension is written by its name in every annotation:

| name | meaning |
|---|---|
| lane | N, lanes of the static batch of a step |
| token | T, tokens per lane of a step |
| hidden | width of the residual stream |
| channel | channels of a short convolution |
| tap | K-1 inputs that a short convolution of kernel K keeps |
| head, kv_head | query heads, key/value heads of attention |
| value_head | heads of a linear recurrence |
| key, value | size of a key and of a value vector of one head |
| context | key/value positions that a lane can hold |
| row | rows of a row-wise operation: any product of lanes and tokens |

Activations are float32. Recurrent state is float32 always; convolution and key/value state have the cache dtype.
"""

from typing import NamedTuple

from jax import Array
from jaxtyping import Bool, Float, Float32, Int32

Tokens = Int32[Array, "lane token"]
Lengths = Int32[Array, "lane"]
Positions = Int32[Array, "lane"]
Activations = Float32[Array, "lane token hidden"]
TokenMask = Bool[Array, "lane token"]
LaneMask = Bool[Array, "lane"]
ConvState = Float[Array, "lane tap channel"]
RecurrentState = Float32[Array, "lane value_head value key"]
KeyCache = Float[Array, "lane kv_head context key"]
ValueCache = Float[Array, "lane kv_head context value"]


class LaneInfo(NamedTuple):
    """What every layer of a step knows about its lanes.

    Attributes:
        lengths: how many of the T tokens of a lane are real; 0 for an idle lane.
        positions: position in its sequence of each lane's first token.
        valid: which tokens are real, `arange(T) < lengths[:, None]`.
        fresh: lanes whose sequence begins in this step (position 0, length > 0): they start from zero state.
        kv_blocks: how many blocks of the key/value cache attention visits, shared by all lanes: an int32 scalar
            operand in a compiled step, a Python int where the loop must be differentiable.
        verifying: how many of the tokens count is not known yet. A layer with a recurrence then gives what the
            recurrence was given in place of its new state, and `commit` makes the state from it.
    """

    lengths: Lengths
    positions: Positions
    valid: TokenMask
    fresh: LaneMask
    kv_blocks: Int32[Array, ""] | int
    verifying: bool = False


def over_last(vector: Array, like: Array) -> Array:
    """Give `vector` [size] the rank of `like`, so that it meets its last dimension."""
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)
