"""Plan the arena: offsets for the temporaries of a function, checked by `verifier`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ir_passes.contract.contract import LaneContract, Opaque
from ir_passes.contract.declared import opaque_of
from ir_passes.jaxpr import ir
from ir_passes.scratch.liveness import Liveness, liveness
from ir_passes.scratch.packing import Buffer, aligned, height, pack
from ir_passes.scratch.plan import Block, PlacedBuffer, Plan
from ir_passes.scratch.verifier import verify_plan
from ir_passes.targets import Target, as_target

OpaqueScratch = Callable[[ir.JaxprEqn], int]
"""Equation -> scratch bytes of its operation in addition to the results."""


def plan(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    contract: LaneContract | None = None,
    *,
    target: Target | str | None = None,
) -> Plan:
    """Trace `fn(*args)` without running it, and return a verified scratch plan.

    Args:
        fn: any JAX function.
        args: example arguments, arrays or `jax.ShapeDtypeStruct`.
        contract: contract of the function; declares the scratch of opaque operations.
        target: machine of the function, for example "nvidia-h100:4"; a mesh of the arguments is a mesh of this
            machine's devices. None for the devices of the arguments.

    Raises:
        ContractError: the contract does not fit the function.
        TargetError: the target is unknown, its compiler is not installed, or the arguments are on other devices.
    """
    args = args if target is None else as_target(target).place(args)
    scratch = None if contract is None else declared_scratch(contract.opaque, contract.bind(fn, args).lanes)
    planned = plan_liveness(liveness(fn, args), opaque_scratch=scratch)
    verify_plan(planned.jaxpr, planned, opaque_scratch=scratch)
    return planned


def declared_scratch(opaque: Mapping[str, Opaque], lanes: int) -> OpaqueScratch:
    """Return a function from an equation to the declared scratch bytes of its operation.

    Raises:
        ValueError: a declaration does not return a number of bytes.
    """

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
    """Return a plan for live ranges, without verification.

    Args:
        live: the live ranges. Equations that share the `Liveness` of a body share the body's plan.
        opaque_scratch: scratch bytes of an operation in addition to its results.
    """
    scratch = opaque_scratch or (lambda eqn: 0)
    plans: dict[int, Plan] = {}  # by id of the live ranges; `live` keeps them alive

    def planned(part: Liveness) -> Plan:
        if id(part) not in plans:
            plans[id(part)] = _plan(part, planned, scratch)
        return plans[id(part)]

    return planned(live)


def _plan(live: Liveness, planned: Callable[[Liveness], Plan], scratch: OpaqueScratch) -> Plan:
    """Plan the bodies first, then the arena of blocks and other temporaries."""
    eqns = live.jaxpr.jaxpr.eqns
    sizes = {i: size for i, eqn in enumerate(eqns) if (size := scratch(eqn))}
    blocks = {
        i: _block(map(planned, live.bodies.get(i, ())), eqns[i].primitive.name == "cond", sizes.get(i, 0))
        for i in sorted({*sizes, *live.bodies})
    }
    buffers = [Buffer(value.bytes, value.start, value.end) for value in live.scratch]
    buffers += [Buffer(block.bytes, i, i) for i, block in blocks.items()]
    offsets = pack(buffers)
    placements = tuple(
        PlacedBuffer(value.equation, value.result, value.name, offset, value.bytes, value.start, value.end)
        for value, offset in zip(live.scratch, offsets, strict=False)
    )
    starts = offsets[len(placements) :]
    placed = {i: Block(start, b.bytes, b.bodies) for (i, b), start in zip(blocks.items(), starts, strict=True)}
    lower_bound = max(live_bytes + sizes.get(i, 0) for i, live_bytes in enumerate(live.profile))
    return Plan(live.jaxpr, placements, live.views, placed, aligned(height(buffers, offsets)), lower_bound)


def _block(plans: Iterable[Plan], branches: bool, scratch: int) -> Block:
    """Return the block for the bodies and declared scratch of one equation.

    Branches of a cond share their bytes.
    """
    bodies: list[tuple[int, Plan]] = []
    top = 0
    for body in plans:
        bodies.append((0 if branches else top, body))
        top = max(top, bodies[-1][0] + body.size)
    return Block(0, top + scratch, tuple(bodies))
