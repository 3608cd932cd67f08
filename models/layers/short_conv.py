"""Short convolution: causal, depthwise, over the last K tokens, with the last K-1 inputs as its state."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int32

from models.layers.activations import silu
from models.ops.layout import materialize
from models.ops.recurrences.conv_step import KERNEL, conv_step
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.state.shapes import LaneInfo
from models.state.state import name_dims


def layer_conv(
    x: Float32[Array, "lane token channel"],
    weight: Float[Array, "channel 1 kernel"],
    state: Float[Array, "lane tap channel"],
    info: LaneInfo,
    bias: Float32[Array, "channel"] | None = None,
    devices: Devices = SINGLE_DEVICE,
    *,
    activation: Callable[[Array], Array] = silu,
) -> tuple[Float32[Array, "lane token channel"], Any]:
    """Run `short_conv` with the weight of a checkpoint, from zero state where a lane's sequence begins.

    Args:
        x, state, bias: as of `short_conv`.
        weight: taps as a checkpoint has them.
        info: of the lanes; while drafts are verified, no new state is wanted.
        devices: that the step is for.
        activation: of the outputs, elementwise.

    Returns:
        Outputs, undefined at padding tokens, and the next state; None while drafts are verified.
    """
    if KERNEL.chosen(devices.kernels, devices.platform, x, weight[:, 0]):
        return conv_step(
            x, weight[:, 0], state, info.lengths, info.fresh, bias,
            activation=activation, keep_state=info.verifying, interpret=devices.kernels == "interpret",
        )  # fmt: skip
    taps = weight[:, 0].astype(jnp.float32)
    if devices.platform == "gpu" and x.shape[1] == 1 and not info.verifying:
        return _token_for_gpus(x, taps, state, info, bias, activation)
    before = _before(state, info)
    if devices.platform == "gpu":
        # Products may turn the window that they are beside. XLA:GPU would turn the state too, and copy it back.
        before = materialize(before)
    y, new = short_conv(x, taps, before, info.lengths, info.valid, bias)
    if devices.platform == "gpu":
        # XLA:GPU would write the states of all layers in one operation at the end, and keep every window until then.
        y, new = lax.optimization_barrier((y, materialize(new)))
    return activation(y), None if info.verifying else new


def _token_for_gpus(
    x: Float32[Array, "lane 1 channel"],
    weight: Float32[Array, "channel kernel"],
    state: Float[Array, "lane tap channel"],
    info: LaneInfo,
    bias: Float32[Array, "channel"] | None,
    activation: Callable[[Array], Array],
) -> tuple[Float32[Array, "lane 1 channel"], Any]:
    """Run `layer_conv` of one token in two operations: one reads token and state once, the other writes the state.

    Inputs are kept in rows of their own, as XLA:GPU joins operations of one shape; no window is written in float32.
    """
    before = _before(state, info)
    x = name_dims(jnp.where(info.valid[:, :, None], x, 0.0), None, None, "channel")[:, 0]
    rows = [*(before[:, j] for j in range(state.shape[1])), x]
    y = rows[0].astype(jnp.float32) * weight[None, :, 0]
    for j in range(1, len(rows)):
        y = y + rows[j].astype(jnp.float32) * weight[None, :, j]
    y = y if bias is None else y + bias[None]
    y, *kept = lax.optimization_barrier([activation(y), *(row.astype(state.dtype) for row in rows[1:])])
    new = jnp.where((info.lengths > 0)[:, None, None], name_dims(jnp.stack(kept, axis=1), None, "tap", None), state)
    # Without a second barrier it would write the states of all layers in one operation at the end.
    y, new = lax.optimization_barrier((y, new))
    return y[:, None], new


def short_conv(
    x: Float32[Array, "lane token channel"],
    weight: Float32[Array, "channel kernel"],
    state: Float[Array, "lane tap channel"],
    lengths: Int32[Array, "lane"],
    valid: Bool[Array, "lane token"],
    bias: Float32[Array, "channel"] | None = None,
) -> tuple[Float32[Array, "lane token channel"], Float[Array, "lane tap channel"]]:
    """Compute `y_t = sum_j weight[c, j] x_{t-K+1+j} + bias[c]`: tap K-1 is that of the current token. No activation.

    Args:
        x: inputs; those of padding tokens are ignored, even if they are NaN.
        weight: taps, `[channel, K]`.
        state: the K-1 inputs before this step.
        lengths, valid: real tokens of each lane.
        bias: added to every output, also to those of padding tokens, which the caller masks.

    Returns:
        The convolution and the last K-1 inputs at each lane's true length; the state of a lane of length 0 is
        unchanged, bit for bit.
    """
    window = conv_window(x, state, valid)
    return convolve(window, weight, bias), conv_tail(window, lengths, state)


def layer_window(
    x: Float32[Array, "lane token channel"], state: Float[Array, "lane tap channel"], info: LaneInfo
) -> Float32[Array, "lane input channel"]:
    """Return `conv_window` from zero state where a lane's sequence begins."""
    return conv_window(x, _before(state, info), info.valid)


def conv_window(
    x: Float32[Array, "lane token channel"], state: Float[Array, "lane tap channel"], valid: Bool[Array, "lane token"]
) -> Float32[Array, "lane input channel"]:
    """Concatenate the K-1 inputs before this step and those of its T tokens, zero for padding tokens.

    Outputs and next state are both computed from it, behind a barrier (ops/layout: in place).
    """
    x = name_dims(jnp.where(valid[:, :, None], x, 0.0), None, None, "channel")
    return lax.optimization_barrier(jnp.concatenate([state.astype(jnp.float32), x], axis=1))


def convolve(
    window: Float32[Array, "lane input channel"],
    weight: Float32[Array, "channel kernel"],
    bias: Float32[Array, "channel"] | None = None,
) -> Float32[Array, "lane token channel"]:
    """Compute the convolution at each of the T = inputs - K + 1 tokens of a window."""
    kernel = weight.shape[1]
    tokens = window.shape[1] - kernel + 1
    y = window[:, :tokens] * weight[None, None, :, 0]
    for j in range(1, kernel):
        y = y + window[:, j : j + tokens] * weight[None, None, :, j]
    return y if bias is None else y + bias[None, None]


def conv_tail(
    window: Float32[Array, "lane input channel"], lengths: Int32[Array, "lane"], state: Float[Array, "lane tap channel"]
) -> Float[Array, "lane tap channel"]:
    """Return the last K-1 inputs at each lane's length, at most T; the state of a lane of length 0 is unchanged."""
    taps = state.shape[1]
    if window.shape[1] == taps + 1:
        tail = window[:, 1:]
    else:
        last = lengths[:, None] + jnp.arange(taps, dtype=jnp.int32)[None, :]
        tail = jnp.take_along_axis(window, last[:, :, None], axis=1, mode="fill")
    tail = name_dims(tail, None, "tap", None)
    return jnp.where((lengths > 0)[:, None, None], tail.astype(state.dtype), state)


def _before(state: Float[Array, "lane tap channel"], info: LaneInfo) -> Float[Array, "lane tap channel"]:
    return jnp.where(info.fresh[:, None, None], jnp.zeros_like(state), state)
