"""CPU kernels: short convolution with activation, in place.

Defined by `models.layers.short_conv`.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Float32, Int32

from models.ops.kernels import Kernel, PoolKernel, pool_call, slots_operand
from models.ops.row_product import DTYPES
from models.state.shapes import LaneMask

MIN_TAPS, MAX_TAPS = 2, 8
"""Taps; the code is unrolled for each number."""
STEP = "hybridlm_conv_step"
"""Call target: (slots, lengths, fresh, inputs, taps, bias or an empty array, windows) -> (output, windows, in place).
"""
READ = "hybridlm_conv_read"
"""Call target without new windows."""
_CALL = PoolKernel("length lane lane shared shared", ("row tap channel",), fresh=1)
POOL_KERNELS = {STEP: _CALL, READ: _CALL._replace(writes=False)}


class ConvInputs(NamedTuple):
    """Operands of a short convolution over a step.

    Attributes:
        x: padding is not read.
        taps: current token last; float32 or bfloat16.
        state: earlier inputs, float32 or bfloat16, in rows as for `RecurrenceInputs`.
        fresh: lanes with zero earlier inputs; rows are not read.
        slots: as for `RecurrenceInputs`.
    """

    x: Float32[Array, "lane token channel"]
    taps: Float[Array, "channel kernel"]
    state: Float[Array, "row tap channel"]
    lengths: Int32[Array, "lane"]
    fresh: LaneMask
    bias: Float32[Array, "channel"] | None = None
    slots: Int32[Array, "lane"] | None = None


def supports(inputs: ConvInputs) -> bool:
    x, taps, state = inputs[:3]
    dtypes = x.dtype == jnp.float32 and str(taps.dtype) in DTYPES and str(state.dtype) in DTYPES
    return dtypes and MIN_TAPS <= taps.shape[1] <= MAX_TAPS


KERNEL = Kernel(STEP, "cpu", supports)


def conv_step_cpu(
    inputs: ConvInputs, *, activated: bool, keep_state: bool = False, instructions: str | None = None
) -> tuple[Float32[Array, "lane token channel"], Any]:
    """Convolve the tokens of every lane.

    A lane's bits do not depend on other lanes or the instruction set. With float32 windows, T tokens have the bits of T
    steps; bfloat16 windows are rounded between steps.

    Args:
        activated: apply SiLU to the outputs.

    Returns:
        Outputs, zero at padding, and new windows, None with `keep_state`.
    """
    x, taps, state, lengths, fresh, bias, slots = inputs
    biases = jnp.zeros(0, jnp.float32) if bias is None else bias
    operands, target = [slots_operand(slots), lengths, fresh, x, taps, biases, state], READ if keep_state else STEP
    return pool_call(target, slots, operands, x.shape, keep_state, instructions, activated=np.bool_(activated))
