"""Dimensions of arrays as classes: two dimensions are in one class where the program makes them run together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

NAMED = "dims:"
"""Begins the name of an array whose dimensions are named."""


class Conflict(Exception):
    """Two dimensions with different names would be one.

    Attributes:
        names: of the two.
    """

    def __init__(self, names: tuple[str, str]):
        self.names = names
        super().__init__(f"{names[0]!r} and {names[1]!r}")


@dataclass(eq=False, slots=True)
class Dimension:
    """One class, or a member that points to it.

    Attributes:
        size: length.
        name: as `name_dims` or a pool gives it, None where nothing does.
        factors: the dimensions it was merged from or split into, in row-major order.
        wholes: dimensions that were split, with this one as their first part.
        repeated: whether an array has the same values all along it, so that any name fits; of this member alone.
        lost: the place where arrays with untied dimensions were put into one; None where that did not make it.
        along: names of dimensions that this one is a part of, or is put together of parts of; of the class.
    """

    size: int
    name: str | None = None
    factors: tuple["Dimension", ...] = ()
    wholes: list["Dimension"] = field(default_factory=list, repr=False)
    repeated: bool = False
    lost: str | None = None
    along: frozenset[str] = frozenset()
    _parent: "Dimension | None" = field(default=None, repr=False)

    def root(self) -> "Dimension":
        """The class."""
        one = self
        while one._parent is not None:
            one = one._parent
        if one is not self:
            self._parent = one
        return one


def unify(one: Dimension, other: Dimension) -> None:
    """Make two dimensions one class.

    Raises:
        Conflict: they have different names.
    """
    one, other = one.root(), other.root()
    if one is other:
        return
    if one.name is not None and other.name is not None and one.name != other.name:
        raise Conflict((one.name, other.name))
    pairs = ()
    if [factor.size for factor in one.factors] == [factor.size for factor in other.factors]:
        pairs = tuple(zip(one.factors, other.factors, strict=True))
    other._parent = one
    one.name = one.name or other.name
    one.lost = one.lost or other.lost
    one.along |= other.along
    one.factors = one.factors or other.factors
    longer, shorter = sorted((one.wholes, other.wholes), key=len, reverse=True)
    longer += shorter
    one.wholes = longer
    for a, b in pairs:
        unify(a, b)


def tie(one: Dimension, other: Dimension) -> None:
    """Make the dimensions of two arrays one class, where both arrays vary along them. Raises as `unify`."""
    if not (one.repeated or other.repeated):
        unify(one, other)


def same(one: Dimension, other: Dimension) -> bool:
    """Whether two dimensions are known to mean the same."""
    one, other = one.root(), other.root()
    if one is other or (one.name is not None and one.name == other.name):
        return True
    if not one.factors or len(one.factors) != len(other.factors) or one.name or other.name:
        return False
    return all(a.size == b.size and same(a, b) for a, b in zip(one.factors, other.factors, strict=True))


def met(*some: Dimension) -> Dimension:
    """One dimension of an array into which several arrays are put, each with this one of its own.

    To be put beside each other, or in each other's place, is no evidence that dimensions mean the same: where nothing
    else says so, nothing is known of the result, whatever one of them is named.

    Raises:
        Conflict: two of them have different names.
    """
    varying = [dim for dim in some if not dim.repeated]
    if not varying:
        return Dimension(some[0].size, repeated=True)
    names = [name for dim in varying if (name := dim.root().name) is not None]
    other = next((name for name in names if name != names[0]), None)
    if other is not None:
        raise Conflict((names[0], other))
    if all(same(varying[0], dim) for dim in varying[1:]):
        return varying[0]
    return Dimension(some[0].size, lost="")


def part_of(dim: Dimension, size: int) -> Dimension:
    """Return the dimension of a contiguous part of an array, whose elements lie along the dimension of the whole."""
    if dim.repeated:
        return Dimension(size, repeated=True)
    return Dimension(size, along=runs_along(dim))


def runs_along(dim: Dimension) -> frozenset[str]:
    """Return the names of the dimensions that the elements of an array lie along, the first one before the second."""
    root = dim.root()
    return frozenset((root.name,)) if root.name is not None else root.along


def beside(parts: Sequence[Dimension], size: int) -> Dimension:
    """Return the dimension along which arrays are put one behind the other.

    It lies along what all of them lie along. A single element has no order along any dimension, and fits in.
    """
    names = {runs_along(dim) for dim in parts if dim.size != 1 and not dim.repeated}
    names |= {runs_along(dim) for dim in parts if runs_along(dim)}
    return Dimension(size, along=names.pop() if len(names) == 1 else frozenset())


def fresh(shape: Sequence[int]) -> tuple[Dimension, ...]:
    """Dimensions that nothing is known of."""
    return tuple(Dimension(size) for size in shape)


def reshape(dims: tuple[Dimension, ...], shape: Sequence[int]) -> tuple[Dimension, ...]:
    """Dimensions after a row-major reshape: kept, merged or, where they had been merged so, split again."""
    result: list[Dimension] = []
    todo = [dim for dim in dims if dim.size != 1]
    for size in shape:
        if size == 1:
            result.append(Dimension(1))
        elif todo and todo[0].size == size:
            result.append(todo.pop(0))
        elif todo and todo[0].size > size:
            parts = _split(todo.pop(0), size)
            result.append(parts[0])
            todo[:0] = parts[1:]
        else:
            taken: list[Dimension] = []
            while todo and math.prod(dim.size for dim in taken) < size:
                taken.append(todo.pop(0))
            if math.prod(dim.size for dim in taken) != size:
                result.append(Dimension(size))
                todo = []
            else:
                result.append(_merged(taken, size))
    return tuple(result)


def _merged(taken: list[Dimension], size: int) -> Dimension:
    """One dimension of several: the one that was split into them, if there is one."""
    if all(dim.repeated for dim in taken):
        return Dimension(size, repeated=True)
    parts = [dim.root() for dim in _flat(taken)]
    found = Dimension(size, factors=tuple(parts))
    for whole in tuple(parts[0].wholes):
        if [factor.root() for factor in whole.root().factors] == parts:
            unify(found, whole)
    return found


def _flat(dims: list[Dimension]) -> tuple[Dimension, ...]:
    return tuple(factor for dim in dims for factor in (dim.root().factors or (dim,)))


def _split(dim: Dimension, size: int) -> list[Dimension]:
    if dim.repeated:
        return [Dimension(part, repeated=True) for part in (size, dim.size // size)][: 1 if dim.size % size else 2]
    factors = dim.root().factors
    for count in range(1, len(factors)):
        if math.prod(factor.size for factor in factors[:count]) == size:
            head, tail = factors[:count], factors[count:]
            first = head[0] if count == 1 else Dimension(size, factors=head)
            rest = tail[0] if len(tail) == 1 else Dimension(dim.size // size, factors=tail)
            return [first, rest]
    if dim.size % size:
        return [Dimension(size)]
    parts = [Dimension(size), Dimension(dim.size // size)]
    if not factors:
        dim.root().factors = tuple(parts)
        parts[0].wholes.append(dim)
    return parts
