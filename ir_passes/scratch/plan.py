"""The plan of an arena: offsets of the temporaries of a function and of the blocks that its bodies run in."""

from dataclasses import dataclass, field

from ir_passes.jaxpr import ir


class PlanError(ValueError):
    """A plan overlaps two values that are live together, or does not fit its function."""


@dataclass(frozen=True)
class PlacedBuffer:
    """A temporary and its bytes.

    Attributes:
        equation, result: the equation that computes it, and its position among the results.
        name: for reports.
        offset, bytes: its place, from the start of the arena or of the body's part of a block.
        start, end: first and last equation at which the bytes are reserved.
    """

    equation: int
    result: int
    name: str
    offset: int
    bytes: int
    start: int
    end: int


@dataclass(frozen=True)
class Block:
    """The bytes that an equation's bodies run in.

    Attributes:
        offset, bytes: its place.
        bodies: for each body the offset of its part within the block, and its plan.
    """

    offset: int
    bytes: int
    bodies: tuple[tuple[int, "Plan"], ...]


@dataclass(frozen=True)
class Plan:
    """Offsets for the temporaries of one jaxpr.

    Attributes:
        jaxpr: the inlined jaxpr.
        placements: in the order of computation.
        views: (equation, result) of every value that is a view of its operand.
        blocks: equation -> block of its bodies.
        size: bytes of the arena.
        lower_bound: most bytes that are live at once; no arena is smaller.
    """

    jaxpr: ir.ClosedJaxpr = field(repr=False)
    placements: tuple[PlacedBuffer, ...]
    views: frozenset[tuple[int, int]]
    blocks: dict[int, Block]
    size: int
    lower_bound: int

    def report(self, rows: int = 10) -> str:
        """Return the largest temporaries as text, with source lines.

        Args:
            rows: number of temporaries to list; the last line counts the others.
        """
        lines = [f"scratch before fusion: {self.lower_bound} bytes are live at once, planned in {self.size}"]
        largest = sorted(self.placements, key=lambda buffer: (-buffer.bytes, buffer.start))
        for buffer in largest[:rows]:
            source = ir.source_of(self.jaxpr.jaxpr.eqns[buffer.equation])
            lines.append(f"  {buffer.bytes} bytes at equations [{buffer.start}, {buffer.end}] {buffer.name}  {source}")
        if len(largest) > rows:
            lines.append(f"  and {len(largest) - rows} smaller values")
        for equation, block in sorted(self.blocks.items()):
            name = self.jaxpr.jaxpr.eqns[equation].primitive.name
            lines.append(f"  {block.bytes} bytes at equation {equation}: bodies of {name}.{equation}")
        return "\n".join(lines)
