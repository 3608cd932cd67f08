"""The walk over a program that gives every variable its abstract value, equation by equation.

What an operation does to ownership is the business of `ir_passes.rules`; this module owns what rules share: value
numbers, pool versions, the record of pool accesses, and the violations.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ir_passes import ir
from ir_passes.contract import BoundContract, SlotMap
from ir_passes.rules.registry import rule_of
from ir_passes.values import (
    COMMON,
    Common,
    Constant,
    Iota,
    Mixed,
    OneLane,
    Order,
    Owner,
    PoolRows,
    Rows,
    Value,
    describe,
)
from ir_passes.violations import Place, Violation, ViolationKind

Env = dict[Any, Value]
IOTA_SIZE = 1 << 16
"""Constants up to this many elements are looked at to see whether they count up."""


@dataclass(frozen=True)
class Access:
    """One access to the rows of a pool.

    Attributes:
        leaf: index of the pool among the step's flattened inputs.
        write: whether it writes.
        coordinate: what identifies the row: equal coordinates are the same rows.
        lane: the lane of a single row, None for the rows of all lanes.
        site: where.
    """

    leaf: int
    write: bool
    coordinate: Hashable
    lane: Any
    site: "Site"


@dataclass
class Prover:
    """State of one walk.

    Attributes:
        bound: the contract.
        idle: whether facts are about an idle lane: its `length` is 0.
        violations: found so far; of the kinds that are faults wherever they stand.
        accesses: to pools, in program order.
        consumed: versions of pools that have a successor.
        assumed: what was declared and not proved.
        notes: what the user should know and is no fault.
        observe: called with every equation, its operands and its results.
        leaf_of: pool version -> index of the pool among the inputs.
        parent: version of an untouched part -> version of what it is a part of.
        origin: the same for later versions of the part too.
        same_counts: value number of sorted keys -> of the keys.
        mapped: groups of pools that have a slot map.
        sort_keys: value number of the keys that rows were sorted by, for each order.
    """

    bound: BoundContract
    idle: bool = False
    violations: list[Violation] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    consumed: set[int] = field(default_factory=set)
    assumed: set[str] = field(default_factory=set)
    notes: set[str] = field(default_factory=set)
    observe: Callable[[Any, list[Value], list[Value]], None] | None = None
    sort_keys: dict[Order, int] = field(default_factory=dict)
    leaf_of: dict[int, int] = field(default_factory=dict)
    parent: dict[int, int] = field(default_factory=dict)
    origin: dict[int, int] = field(default_factory=dict)
    same_counts: dict[int, int] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _next: int = 1

    def __post_init__(self) -> None:
        entries = [one.entry for one in self.bound.inputs]
        self.mapped = {group for entry in entries if isinstance(entry, SlotMap) for group in entry.names}

    def fresh(self) -> int:
        """A number that no value has had."""
        self._next += 1
        return self._next

    def number(self, key: Hashable) -> int:
        """The value number of an expression; equal keys get equal numbers."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self.fresh()
        return found

    def first_version(self, leaf: int) -> int:
        """The version of a pool that the step receives."""
        version = self.fresh()
        self.leaf_of[version] = leaf
        return version

    def succeed(self, version: int | None) -> int | None:
        """The version after a write; the one before is not to be read any more."""
        if version is None:
            return None
        self.consumed.add(version)
        later = self.first_version(self.leaf_of[version])
        if version in self.origin:
            self.origin[later] = self.origin[version]
        return later

    def part_of(self, version: int | None) -> int | None:
        """The version of a part of a pool, such as one layer: it has a chain of its own until it is put back."""
        if version is None:
            return None
        part = self.first_version(self.leaf_of[version])
        self.parent[part] = self.origin[part] = version
        return part

    def stale(self, version: int | None) -> bool:
        """Whether a pool, or what a part was taken from, has been written to since."""
        while version is not None:
            if version in self.consumed:
                return True
            version = self.parent.get(version)
        return False

    def run(self, jaxpr: Any, consts: Sequence[Value], args: Sequence[Value]) -> list[Value]:
        """Abstract results of a program without free variables."""
        env: Env = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        for index, eqn in enumerate(jaxpr.eqns):
            operands = [self.read(env, atom) for atom in eqn.invars]
            site = Site(self, eqn, jaxpr, index, env)
            results = site.apply(operands)
            if self.observe is not None:
                self.observe(eqn, operands, results)
            env.update(zip(eqn.outvars, results, strict=True))
        return [self.read(env, atom) for atom in jaxpr.outvars]

    def read(self, env: Env, atom: Any) -> Value:
        """The value of an operand."""
        return self.constant(atom.val) if isinstance(atom, ir.Literal) else env[atom]

    def constant(self, array: Any) -> Value:
        """The value of an array that is part of the program."""
        dtype = getattr(array, "dtype", None) or np.result_type(array)
        if not (np.issubdtype(dtype, np.integer) or dtype == np.bool_):
            return Value(fact=Constant(), number=self._constant_number(array))
        content = np.asarray(array)
        if content.size == 0:
            return Value(fact=Constant(), number=self.fresh())
        fact = _counting(content) or Constant()
        span = (int(content.min()), int(content.max()))
        return Value(fact=fact, range=span, number=self._constant_number(array))

    def _constant_number(self, array: Any) -> int:
        if np.ndim(array) == 0 and hasattr(array, "item") or isinstance(array, int | float | bool):
            return self.number(("literal", str(getattr(array, "dtype", type(array))), repr(np.asarray(array).item())))
        return self.number(("constant", id(array)))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """What is found inside is forgotten: for iterations towards a fixed point."""
        kept = len(self.violations), len(self.accesses), set(self.consumed)
        yield
        del self.violations[kept[0] :]
        del self.accesses[kept[1] :]
        self.consumed = kept[2]


def _counting(content: np.ndarray) -> Iota | None:
    if not 1 < content.size <= IOTA_SIZE:
        return None
    for axis, size in enumerate(content.shape):
        shape = [1] * content.ndim
        shape[axis] = size
        if size > 1 and np.array_equal(content, np.broadcast_to(np.arange(size).reshape(shape), content.shape)):
            return Iota(axis)
    return None


@dataclass(slots=True)
class Site:
    """One equation under analysis: what a rule sees besides its operands.

    Attributes:
        prover: the walk.
        eqn: the equation.
        jaxpr, index, env: the program it stands in, where, and the values before it.
    """

    prover: Prover
    eqn: Any
    jaxpr: Any
    index: int
    env: Env = field(repr=False)

    @property
    def params(self) -> dict[str, Any]:
        """The equation's parameters."""
        return self.eqn.params

    @property
    def name(self) -> str:
        """Name of the primitive."""
        return self.eqn.primitive.name

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the operands."""
        return [tuple(atom.aval.shape) for atom in self.eqn.invars]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return tuple(self.eqn.outvars[0].aval.shape)

    def apply(self, operands: list[Value]) -> list[Value]:
        """The results, by the operation's rule."""
        for value in operands:
            if value.version is not None and self.prover.stale(value.version):
                self.report(
                    ViolationKind.STALE,
                    f"{self.path(value)} is read after a later version of it was made",
                    "use the version that the write returned, or read before the write",
                )
        results = rule_of(self.eqn)(self, *operands)
        return [self._numbered(value, operands, k) for k, value in enumerate(results)]

    def _numbered(self, value: Value, operands: list[Value], which: int) -> Value:
        if value.number:
            return value
        params = _frozen(self.eqn.params)
        if params is None:
            return value.but(number=self.prover.fresh())
        key = (self.name, params, tuple(v.number for v in operands), tuple(self.shapes), which)
        number = self.prover.number(key)
        return Value(value.owner, number, value.range, value.fact, value.kept, value.version)

    def path(self, value: Value) -> str:
        """The pool that a value is a version of, as the contract names it."""
        leaf = self.prover.leaf_of.get(value.version) if value.version is not None else None
        return "a pool" if leaf is None else self.prover.bound.inputs[leaf].path

    def violation(self, kind: ViolationKind, message: str, remedy: str) -> Violation:
        """A violation at this equation."""
        place = Place(self.jaxpr, self.index, self.env)
        return Violation(kind, self.name, ir.source_of(self.eqn), message, remedy, place)

    def report(self, kind: ViolationKind, message: str, remedy: str) -> None:
        """Record a fault that is one wherever its result goes."""
        self.prover.violations.append(self.violation(kind, message, remedy))

    def mixed(self, message: str, remedy: str, kind: ViolationKind = ViolationKind.CROSS_LANE) -> Mixed:
        """The owner of a result that several lanes reach; a fault if it reaches an output."""
        return Mixed(self.violation(kind, message, remedy))

    def join(self, *owners: Owner) -> Owner:
        """Whose an element is that depends on one element, at the same place, of each of several arrays."""
        joined: Owner = COMMON
        for owner in owners:
            if isinstance(owner, Common) or owner == joined:
                continue
            if isinstance(owner, Mixed):
                return owner
            if isinstance(joined, Common):
                joined = owner
            elif isinstance(joined, PoolRows) and isinstance(owner, PoolRows):
                joined = self._join_pools(joined, owner)
                if isinstance(joined, Mixed):
                    return joined
            else:
                return self.mixed(
                    f"it combines {describe(joined)} with {describe(owner)}",
                    "combine only elements of the same lane; keep lanes on one axis, in one order",
                )
        return joined

    def _join_pools(self, one: PoolRows, other: PoolRows) -> Owner:
        if (one.group, one.axis) != (other.group, other.axis):
            return self.mixed(
                f"it combines {describe(one)} with {describe(other)}", "combine rows after gathering them by slot"
            )
        return PoolRows(one.leaf, one.group, one.axis, one.view, one.unframed or other.unframed)


def axis_of(owner: Owner) -> int | None:
    """The axis along which an owner changes, None where it is the same everywhere."""
    return owner.axis if isinstance(owner, Rows | PoolRows) else None


def moved(owner: Owner, axis: int) -> Owner:
    """The same owner along another axis."""
    if isinstance(owner, Rows):
        return Rows(axis, owner.inner, owner.start, owner.order, owner.split)
    if isinstance(owner, PoolRows):
        return PoolRows(owner.leaf, owner.group, axis, owner.view, owner.unframed)
    return owner


def single(owner: Owner) -> bool:
    """Whether all elements have the same owner, one lane or none."""
    return isinstance(owner, Common | OneLane)


def _frozen(params: dict[str, Any]) -> Hashable:
    if not params:
        return ()
    key = tuple(params.items())
    try:
        hash(key)
    except TypeError:
        return None
    return key
