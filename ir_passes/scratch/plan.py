"""Plan of an arena: offsets of temporaries and of the blocks of bodies."""

from dataclasses import dataclass, field

from ir_passes.jaxpr import ir
from ir_passes.scratch.liveness import Scratch

ALIGNMENT = 64
"""Bytes: XLA's alignment on CPUs, and the size of a cache line."""


class PlanError(ValueError):
    """Two live values of a plan overlap, or a plan does not match its function."""


@dataclass(frozen=True)
class Block:
    """The bytes for the bodies and the declared scratch of an equation.

    Attributes:
        offset, bytes: byte range of the block.
        bodies: (offset within the block, plan) of each body, in ascending order.
    """

    offset: int
    bytes: int
    bodies: tuple[tuple[int, "Plan"], ...]


@dataclass(frozen=True)
class Plan:
    """Offsets for the temporaries of one jaxpr.

    Attributes:
        jaxpr: the inlined jaxpr.
        placements: temporaries with their offsets, in the order of computation.
        blocks: equation -> block of its bodies.
        size: bytes of the arena.
        lower_bound: largest number of bytes live at once; no arena is smaller.
    """

    jaxpr: ir.ClosedJaxpr = field(repr=False)
    placements: tuple[Scratch, ...]
    blocks: dict[int, Block]
    size: int
    lower_bound: int

    def report(self, rows: int = 10) -> str:
        """Return the largest `rows` temporaries and all blocks as text, with source lines."""
        lines = [f"scratch before fusion: {self.lower_bound} bytes are live at once, planned in {self.size}"]
        largest = sorted(self.placements, key=lambda value: (-value.bytes, value.start))
        for value in largest[:rows]:
            place = f"equations [{value.start}, {value.end}] {value.name}  {ir.source_of(value.eqn)}"
            lines.append(f"  {value.bytes} bytes at {place}")
        if len(largest) > rows:
            lines.append(f"  and {len(largest) - rows} smaller values")
        for i, block in sorted(self.blocks.items()):
            name = self.jaxpr.jaxpr.eqns[i].primitive.name
            lines.append(f"  {block.bytes} bytes at equation {i}: bodies of {name}.{i}")
        return "\n".join(lines)
