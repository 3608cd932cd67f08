"""Arena plan: offsets for the temporaries of a function, checked by `verifier`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ir_passes.contract.contract import LaneContract, Opaque
from ir_passes.contract.declared import opaque_of
from ir_passes.jaxpr import ir
from ir_passes.scratch.liveness import Liveness, liveness
from ir_passes.scratch.verifier import ALIGNMENT, Block, Plan, verify_plan
from ir_passes.targets import Target, as_target

OpaqueScratch = Callable[[ir.JaxprEqn], int]
"""Equation -> bytes besides its results."""
Buffer = tuple[int, int, int]
"""Bytes, first and last time of use, inclusive."""


def plan(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    contract: LaneContract | None = None,
    *,
    target: Target | str | None = None,
) -> Plan:
    """Trace `fn(*args)`, and return a verified scratch plan.

    Args:
        args: arrays or `jax.ShapeDtypeStruct`.
        contract: declares the scratch of opaque operations.
        target: machine, for example "nvidia-h100:4"; None for the arguments' devices.

    Raises:
        ContractError: the contract does not fit the function.
        TargetError: unknown target or missing compiler, or arguments on other devices.
    """
    args = args if target is None else as_target(target).place(args)
    bound = None if contract is None else contract.bind(fn, args)
    scratch = None if bound is None else declared_scratch(bound.opaque, bound.lanes)
    planned = plan_liveness(liveness(fn, args), opaque_scratch=scratch)
    verify_plan(planned.jaxpr, planned, opaque_scratch=scratch)
    return planned


def declared_scratch(opaque: Mapping[str, Opaque], lanes: int) -> OpaqueScratch:
    """Return equation -> declared scratch bytes; it raises ValueError for other results of a declaration."""

    def scratch(eqn: ir.JaxprEqn) -> int:
        name, declaration = opaque_of(eqn, opaque) or ("", None)
        if declaration is None or declaration.scratch_bytes is None:
            return 0
        size = declaration.scratch_bytes(lanes)
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"scratch_bytes of {name!r} for {lanes} lanes: expected bytes, got {size!r}")
        return size

    return scratch if opaque else lambda eqn: 0


def plan_liveness(live: Liveness, *, opaque_scratch: OpaqueScratch | None = None) -> Plan:
    """Return an unverified plan; equations that share a body's `Liveness` share its plan."""
    plans: dict[int, Plan] = {}  # by id of the live ranges, which `live` keeps alive

    def planned(part: Liveness) -> Plan:
        if id(part) not in plans:
            plans[id(part)] = _plan(part, planned, opaque_scratch or (lambda eqn: 0))
        return plans[id(part)]

    return planned(live)


def _plan(live: Liveness, planned: Callable[[Liveness], Plan], scratch: OpaqueScratch) -> Plan:
    blocks: dict[int, Block] = {}
    sizes = [scratch(eqn) for eqn in live.jaxpr.jaxpr.eqns]
    for i, eqn in enumerate(live.jaxpr.jaxpr.eqns):
        bodies, top = list[tuple[int, Plan]](), 0
        for body in map(planned, live.bodies.get(i, ())):
            bodies.append((0 if eqn.primitive.name == "cond" else top, body))  # one branch runs
            top = max(top, bodies[-1][0] + body.size)
        if bodies or sizes[i]:
            blocks[i] = Block(0, top + sizes[i], tuple(bodies))
    buffers = [(value.bytes, value.start, value.end) for value in live.scratch]
    buffers += [(block.bytes, i, i) for i, block in blocks.items()]
    offsets = pack(buffers)
    height = max((offset + size for offset, (size, _, _) in zip(offsets, buffers, strict=True)), default=0)
    placed = tuple(replace(value, offset=offset) for value, offset in zip(live.scratch, offsets, strict=False))
    starts = offsets[len(placed) :]
    blocks = {i: replace(block, offset=start) for (i, block), start in zip(blocks.items(), starts, strict=True)}
    lower_bound = max(map(sum, zip(live.profile, [*sizes, 0], strict=True)))
    return Plan(live.jaxpr, placed, blocks, aligned(height), lower_bound)


def pack(buffers: Sequence[Buffer]) -> list[int]:
    """Return aligned offsets: the largest buffer first, each at the lowest free bytes."""
    offsets: dict[int, int] = {}
    for i in sorted(range(len(buffers)), key=lambda i: (-buffers[i][0], buffers[i][1])):
        size, start, end = buffers[i]
        offsets[i] = 0
        neighbours = [j for j in offsets if j != i and buffers[j][1] <= end and start <= buffers[j][2]]
        for low, high in sorted((offsets[j], offsets[j] + buffers[j][0]) for j in neighbours):
            if low < offsets[i] + size:
                offsets[i] = max(offsets[i], aligned(high))
    return [offsets[i] for i in range(len(buffers))]


def aligned(offset: int) -> int:
    """Round up to a multiple of `ALIGNMENT`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT
