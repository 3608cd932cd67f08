"""CPU kernels: linear recurrence in place; state rows stay in the first cache.

Defined by the plain forms of `delta_rule` and `ssd`. Token by token they are ten times as fast as XLA's chunks (128
tokens, 8 heads of 128 x 128, AVX-512).
"""

import jax.numpy as jnp

from models.ops.kernels import Kernel, PoolKernel, pool_call, slots_operand
from models.ops.recurrences.recurrence import RecurrenceInputs, RecurrenceOutputs

MAX_KEPT_TOKENS = 64
"""Tokens of a step with `keep_state`: a kernel's block."""
MAX_KEY = 512
"""Key channels; a thread has rows of this size on its stack."""
STEP = "hybridlm_recurrent_step"
"""Call target: (slots, lengths, fresh, decay, beta, query, key, value, state) -> (output, state, in place)."""
READ = "hybridlm_recurrent_read"
"""Call target without a new state."""
_CALL = PoolKernel("length lane lane lane lane lane lane", ("row value_head value key",), fresh=1)
POOL_KERNELS = {STEP: _CALL, READ: _CALL._replace(writes=False)}


def supports(inputs: RecurrenceInputs, keep_state: bool = False) -> bool:
    arrays = inputs.query, inputs.key, inputs.value, inputs.log_decay, inputs.state, inputs.beta
    if any(array.dtype != jnp.float32 for array in arrays if array is not None):
        return False
    return inputs.state.shape[3] <= MAX_KEY and not (keep_state and inputs.tokens > MAX_KEPT_TOKENS)


KERNEL = Kernel(STEP, "cpu", supports)


def recurrent_step_cpu(
    inputs: RecurrenceInputs, *, keep_state: bool = False, instructions: str | None = None
) -> RecurrenceOutputs:
    """Run all tokens of every lane.

    A lane's bits depend only on its tokens and the instruction set; T tokens have the bits of T steps.

    Returns:
        Outputs and the new state, None with `keep_state`.
    """
    lanes, tokens = inputs.valid.shape
    beta = jnp.zeros((lanes, tokens, 0), jnp.float32) if inputs.beta is None else inputs.beta
    operands = [slots_operand(inputs.slots), inputs.lengths, inputs.fresh, jnp.exp(inputs.log_decay), beta]
    operands += [inputs.query, inputs.key, inputs.value, inputs.state]
    target, shape = READ if keep_state else STEP, inputs.value.shape
    return RecurrenceOutputs(*pool_call(target, inputs.slots, operands, shape, keep_state, instructions))
