"""The contract of every step, with the declarations of the kernels for CPUs.

All steps find the rows of their lanes by one slot map of the group of the state.
"""

from dataclasses import replace
from typing import Any

from hybridlm.devices.mesh import DATA
from hybridlm.steps.operands import Batch, StepInputs
from ir_passes import Lane, LaneContract, Opaque, Pool, Shared, SlotMap, rowwise
from models.ops import decode_attention_cpu, expert_dot, packed_product, quantised_experts, row_product
from models.ops.kernels import PoolKernel, pool_target
from models.ops.recurrences import conv_step_cpu, recurrent_step_cpu

STATE = Pool("state")
_LANE: Any = Lane()
_LENGTH: Any = Lane(role="length")
_SHARED: Any = Shared()


def slot_map(rows: int, devices: int = 1) -> SlotMap:
    """Return the slot map of the lanes.

    All lanes have distinct rows, also idle lanes, which keep the bits of their rows.

    Args:
        rows: rows of the pool.
        devices: devices along the data axis, each with as many lanes and rows; slots are row numbers of a device.
    """
    return SlotMap(STATE.group, rows // devices, null=False, local=DATA if devices > 1 else None)


def _inputs(slots: SlotMap) -> StepInputs:
    """Return the contract entries of a step's inputs.

    An entry of an absent part stands for no array.

    `changes` follow from the tokens before the step: a lane with changes has no drafts, unless the changes are masks,
    of which each token has its own.
    """
    rows: Any = slots
    return StepInputs(
        Batch(tokens=_LANE, lengths=_LENGTH, positions=_LANE, slots=rows, kv_blocks=_SHARED),
        drafts=_LANE,
        sampling=_LANE,
        sampling_mode=_SHARED,
        changes=_LANE,
        targets=_LANE,
        chosen=_LANE,
        probes=_LANE,
    )


def _entries(operands: str) -> tuple[Any, ...]:
    return tuple({"lane": _LANE, "length": _LENGTH, "shared": _SHARED}[operand] for operand in operands.split())


def _opaque(call: PoolKernel, slots: SlotMap | None) -> Opaque:
    operands = (_SHARED if slots is None else slots, *_entries(call.operands))
    pools = tuple(replace(STATE, dims=tuple(dims.split())) for dims in call.pools)
    successors = pools if call.writes else ()
    aliases = {len(operands) + number: 1 + number for number in range(len(successors))}
    fresh = None if call.fresh is None else 1 + call.fresh
    return Opaque((*operands, *pools), (_LANE, *successors), aliases, fresh=fresh)


def kernel_calls(slots: SlotMap | None = None) -> dict[str, Opaque]:
    """Return the declarations of CPU kernels with pools as operands.

    Other kernels are row-wise.

    Args:
        slots: entry of the rows of the lanes; None for calls without slots, with row i of lane i.
    """
    return {
        pool_target(target, slots): _opaque(call, slots)
        for module in (recurrent_step_cpu, conv_step_cpu, decode_attention_cpu)
        for target, call in module.POOL_KERNELS.items()
    }


for _module in (expert_dot, quantised_experts, row_product, packed_product):
    for _kernel in _module.ROW_KERNELS:
        rowwise(_kernel.function, _entries(_kernel.operands), static=_kernel.static)


def step_contract(verifying: bool, slots: SlotMap) -> LaneContract:
    """Return the contract of a step.

    Args:
        verifying: the step returns `((accepted, outputs), rows)`, with the number of accepted tokens of each lane.
        slots: entry of the rows of the lanes.
    """
    outputs = (Lane(role="accepted"), Lane()) if verifying else Lane()
    return LaneContract((Shared(), STATE, _inputs(slots)), (outputs, STATE), opaque=kernel_calls(slots))
