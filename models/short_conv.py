"""Causal depthwise convolution over the last few tokens, with its state."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int32

from models.named import named
from models.shapes import LaneInfo


def layer_conv(
    x: Float32[Array, "lane token channel"],
    weight: Float[Array, "channel 1 kernel"],
    state: Float[Array, "lane tap channel"],
    info: LaneInfo,
    bias: Float32[Array, "channel"] | None = None,
) -> tuple[Float32[Array, "lane token channel"], Float[Array, "lane tap channel"]]:
    """`short_conv` with the weight of a checkpoint, from zero state where a lane's sequence begins."""
    before = jnp.where(info.fresh[:, None, None], jnp.zeros_like(state), state)
    return short_conv(x, weight[:, 0].astype(jnp.float32), before, info.lengths, info.valid, bias)


def short_conv(
    x: Float32[Array, "lane token channel"],
    weight: Float32[Array, "channel kernel"],
    state: Float[Array, "lane tap channel"],
    lengths: Int32[Array, "lane"],
    valid: Bool[Array, "lane token"],
    bias: Float32[Array, "channel"] | None = None,
) -> tuple[Float32[Array, "lane token channel"], Float[Array, "lane tap channel"]]:
    """`y_t = sum_j weight[c, j] x_{t-K+1+j} + bias[c]`: tap K-1 meets the current token. No activation.

    Args:
        x: inputs; those of tokens that are not real are ignored, even if they are NaN.
        weight: taps, `[channel, K]`.
        state: the K-1 inputs before this step.
        lengths, valid: real tokens of each lane.
        bias: added to every output, also to those of tokens that are not real, which the caller masks.

    Returns:
        The convolution and the last K-1 inputs at each lane's true length; the state of a lane of length 0 is
        unchanged, bit for bit.
    """
    tokens, kernel = x.shape[1], weight.shape[1]
    x = named(jnp.where(valid[:, :, None], x, 0.0), None, None, "channel")
    # Computed once, for the convolution and for what is kept: else XLA may compute the latter from the state alone, and
    # would have to copy that before it writes there.
    window = lax.optimization_barrier(jnp.concatenate([state.astype(jnp.float32), x], axis=1))
    y = window[:, :tokens] * weight[None, None, :, 0]
    for j in range(1, kernel):
        y = y + window[:, j : j + tokens] * weight[None, None, :, j]
    if bias is not None:
        y = y + bias[None, None]
    if tokens == 1:
        tail = window[:, 1:]
    else:
        last = lengths[:, None] + jnp.arange(kernel - 1, dtype=jnp.int32)[None, :]
        tail = jnp.take_along_axis(window, last[:, :, None], axis=1, mode="fill")
    tail = named(tail, None, "tap", None)
    return y, jnp.where((lengths > 0)[:, None, None], tail.astype(state.dtype), state)
