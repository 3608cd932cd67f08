"""Operands with a true fact of the proof, in every dtype and shape."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np
from facts.dtype_values import FLOATS, every, limits
from facts.fact_sums import evaluated
from facts.fact_world import ACTIVE, CLASSES, CU, DEVICE, ORDER, SEGMENTS, SLOTS, TABLE, N, World, same, whole

from ir_passes.proof.numbering import Number
from ir_passes.proof.owners import COMMON, LaneRows, Order, Symbol
from ir_passes.proof.rules.addressing import packed_tokens
from ir_passes.proof.rules.addressing.index_sums import difference, single, total
from ir_passes.proof.values import (
    ActiveCount,
    BroadcastVector,
    Columns,
    Condition,
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
    OffsetEntry,
    OneHot,
    PageEntry,
    Permuted,
    PlusConstant,
    SameLane,
    SegmentIds,
    SlotEntry,
    TokenOfLane,
    Value,
)  # fmt: skip

LAYOUT = "tokens"
SHAPES = ((N,), (N, N), (), (1, N), (N, 1))
Named = tuple[str, Value, np.ndarray]
_STARTS, _STOPS = (OffsetEntry(LAYOUT, first, axis=0) for first in (0, 1))
_OWN_START, _OWN_STOP = (OffsetEntry(LAYOUT, first, axis=0, of_token=LAYOUT) for first in (0, 1))
SUMS = (
    single(_STARTS), single(_STOPS, 1), difference(single(_STOPS), single(_STARTS)), single(_OWN_START),
    difference(single(Iota(0)), single(_OWN_START), 1), difference(single(_OWN_STOP), single(Iota(0))),
    single(Iota(0), 2), total([(Iota(0), 1)], -1, below=N), single(OffsetEntry(LAYOUT, 2), -1),
    single(SegmentIds(0, LAYOUT), 1),
)  # fmt: skip
"""Sums along one axis."""
Elements = Iterator[tuple[Fact, Any, Any]]
"""Fact, owner and elements of an array; left out where the dtype lacks an element."""


class Dtype:
    """Operands of one dtype in a world.

    Attributes:
        low, high: least and greatest number; of floats any whole numbers.
        first, second, natural: numbers of arrays of any values, [4], [4, 4], and [4] without negative ones.
    """

    def __init__(self, world: World, dtype: str):
        self.world, self.dtype, self.rng, self.is_float = world, dtype, world.rng, dtype in FLOATS
        self.low, self.high = (-8, 8) if self.is_float else limits(dtype)
        self.first, self.second = (world.number(self.values(shape)) for shape in ((N,), (N, N)))
        natural = np.array([int(number) for number in self.rng.integers(0, min(self.high, 1 << 62), N, endpoint=True)])
        self.natural = world.number(natural.astype(jnp.dtype(dtype)))
        self._made: dict[tuple[int, ...], list[Named]] = {}

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Any values, small numbers more often than others."""
        small = self.rng.integers(max(self.low, -3), min(self.high, 5) + 1, shape).astype(jnp.dtype(self.dtype))
        numbers = every(self.dtype)
        if self.dtype == "float8_e5m2fnuz":
            # XLA:CPU rounds lesser numbers up when it copies them without its fusion emitters, as only tests compile.
            numbers = numbers[~(np.abs(numbers.astype(np.float32)) < 2**-14)]
        return np.where(self.rng.random(shape) < 0.5, small, self.rng.choice(numbers, shape))

    def operands(self, shape: tuple[int, ...]) -> list[Named]:
        """Arrays with and without a fact, with names and abstract values."""
        if shape not in self._made:
            self._made[shape] = self._make(shape)
        return self._made[shape]

    def _make(self, shape: tuple[int, ...]) -> list[Named]:
        result = list(self._plain(shape))
        kinds = [self._masks(shape)]
        if not self.is_float:
            kinds += [self._conditions(shape)] if self.dtype == "bool" else []
            kinds += [self._sums(shape)] if self.dtype != "bool" else []
            kinds += [self._counting(shape), self._ordered(shape), self._derived(shape), self._rows(shape)]
        elif len(shape) == 2:
            kinds += [self._counting(shape)]
        for kind in kinds:
            for fact, owner, elements in kind:
                array = self._fitting(elements, shape)
                if array is not None:
                    result.append((str(fact), Value(owner, fact=fact), array))
        return [(label, self._bounded(value, array), array) for label, value, array in result]

    def _fitting(self, elements: Any, shape: tuple[int, ...]) -> np.ndarray | None:
        """The elements in this world's dtype; None if it lacks one of them."""
        elements = whole(elements)
        integers = self.is_float or all(self.low <= element <= self.high for element in elements.ravel())
        if elements.shape != shape or not integers:
            return None
        wide = np.float64 if self.is_float else np.int64 if self.low else np.uint64
        with np.errstate(all="ignore"):  # a float of few bits lacks some elements
            array = elements.astype(wide).astype(jnp.dtype(self.dtype))
        return array if np.all(same(whole(array), elements)) else None

    def _bounded(self, value: Value, array: np.ndarray) -> Value:
        """With a number, and half of the time with bounds."""
        number = value.number or self.world.number(array)
        if not self.is_float and value.range is None and self.rng.random() < 0.6:
            bounded = value.replace(range=(int(whole(array).min()), int(whole(array).max())))
            value = value if any(self.world.faults(bounded, array)) else bounded
        assert not any(self.world.faults(value, array)), (value, array)
        return value.replace(number=number)

    def _plain(self, shape: tuple[int, ...]) -> Iterator[Named]:
        for number in (self.first, self.second, self.natural):
            if self.world.arrays[number].shape == shape:
                array = self.world.arrays[number].astype(jnp.dtype(self.dtype))
                yield "plain", Value(COMMON, number), array
        yield "of lanes", Value(LaneRows(0) if shape and shape[0] == N else COMMON), self.values(shape)
        constants = {0, 1, 2, 3, -1, N - 1, N, 10, 100, self.world.rows, self.world.rows - 1, self.low, self.high}
        for constant in sorted(constants):
            if self.low <= constant <= self.high:
                array = np.full(shape, constant).astype(jnp.dtype(self.dtype))
                yield f"{constant}", Value(COMMON, range=None if self.is_float else (constant, constant)), array

    def _masks(self, shape: tuple[int, ...]) -> Elements:
        rows, columns = packed_tokens.tokens(0, LAYOUT), packed_tokens.tokens(1, LAYOUT)
        separate = SEGMENTS[:, None] != SEGMENTS[None]
        values = whole(self.values(shape))
        if shape == (N, N):
            yield MaskedOut(rows, columns, zero=True), rows, np.where(separate, 0, values)
            if self.is_float:
                yield MaskedOut(rows, columns, zero=False), rows, np.where(separate, -np.inf, values)
            if self.dtype == "bool":
                mask, second = values.astype(bool), np.triu(np.ones((N, N), bool), 1)
                one_lane = ~separate & (SEGMENTS < N)[:, None]
                starts, stops = (np.searchsorted(SEGMENTS, SEGMENTS, side)[:, None] for side in ("left", "right"))
                for when in (True, False):
                    yield SameLane(rows, columns, when=when), COMMON, (mask & one_lane) == when
                    bounds = (OffsetEntry(LAYOUT, first, axis=0, of_token=LAYOUT) for first in (0, 1))
                    start, stop = map(single, bounds)
                    for sum_of_terms, holds in (
                        (difference(single(Iota(0)), single(Iota(1))), ~second),
                        (difference(single(Iota(1)), start), np.arange(N) >= starts),
                        (difference(stop, single(Iota(1)), -1), np.arange(N) < stops),
                    ):
                        yield _mask(sum_of_terms, when), COMMON, (mask & holds) == when
        if self.is_float:
            yield Finite(), COMMON, np.where(np.isfinite(values), values, 1)

    def _conditions(self, shape: tuple[int, ...]) -> Elements:
        if shape != (N,):
            return
        signed, random = self.rng.integers(-3, 4, N), self.rng.random(N) < 0.6
        some = np.where(random, self.world.slots, 0)
        number, rest, infinite, row = map(self.world.number, (signed, signed % 3, np.where(random, np.inf, 1.0), some))
        yield Negative(number), COMMON, signed < 0
        yield Implies(number, zero=True), COMMON, random & (signed == 0)
        yield Implies(number, zero=False), COMMON, random & (signed != 0)
        yield Implies(number, False, rest), COMMON, signed % 3 != 0
        yield Implies(number, False, number), COMMON, signed != 0
        yield IsFinite(infinite), COMMON, ~random
        yield Implies(row, zero=False), LaneRows(0), some != 0
        for when in (True, False):
            real = difference(single(OffsetEntry(LAYOUT, N)), single(Iota(0)), -1)
            yield _mask(real, when), COMMON, ((SEGMENTS < N) & random) == when

    def _sums(self, shape: tuple[int, ...]) -> Elements:
        for value in SUMS if shape == (N,) else ():
            elements, is_known = evaluated(value, shape, {LAYOUT: (CU, SEGMENTS)}, {})
            yield value, COMMON, np.where(is_known, elements, self.rng.integers(0, 4, N))

    def _counting(self, shape: tuple[int, ...]) -> Elements:
        for axis, size in enumerate(shape):
            index = np.arange(size).reshape([size if k == axis else 1 for k in range(len(shape))])
            for div in (1, 2, 3):
                yield Iota(axis, div), COMMON, np.broadcast_to(index // div, shape)
        if shape == (N, N):
            for rows in (0, 1):
                one_hot = self.world.arrays[CLASSES][:, None] == np.arange(N)
                yield OneHot(CLASSES, rows, 1 - rows), COMMON, one_hot if rows == 0 else one_hot.T
                vector = whole(self.world.arrays[self.first])
                yield (
                    BroadcastVector(self.first, rows),
                    COMMON,
                    np.broadcast_to(vector[:, None] if rows == 0 else vector, shape),
                )
            columns = [self.values((N, 1)) for _ in range(N)]
            parts = tuple(self._bounded(Value(LaneRows(0)), column) for column in columns)
            yield Columns(parts), LaneRows(0), np.concatenate([whole(column) for column in columns], 1)
        if shape == ():
            yield ActiveCount(), COMMON, ACTIVE
            for rows in (1, 3):
                yield DeviceOffset("data", rows), COMMON, rows * DEVICE
            yield LaneOfToken(Symbol(self.world.number(1), N), LAYOUT), COMMON, SEGMENTS[1]

    def _ordered(self, shape: tuple[int, ...]) -> Elements:
        mixed = LaneRows(0)
        if shape == (N,):
            for inverse, div in product((False, True), (1, 2)):
                yield Permuted(Order(ORDER, inverse), div), mixed, self.world.order(Order(ORDER, inverse)) // div
            yield Counts(CLASSES), mixed, np.bincount(self.world.arrays[CLASSES], minlength=N)
            yield SegmentIds(0, LAYOUT), COMMON, SEGMENTS
            yield SegmentIds(0, LAYOUT, "lane"), COMMON, np.minimum(SEGMENTS, N - 1)
            yield TokenOfLane(LAYOUT), COMMON, [0, 2, 3, 1]
        if shape in ((N, 1), (1, N)):
            yield SegmentIds(shape.index(N), LAYOUT), COMMON, SEGMENTS.reshape(shape)

    def _derived(self, shape: tuple[int, ...]) -> Elements:
        if shape != (N,) or self.dtype == "bool":
            return
        first = whole(self.world.arrays[self.first])
        for by in {by for by in (0, 1, N, self.world.rows, self.high) if by <= self.high}:
            # Numbers of Python: the range of 64 bits is no int64.
            size = self.high - self.low + 1
            wrapped = [number + by - (size if number + by > self.high else 0) for number in first]
            yield PlusConstant(self.first, by), COMMON, wrapped
            yield NotAbove(self.first, by), COMMON, np.minimum(wrapped, first)

    def _rows(self, shape: tuple[int, ...]) -> Elements:
        if self.dtype == "bool" or shape not in ((N,), (N, N)):
            return
        entries = self.world.slots if shape == (N,) else np.broadcast_to(self.world.slots[:, None], shape)
        pages = self.world.table[:, 0] if shape == (N,) else self.world.table
        fields = {"past": self.world.rows, "below": -1, "null": 0, "lowest": -(1 << 30)}
        yield SlotEntry(SLOTS, offset=DeviceOffset("data", 2)), LaneRows(0), entries - 2 * DEVICE
        for stride, kind in product((1, 3), ("", "past", "below", "null", "lowest")):
            spare = int(self.rng.integers(stride))
            integers = self.rng.integers(0, spare + 1, shape)
            off = self.rng.random(shape) < 0.5
            other = fields.get(kind, 0) * (stride if kind == "past" else 1)
            if kind != "lowest":
                rows = np.where(off, other, entries * stride + integers) if kind else entries * stride + integers
                guard = Number(1010) if kind else None
                alternatives = frozenset({kind} - {""})
                yield SlotEntry(SLOTS, guard, None, alternatives, stride, spare), LaneRows(0), rows
            if kind != "null":
                rows = np.where(off, other, pages * stride + integers) if kind else pages * stride + integers
                yield PageEntry(TABLE, stride, spare, frozenset({kind} - {""})), LaneRows(0), rows


def _mask(value: IndexSum, when: bool) -> Mask:
    """Return a mask with one condition, of elements that are `when`."""
    sides = frozenset({Condition(value)}), frozenset[Condition]()
    return Mask(*sides) if when else Mask(*sides[::-1])
