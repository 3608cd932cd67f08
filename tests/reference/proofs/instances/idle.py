"""Operands with idle lanes' kept values: pool rows, and choices by length."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from instances import operands
from instances.operands import LONG, Layout, Operands
from jax import Array, lax

from ir_passes import Lane, LaneContract, Pool

CONTRACT = LaneContract(
    inputs=(*operands.CONTRACT.inputs, Pool("r"), Lane(role="length")), outputs=operands.CONTRACT.outputs
)


def draw(rng: np.random.Generator, lanes: int) -> tuple[Any, ...]:
    """Draw arguments with at least one idle and one active lane."""
    settings = operands.draw(rng, lanes)
    lengths = rng.integers(0, 3, lanes)
    lengths[rng.permutation(lanes)[:2]] = 0, 1
    return (*settings, rng.normal(size=(lanes, LONG)).astype(np.float32), lengths.astype(np.int32))


class IdleOperands(Operands):
    """Draws operands for one instance.

    Args:
        rng: all choices.
        given: the arguments of the step.
    """

    def __init__(self, rng: np.random.Generator, arrays: Sequence[Array]):
        super().__init__(rng, arrays[:-2])
        self.rows, self.lengths = arrays[-2:]

    def array(self, layout: Layout, dtype: str = "float32", kind: str = "lanes") -> Array:
        array = super().array(layout, dtype, kind)
        if kind not in ("lanes", "slots", "pool") or layout.rows != self.lanes or self.chance(0.5):
            return array
        other = super().array(layout, dtype, self.one_of("lanes", "lanes", "shared", "counting"))
        if dtype not in ("bool", "float32") and self.chance(0.4):
            other = jnp.full_like(array, self.one_of(0, 1, 100))
        count, turn = self.per_lane(layout), self.one_of(0, 0, 0, 1)
        return jnp.where(count > turn, array, other) if self.chance(0.7) else lax.select(count == turn, other, array)

    def per_lane(self, layout: Layout) -> Array:
        """The length of the lane that each element belongs to."""
        count = lax.broadcast_in_dim(self.lengths, (self.lanes, layout.inner), (0,)).reshape(-1)
        return lax.broadcast_in_dim(count, layout.shape, (layout.axis,))

    def _source(self, dtype: str, take: Any) -> Array:
        if self.chance(0.4):
            return super()._source(dtype, take)
        integer = np.issubdtype(np.dtype(dtype), np.integer)
        arrays = (self.w, self.rows, self.pool)
        return take(*((array * 4).astype("int32") if integer else array for array in arrays))
