"""The plan of an arena: the bytes of each scratch value of a function, and those that its bodies work in."""

from dataclasses import dataclass, field

from ir_passes.jaxpr import ir


class PlanError(ValueError):
    """A plan gives the same bytes to two values that are live together, or does not fit its function."""


@dataclass(frozen=True)
class PlacedBuffer:
    """A scratch value and its bytes.

    Attributes:
        equation, result: the equation that computes it, and which of its results it is.
        name: for reports.
        offset, bytes: its place, from the start of the arena or of the body's own part of it.
        start, end: the equations between which the bytes are its own, both included.
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
    """The bytes that an equation's bodies work in while it runs.

    Attributes:
        offset, bytes: their place.
        bodies: for each body where its part begins, from the start of the block, and its plan.
    """

    offset: int
    bytes: int
    bodies: tuple[tuple[int, "Plan"], ...]


@dataclass(frozen=True)
class Plan:
    """Offsets for the scratch of one jaxpr.

    Attributes:
        jaxpr: the inlined jaxpr whose equations are counted.
        placements: in the order of computation.
        views: (equation, result) of every value that has no bytes of its own but is its operand's.
        blocks: equation -> the bytes of its bodies.
        size: bytes of the arena.
        naive: bytes of an arena in which nothing is shared.
        lower_bound: the most bytes that are live at once; no arena is smaller.
        lanes: N where a contract gave it.
    """

    jaxpr: ir.ClosedJaxpr = field(repr=False)
    placements: tuple[PlacedBuffer, ...]
    views: frozenset[tuple[int, int]]
    blocks: dict[int, Block]
    size: int
    naive: int
    lower_bound: int
    lanes: int | None = None

    def report(self, rows: int | None = 40) -> str:
        """The arena as a table in the order of offsets, with the source line of each value.

        Args:
            rows: number of values to list, None for all; the report says how many it leaves out.
        """
        lines = [
            f"arena of {self.size} bytes; {self.lower_bound} are live at once, {self.naive} if nothing were shared"
        ]
        for p in sorted(self.placements, key=lambda p: (p.offset, p.start))[:rows]:
            source = ir.source_of(self.jaxpr.jaxpr.eqns[p.equation])
            lines.append(f"  [{p.offset}, {p.offset + p.bytes}) at [{p.start}, {p.end}] {p.name}  {source}")
        left_out = 0 if rows is None else len(self.placements) - rows
        if left_out > 0:
            lines.append(f"  and {left_out} values further up")
        for equation, block in sorted(self.blocks.items()):
            name = f"{self.jaxpr.jaxpr.eqns[equation].primitive.name}.{equation}"
            lines.append(
                f"  [{block.offset}, {block.offset + block.bytes}) at [{equation}, {equation}] bodies of {name}"
            )
            for offset, body in block.bodies:
                lines += [f"    body at {offset}:"] + ["    " + line for line in body.report(rows).splitlines()]
        return "\n".join(lines)
