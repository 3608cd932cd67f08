"""Concrete meaning of the proof's facts: check an abstract value against an array.

A world has the inputs of a step with a slot map, a page table and packed tokens, and hidden arrays with value numbers.
Lanes, tokens, and indices of sorted rows are all along axes of length 4.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from facts.dtype_values import FLOATS, limits, numbers
from facts.fact_sums import sum_or_mask_holds
from predicted_owners import is_one_of

from ir_passes import LaneContract, Packed, PageTable, Pool, SlotMap
from ir_passes.contract.contract import BoundContract
from ir_passes.proof.numbering import Leaf, Number
from ir_passes.proof.owners import LaneRows, Order, Symbol
from ir_passes.proof.prover import Prover
from ir_passes.proof.rules.addressing import packed_tokens
from ir_passes.proof.values import (
    ActiveCount,
    BroadcastVector,
    Columns,
    Counts,
    DeviceOffset,
    Fact,
    Finite,
    Implies,
    IndexSum,
    Iota,
    IsFinite,
    LaneOfToken,
    Mask,
    MaskedOut,
    Negative,
    NotAbove,
    OneHot,
    PageEntry,
    Permuted,
    PlusConstant,
    SameLane,
    SegmentIds,
    SlotEntry,
    TokenOf,
    TokenOfLane,
    Value,
)  # fmt: skip

N = 4
CU = np.array([0, 1, 3, 3, 3], np.int32)
SEGMENTS = np.array([0, 1, 1, N])
"""Lane of each token; the last token is padding."""
SLOTS, TABLE = Leaf(2), Leaf(4)
ORDER, KEY, CLASSES = (Number(number) for number in (1001, 1002, 1003))
DEVICE, ACTIVE = 1, 2


def whole(array: Any) -> np.ndarray:
    """Integers and booleans as Python's, of any size; floats as float64."""
    array = np.asarray(array)
    if jnp.issubdtype(array.dtype, np.floating):
        return numbers(array)
    return np.array([int(number) for number in array.ravel()], object).reshape(array.shape)


def packed_prover(bound: BoundContract, **state: Any) -> Prover:
    """Return an interpreter that also finds facts of packed tokens."""
    prover = Prover(bound, **state)
    prover.refine = packed_tokens.refine
    return prover


class World:
    """The inputs of a step and hidden arrays, for operands of one dtype.

    Attributes:
        rows: rows of the pools, as many as the dtype can number, at most 200.
        slots: [lane], the entry of each lane in the slot map.
        table: [lane, page], the entries of each lane in the page table.
        arrays: value number -> array.
        orders: number of an order -> index in the sorted rows -> row.
    """

    def __init__(self, dtype: str, seed: int):
        self.rng = np.random.default_rng(seed)
        self.rows = min((limits(dtype)[1] if dtype not in FLOATS else 7) + 1, 200)
        self.slots, self.table = (self.rng.integers(min(1, self.rows - 1), self.rows, size) for size in ((N,), (N, N)))
        order = self.rng.permutation(N)
        self.orders: dict[int, np.ndarray] = {ORDER: order}
        classes = self.rng.integers(0, N, N)
        self.arrays: dict[int, np.ndarray] = {ORDER: order, KEY: np.argsort(order), CLASSES: classes}
        contract = LaneContract(
            (Packed(role="cu_seqlens"), Pool("s"), SlotMap("s", self.rows), Pool("k"), PageTable("k", self.rows)),
            (Pool("s"), Pool("k")),
        )
        pool = jnp.ones((self.rows, 2))
        inputs = CU, pool, self.slots.astype(np.int32), pool, self.table.astype(np.int32)
        self._bound = contract.bind(lambda cu, s, slots, k, table: (s, k), inputs)

    def number(self, array: Any) -> Number:
        """A new value number of an array."""
        number = Number(1100 + len(self.arrays))
        self.arrays[number] = np.asarray(array)
        return number

    def prover(self) -> Prover:
        """An interpreter for programs of this world."""
        prover = packed_prover(self._bound)
        prover.sort_keys[Order(ORDER)] = KEY
        return prover

    def order(self, order: Order) -> np.ndarray:
        """Index in the sorted rows -> row, or the inverse."""
        rows = self.orders[order.number]
        return np.argsort(rows) if order.inverse else rows

    def faults(self, value: Value, array: np.ndarray) -> Iterator[str]:
        """Each property of an abstract value that the array lacks."""
        elements = whole(array)
        if value.range is not None and elements.size:
            if not (value.range[0] <= elements.min() and elements.max() <= value.range[1]):
                yield f"elements {elements.min()} to {elements.max()} are outside of {value.range}"
        if value.number in self.arrays:
            other = whole(self.arrays[value.number])
            if other.size != elements.size or not np.all(same(other.ravel(), elements.ravel())):
                yield "an array with this number has other elements"
        if value.fact is not None and not self._holds(value, elements):
            yield f"{value.fact} does not hold of {elements.tolist()}"

    def _of(self, number: Number, shape: tuple[int, ...]) -> np.ndarray:
        other = whole(self.arrays[number])
        return other.reshape(shape) if other.size == np.prod(shape, dtype=int) else np.broadcast_to(other, shape)

    def _holds(self, value: Value, elements: np.ndarray) -> bool:
        """True if a fact holds; also for facts about arrays that this world lacks."""
        fact, shape = value.fact, elements.shape
        number = getattr(fact, "number", getattr(fact, "key", None))
        if isinstance(number, int) and number not in self.arrays:
            return True
        match fact:
            case Iota(axis, div):
                return bool((np.moveaxis(elements, axis, -1) == np.arange(shape[axis]) // div).all())
            case DeviceOffset(_, rows):
                return bool((elements == rows * DEVICE).all())
            case ActiveCount():
                return bool((elements == ACTIVE).all())
            case Negative(number):
                return bool((elements.astype(bool) == (self._of(number, shape) < 0)).all())
            case IsFinite(number, excluded, when):
                special = is_one_of(self._of(number, shape).astype(float), excluded)
                return not bool(((elements.astype(bool) == when) & special).any())
            case Implies(number, zero, compared):
                true = elements.astype(bool)
                exact = not compared or compared not in self.arrays or (true == (self._of(compared, shape) != 0)).all()
                return bool(exact) and bool(((self._of(number, shape) == 0) == zero)[true].all())
            case PlusConstant(number, by):
                initial = self._of(number, shape)
                return bool(((elements == initial + by) | ((value.range is None) & (initial >= 0))).all())
            case NotAbove(number, by):
                return bool((elements.astype(object) <= self._of(number, shape).astype(object) + by).all())
            case Permuted(order, div):
                rows = self.order(order) if order.number in self.orders else None
                return rows is None or bool((np.moveaxis(elements, 0, -1) == rows // div).all())
            case Counts(key, exact):
                keys = [int(each) for each in self.arrays[key].ravel()]
                counts = [keys.count(k) for k in range(elements.size)]
                return elements.ravel().tolist() == counts and (not exact or sum(counts) == len(keys))
            case OneHot(key, rows, classes):
                keys = whole(self.arrays[key]).ravel()
                first = np.moveaxis(elements, (rows, classes), (0, 1)).reshape(shape[rows], shape[classes], -1)
                expected = keys[:, None] == np.arange(shape[classes])
                return len(keys) == shape[rows] and bool((first == expected[..., None]).all())
            case BroadcastVector(number, axis):
                vector = whole(self.arrays[number]).ravel()
                spread = np.moveaxis(elements, axis, -1)
                return len(vector) == shape[axis] and bool(same(spread, np.broadcast_to(vector, spread.shape)).all())
            case Columns(values):
                columns = [list(self.faults(column, elements[..., [k]])) for k, column in enumerate(values)]
                return shape[-1] == len(values) and not any(columns)
            case SegmentIds(axis, _, padding):
                # The first tokens of the layout, also fewer than all.
                lanes = SEGMENTS[: shape[axis]]
                elements = np.moveaxis(elements, axis, -1)
                in_lane = (padding == "lane") & (lanes == N) & (elements >= 0) & (elements < N)
                return bool(((elements == lanes) | in_lane).all())
            case LaneOfToken(token, _, padding):
                if token.number not in self.arrays:
                    return True
                index = min(max(int(self.arrays[token.number]), 0), token.size - 1)  # the symbol of a clamped index
                if SEGMENTS[index] == N and padding == "lane":
                    return bool(((elements >= 0) & (elements < N)).all())
                return bool((elements == SEGMENTS[index]).all())
            case TokenOf(_, None):
                return bool((SEGMENTS[np.asarray(elements, int)] < N).all())
            case TokenOfLane():
                return shape[0] == N and all(
                    (SEGMENTS[np.asarray(elements[lane], int)] == lane).all() for lane in (0, 1)
                )
            case IndexSum() | Mask():
                return sum_or_mask_holds(fact, elements, {"tokens": (CU, SEGMENTS)})
            case SameLane(rows, columns) | MaskedOut(rows, columns, _):
                return self._masked(fact, np.moveaxis(elements, (rows.axis, columns.axis), (0, 1)))
            case Finite(excluded):
                return not is_one_of(elements.astype(float), excluded).any()
            case SlotEntry() | PageEntry() if isinstance(value.owner, LaneRows) and value.owner.order is None:
                places = value.owner.start + np.arange(shape[value.owner.axis]) // value.owner.inner
                # Rows are tokens; tokens of padding belong to no lane.
                lanes = np.minimum(SEGMENTS[places], N - 1) if value.owner.packed else places
                # The owner of a block of rows has a symbol for its start.
                in_block = any(isinstance(part, Symbol) for part in value.owner.split)
                starts = range(N - int(lanes.max(initial=0))) if in_block else (0,)
                entries = np.moveaxis(elements, value.owner.axis, 0).reshape(len(lanes), -1)
                return any(self._is_entry(fact, entries, lanes + start) for start in starts)
        return True

    def _masked(self, fact: Fact, elements: np.ndarray) -> bool:
        assert isinstance(fact, SameLane | MaskedOut)
        rows, columns = (SEGMENTS if owner.packed else np.arange(N) for owner in (fact.rows, fact.columns))
        rows, columns = rows.reshape(N, 1), columns.reshape(1, N)
        if isinstance(fact, SameLane):
            padding = (columns == N) & (rows < N) & (not fact.padding)
            return not (elements == fact.when)[((rows != columns) & (rows < N) & (columns < N)) | padding].any()
        array = elements[(rows != columns) & (rows < N)].astype(float)
        return bool((np.isnan(array) | (array == (0 if fact.zero else -np.inf))).all())

    def _is_entry(self, fact: SlotEntry | PageEntry, elements: np.ndarray, lanes: np.ndarray) -> bool:
        """True if elements [index, ...] belong to these lanes, or to no lane."""
        if isinstance(fact, SlotEntry):
            elements = elements + (fact.offset.rows * DEVICE if fact.offset is not None else 0)
            entries, low = self.slots[lanes, None, None], not fact.non_null or "null" in fact.alternatives
        else:
            entries, low = self.table[lanes, None], True
        mask = (elements >= 0) & (elements % fact.stride <= fact.spare)
        local = mask & (elements[..., None] // fact.stride == entries).any(-1) & (low | (elements >= fact.stride))
        fields = {
            "past": elements >= self.rows * fact.stride, "below": elements < 0, "lowest": elements <= -(1 << 30),
            "null": mask & (elements < fact.stride), "last": elements == elements,
        }  # fmt: skip
        return bool(np.any([local, *(fields[kind] for kind in fact.alternatives)], axis=0).all())


def same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Equal numbers, or both nan."""
    return (x == y) | ((x != x) & (y != y))


def sorted_rows(key: np.ndarray) -> np.ndarray:
    """Index in the rows sorted by a key -> row, as XLA sorts."""
    return np.asarray(jax.jit(lambda key: jax.lax.sort((key, jnp.arange(N)), num_keys=1)[1])(key))
