"""Classes of equal dimensions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

NAMED = "dims:"
"""Prefix of the `checkpoint_name` of an array with named dimensions."""


class Conflict(Exception):
    """Dimensions with different names, the arguments, would be in one class."""


@dataclass(eq=False, slots=True)
class Dimension:
    """A class of equal dimensions, or a member that points to it.

    Attributes:
        name: from `name_dims` or a pool.
        factors: dimensions it was merged from or split into, row-major.
        wholes: split dimensions with this one as their first part.
        repeated: the array is constant along it, so any name fits; of this member alone.
        lost: the line that joined arrays with unrelated dimensions into this one.
        along: names of dimensions that this one is a part of, or consists of parts of; of the class.
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
        root = self
        while root._parent is not None:
            root = root._parent
        if root is not self:
            self._parent = root
        return root


def unify(first: Dimension, second: Dimension) -> None:
    """Unify two dimensions; raises Conflict for different names."""
    first, second = first.root(), second.root()
    if first is second:
        return
    if first.name is not None and second.name is not None and first.name != second.name:
        raise Conflict(first.name, second.name)
    pairs = ()
    if [factor.size for factor in first.factors] == [factor.size for factor in second.factors]:
        pairs = tuple(zip(first.factors, second.factors, strict=True))
    second._parent = first
    first.name = first.name or second.name
    first.lost = first.lost or second.lost
    first.along |= second.along
    first.factors = first.factors or second.factors
    longer, shorter = sorted((first.wholes, second.wholes), key=len, reverse=True)
    longer += shorter
    first.wholes = longer
    for a, b in pairs:
        unify(a, b)


def tie(first: Dimension, second: Dimension) -> None:
    if not (first.repeated or second.repeated):
        unify(first, second)


def same(first: Dimension, second: Dimension) -> bool:
    """True if two dimensions are known to be equal."""
    first, second = first.root(), second.root()
    if first is second or (first.name is not None and first.name == second.name):
        return True
    if not first.factors or len(first.factors) != len(second.factors) or first.name or second.name:
        return False
    return all(a.size == b.size and same(a, b) for a, b in zip(first.factors, second.factors, strict=True))


def met(*dims: Dimension) -> Dimension:
    """Return the dimension of joined arrays; raises Conflict for different names.

    Joined arrays may have different dimensions: without other evidence the result has no name.
    """
    varying = [dim for dim in dims if not dim.repeated]
    if not varying:
        return Dimension(dims[0].size, repeated=True)
    names = [name for dim in varying if (name := dim.root().name) is not None]
    conflicting = next((name for name in names if name != names[0]), None)
    if conflicting is not None:
        raise Conflict(names[0], conflicting)
    if all(same(varying[0], dim) for dim in varying[1:]):
        return varying[0]
    return Dimension(dims[0].size, lost="")


def part_of(dim: Dimension, size: int) -> Dimension:
    if dim.repeated:
        return Dimension(size, repeated=True)
    return Dimension(size, along=runs_along(dim))


def runs_along(dim: Dimension) -> frozenset[str]:
    """Return names of dimensions with this one's elements, in order."""
    root = dim.root()
    return frozenset((root.name,)) if root.name is not None else root.along


def concatenated(parts: Sequence[Dimension], size: int) -> Dimension:
    """Return a concatenation's dimension; a single element fits any."""
    names = {runs_along(dim) for dim in parts if dim.size != 1 and not dim.repeated}
    names |= {runs_along(dim) for dim in parts if runs_along(dim)}
    return Dimension(size, along=names.pop() if len(names) == 1 else frozenset())


def fresh(shape: Sequence[int]) -> tuple[Dimension, ...]:
    return tuple(Dimension(size) for size in shape)


def reshape(dims: tuple[Dimension, ...], shape: Sequence[int]) -> tuple[Dimension, ...]:
    """Return dimensions after a row-major reshape: unchanged, merged or split."""
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
            # the following dimensions cross the ends of the old ones if a part is left
            todo = [*parts[1:], *todo] if len(parts) > 1 else []
        else:
            merged: list[Dimension] = []
            while todo and math.prod(dim.size for dim in merged) < size:
                merged.append(todo.pop(0))
            if math.prod(dim.size for dim in merged) != size:
                result.append(Dimension(size))
                todo = []
            else:
                result.append(_merged(merged, size))
    return tuple(result)


def _merged(merged: list[Dimension], size: int) -> Dimension:
    """Merge dimensions, or return the dimension that was split into them."""
    if all(dim.repeated for dim in merged):
        return Dimension(size, repeated=True)
    parts = [dim.root() for dim in _flat(merged)]
    dim = Dimension(size, factors=tuple(parts))
    for split_dim in tuple(parts[0].wholes):
        if [factor.root() for factor in split_dim.root().factors] == parts:
            unify(dim, split_dim)
    return dim


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
