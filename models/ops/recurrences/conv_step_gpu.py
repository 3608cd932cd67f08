"""GPU kernel: a few tokens of a short convolution with activation, in place.

Defined by `models.layers.short_conv`. One program instance has some channels of one lane.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32

from models.ops.gpu_call import gpu_call, load_if, rows_bytes, store_if
from models.ops.kernels import Kernel
from models.ops.recurrences.conv_step_cpu import ConvInputs
from models.sharding.devices import result_like
from models.state.shapes import ConvState

MAX_TOKENS = 16
MAX_TAPS = 8
MIN_CHANNELS = 16
"""Channels of a program instance, up to 512."""


def supports(inputs: ConvInputs) -> bool:
    _, tokens, channels = inputs.x.shape
    return tokens <= MAX_TOKENS and inputs.taps.shape[1] <= MAX_TAPS and not channels % MIN_CHANNELS


KERNEL = Kernel("conv_step_kernel", "gpu", supports)


def conv_step_kernel(*refs: Any, by_slot: bool, biased: bool, activation: Callable[[Array], Array]) -> None:
    """Convolve the tokens of some channels of one lane.

    Args:
        refs: operands: lane rows, int32[lane], in full, if `by_slot`; lengths and fresh, int32[lane], in full; x
            [token, channel]; taps [channel, K]; earlier inputs [K-1, channel], or in full if `by_slot`; bias [channel],
            if `biased`. Results: outputs [token, channel]; new state in the old one's memory, if needed. Idle lanes
            read and write no state.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    lengths, fresh, x, taps, state, *rest = refs[by_slot:]
    bias = rest.pop(0)[...] if biased else None
    out, new = rest[0], (rest[1] if len(rest) == 2 else None)
    lane, (tokens, channels) = pl.program_id(0), x.shape
    count, begins, width = lengths[lane], fresh[lane] > 0, state.shape[-2]
    part = pl.ds(pl.program_id(1) * channels, channels) if by_slot else slice(None)
    row_of_lane = (refs[0][lane],) if by_slot else ()
    rows = [load_if(count > 0, state.at[(*row_of_lane, np.int32(row), part)]) for row in range(width)]
    window = [jnp.where(begins, 0.0, row.astype(jnp.float32)) for row in rows]
    window += [x[token, :] for token in range(tokens)]  # padding follows real tokens, which do not see it
    weights = [taps[:, tap].astype(jnp.float32) for tap in range(width + 1)]
    for token in range(tokens):
        y = window[token] * weights[0]
        for tap in range(1, width + 1):
            y = y + window[token + tap] * weights[tap]
        if bias is not None:
            y = y + bias
        out[token, :] = jnp.where(token < count, activation(y), 0.0)
    if new is None:
        return
    # Writes follow the last read.
    for row in range(width):
        end = window[row + 1]
        for length in range(2, tokens + 1):
            end = jnp.where(count == length, window[row + length], end)
        store_if(count > 0, new.at[(*row_of_lane, np.int32(row), part)], end.astype(state.dtype))


def conv_step(
    inputs: ConvInputs, *, activation: Callable[[Array], Array], keep_state: bool, interpret: bool
) -> tuple[Float32[Array, "lane token channel"], ConvState | None]:
    """Convolve a few tokens of every lane.

    Returns:
        Outputs, zero at padding, and the new state or None.
    """
    x, taps, state, lengths, fresh, bias, slots = inputs
    by_slot = slots is not None
    lanes, tokens, channels = x.shape
    width = next(size for size in (512, 256, 128, 64, 32, MIN_CHANNELS) if channels % size == 0)

    def rows(count: int) -> Any:
        return (None, count, width), lambda lane, part: (lane, 0, part)

    window, tokens_spec = None if by_slot else rows(state.shape[1]), rows(tokens)
    # Shared operands get a leading axis like operands of lanes, for the proof.
    of_channels = (None, width, taps.shape[1]), lambda lane, part: (0, part, 0)
    in_specs = [*[None] * (2 + by_slot), tokens_spec, of_channels, window]
    operands = [*(() if slots is None else (slots,)), lengths, fresh.astype(jnp.int32), x, taps[None], state]
    number, moved = len(operands) - 1, rows_bytes(state, lanes)
    if bias is not None:
        in_specs.append(((None, width), lambda lane, part: (0, part)))
        operands.append(bias[None])
    out, *new = gpu_call(
        partial(conv_step_kernel, by_slot=by_slot, biased=bias is not None, activation=activation),
        (lanes, channels // width),
        in_specs,
        [(tokens_spec, result_like(x.shape, jnp.float32, state)), (window, number)][: 2 - keep_state],
        reads={number: moved},
        interpret=interpret,
    )(*operands)
    return out, (None if keep_state else new[0])
