"""Short convolution (causal conv1d), depthwise over the last K tokens."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int32

from models.ops.float32 import silu
from models.ops.layout import materialize
from models.ops.recurrences.conv_step_cpu import KERNEL as CPU_KERNEL
from models.ops.recurrences.conv_step_cpu import ConvInputs, conv_step_cpu
from models.ops.recurrences.conv_step_gpu import KERNEL, conv_step
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.state.rows import put_rows, take_rows
from models.state.shapes import LaneInfo, LaneMask
from models.state.state import name_dims


def layer_conv(
    x: Float32[Array, "lane token channel"],
    weight: Float[Array, "channel 1 kernel"],
    state: Float[Array, "row tap channel"],
    info: LaneInfo,
    bias: Float32[Array, "channel"] | None = None,
    devices: Devices = SINGLE_DEVICE,
    *,
    activated: bool = True,
) -> tuple[Float32[Array, "lane token channel"], Any]:
    """Run `short_conv` with a checkpoint's weight, from zero state for fresh lanes.

    `state` is a pool of earlier inputs. Return outputs, undefined at padding, and the next pool, None with
    `info.verifying`.
    """
    activation = silu if activated else _identity
    inputs = ConvInputs(x, weight[:, 0], state, info.lengths, info.fresh, bias, info.slots)
    if CPU_KERNEL.chosen(devices, inputs):
        return _on_cpu(activated, info.verifying, inputs)
    if KERNEL.chosen(devices, inputs):
        return conv_step(inputs, activation=activation, keep_state=info.verifying, interpret=devices.interpret)
    y, rows = _of_rows(inputs._replace(state=take_rows(state, info.slots)), info, activation, devices)
    return y, None if rows is None else put_rows(state, info.slots, rows)


def _of_rows(
    inputs: ConvInputs, info: LaneInfo, activation: Callable[[Array], Array], devices: Devices
) -> tuple[Float32[Array, "lane token channel"], Any]:
    """Return outputs and next state, given the lanes' rows."""
    x, _, state, _, _, bias, _ = inputs
    taps = inputs.taps.astype(jnp.float32)
    if devices.platform == "gpu" and x.shape[1] == 1 and not info.verifying:
        return _token_for_gpus(inputs._replace(taps=taps), info, activation)
    start = _start(state, info.fresh)
    if devices.platform == "gpu":
        # A neighbouring product may transpose the window; XLA:GPU would transpose the state, too, and copy it back.
        start = materialize(start)
    y, new = short_conv(x, taps, start, info.lengths, info.valid, bias)
    if devices.platform == "gpu":
        # XLA:GPU would write all states at the end, and keep every window until then.
        y, new = lax.optimization_barrier((y, materialize(new)))
    return activation(y), None if info.verifying else new


def _token_for_gpus(
    inputs: ConvInputs, info: LaneInfo, activation: Callable[[Array], Array]
) -> tuple[Float32[Array, "lane 1 channel"], Any]:
    """Run one token in two operations: read token and state, write.

    Inputs stay in separate rows, because XLA:GPU joins operations of one shape.
    """
    state, start = inputs.state, _start(inputs.state, info.fresh)
    x = name_dims(jnp.where(info.valid[:, :, None], inputs.x, 0.0), None, None, "channel")[:, 0]
    rows = [*(start[:, j] for j in range(state.shape[1])), x]
    y = rows[0].astype(jnp.float32) * inputs.taps[None, :, 0]
    for j in range(1, len(rows)):
        y = y + rows[j].astype(jnp.float32) * inputs.taps[None, :, j]
    y = y if inputs.bias is None else y + inputs.bias[None]
    y, *tail = lax.optimization_barrier([activation(y), *(row.astype(state.dtype) for row in rows[1:])])
    new = jnp.where((info.lengths > 0)[:, None, None], name_dims(jnp.stack(tail, axis=1), None, "tap", None), state)
    # Without a second barrier XLA:GPU would write all states at the end.
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
    """Compute `y_t = sum_j weight[c, j] x_{t-K+1+j} + bias[c]`, without activation.

    Args:
        x: padding is ignored, even NaN.
        weight: tap K-1 is the current token's.
        state: K-1 earlier inputs.
        bias: added to every output, also of padding.

    Returns:
        The convolution and the last K-1 inputs of each lane; a lane of length 0 keeps its state, bit for bit.
    """
    x = name_dims(jnp.where(valid[:, :, None], x, 0.0), None, None, "channel")
    # Outputs and next state are both computed from the window, after a barrier (ops/layout: in place).
    window = lax.optimization_barrier(jnp.concatenate([state.astype(jnp.float32), x], axis=1))
    tokens, taps = x.shape[1], state.shape[1]
    y = window[:, :tokens] * weight[None, None, :, 0]
    for j in range(1, weight.shape[1]):
        y = y + window[:, j : j + tokens] * weight[None, None, :, j]
    y = y if bias is None else y + bias[None, None]
    if tokens == 1:
        tail = window[:, 1:]
    else:
        last = lengths[:, None] + jnp.arange(taps, dtype=jnp.int32)[None, :]
        tail = jnp.take_along_axis(window, last[:, :, None], axis=1, mode="fill")
        # The window begins with the state's rows: it is read before the write (ops/layout: in place).
        tail = materialize(tail)
    tail = name_dims(tail, None, "tap", None)
    return y, jnp.where((lengths > 0)[:, None, None], tail.astype(state.dtype), state)


def _start(state: Float[Array, "lane tap channel"], fresh: LaneMask) -> Float[Array, "lane tap channel"]:
    return jnp.where(fresh[:, None, None], jnp.zeros_like(state), state)


def _identity(y: Array) -> Array:
    return y


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _on_cpu(activated: bool, keep_state: bool, inputs: ConvInputs) -> Any:
    return conv_step_cpu(inputs, activated=activated, keep_state=keep_state)


@_on_cpu.defjvp
def _derivative(activated: bool, keep_state: bool, primals: Any, tangents: Any) -> Any:
    def plain(inputs: ConvInputs) -> Any:
        x, taps, state, lengths, fresh, bias, slots = inputs
        valid = jnp.arange(x.shape[1], dtype=jnp.int32)[None] < lengths[:, None]
        start = _start(take_rows(state, slots), fresh)
        y, new = short_conv(x, taps.astype(jnp.float32), start, lengths, valid, bias)
        return silu(y) if activated else y, None if keep_state else put_rows(state, slots, new)

    return _on_cpu(activated, keep_state, *primals), jax.jvp(plain, primals, tangents)[1]
