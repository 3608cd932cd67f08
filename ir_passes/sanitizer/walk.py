"""Protocol of the interpreter for loops and pool accesses, against a circular import."""

from collections.abc import Sequence
from typing import Any, Protocol

from ir_passes.jaxpr import ir
from ir_passes.sanitizer.tags import Ints, Tags
from ir_passes.sanitizer.verdict import Judge, UntrackedFault


class Walk(Protocol):
    """A run over a step with tags, implemented by `ir_passes.sanitizer.interpreter.Interpreter`."""

    lanes: int
    judge: Judge
    named: dict[int, Any]

    def run(
        self, program: ir.ClosedJaxpr, values: Sequence[Any], tags: Sequence[Tags | None]
    ) -> tuple[list[Any], list[Tags | None]]:
        """Run a program on values and tags; return results and tags."""
        ...

    def use(self, where: ir.JaxprEqn | str, tags: Tags, reader: Ints | None = None, mask: Ints | None = None) -> Tags:
        """Check the labels of read rows; return the tags after the check."""
        ...

    def lose(self, eqn: ir.JaxprEqn, tags: Sequence[Tags | None], fault: UntrackedFault) -> list[Tags | None]:
        """Note why labels cannot be followed through an equation; return results without tags."""
        ...
