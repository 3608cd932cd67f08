"""Short convolution (causal conv1d): depthwise, over the last K tokens, with the last K-1 inputs as its state."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int32

from models.layers.activations import silu
from models.ops.layout import materialize
from models.ops.recurrences.conv_step_cpu import KERNEL as CPU_KERNEL
from models.ops.recurrences.conv_step_cpu import conv_step_cpu
from models.ops.recurrences.conv_step_gpu import KERNEL, conv_step
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.state.shapes import LaneInfo, LaneMask
from models.state.state import name_dims


def layer_conv(
    x: Float32[Array, "lane token channel"],
    weight: Float[Array, "channel 1 kernel"],
    state: Float[Array, "lane tap channel"],
    info: LaneInfo,
    bias: Float32[Array, "channel"] | None = None,
    devices: Devices = SINGLE_DEVICE,
    *,
    activated: bool = True,
) -> tuple[Float32[Array, "lane token channel"], Any]:
    """Run `short_conv` with the weight of a checkpoint, from zero state where a lane's sequence begins.

    Args:
        x, state, bias: as of `short_conv`.
        weight: taps as a checkpoint has them.
        info: of the lanes; while drafts are verified, no new state is wanted.
        devices: that the step is for.
        activated: whether outputs go through SiLU.

    Returns:
        Outputs, undefined at padding tokens, and the next state; None while drafts are verified.
    """
    if CPU_KERNEL.chosen(devices, x, weight[:, 0], state):
        return _on_cpu(activated, info.verifying, x, weight, state, info.lengths, info.valid, info.fresh, bias)
    if KERNEL.chosen(devices, x, weight[:, 0]):
        return conv_step(
            x, weight[:, 0], state, info.lengths, info.fresh, bias,
            activation=partial(_activate, activated=activated), keep_state=info.verifying,
            interpret=devices.interpret,
        )  # fmt: skip
    taps = weight[:, 0].astype(jnp.float32)
    if devices.platform == "gpu" and x.shape[1] == 1 and not info.verifying:
        return _token_for_gpus(x, taps, state, info, bias, activated)
    before = _before(state, info.fresh)
    if devices.platform == "gpu":
        # A product beside the window may transpose it. XLA:GPU would transpose the state too, and copy it back.
        before = materialize(before)
    y, new = short_conv(x, taps, before, info.lengths, info.valid, bias)
    if devices.platform == "gpu":
        # XLA:GPU would write the states of all layers in one operation at the end, and keep every window until then.
        y, new = lax.optimization_barrier((y, materialize(new)))
    return _activate(y, activated), None if info.verifying else new


def _token_for_gpus(
    x: Float32[Array, "lane 1 channel"],
    weight: Float32[Array, "channel kernel"],
    state: Float[Array, "lane tap channel"],
    info: LaneInfo,
    bias: Float32[Array, "channel"] | None,
    activated: bool,
) -> tuple[Float32[Array, "lane 1 channel"], Any]:
    """Run `layer_conv` of one token in two operations: one reads token and state once, the other writes the state.

    Inputs are kept in rows of their own, as XLA:GPU joins operations of one shape; no window is written in float32.
    """
    before = _before(state, info.fresh)
    x = name_dims(jnp.where(info.valid[:, :, None], x, 0.0), None, None, "channel")[:, 0]
    rows = [*(before[:, j] for j in range(state.shape[1])), x]
    y = rows[0].astype(jnp.float32) * weight[None, :, 0]
    for j in range(1, len(rows)):
        y = y + rows[j].astype(jnp.float32) * weight[None, :, j]
    y = y if bias is None else y + bias[None]
    y, *kept = lax.optimization_barrier([_activate(y, activated), *(row.astype(state.dtype) for row in rows[1:])])
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
        # Not while the state is written, whose rows the window begins with (ops/layout: in place).
        tail = materialize(tail)
    tail = name_dims(tail, None, "tap", None)
    return jnp.where((lengths > 0)[:, None, None], tail.astype(state.dtype), state)


def _before(state: Float[Array, "lane tap channel"], fresh: LaneMask) -> Float[Array, "lane tap channel"]:
    return jnp.where(fresh[:, None, None], jnp.zeros_like(state), state)


def _activate(y: Array, activated: bool) -> Array:
    return silu(y) if activated else y


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _on_cpu(
    activated: bool, keep_state: bool, x: Any, weight: Any, state: Any, lengths: Any, valid: Any, fresh: Any, bias: Any
) -> Any:
    taps = weight[:, 0]
    return conv_step_cpu(x, taps, state, lengths, fresh, bias, activated=activated, keep_state=keep_state)


@_on_cpu.defjvp
def _derivative(activated: bool, keep_state: bool, primals: Any, tangents: Any) -> Any:
    def plain(x: Any, weight: Any, state: Any, lengths: Any, valid: Any, fresh: Any, bias: Any) -> Any:
        taps = weight[:, 0].astype(jnp.float32)
        y, new = short_conv(x, taps, _before(state, fresh), lengths, valid, bias)
        return _activate(y, activated), None if keep_state else new

    return _on_cpu(activated, keep_state, *primals), jax.jvp(plain, primals, tangents)[1]
