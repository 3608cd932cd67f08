"""The contract of every step, declarations of CPU kernels, and names of pool dimensions.

Steps find lanes' rows by one slot map, and pages of KV caches by one page table.
"""

from dataclasses import replace
from typing import Any

import jax

from hybridlm.devices.mesh import DATA
from hybridlm.steps.operands import Batch, StepInputs
from ir_passes import Lane, LaneContract, Opaque, PageTable, Pool, Shared, SlotMap, rowwise
from models.ops import decode_attention_cpu, expert_dot, packed_product, quantised_experts, row_product
from models.ops.kernels import PoolKernel, pool_target
from models.ops.recurrences import conv_step_cpu, recurrent_step_cpu
from models.state.state import StateArray

STATE, PAGES = Pool("state"), Pool("pages")
"""Entries of arrays with rows, and of KV caches, which have pages."""
_LANE: Any = Lane()
_LENGTH: Any = Lane(role="length")
_SHARED: Any = Shared()


def slot_map(rows: int, devices: int = 1) -> SlotMap:
    """Return the slot map: lanes have distinct rows; rows of idle lanes keep their bits.

    Args:
        devices: with as many lanes and rows each; slots are row numbers of a device.
    """
    return SlotMap(STATE.group, rows // devices, null=False, local=DATA if devices > 1 else None)


def page_table(pages: int, devices: int = 1) -> PageTable:
    """Return the page table of the lanes.

    Args:
        pages: with each device's null page; entries are page numbers of a device.
    """
    return PageTable(PAGES.group, pages // devices, local=DATA if devices > 1 else None)


def pools_of(arrays: Any) -> Any:
    return jax.tree.map(lambda array: PAGES if array.grows else STATE, arrays)


def _inputs(slots: SlotMap, pages: PageTable | None) -> StepInputs:
    """Return the contract entries of a step's inputs.

    `changes` follow from the tokens before the step: a lane with changes has no drafts, unless the changes are masks,
    with one for each token.
    """
    rows: Any = slots
    table: Any = pages
    return StepInputs(
        Batch(tokens=_LANE, lengths=_LENGTH, positions=_LANE, slots=rows, kv_blocks=_SHARED, pages=table),
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


def _opaque(call: PoolKernel, by: Any, pool: Pool) -> Opaque:
    operands = (by, *_entries(call.operands))
    pools = tuple(replace(pool, dims=tuple(dims.split())) for dims in call.pools)
    fresh, successors = call.fresh, pools if call.writes else ()
    aliases = {len(operands) + number: 1 + number for number in range(len(successors))}
    return Opaque((*operands, *pools), (_LANE, *successors), aliases, fresh=None if fresh is None else 1 + fresh)


def kernel_calls(slots: SlotMap | None = None, pages: PageTable | None = None) -> dict[str, Opaque]:
    """Return the declarations of CPU kernels with pools as operands; others are row-wise.

    Args:
        slots: None for row i of lane i.
        pages: None without calls of paged kernels.
    """
    by_slot = {
        pool_target(target, slots): _opaque(call, _SHARED if slots is None else slots, STATE)
        for module in (recurrent_step_cpu, conv_step_cpu)
        for target, call in module.POOL_KERNELS.items()
    }
    paged = decode_attention_cpu.PAGED_KERNELS if pages is not None else {}
    return by_slot | {target: _opaque(call, pages, PAGES) for target, call in paged.items()}


for _module in (expert_dot, quantised_experts, row_product, packed_product):
    for _function, _operands, _static in _module.ROW_KERNELS:
        rowwise(_function, _entries(_operands), static=_static)


def step_contract(verifying: bool, arrays: Any, slots: SlotMap, pages: PageTable | None) -> LaneContract:
    """Return the contract of a step.

    Args:
        verifying: the step returns `((accepted, outputs), rows)`.
        pages: None for arrays without KV caches.
    """
    outputs, rows = (Lane(role="accepted"), Lane()) if verifying else Lane(), pools_of(arrays)
    return LaneContract((Shared(), rows, _inputs(slots, pages)), (outputs, rows), opaque=kernel_calls(slots, pages))


POSITION = "position"
"""Name of a cache's positions in the proof: no program has a constant position."""


def name_pool_dims(contract: LaneContract, arrays: Any) -> LaneContract:
    """Return the contract with a name for every dimension of its pools."""

    def entry(role: Any) -> Any:
        if isinstance(role, Pool):
            role = jax.tree.map(lambda array: role, arrays)
        elif jax.tree.structure(role) != jax.tree.structure(arrays):
            return role
        return jax.tree.map(lambda pool, array: replace(pool, dims=_names(array)), role, arrays)

    return replace(contract, inputs=tuple(map(entry, contract.inputs)), outputs=tuple(map(entry, contract.outputs)))


def _names(array: StateArray) -> tuple[str, ...]:
    names = (POSITION if size is None else name for name, size in array.sizes)
    return ("page" if array.grows else "row", *names)
