"""Kernels for CPUs for a short convolution with its activation: the window is updated in place.

`models.layers.short_conv` defines them. They are C++, which no proof reads: a contract declares each call by its
target, and a step writes to its pool of windows.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Float32, Int32

from models.cpu_kernels import library
from models.ops.kernels import Kernel, PoolKernel
from models.ops.row_product import DTYPES, call_result, instruction_number
from models.sharding.varying import varying_like
from models.state.shapes import LaneMask

MIN_TAPS, MAX_TAPS = 2, 8
"""Taps of the convolution: each number of them has its code."""
STEP = "hybridlm_conv_step"
"""Target of a call that takes lengths, fresh, inputs, taps, bias (of no channel for none) and windows, and returns the
output and the new windows, which lie in the memory of the old ones. Row i of the windows is that of lane i."""
STEP_BY_SLOT = "hybridlm_conv_step_by_slot"
"""Target of a call whose first operand has the row of each lane."""
READ = "hybridlm_conv_read"
"""Target of a call that writes no windows."""
_CALL = PoolKernel("length lane lane shared shared", ("row tap channel",), fresh=1)
POOL_KERNELS = {STEP: _CALL, READ: _CALL._replace(writes=False)}


def unsupported(x: Any, taps: Any, state: Any) -> str | None:
    """Say why the kernels do not take these operands; None if they do.

    Args:
        x: inputs, `[lane, token, channel]`.
        taps: `[channel, K]`.
        state: windows, `[row, K-1, channel]`.
    """
    if x.dtype != jnp.float32 or any(str(one.dtype) not in DTYPES for one in (taps, state)):
        return f"inputs of {x.dtype}, taps of {taps.dtype} and windows of {state.dtype}"
    if not MIN_TAPS <= taps.shape[1] <= MAX_TAPS:
        return f"{taps.shape[1]} taps: expected {MIN_TAPS} to {MAX_TAPS}"
    return "the library of kernels is not there" if library() is None else None


KERNEL = Kernel(STEP, ("cpu",), unsupported, interpreted=False)


def conv_step_cpu(
    x: Float32[Array, "lane token channel"],
    taps: Float[Array, "channel kernel"],
    state: Float[Array, "row tap channel"],
    lengths: Int32[Array, "lane"],
    fresh: LaneMask,
    bias: Float32[Array, "channel"] | None = None,
    *,
    activated: bool,
    keep_state: bool = False,
    slots: Int32[Array, "lane"] | None = None,
    instructions: str | None = None,
) -> tuple[Float32[Array, "lane token channel"], Any]:
    """Convolve the tokens of every lane.

    The bits of a lane are the same whatever the other lanes are, and however many, with every instruction set. Those of
    several tokens in one step are those of as many steps of one, where windows hold inputs as they are: in bfloat16 a
    later step reads rounded ones.

    Args:
        x: inputs; those of padding tokens are not read.
        taps: that of the current token last; float32 or bfloat16.
        state: inputs before the first token, float32 or bfloat16; row i is of lane i, or with `slots` of the lane that
            names it.
        lengths: real tokens of each lane.
        fresh: lanes that start from zero, whatever their row holds.
        bias: added to every output.
        activated: whether outputs go through SiLU.
        keep_state: the windows before the first token are needed afterwards, and no new ones; there are no slots.
        slots: the row of each lane; lanes with real tokens have different ones. Rows that no lane names, and those of
            lanes without real tokens, come back unchanged, bit for bit.
        instructions: one of `INSTRUCTIONS` that the processor runs; None for the fastest.

    Returns:
        Outputs, zero at padding tokens, and the new windows, None with `keep_state`.
    """
    assert not (keep_state and slots is not None), "there is no step that reads rows by slot alone"
    operands: list[Any] = [] if slots is None else [slots]
    operands += [lengths, fresh, x, taps, jnp.zeros(0, jnp.float32) if bias is None else bias, state]
    operands = varying_like(operands, operands)
    out, *after = jax.ffi.ffi_call(
        READ if keep_state else STEP if slots is None else STEP_BY_SLOT,
        [call_result(one.shape, operands[-1], one.dtype) for one in (x, state)[: 2 - keep_state]],
        vmap_method="sequential",
        input_output_aliases={} if keep_state else {len(operands) - 1: 1},
    )(
        *operands,
        activated=np.bool_(activated),
        instructions=instruction_number(instructions),
    )
    return out, (None if keep_state else after[0])
