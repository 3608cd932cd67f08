"""The state of one abstract interpretation of a program, which the transfer functions share.

The abstract values (`ir_passes.proof.values`) form a lattice of owners; `ir_passes.proof.rules` holds the transfer
function of each operation, and `ir_passes.proof.site.interpret` applies them equation by equation. Here are value
numbers, pool versions, the record of pool accesses, and the violations.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ir_passes.contract.contract import ROW_MAPS, BoundContract
from ir_passes.contract.statements import Statement
from ir_passes.jaxpr import ir, mesh
from ir_passes.jaxpr.dtypes import dtype_of, is_integer, to_numpy
from ir_passes.proof.numbering import Number, Numbering
from ir_passes.proof.owners import Order
from ir_passes.proof.pool_versions import PoolVersions
from ir_passes.proof.values import Constant, Iota, NotLater, Value
from ir_passes.proof.violations import Violation
from ir_passes.proof.walk import RowAccess

Env = dict[Any, Value]
MAX_IOTA_SIZE = 1 << 16
"""Constants up to this many elements are looked at to see whether they count up."""


@dataclass
class Prover:
    """State of one abstract interpretation.

    Attributes:
        bound: the contract.
        idle: the role of the input by which a lane is idle, if facts are about an idle lane; otherwise "".
        counted: whether the comparison of a lane's number with the number of active lanes counts as the lane's own.
        disagreeing: the comparison assumed to fail: devices were given different operands.
        reorders: whether rows may be sorted anywhere in the program.
        violations: found so far; only those that are faults wherever their result goes.
        accesses: to pools, in program order.
        versions: of the pools.
        assumed: declarations taken for granted, except those of custom calls, kernels and callbacks.
        declared: name of a declaration of these -> their calls under it.
        notes: remarks that are no faults.
        observe: called with every equation, its operands and its results.
        known: the values of each program that was walked over, by the program.
        device_varying: mesh axes along which shared values may differ between devices, by `axis_index`.
        devices: length of each axis of the mesh that the program in hand runs on.
        invariance: whether JAX has checked along which of them each value of that program may differ.
        comparisons: every equation that was met and compares what devices were given, in its order.
        diverging: mesh axes along which devices may take different branches, or go round a loop more or less often.
        own_orders: number of an order of rows -> mesh axes along which devices may have others.
        same_counts: value number of sorted keys -> value number of the keys.
        callers: the equations whose bodies are walked over, the outermost first.
        mapped: groups of pools that have a slot map.
        refine: what is known of results beyond their rules, where tokens of several lanes lie on one axis.
        layout: value number -> fact and bounds of an array that says which token is whose.
        sort_keys: value number of the keys that rows were sorted by, for each order.
        unread: id of the body of each kernel that could not be read -> why.
        numbers: the value numbers.
    """

    bound: BoundContract
    idle: str = ""
    counted: bool = False
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
    invariance: bool = True
    comparisons: list[Any] = field(default_factory=list)
    diverging: frozenset[str] = frozenset()
    own_orders: dict[Number, frozenset[str]] = field(default_factory=dict)
    same_counts: dict[Number, Number] = field(default_factory=dict)
    callers: list[Any] = field(default_factory=list)
    refine: Callable[[Any, list[Value], list[Value]], list[Value]] | None = None
    layout: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    unread: dict[int, str] = field(default_factory=dict)
    numbers: Numbering = field(default_factory=Numbering)
    _literals: dict[int, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        entries = [one.entry for one in self.bound.inputs]
        self.mapped = {group for entry in entries if isinstance(entry, ROW_MAPS) for group in entry.names}

    def fresh(self) -> Number:
        """Return a value number that no value has had."""
        return self.numbers.fresh()

    @contextmanager
    def on(self, devices: dict[str, int], invariance: bool) -> Iterator[None]:
        """Interpret a program that runs on each device of a mesh."""
        before = self.devices, self.invariance
        self.devices, self.invariance = before[0] | devices, before[1] and invariance
        yield
        self.devices, self.invariance = before

    @contextmanager
    def decided_by(self, atom: Any) -> Iterator[None]:
        """Interpret a program that runs only if a value says so."""
        before = self.diverging
        self.diverging = before | self.varying(atom)
        yield
        self.diverging = before

    @contextmanager
    def called_at(self, eqn: Any) -> Iterator[None]:
        """Mark everything interpreted inside as the body of this equation."""
        self.callers.append(eqn)
        yield
        self.callers.pop()

    def varying(self, atom: Any) -> frozenset[str]:
        """Return the mesh axes along which devices may have different values of an operand."""
        if isinstance(atom, ir.Literal):
            return frozenset()
        return mesh.varying(atom) if self.invariance else frozenset(self.devices)

    def devices_along(self, axes: Sequence[str]) -> int:
        """Return the number of devices along some axes of the mesh."""
        return math.prod(self.devices[axis] for axis in axes)

    def number(self, form: Hashable, *operands: int) -> Number:
        """Return the value number of an expression: equal forms of equal numbers get equal numbers."""
        return self.numbers.of(form, operands)

    def read(self, env: Env, atom: Any) -> Value:
        """Return the abstract value of an operand."""
        if not isinstance(atom, ir.Literal):
            return env[atom]
        # The same literal of a function is met in each of its calls; `known` keeps it alive, and its id its own.
        literal = self._literals.get(id(atom))
        if literal is None:
            number = np.asarray(atom.val, ir.dtype_of(atom)) if isinstance(atom.val, int) else atom.val
            literal = self._literals[id(atom)] = self.constant(number)
        return literal

    def constant(self, array: Any) -> Value:
        """Return the abstract value of an array that is part of the program."""
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
            return Value(fact=NotLater(0, 1), range=span, number=self._constant_number(array))
        if counting is not None:
            return Value(fact=counting, range=span, number=self.index_number(dtype, content.shape, counting.axis))
        return Value(fact=constant, range=span, number=self._constant_number(array))

    def index_number(self, dtype: Any, shape: Sequence[int], axis: int) -> Number:
        """Return the value number of an array that counts up along an axis."""
        return self.number(("index", str(dtype), tuple(shape), axis))

    def _constant_number(self, array: Any) -> Number:
        if np.ndim(array) == 0:
            return self.number(("literal", str(getattr(array, "dtype", type(array))), to_numpy(array).tobytes()))
        return self.number(("constant", id(array)))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Forget violations and accesses found inside."""
        forget = self.mark()
        yield
        forget()

    def mark(self) -> Callable[[], None]:
        """Return a function that forgets violations and accesses found from now on: for rounds towards a fixpoint."""
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
