"""Planning the arena: offsets for every scratch value of a function, such that live values share no byte.

The planner only sees sizes and live ranges (packing.py); `verifier` checks the plan from the jaxpr alone and
shares no code with it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ir_passes.contract.contract import LaneContract, Opaque
from ir_passes.contract.declared import opaque_of
from ir_passes.jaxpr import ir
from ir_passes.scratch.liveness import Liveness, exclusive, liveness
from ir_passes.scratch.packing import Buffer, aligned, height, pack
from ir_passes.scratch.plan import Block, PlacedBuffer, Plan
from ir_passes.scratch.verifier import verify_plan
from ir_passes.targets import Target, as_target

OpaqueScratch = Callable[[ir.JaxprEqn], int]


def plan(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    contract: LaneContract | None = None,
    *,
    target: Target | str | None = None,
) -> Plan:
    """A verified arena plan of the scratch of `fn(*args)`, which is traced and not run.

    Args:
        fn: any JAX function.
        args: example arguments, arrays or `jax.ShapeDtypeStruct`.
        contract: of the function; gives the number of lanes.
        target: machine that the function is for, as "nvidia-h100:4"; a mesh of the arguments is one of its devices.
            None for the devices that the arguments lie on.

    Raises:
        ContractError: the contract does not fit the function.
        TargetError: there is no such target, its compiler is not installed, or the arguments lie on other devices.
    """
    args = args if target is None else as_target(target).place(args)
    lanes = None if contract is None else contract.bind(fn, args).lanes
    scratch = declared_scratch(contract.opaque, lanes) if contract is not None and lanes is not None else None
    live = liveness(fn, args)
    made = plan_liveness(live, lanes=lanes, opaque_scratch=scratch)
    verify_plan(made.jaxpr, made, opaque_scratch=scratch)
    return made


def declared_scratch(opaque: Mapping[str, Opaque], lanes: int) -> OpaqueScratch:
    """Bytes of scratch that an equation's operation uses beside its results, by its declaration.

    Raises:
        ValueError: a declaration gives a negative number or none at all.
    """

    def scratch(eqn: ir.JaxprEqn) -> int:
        name, declared = opaque_of(eqn, opaque) or ("", None)
        if declared is None or declared.scratch_bytes is None:
            return 0
        size = declared.scratch_bytes(lanes)
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"scratch_bytes of {name!r} for {lanes} lanes: expected bytes, got {size!r}")
        return size

    return scratch if opaque else lambda eqn: 0


def plan_liveness(live: Liveness, *, lanes: int | None = None, opaque_scratch: OpaqueScratch | None = None) -> Plan:
    """A plan for live ranges that are taken as they are; nothing is verified. Parameters as in `plan`.

    Args:
        opaque_scratch: scratch bytes of the operations that have some beside their results.
    """
    return _Planner(lanes, opaque_scratch).plan(live)


class _Planner:
    """Plans of a function and its bodies; live ranges that several equations share are planned once."""

    def __init__(self, lanes: int | None, opaque_scratch: OpaqueScratch | None):
        self.lanes, self.opaque_scratch = lanes, opaque_scratch
        self.done: dict[int, Plan] = {}  # by the id of live ranges, which those of the whole keep alive

    def plan(self, live: Liveness) -> Plan:
        if id(live) not in self.done:
            self.done[id(live)] = self._plan(live)
        return self.done[id(live)]

    def _plan(self, live: Liveness) -> Plan:
        """Plan the bodies first, then the arena that holds their blocks and the other scratch."""
        blocks = {
            equation: _lay_out([self.plan(body) for body in bodies], exclusive(live.jaxpr.jaxpr.eqns[equation]))
            for equation, bodies in live.bodies.items()
        }
        eqns = live.jaxpr.jaxpr.eqns
        own_scratch = {} if self.opaque_scratch is None else {i: self.opaque_scratch(eqn) for i, eqn in enumerate(eqns)}
        blocks |= {equation: Block(0, size, ()) for equation, size in own_scratch.items() if size}
        buffers = [Buffer(value.bytes, value.start, value.end) for value in live.scratch]
        buffers += [Buffer(block.bytes, equation, equation) for equation, block in blocks.items()]
        offsets = pack(buffers)
        placements = tuple(
            PlacedBuffer(value.equation, value.result, value.name, offset, value.bytes, value.start, value.end)
            for value, offset in zip(live.scratch, offsets, strict=False)
        )
        own = offsets[len(live.scratch) :]
        placed = {
            equation: Block(offset, block.bytes, block.bodies)
            for (equation, block), offset in zip(blocks.items(), own, strict=True)
        }
        size = aligned(height(buffers, offsets))
        naive = live.total + sum(own_scratch.values())
        least = max((bytes_ + own_scratch.get(i, 0) for i, bytes_ in enumerate(live.profile)), default=0)
        return Plan(live.jaxpr, placements, live.views, placed, size, naive, least, self.lanes)


def _lay_out(bodies: list[Plan], share: bool) -> Block:
    offsets: list[int] = []
    top = 0
    for body in bodies:
        offsets.append(0 if share else top)
        top = max(top, offsets[-1] + body.size)
    return Block(0, top, tuple(zip(offsets, bodies, strict=True)))
