"""A kernel for a few tokens of a short convolution with its activation, in place: the window is read and written once.

`models.layers.short_conv` defines it. One program instance has some channels of one lane.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Float32, Int32

from models.ops.gpu_call import gpu_call
from models.ops.kernels import Kernel, result_like
from models.state.shapes import ConvState, LaneMask

MAX_TOKENS = 16
"""Tokens that are written out one by one."""
MAX_TAPS = 8
"""Taps of the convolution, of which each token multiplies one after the other."""
MIN_CHANNELS, MAX_CHANNELS = 16, 512
"""Channels of one program instance."""


def unsupported(x: Any, taps: Any) -> str | None:
    """Say why the kernel does not take these operands; None if it does.

    Args:
        x: inputs, `[lane, token, channel]`.
        taps: `[channel, K]`.
    """
    if x.shape[1] > MAX_TOKENS:
        return f"a step of {x.shape[1]} tokens: expected at most {MAX_TOKENS}"
    if taps.shape[1] > MAX_TAPS:
        return f"{taps.shape[1]} taps: expected at most {MAX_TAPS}"
    if x.shape[2] % MIN_CHANNELS:
        return f"{x.shape[2]} channels: expected a multiple of {MIN_CHANNELS}"
    return None


KERNEL = Kernel("conv_step_kernel", ("gpu",), unsupported)


def conv_step_kernel(
    lengths: Any,
    fresh: Any,
    x: Any,
    taps: Any,
    state: Any,
    *rest: Any,
    biased: bool,
    activation: Callable[[Array], Array],
) -> None:
    """Convolve the tokens of some channels of one lane.

    Args:
        lengths, fresh: int32[lane], in full.
        x: [token, channel].
        taps: [channel, K].
        state: the K-1 inputs before, [K-1, channel].
        rest: the bias [channel], if there is one; the outputs [token, channel]; the new state, if it is wanted.
        biased: whether there is a bias.
        activation: of the outputs.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    bias, rest = (rest[0][...], rest[1:]) if biased else (None, rest)
    out, new = rest[0], (rest[1] if len(rest) == 2 else None)
    lane = pl.program_id(0)
    count, begins = lengths[lane], fresh[lane] > 0
    kept, tokens = state.shape[0], x.shape[0]
    rows = [state[row, :] for row in range(kept)]
    window = [jnp.where(begins, 0.0, row.astype(jnp.float32)) for row in rows]
    window += [x[token, :] for token in range(tokens)]  # real tokens see none behind them
    weights = [taps[:, tap].astype(jnp.float32) for tap in range(kept + 1)]
    for token in range(tokens):
        y = window[token] * weights[0]
        for tap in range(1, kept + 1):
            y = y + window[token + tap] * weights[tap]
        if bias is not None:
            y = y + bias
        out[token, :] = jnp.where(token < count, activation(y), 0.0)
    if new is None:
        return
    ends = []
    for row in range(kept):
        end = window[row + 1]
        for length in range(2, tokens + 1):
            end = jnp.where(count == length, window[row + length], end)
        ends.append(jnp.where(count > 0, end.astype(state.dtype), rows[row]))
    # after the last read of what they overwrite
    for row, end in enumerate(ends):
        new[row, :] = end


def conv_step(
    x: Float32[Array, "lane token channel"],
    taps: Float[Array, "channel kernel"],
    state: ConvState,
    lengths: Int32[Array, "lane"],
    fresh: LaneMask,
    bias: Float32[Array, "channel"] | None,
    *,
    activation: Callable[[Array], Array],
    keep_state: bool,
    interpret: bool,
) -> tuple[Float32[Array, "lane token channel"], ConvState | None]:
    """Convolve a few tokens of every lane.

    Args:
        x: inputs.
        taps: that of the current token last.
        state: inputs before the first token.
        lengths: real tokens of each lane.
        fresh: lanes that start from zero, whatever their state holds.
        bias: added to every output.
        activation: of the outputs, elementwise.
        keep_state: the state before the first token is needed afterwards, and no new one.
        interpret: run by Pallas' interpreter, on any platform.

    Returns:
        Outputs, zero at padding tokens, and the new state or None; that of a lane of length 0 is unchanged.
    """
    from jax.experimental import pallas as pl

    lanes, tokens, channels = x.shape
    width = next(one for one in _halves(MAX_CHANNELS) if channels % one == 0)
    whole = pl.BlockSpec(memory_space=pl.ANY)

    def rows(count: int) -> Any:
        return pl.BlockSpec((pl.Squeezed(), count, width), lambda lane, part: (lane, 0, part))

    window, shown = rows(state.shape[1]), rows(tokens)
    # what all lanes share has an axis in front, as what is by lane has: the proof follows the channels in one way
    of_channels = pl.BlockSpec((pl.Squeezed(), width, taps.shape[1]), lambda lane, part: (0, part, 0))
    in_specs = [whole, whole, shown, of_channels, window]
    operands = [lengths, fresh.astype(jnp.int32), x, taps[None], state]
    if bias is not None:
        in_specs.append(pl.BlockSpec((pl.Squeezed(), width), lambda lane, part: (0, part)))
        operands.append(bias[None])
    result = result_like(x.shape, jnp.float32, state)
    out, *new = gpu_call(
        partial(conv_step_kernel, biased=bias is not None, activation=activation),
        grid=(lanes, channels // width),
        in_specs=in_specs,
        out_specs=[shown] if keep_state else [shown, window],
        out_shape=[result] if keep_state else [result, result_like(state.shape, state.dtype, state)],
        aliases={} if keep_state else {4: 1},
        warps=4,
        stages=1,
        interpret=interpret,
        name=KERNEL.name,
    )(*operands)
    return out, (None if keep_state else new[0])


def _halves(most: int) -> list[int]:
    """Return a power of two and those below it, down to the least channels of an instance."""
    return [most >> k for k in range((most // MIN_CHANNELS).bit_length())]
