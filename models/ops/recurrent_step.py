"""A kernel for GPUs for one token of a linear recurrence, in place: the state is read once and written once.

The plain forms, `delta_rule_step` and `ssd_step`, define it; `recurrent_step_tpu` is the one for TPUs. One program
instance has some rows of the state of one lane and value head: the delta rule and SSD treat each row S[v] by itself, so
rows need nothing of each other.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from models.ops.kernels import Kernel, result_like
from models.ops.recurrence import RecurrenceInputs, RecurrenceOutputs
from models.ops.recurrent_step_tpu import KERNEL as TPU_KERNEL
from models.ops.recurrent_step_tpu import recurrent_step_tpu

MAX_ROWS = 32
"""Rows of the state of one program instance."""
MAX_KEY = 256
"""Channels of the key; with more, an instance's rows do not fit into registers."""


def unsupported(inputs: RecurrenceInputs) -> str | None:
    """Say why the kernel does not take these operands; None if it does."""
    values, keys = inputs.state.shape[2:]
    if inputs.tokens != 1:
        return f"a step of {inputs.tokens} tokens"
    if inputs.slots is not None:
        return "rows by slot"
    if keys > MAX_KEY or keys & (keys - 1) or values & (values - 1):
        return f"states of {values} x {keys}: expected powers of two, and at most {MAX_KEY} channels of the key"
    return None


KERNEL = Kernel("recurrent_step_kernel", ("gpu",), unsupported)


def recurrent_step_kernel(
    valid: Any, fresh: Any, decay: Any, beta: Any, q: Any, k: Any, v: Any, state: Any, out: Any, new: Any,
    *, by_channel: bool, corrects: bool,
) -> None:  # fmt: skip
    """Advance some rows of the state of one lane and head.

    Args:
        valid, fresh: int32[lane], in full.
        decay: log decay, float32[lane, head] in full, or [key] of this head.
        beta: float32[lane, head], in full.
        q, k: [key] of the head.
        v, out: [value], the rows of this instance.
        state, new: [value, key]; one memory.
        by_channel: whether the decay is one for each channel of the key.
        corrects: whether what the key reads is taken off the value first, as in the delta rule.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    lane, head = pl.program_id(0), pl.program_id(1)
    real = valid[lane] > 0
    before, key = state[...], k[...]
    factor = jnp.exp(decay[...])[None] if by_channel else jnp.exp(decay[lane, head])
    decayed = jnp.where(fresh[lane] > 0, 0.0, factor * before)
    delta = v[...]
    if corrects:
        delta = beta[lane, head] * (delta - jnp.sum(decayed * key[None], axis=1))
    updated = jnp.where(real, decayed + delta[:, None] * key[None], before)
    new[...] = updated
    out[...] = jnp.where(real, jnp.sum(updated * q[...][None], axis=1), 0.0)


def recurrent_step(inputs: RecurrenceInputs, *, interpret: bool) -> RecurrenceOutputs:
    """Run one token of every lane.

    Args:
        inputs: of a whole step of one token.
        interpret: run by Pallas' interpreter, on any platform.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    lanes, heads, values, keys = inputs.state.shape
    by_channel = inputs.log_decay.ndim == inputs.key.ndim
    shared = heads // inputs.key.shape[2]
    beta = inputs.log_decay[..., 0] if by_channel else inputs.log_decay
    beta = (beta if inputs.beta is None else inputs.beta)[:, 0]
    rows = min(MAX_ROWS, values)
    whole = pl.BlockSpec(memory_space=pl.ANY)

    def of_key(lane: Any, head: Any, tile: Any) -> tuple[Any, ...]:
        return lane, lax.div(head, shared) if shared > 1 else head, 0

    key = pl.BlockSpec((pl.Squeezed(), pl.Squeezed(), keys), of_key)
    channels = pl.BlockSpec((pl.Squeezed(), pl.Squeezed(), keys), lambda lane, head, tile: (lane, head, 0))
    value = pl.BlockSpec((pl.Squeezed(), pl.Squeezed(), rows), lambda lane, head, tile: (lane, head, tile))
    block = (pl.Squeezed(), pl.Squeezed(), rows, keys)
    matrix = pl.BlockSpec(block, lambda lane, head, tile: (lane, head, tile, 0))
    operands = (
        inputs.valid[:, 0].astype(jnp.int32), inputs.fresh.astype(jnp.int32), inputs.log_decay[:, 0], beta,
        inputs.query[:, 0], inputs.key[:, 0], inputs.value[:, 0], inputs.state,
    )  # fmt: skip
    out, state = pl.pallas_call(
        partial(recurrent_step_kernel, by_channel=by_channel, corrects=inputs.beta is not None),
        grid=(lanes, heads, values // rows),
        in_specs=[whole, whole, channels if by_channel else whole, whole, key, key, value, matrix],
        out_specs=[value, matrix],
        out_shape=[
            result_like((lanes, heads, values), jnp.float32, inputs.state),
            result_like(inputs.state.shape, jnp.float32, inputs.state),
        ],
        input_output_aliases={len(operands) - 1: 1},
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name=KERNEL.name,
    )(*operands)
    return RecurrenceOutputs(out[:, None], state)


def step_by_kernel(inputs: RecurrenceInputs) -> RecurrenceOutputs | None:
    """Run one token of every lane by the platform's kernel; None where there is none for these operands."""
    mode, platform = inputs.devices.kernels, inputs.devices.platform
    kernel, run = (TPU_KERNEL, recurrent_step_tpu) if platform == "tpu" else (KERNEL, recurrent_step)
    if kernel.chosen(mode, platform, inputs):
        return run(inputs, interpret=mode == "interpret")
    return None
