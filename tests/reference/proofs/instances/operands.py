"""Operands of every ownership: lanes along any axis and order, pools, shared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

ROWS, LONG = 7, 96
"""Rows of the pool; elements of a shared array, and of each lane's and each row's."""
INTEGERS = ("int32", "int8", "uint8", "int16", "uint32")
CONTRACT = LaneContract(
    inputs=(Shared(), Shared(), Lane(), Lane(), Lane(), Pool("p"), SlotMap("p", ROWS)), outputs=(Lane(),)
)
NARROW = ("lanes", "lanes", "lanes", "ordered", "one", "picked")
"""Kinds of operands that belong to lanes."""


@dataclass(frozen=True)
class Layout:
    """A shape, and the axis of lanes (or rows of the pool) in it.

    Attributes:
        axis: of length rows * inner.
        rows: lanes, or rows of the pool.
        inner: indices of the axis for each of them.
    """

    shape: tuple[int, ...]
    axis: int
    rows: int
    inner: int = 1


def draw(rng: np.random.Generator, lanes: int) -> tuple[Any, ...]:
    """Arguments of a step of instances."""
    return (
        rng.normal(size=LONG).astype(np.float32),
        rng.integers(-3, 9, LONG).astype(np.int32),
        rng.normal(size=(lanes, LONG)).astype(np.float32),
        rng.integers(-3, 9, (lanes, LONG)).astype(np.int32),
        rng.integers(0, 1 << 32, (lanes, LONG), dtype=np.uint32),
        rng.normal(size=(ROWS, LONG)).astype(np.float32),
        (1 + rng.permutation(ROWS - 1)[:lanes]).astype(np.int32),
    )


class Operands:
    """Draws operands for one instance.

    Args:
        rng: all choices.
        given: the arguments of the step.
    """

    def __init__(self, rng: np.random.Generator, arrays: Sequence[Array]):
        self.rng = rng
        self.w, self.ids, self.x, self.own, self.words, self.pool, self.slots = arrays
        self.lanes = int(self.x.shape[0])
        self.orders: dict[int, Array] = {}

    def one_of(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def below(self, end: int, start: int = 0) -> int:
        """A number in [start, end)."""
        return int(self.rng.integers(start, end))

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def some(self, count: int, end: int) -> tuple[int, ...]:
        """Distinct numbers below `end`, in any order."""
        return tuple(map(int, self.rng.permutation(end)[:count]))

    def layout(self, rank: int | None = None, minimum: int = 1, pool: bool | None = None, inner: int = 0) -> Layout:
        """Any shape of a rank, lanes along any axis of it."""
        rank = self.below(4, minimum) if rank is None else rank
        pool = self.chance(0.12) if pool is None else pool
        inner = inner or (1 if pool else self.one_of(1, 1, 2))
        rows, axis = ROWS if pool else self.lanes, self.below(rank)
        shape = [self.below(5, 1) for _ in range(rank)]
        shape[axis] = rows * inner
        return Layout(tuple(shape), axis, rows, inner)

    def kind(self, layout: Layout) -> str:
        """A kind that belongs to lanes, or to owners of rows."""
        return "pool" if layout.rows == ROWS else self.one_of(*NARROW)

    def alike(self, layout: Layout, *dtypes: str) -> list[Array]:
        """Arrays of one shape, usually of equal owners, some shared."""
        kind = self.kind(layout)
        if self.chance(0.2):
            kinds = [self.one_of(self.kind(layout), "shared", "mixed", kind) for _ in dtypes]
        else:
            kinds = [kind if self.chance(0.7) else "shared" for _ in dtypes]
            kinds[self.below(len(kinds))] = kind
        return [self.array(layout, dtype, each) for dtype, each in zip(dtypes, kinds, strict=True)]

    def any(self, dtype: str = "float32", **limits: Any) -> tuple[Array, Layout]:
        """One array that belongs to lanes, and its layout."""
        layout = self.layout(**limits)
        return self.array(layout, dtype, "mixed" if self.chance(0.05) else self.kind(layout)), layout

    def array(self, layout: Layout, dtype: str = "float32", kind: str = "lanes") -> Array:
        """An array of this layout.

        Args:
            layout: its shape, and the axis of lanes in it; for a kind without lanes, its shape.
            dtype: integers may have known bounds.
            kind: "lanes"; "ordered", in an order that depends on all lanes; "one", of one lane; "picked", of the lane
                that a shared index picks; "pool"; "mixed"; "shared"; "counting"; "slots".
        """
        shape, axis = layout.shape, layout.axis
        rest = (*shape[:axis], *shape[axis + 1 :])
        each = layout.inner * math.prod(rest)
        if kind == "counting":
            return lax.broadcasted_iota(dtype, shape, self.below(len(shape)))
        if kind == "slots" and layout.inner == 1 and layout.rows != ROWS:
            return lax.broadcast_in_dim(self.slots, shape, (axis,)).astype(dtype)
        if kind in ("shared", "one", "picked"):
            lane = self.below(self.lanes)
            index = self.ids[self.below(LONG)]
            take = {
                "shared": lambda *arrays: arrays[0],
                "one": lambda *arrays: arrays[1][lane],
                "picked": lambda *arrays: lax.dynamic_index_in_dim(arrays[1], index, 0, keepdims=False),
            }[kind]
            return self._typed(self._source(dtype, take)[: math.prod(shape)].reshape(shape), dtype)
        source = self._source(dtype, lambda *arrays: arrays[2 if layout.rows == ROWS else 1])
        start = self.below(LONG - each + 1)
        rows = source[:, start : start + each].reshape(layout.rows * layout.inner, *rest)
        if kind == "ordered" and layout.rows != ROWS:
            rows = rows[self.order(len(rows))]
        array = self._typed(jnp.moveaxis(rows, 0, axis), dtype)
        return jnp.flip(array, axis) if kind == "mixed" else array

    def order(self, count: int) -> Array:
        """int32 [count]: a permutation by keys of all lanes, the same one throughout an instance."""
        if count not in self.orders:
            self.orders[count] = jnp.argsort(self.own[:, : count // self.lanes].reshape(-1))
        return self.orders[count]

    def _source(self, dtype: str, take: Any) -> Array:
        if np.issubdtype(np.dtype(dtype), np.integer):
            if dtype == "uint32" and self.chance(0.5):
                return take(self.words[0], self.words, self.pool.astype(jnp.int32))
            return take(self.ids, self.own, (self.pool * 4).astype(jnp.int32))
        return take(self.w, self.x, self.pool)

    def _typed(self, array: Array, dtype: str) -> Array:
        if dtype == "bool":
            return array > 0
        array = array.astype(dtype)
        if not np.issubdtype(np.dtype(dtype), np.integer) or self.chance(0.5):
            return array
        low, high = self.one_of((0, 1), (0, 3), (1, 5), (2, 6), (0, 120))
        bound = self.below(3)
        if bound == 0:
            return jnp.clip(array, low, high)
        if bound == 1:
            return lax.rem(array, jnp.asarray(high, dtype))
        return lax.max(array, jnp.asarray(low, dtype))
