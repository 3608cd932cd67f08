"""The contract of every step, with the declarations of the kernels for CPUs."""

from dataclasses import replace
from typing import Any

from hybridlm.steps.operands import Batch, StepInputs
from ir_passes import Lane, LaneContract, Opaque, Pool, Shared, rowwise
from models.ops import decode_attention_cpu, expert_dot, packed_product, quantised_experts, row_product
from models.ops.kernels import PoolKernel
from models.ops.recurrences import conv_step_cpu, recurrent_step_cpu

STATE = Pool("state")
_LANE: Any = Lane()
_LENGTH: Any = Lane(role="length")
_SHARED: Any = Shared()
INPUTS = StepInputs(
    Batch(tokens=_LANE, lengths=_LENGTH, positions=_LANE, kv_blocks=_SHARED),
    drafts=_LANE,
    sampling=_LANE,
    sampling_mode=_SHARED,
    changes=_LANE,
    targets=_LANE,
    chosen=_LANE,
    probes=_LANE,
)
"""Entries of the inputs of a step. An entry of an absent part stands for no array.

`changes` follow from the tokens before the step: a lane with changes has no drafts, unless the changes are masks, of
which each token has its own."""


def _entries(operands: str) -> tuple[Any, ...]:
    return tuple({"lane": _LANE, "length": _LENGTH, "shared": _SHARED}[operand] for operand in operands.split())


def _opaque(call: PoolKernel) -> Opaque:
    operands, pools = _entries(call.operands), tuple(replace(STATE, dims=tuple(dims.split())) for dims in call.pools)
    successors = pools if call.writes else ()
    aliases = {len(operands) + number: 1 + number for number in range(len(successors))}
    return Opaque((*operands, *pools), (_LANE, *successors), aliases, fresh=call.fresh)


KERNEL_CALLS = {
    target: _opaque(call)
    for module in (recurrent_step_cpu, conv_step_cpu, decode_attention_cpu)
    for target, call in module.POOL_KERNELS.items()
}
"""Declarations of the kernels for CPUs that have whole pools as operands; all others are declared row-wise."""
for _module in (expert_dot, quantised_experts, row_product, packed_product):
    for _kernel in _module.ROW_KERNELS:
        rowwise(_kernel.function, _entries(_kernel.operands), static=_kernel.static)


def step_contract(verifying: bool = False) -> LaneContract:
    """Return the contract of a step.

    Args:
        verifying: the step returns `((accepted, outputs), rows)`, with the number of accepted tokens of each lane.
    """
    outputs = (Lane(role="accepted"), Lane()) if verifying else Lane()
    return LaneContract(inputs=(Shared(), STATE, INPUTS), outputs=(outputs, STATE), opaque=KERNEL_CALLS)
