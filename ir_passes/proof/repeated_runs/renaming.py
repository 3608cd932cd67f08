"""The names that what an earlier run of equations was about has in a later one."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ir_passes.contract.contract import Pool
from ir_passes.proof.numbering import Leaf, Number, Version
from ir_passes.proof.owners import Order
from ir_passes.proof.prover import Prover
from ir_passes.proof.values import Value
from ir_passes.proof.violations import Violation


@dataclass(frozen=True)
class Tables:
    """Facts that `Prover` has noted under value numbers."""

    same_counts: dict[Number, Number]
    sort_keys: dict[Order, Number]
    own_orders: dict[Number, frozenset[str]]

    @classmethod
    def of(cls, prover: Prover) -> "Tables":
        """Return copies of a prover's tables."""
        return cls(dict(prover.same_counts), dict(prover.sort_keys), dict(prover.own_orders))

    def parts(self) -> tuple[dict[Any, Any], ...]:
        """The tables, in the order of the fields."""
        return self.same_counts, self.sort_keys, self.own_orders

    def numbers(self, number: Number) -> list[Number | None]:
        """Return the entries of all tables that a value number leads to; None where there is none."""
        keys = [self.sort_keys.get(Order(number, inverse)) for inverse in (False, True)]
        return [self.same_counts.get(number), *keys]


class Renaming:
    """The names that numbers, versions and pools of an earlier run have in a later one: one to one.

    Attributes:
        numbers: of value numbers.
    """

    def __init__(self, prover: Prover, then: Tables):
        self._prover, self._then, self._now = prover, then, Tables.of(prover)
        self.numbers: dict[int, Number] = {0: Number(0)}
        self._versions: dict[int, Version] = {}
        self._leaves: dict[int, Leaf] = {}
        self._taken: dict[type, set[int]] = {Number: {0}, Version: set(), Leaf: set()}

    def pair(self, number: Number, name: Number) -> bool:
        """Give a number from before the run its name; False where it has another, or `Prover` knows other things."""
        known = self.numbers.get(number)
        if known is not None:
            return known == name
        if name in self._taken[Number]:
            return False
        self.add(number, name)
        sides = zip(self._then.numbers(number), self._now.numbers(name), strict=True)
        if self._then.own_orders.get(number) != self._now.own_orders.get(name):
            return False
        return all(a is b if a is None or b is None else self.pair(a, b) for a, b in sides)

    def add(self, number: int, name: Number) -> None:
        """Give a number its name."""
        self.numbers[number] = name
        self._taken[Number].add(name)

    def pair_all(self, atoms: Sequence[int], names: Sequence[int]) -> bool:
        """Give the numbers, versions and pools of a value their names in another; False where that is not possible."""
        return all(self._pair(atom, name) for atom, name in zip(atoms, names, strict=True))

    def _pair(self, atom: int, name: int) -> bool:
        if isinstance(atom, Number):
            return isinstance(name, Number) and self.pair(atom, name)
        known = (self._versions if isinstance(atom, Version) else self._leaves).get(atom)
        if known is not None or name in self._taken[type(atom)]:
            return known == name
        self._taken[type(atom)].add(name)
        if isinstance(atom, Leaf):
            self._leaves[atom] = Leaf(name)
            return atom == name or self._alike(atom, name)
        self._versions[atom] = Version(name)
        leaf_of = self._prover.versions.leaf_of
        return unwritten(self._prover, name) and self._pair(leaf_of[atom], leaf_of[name])

    def _alike(self, one: int, other: int) -> bool:
        """Whether the contract says the same of two pools."""
        bound = self._prover.bound
        first, second = bound.inputs[one], bound.inputs[other]
        if not isinstance(first.entry, Pool) or (one in bound.successors) != (other in bound.successors):
            return False
        return replace(first, path=second.path) == second

    def add_versions(self, first: int, end: int, offset: int) -> None:
        """Name the versions that the earlier run made."""
        self._versions.update({made: Version(made + offset) for made in range(first, end)})

    def renamed(self, what: Any) -> Any:
        """Return a value, a fact, a view or the like under the new names.

        Raises:
            KeyError: it holds something without a name, or what describes a fault.
        """
        match what:
            case Number():
                return self.numbers[what]
            case Version():
                return self._versions[what]
            case Leaf():
                return self._leaves[what]
            case tuple():
                return tuple([self.renamed(one) for one in what])
            case frozenset():
                return frozenset([self.renamed(one) for one in what])
            case Violation():
                raise KeyError(what)
        names = _fields(type(what))
        return type(what)(*[self.renamed(getattr(what, name)) for name in names]) if names else what


def unwritten(prover: Prover, version: int) -> bool:
    """Whether a version is of a whole pool, and nothing has been written to it."""
    versions = prover.versions
    return version not in versions.consumed and version not in versions.parent and version not in versions.origin


def _fields(kind: type) -> tuple[str, ...]:
    return tuple(getattr(kind, "__dataclass_fields__", ()))


def form_of(value: Value) -> tuple[Hashable, list[int]] | None:
    """Return what two values have in common that differ in names alone, and the names; None for what is not renamed."""
    atoms: list[int] = []

    def form(what: Any) -> Hashable:
        if isinstance(what, Number | Version | Leaf):
            atoms.append(what)
            return type(what)
        if isinstance(what, tuple):
            return tuple([form(one) for one in what])
        if isinstance(what, frozenset):
            leaves = sorted(one for one in what if isinstance(one, Leaf))
            if leaves:
                atoms.extend(leaves)  # in this order they pair where they are the same, as slot maps are
            return "set", what
        if isinstance(what, Violation):
            raise KeyError(what)
        names = _fields(type(what))
        return (type(what), *[form(getattr(what, name)) for name in names]) if names else (type(what), what)

    try:
        return form(value), atoms
    except KeyError:
        return None
