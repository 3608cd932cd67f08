"""One equation as the modules below `site` see it: a protocol for annotations, so that no imports run in a circle."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from ir_passes.proof.numbering import Leaf
from ir_passes.proof.owners import Mixed
from ir_passes.proof.violations import Violation, ViolationKind


class Equation(Protocol):
    """One equation of an abstract interpretation; `ir_passes.proof.site.Site` is the implementation."""

    eqn: Any

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the equation."""
        ...

    @property
    def name(self) -> str:
        """Name of the primitive."""
        ...

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the results."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        ...

    def violation(self, kind: ViolationKind, message: str, remedy: str) -> Violation:
        """Return a violation at this equation, with its source line."""
        ...

    def report(self, kind: ViolationKind, message: str, remedy: str) -> None:
        """Record a violation at this equation; the interpretation goes on."""
        ...

    def mixed(self, message: str, remedy: str, kind: ViolationKind = ...) -> Mixed:
        """Return the value of an array that mixes lanes, with the violation if it is used."""
        ...


@dataclass(frozen=True)
class RowAccess:
    """One access to the rows of a pool.

    Attributes:
        leaf: index of the pool among the step's flattened inputs.
        write: whether it writes.
        coordinate: the identity of the row: equal coordinates are the same rows.
        lane: the lane of a single row, None for the rows of all lanes.
        site: the equation.
    """

    leaf: Leaf
    write: bool
    coordinate: Hashable
    lane: Any
    site: Equation
