"""Arena plan: offsets for the temporaries of a function, checked against live ranges."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from ir_passes.contract.contract import BoundContract, LaneContract, Opaque
from ir_passes.contract.declared import opaque_of
from ir_passes.jaxpr import ir
from ir_passes.scratch.liveness import Liveness, Scratch, liveness_of
from ir_passes.targets import Target, as_target

ALIGNMENT = 64
"""XLA's alignment on CPUs in bytes, and a cache line."""
OpaqueScratch = Callable[[ir.JaxprEqn], int]
"""Equation -> bytes besides its results."""
Buffer = tuple[int, int, int]
"""Bytes, first and last time of use, inclusive."""


class PlanError(ValueError):
    """Two live values overlap, or a plan does not match its function."""


@dataclass(frozen=True)
class Block:
    """Bytes for the bodies and declared scratch of an equation.

    Attributes:
        bodies: ascending (offset in the block, plan).
    """

    offset: int
    bytes: int
    bodies: tuple[tuple[int, "Plan"], ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """Offsets for the temporaries of an inlined jaxpr.

    Attributes:
        placements: temporaries with offsets, in the order of computation.
        blocks: by equation.
        size: of the arena.
        lower_bound: peak of live bytes.
    """

    jaxpr: ir.ClosedJaxpr = field(repr=False)
    placements: tuple[Scratch, ...]
    blocks: dict[int, Block]
    size: int
    lower_bound: int

    def report(self, rows: int = 10) -> str:
        """Return the largest temporaries and all blocks, with source lines."""
        lines = [f"scratch before fusion: {self.lower_bound} bytes are live at once, planned in {self.size}"]
        for value in sorted(self.placements, key=lambda value: (-value.bytes, value.start))[:rows]:
            place = f"equations [{value.start}, {value.end}] {value.name}  {ir.source_of(value.eqn)}"
            lines.append(f"  {value.bytes} bytes at {place}")
        if len(self.placements) > rows:
            lines.append(f"  and {len(self.placements) - rows} smaller values")
        for i, block in sorted(self.blocks.items()):
            lines.append(
                f"  {block.bytes} bytes at equation {i}: bodies of {self.jaxpr.jaxpr.eqns[i].primitive.name}.{i}"
            )
        return "\n".join(lines)


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
    return plan_program(ir.inline(ir.trace(fn, *args)), bound)


def plan_program(program: ir.ClosedJaxpr, bound: BoundContract | None) -> Plan:
    """Return the verified plan of an inlined program with declared operations."""
    scratch = declared_scratch({}, 0) if bound is None else declared_scratch(bound.opaque, bound.lanes)
    planned = plan_liveness(liveness_of(program), scratch)
    verify_plan(program, planned, opaque_scratch=scratch)
    return planned


def declared_scratch(opaque: Mapping[str, Opaque], lanes: int) -> OpaqueScratch:
    """Return equation -> declared scratch bytes; it raises ValueError for other results of a declaration."""

    def scratch(eqn: ir.JaxprEqn) -> int:
        name, declaration = opaque_of(eqn, opaque) or ("", None)
        size = 0 if declaration is None or declaration.scratch_bytes is None else declaration.scratch_bytes(lanes)
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"scratch_bytes of {name!r} for {lanes} lanes: expected bytes, got {size!r}")
        return size

    return scratch


def plan_liveness(live: Liveness, scratch: OpaqueScratch = lambda eqn: 0) -> Plan:
    """Return an unverified plan; equations that share a body's `Liveness` share its plan."""

    @cache
    def planned(part: Liveness) -> Plan:
        blocks: dict[int, Block] = {}
        sizes = [scratch(eqn) for eqn in part.jaxpr.jaxpr.eqns]
        for i, eqn in enumerate(part.jaxpr.jaxpr.eqns):
            bodies, top = list[tuple[int, Plan]](), 0
            for body in map(planned, part.bodies.get(i, ())):
                bodies.append((0 if eqn.primitive.name == "cond" else top, body))  # one branch runs
                top = max(top, bodies[-1][0] + body.size)
            if bodies or sizes[i]:
                blocks[i] = Block(0, top + sizes[i], tuple(bodies))
        buffers = [(value.bytes, value.start, value.end) for value in part.scratch]
        offsets = iter(pack([*buffers, *((block.bytes, i, i) for i, block in blocks.items())]))
        placed = tuple(replace(value, offset=next(offsets)) for value in part.scratch)
        blocks = {i: replace(block, offset=next(offsets)) for i, block in blocks.items()}
        height = max((place.offset + place.bytes for place in (*placed, *blocks.values())), default=0)
        lower_bound = max(map(sum, zip(part.profile, [*sizes, 0], strict=True)))
        return Plan(part.jaxpr, placed, blocks, aligned(height), lower_bound)

    return planned(live)


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


def verify_plan(closed: ir.ClosedJaxpr, plan: Plan, *, opaque_scratch: OpaqueScratch | None = None) -> None:
    """Check the plan of an inlined jaxpr; `opaque_scratch` None is 0 bytes besides the results.

    Raises:
        PlanError: with equation, values and byte ranges.
    """

    @cache
    def verify(live: Liveness, plan: Plan) -> None:
        values, expected = list[Scratch](), {(value.equation, value.result): value for value in live.scratch}
        for placed in plan.placements:
            value = expected.pop((placed.equation, placed.result), None)
            where = f"equation {placed.equation}: {placed.name}"
            if value is None:
                raise PlanError(f"{where} is placed twice, or is an output, a view or no value")
            if placed.bytes != value.bytes:
                raise PlanError(f"{where} has {value.bytes} bytes, the plan has {placed.bytes} for it")
            values.append(replace(value, offset=placed.offset))
        for i, j in sorted(expected):
            name = live.jaxpr.jaxpr.eqns[i].primitive.name
            raise PlanError(f"equation {i}: result {j} of {name} has no place in the plan")
        blocks = list(_blocks(live, plan, opaque_scratch or (lambda eqn: 0)))
        for value in (*values, *blocks):
            if value.offset % ALIGNMENT:
                raise PlanError(f"equation {value.start}: {value} is not aligned to {ALIGNMENT} bytes")
            if value.offset < 0 or value.offset + value.bytes > plan.size:
                raise PlanError(f"equation {value.start}: {value} is outside the arena of {plan.size} bytes")
        ordered = sorted((value for value in (*values, *blocks) if value.bytes), key=lambda value: value.start)
        low, size, last = (np.array([getattr(value, name) for value in ordered]) for name in ("offset", "bytes", "end"))
        for i, new in enumerate(ordered):
            overlap = (low[:i] < new.offset + new.bytes) & (low[:i] + size[:i] > new.offset) & (last[:i] >= new.start)
            if overlap.any():
                raise PlanError(f"equation {new.start}: {new} overlaps {ordered[int(overlap.argmax())]}")
        for placed, value in zip(plan.placements, values, strict=True):
            if (placed.start, placed.end) != (value.start, value.end):
                reason = f"is live at equations [{value.start}, {value.end}], the plan keeps its bytes at"
                raise PlanError(f"equation {value.start}: {value.name} {reason} [{placed.start}, {placed.end}]")
        for i, block in plan.blocks.items():
            for body, (_, inner) in zip(live.bodies.get(i, ()), block.bodies, strict=True):
                try:
                    verify(body, inner)
                except PlanError as error:
                    raise PlanError(f"equation {i}, in its body: {error}") from error

    verify(liveness_of(closed), plan)


def _blocks(live: Liveness, plan: Plan, scratch: OpaqueScratch) -> Iterator[Scratch]:
    """Yield the blocks of the plan as values of their equations."""
    eqns = live.jaxpr.jaxpr.eqns
    needed = [i for i, eqn in enumerate(eqns) if i in live.bodies or scratch(eqn)]
    if sorted(plan.blocks) != needed:
        raise PlanError(f"equations {needed} need blocks, the plan has them for {sorted(plan.blocks)}")
    for i, block in plan.blocks.items():
        name, end, bodies = eqns[i].primitive.name, 0, live.bodies.get(i, ())
        if len(bodies) != len(block.bodies):
            raise PlanError(f"equation {i} runs {len(bodies)} bodies, the plan has {len(block.bodies)}")
        for offset, inner in block.bodies:
            high = offset + inner.size
            if offset % ALIGNMENT or offset < 0 or high > block.bytes:
                raise PlanError(f"equation {i}: a body in bytes [{offset}, {high}) of a block of {block.bytes}")
            if offset < end and name != "cond":
                raise PlanError(f"equation {i}: bodies overlap: one begins at {offset}, another ends at {end}")
            end = max(end, high)
        if block.bytes - end < scratch(eqns[i]):
            needs = f"{name} uses {scratch(eqns[i])} bytes of scratch"
            raise PlanError(f"equation {i}: {needs}, the plan gives it {block.bytes - end}")
        yield Scratch(i, -1, block.bytes, i, i, eqns[i], block.offset)
