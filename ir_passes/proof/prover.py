"""The state of one walk (abstract interpretation) over a program."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ir_passes.contract.contract import BoundContract
from ir_passes.contract.statements import Statement
from ir_passes.jaxpr import ir, mesh
from ir_passes.jaxpr.dtypes import dtype_of, is_integer, to_numpy
from ir_passes.proof.numbering import NONE, Leaf, Number
from ir_passes.proof.owners import OneLane, Order
from ir_passes.proof.pool_versions import PoolVersions
from ir_passes.proof.values import Condition, Constant, IndexSum, Iota, Mask, Range, Value
from ir_passes.proof.violations import Violation

Env = dict[Any, Value]
MAX_IOTA_SIZE = 1 << 16
"""Elements of the largest constant `Iota`."""
_LOWER = Mask(frozenset({Condition(IndexSum(frozenset({(Iota(0), 1), (Iota(1), -1)})))}), frozenset())
"""Mask of a lower triangle: true elements have index 1 <= index 0."""


@dataclass(frozen=True)
class RowAccess:
    """One access to the rows of a pool.

    Attributes:
        leaf: index of the pool among the step's flattened inputs.
        coordinate: equal for equal rows.
        lane: owner of a single row; None for rows of several lanes.
    """

    leaf: Leaf
    write: bool
    coordinate: Hashable
    lane: OneLane | None
    site: Any

    @property
    def row(self) -> tuple[Leaf, bool, Hashable]:
        return self.leaf, self.write, self.coordinate


@dataclass
class Prover:
    """State of one abstract interpretation.

    Attributes:
        idle: role of the input that makes a lane idle, or "".
        counted: a lane's comparison with the number of active lanes is data of this lane.
        stopped: site, value number -> bounds of a stopped lane's elements, in a loop's body.
        disagreeing: the comparison of devices' operands assumed to fail.
        reorders: True if the program may sort rows.
        violations: those that count wherever the result is used.
        assumed: declarations taken for granted, except of `declared`.
        declared: name of a custom call, kernel or callback -> its equations.
        sort_keys: order of rows -> number of the sort keys.
        device_varying: mesh axes along which shared values may differ, by `axis_index`.
        devices: number along each mesh axis.
        program: number of the current walk over the body of a `shard_map`.
        invariance: True if JAX has checked along which axes each value may differ.
        comparisons: equations that compare operands of devices.
        diverging: mesh axes along which devices may take different branches, or numbers of iterations.
        active: numbers of active lanes in the current program.
        own_orders: number of an order of rows -> mesh axes along which the order may differ.
        same_counts: number of sorted keys -> number of the keys.
        callers: surrounding equations, the outermost first.
        refine: adds facts about packed tokens to results.
        layout: value number -> fact and bounds, from a packed layout.
        unread: id of the body of an unreadable kernel -> the reason.
        scanned: lane of an iteration of a scan over lanes -> key of all their rows.
    """

    bound: BoundContract
    idle: str = ""
    counted: bool = False
    stopped: Callable[[Any, Number], Range | None] | None = None
    disagreeing: Any = None
    reorders: bool = True
    violations: list[Violation] = field(default_factory=list)
    accesses: list[RowAccess] = field(default_factory=list)
    versions: PoolVersions = field(default_factory=PoolVersions)
    assumed: set[Statement] = field(default_factory=set)
    declared: dict[str, list[Any]] = field(default_factory=dict)
    notes: set[Statement] = field(default_factory=set)
    observe: Callable[[Any, list[Value], list[Value]], None] | None = None
    sort_keys: dict[Order, Number] = field(default_factory=dict)
    values: dict[Any, Env] = field(default_factory=dict)
    device_varying: set[str] = field(default_factory=set)
    devices: dict[str, int] = field(default_factory=dict)
    program: Number = NONE
    invariance: bool = True
    comparisons: list[Any] = field(default_factory=list)
    diverging: frozenset[str] = frozenset()
    active: set[Number] = field(default_factory=set)
    own_orders: dict[Number, frozenset[str]] = field(default_factory=dict)
    same_counts: dict[Number, Number] = field(default_factory=dict)
    callers: list[Any] = field(default_factory=list)
    refine: Callable[[Any, list[Value], list[Value]], list[Value]] | None = None
    layout: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    unread: dict[int, str] = field(default_factory=dict)
    scanned: dict[Any, Hashable] = field(default_factory=dict)
    _numbers: dict[Hashable, Number] = field(default_factory=dict)
    _last_number: Number = Number(1)
    _literals: dict[int, Value] = field(default_factory=dict)
    _makers: dict[int, tuple[Any, dict[Any, Any]]] = field(default_factory=dict)

    def fresh(self) -> Number:
        self._last_number = Number(self._last_number + 1)
        return self._last_number

    @contextmanager
    def given(self, **state: Any) -> Iterator[None]:
        """Interpret a program in another state."""
        outer = {name: getattr(self, name) for name in state}
        vars(self).update(state)
        yield
        vars(self).update(outer)

    def decided_by(self, atom: Any) -> AbstractContextManager[None]:
        return self.given(diverging=self.diverging | self.varying(atom))

    def varying(self, atom: Any) -> frozenset[str]:
        """Return mesh axes with different values of an operand."""
        if isinstance(atom, ir.Literal):
            return frozenset()
        return mesh.varying_axes(atom.aval) if self.invariance else frozenset(self.devices)

    def devices_along(self, axes: Sequence[str]) -> int:
        return math.prod(self.devices[axis] for axis in axes)

    def number(self, form: Hashable, *operands: int) -> Number:
        """Return the number of an expression: its form and its operands' numbers."""
        key = (form, operands)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self.fresh()
        return number

    def read(self, env: Env, atom: Any) -> Value:
        if not isinstance(atom, ir.Literal):
            return env[atom]
        # `values` keeps the literal alive, so its id stays unique
        literal = self._literals.get(id(atom))
        if literal is None:
            number = np.asarray(atom.val, ir.dtype_of(atom)) if isinstance(atom.val, int) else atom.val
            literal = self._literals[id(atom)] = self.constant(number)
        return literal

    def constant(self, array: Any) -> Value:
        dtype = dtype_of(array)
        constant = Constant(captured=np.ndim(array) > 0)
        if not (is_integer(dtype) or dtype == np.bool_):
            return Value(fact=constant, number=self._constant_number(array))
        content = np.asarray(array)
        if content.dtype.kind not in "iub":  # numpy does not order integers of fewer bits than a byte
            content = content.astype(np.int64)
        if content.size == 0:
            return Value(fact=constant, number=self.fresh())
        counting = _counting(content)
        span = (int(content.min()), int(content.max()))
        if content.ndim == 2 and dtype == np.bool_ and not np.triu(content, 1).any():
            return Value(fact=_LOWER, range=span, number=self._constant_number(array))
        if counting is not None:
            return Value(fact=counting, range=span, number=self.index_number(dtype, content.shape, counting.axis))
        return Value(fact=constant, range=span, number=self._constant_number(array))

    def index_number(self, dtype: Any, shape: Sequence[int], axis: int) -> Number:
        """Return the number of an array that counts up."""
        return self.number(("index", str(dtype), tuple(shape), axis))

    def _constant_number(self, array: Any) -> Number:
        if np.ndim(array) == 0:
            return self.number(("literal", str(getattr(array, "dtype", type(array))), to_numpy(array).tobytes()))
        return self.number(("constant", id(array)))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Forget the violations and accesses of this block; nothing observes it."""
        forget = self.mark()
        with self.given(observe=None):
            yield
        forget()

    def makers(self, jaxpr: Any) -> dict[Any, Any]:
        if id(jaxpr) not in self._makers:
            self._makers[id(jaxpr)] = jaxpr, {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
        return self._makers[id(jaxpr)][1]

    def mark(self) -> Callable[[], None]:
        violations, accesses, consumed = len(self.violations), len(self.accesses), set(self.versions.consumed)

        def forget() -> None:
            del self.violations[violations:]
            del self.accesses[accesses:]
            self.versions.consumed = consumed

        return forget


def _counting(content: np.ndarray) -> Iota | None:
    if not 1 < content.size <= MAX_IOTA_SIZE:
        return None
    for axis, size in enumerate(content.shape):
        shape = [1] * content.ndim
        shape[axis] = size
        if size > 1 and np.array_equal(content, np.broadcast_to(np.arange(size).reshape(shape), content.shape)):
            return Iota(axis)
    return None
