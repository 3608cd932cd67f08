"""TPU kernel: one token of a linear recurrence, in place.

Defined by `delta_rule_step` and `ssd_step`. One program instance has some heads of one lane. Sums over the key run
along a register's lanes; values are columns, so nothing is transposed.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp

from models.ops.kernels import Kernel
from models.ops.recurrences.recurrence import RecurrenceInputs, RecurrenceOutputs
from models.sharding.devices import result_like

SUBLANES, LANES_OF_REGISTER = 8, 128
"""Multiples of an array's padded last two dimensions."""
MAX_BLOCK = 2 << 20
"""Bytes of an instance's states; memory holds four such blocks: two loads, two stores."""
MAX_HEADS = 32
"""Unrolled heads of an instance."""


def heads_of_block(heads: int, values: int, keys: int) -> int | None:
    """Return the heads of an instance: all or a multiple of 8, or None."""
    padded = -(-values // SUBLANES) * SUBLANES * -(-keys // LANES_OF_REGISTER) * LANES_OF_REGISTER
    limit = min(MAX_HEADS, MAX_BLOCK // (4 * padded))
    fitting = [n for n in range(1, limit + 1) if n == heads or (n % SUBLANES == 0 and heads % n == 0)]
    return max(fitting, default=None)


def supports(inputs: RecurrenceInputs) -> bool:
    heads, values, keys = inputs.state.shape[1:]
    # XLA lays out other states in another order, and would copy them to turn.
    laid_out = inputs.devices.interpret or not (values % SUBLANES or keys % LANES_OF_REGISTER)
    return inputs.tokens == 1 and laid_out and heads_of_block(heads, values, keys) is not None


KERNEL = Kernel("recurrent_step_tpu_kernel", "tpu", supports)


def recurrent_step_tpu_kernel(*refs: Any, heads: int, corrects: bool, by_slot: bool) -> None:
    """Advance the states of some heads of one lane.

    Args:
        refs: scalars: rows, int32[lane], if `by_slot`; valid, fresh, int32[lane]. Operands: log decay, q, k [1, head,
            key], v [1, head, value], beta [1, head, 1] if `corrects`, state [1, head, value, key]. Results: output [1,
            head, value], new state in the old one's memory.
        corrects: subtract the key's read from the value (delta rule).
    """
    from jax.experimental import pallas as pl  # takes a while to import

    valid, fresh, decay, q, k, v, *rest = refs[by_slot:]
    beta = rest.pop(0) if corrects else None
    state, out, new = rest
    lane = pl.program_id(0)
    real, begins = valid[lane] > 0, fresh[lane] > 0
    values, outputs = v[0].T, []
    for head in range(heads):
        row = slice(head, head + 1)
        matrix, key, delta = state[0, head], k[0, row], values[:, row]
        decayed = jnp.where(begins, 0.0, jnp.exp(decay[0, row]) * matrix)
        if beta is not None:
            delta = beta[0, row] * (delta - jnp.sum(decayed * key, axis=1, keepdims=True))
        updated = jnp.where(real, decayed + delta * key, matrix)
        new[0, head] = updated
        outputs.append(jnp.sum(updated * q[0, row], axis=1, keepdims=True))
    out[0] = jnp.where(real, jnp.concatenate(outputs, axis=1).T, 0.0)


def recurrent_step_tpu(inputs: RecurrenceInputs, *, interpret: bool) -> RecurrenceOutputs:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    _, heads, values, keys = inputs.state.shape
    lanes, slots = len(inputs.valid), inputs.slots
    block = heads_of_block(heads, values, keys)
    assert block is not None, "by `supports`"
    by_channel = inputs.log_decay.ndim == inputs.key.ndim
    decay = inputs.log_decay[:, 0] if by_channel else inputs.log_decay[:, 0, :, None]
    shared = heads // inputs.key.shape[2]
    q, k = (jnp.repeat(x[:, 0], shared, axis=1) for x in (inputs.query, inputs.key))
    rows = () if slots is None else (slots,)
    scalars = *rows, inputs.valid[:, 0].astype(jnp.int32), inputs.fresh.astype(jnp.int32)
    beta = () if inputs.beta is None else (inputs.beta[:, 0, :, None],)
    operands = jnp.broadcast_to(decay, (lanes, heads, keys)), q, k, inputs.value[:, 0], *beta

    def of_head(size: int) -> Any:
        return pl.BlockSpec((1, block, size), lambda lane, tile, *_: (lane, tile, 0))

    def row(lane: Any, tile: Any, *prefetched: Any) -> tuple[Any, ...]:
        return lane if slots is None else prefetched[0][lane], tile, 0, 0

    state = pl.BlockSpec((1, block, values, keys), row)
    out, new = pl.pallas_call(
        partial(recurrent_step_tpu_kernel, heads=block, corrects=inputs.beta is not None, by_slot=slots is not None),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(lanes, heads // block),
            in_specs=[*(of_head(operand.shape[-1]) for operand in operands), state],
            out_specs=[of_head(values), state],
        ),
        out_shape=[
            result_like((lanes, heads, values), jnp.float32, inputs.state),
            result_like(inputs.state.shape, jnp.float32, inputs.state),
        ],
        input_output_aliases={len(scalars) + len(operands): 1},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        interpret=interpret,
        name=KERNEL.name,
    )(*scalars, *operands, inputs.state)
    return RecurrenceOutputs(out[:, None], new)
