"""The interpreter's protocol for loops and pool accesses; it avoids a circular import."""

from collections.abc import Sequence
from typing import Any, Protocol

from ir_passes.jaxpr import ir
from ir_passes.sanitizer.tags import Ints, Tags
from ir_passes.sanitizer.verdict import Judge, UntrackedFault


class Walk(Protocol):
    """A run over a step with tags for its values.

    `ir_passes.sanitizer.interpreter.Interpreter` implements it.
    """

    lanes: int
    judge: Judge
    named: dict[int, Any]

    def run(
        self, program: ir.ClosedJaxpr, values: Sequence[Any], tags: Sequence[Tags | None]
    ) -> tuple[list[Any], list[Tags | None]]:
        """Run a program on values and their tags; return the results and their tags."""
        ...

    def use(self, where: ir.JaxprEqn | str, tags: Tags, reader: Ints | None = None, mask: Ints | None = None) -> Tags:
        """Check the labels of rows that lanes read; return the tags after the check."""
        ...

    def lose(self, eqn: ir.JaxprEqn, tags: Sequence[Tags | None], fault: UntrackedFault) -> list[Tags | None]:
        """Note that labels cannot be followed through the equation, and why; return results without tags."""
        ...
