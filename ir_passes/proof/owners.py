"""The lattice of owners: the lanes that the elements of an array may depend on.

`Common` (shared) is the bottom and `Mixed` (several lanes) the top; `Site.join` is the join."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ir_passes.proof.numbering import Leaf, Number
from ir_passes.proof.views import View
from ir_passes.proof.violations import Violation


@dataclass(frozen=True, slots=True)
class Common:
    """The bottom of the lattice: every element depends on shared inputs only."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """The lane at a shared run-time index.

    Attributes:
        number: of the index.
    """

    number: Number
    size: int


def mesh_axes(split: "tuple[str | Symbol, ...]") -> tuple[str, ...]:
    """Return the mesh axes of a `split`, without tiles of loops."""
    return tuple(axis for axis in split if isinstance(axis, str))


@dataclass(frozen=True, slots=True)
class OneLane:
    """Every element depends on one lane, and on shared inputs.

    Attributes:
        lane: its number, or the symbol of a shared run-time index.
        split: mesh axes over which lanes are split, or the tile of a loop iteration; `lane` then counts the lanes of
            one device or tile.
        unreduced: mesh axes along which one device has the elements, and all others zeros: a sum is still to come.
        packed: layout of packed tokens, "" for lanes. `lane` is then a token that stands for its lane; elements of
            padding, the tokens after the last lane, may depend on anything.
    """

    lane: int | Symbol
    split: "tuple[str | Symbol, ...]" = ()
    unreduced: tuple[str, ...] = ()
    packed: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """A permutation of the rows of an axis, or its inverse.

    Attributes:
        number: of the sort.
    """

    number: Number
    inverse: bool = False


@dataclass(frozen=True, slots=True)
class LaneRows:
    """Row r of `axis` depends on lane `start + order(r) // inner`.

    Attributes:
        inner: rows per lane.
        order: a permutation of the rows; None for the identity.
        split, unreduced, packed: as in `OneLane`; with `packed`, rows are tokens.
    """

    axis: int
    inner: int = 1
    start: int = 0
    order: Order | None = None
    split: "tuple[str | Symbol, ...]" = ()
    unreduced: tuple[str, ...] = ()
    packed: str = ""


@dataclass(frozen=True, slots=True)
class PoolRows:
    """A pool or view: row s of `axis` belongs to slot s's owner.

    Attributes:
        leaf: index of the pool among the step's flattened inputs.
        view: path of operations from the pool to this array.
        writers: indices of the slot maps of earlier writes.
        unframed: the operation that may have changed rows outside the slot map, if any.
        split: mesh axes over which rows are split, in order; `axis` then counts the rows of one device.
        inner: indices of `axis` per row, after a reshape.
    """

    leaf: Leaf
    group: str
    axis: int
    view: View = ()
    writers: frozenset[Leaf] = frozenset()
    unframed: Violation | None = None
    split: tuple[str, ...] = ()
    inner: int = 1


@dataclass(frozen=True, slots=True)
class Mixed:
    """The top of the lattice: elements may depend on several lanes."""

    cause: Violation


Owner = Common | OneLane | LaneRows | PoolRows | Mixed
COMMON = Common()


_ALONG_AN_AXIS = (LaneRows, PoolRows)


def axis_of(owner: Owner) -> int | None:
    return owner.axis if isinstance(owner, _ALONG_AN_AXIS) else None


def moved(owner: Owner, axis: int | Callable[[int], int]) -> Owner:
    """Return the owner along another axis, or along an axis computed from its own."""
    if not isinstance(owner, _ALONG_AN_AXIS):
        return owner
    new = axis if isinstance(axis, int) else axis(owner.axis)
    return owner if new == owner.axis else replace(owner, axis=new)
