"""Plan of an arena: offsets of temporaries and of the blocks of bodies."""

from dataclasses import dataclass, field

from ir_passes.jaxpr import ir


class PlanError(ValueError):
    """Two live values of a plan overlap, or a plan does not match its function."""


@dataclass(frozen=True)
class PlacedBuffer:
    """A temporary with its bytes in the arena.

    Attributes:
        equation, result: the equation that computes the temporary, and its position among the results.
        name: name in reports.
        offset, bytes: byte range, from the start of the arena or of the body's part of a block.
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
    """The bytes for the bodies of an equation.

    Attributes:
        offset, bytes: byte range of the block.
        bodies: (offset within the block, plan) of each body.
    """

    offset: int
    bytes: int
    bodies: tuple[tuple[int, "Plan"], ...]


@dataclass(frozen=True)
class Plan:
    """Offsets for the temporaries of one jaxpr.

    Attributes:
        jaxpr: the inlined jaxpr.
        placements: temporaries in the order of computation.
        views: (equation, result) of every value that is a view of its operand.
        blocks: equation -> block of its bodies.
        size: bytes of the arena.
        lower_bound: largest number of bytes live at once; no arena is smaller.
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
