"""Operands and results of every form of a linear recurrence.

Each lane and value head has a matrix S [value, key]. A token decays it, adds `value key^T` and reads it with its query.

Contract: padding is never read, with zero outputs; a fresh lane's state is never read; a lane without real tokens keeps
its state, bit for bit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Float32, Int32

from models.sharding.devices import SINGLE_DEVICE, Devices
from models.state.rows import put_rows, take_rows
from models.state.shapes import LaneMask, TokenMask

KeyVectors = Float32[Array, "lane token key_head key"]
ValueVectors = Float32[Array, "lane token value_head value"]
HeadGates = Float32[Array, "lane token value_head"]
ChannelGates = Float32[Array, "lane token value_head key"]
RowStates = Float32[Array, "row value_head value key"]


@struct.dataclass
class RecurrenceInputs:
    """Operands over the T tokens of a step, all float32.

    Attributes:
        query: scaled read vectors; C in SSD.
        key: write vectors; B in SSD. The delta rule has a key head per value head and l2-normalised keys; in SSD value
            head h belongs to group `h // (value_heads / groups)`.
        value: in SSD x, scaled by the time step.
        log_decay: g <= 0, finite; per head, or per key channel (delta rule).
        state: S before the first token; row i of lane i, or of the lane with this slot.
        valid: real tokens, a prefix of each lane.
        fresh: lanes with zero initial state and a real token.
        beta: write strength; None in SSD.
        slots: lane rows in `state`, in bounds, distinct for real tokens; other rows keep their bits. None: row i.

    Raises:
        ValueError: other numbers of rows than lanes, without slots.
    """

    query: KeyVectors
    key: KeyVectors
    value: ValueVectors
    log_decay: HeadGates | ChannelGates
    state: RowStates
    valid: TokenMask
    fresh: LaneMask
    beta: HeadGates | None = None
    devices: Devices = struct.field(pytree_node=False, default=SINGLE_DEVICE)
    slots: Int32[Array, "lane"] | None = None

    def __post_init__(self) -> None:
        # JAX also makes structs of other leaves.
        rows, lanes = (getattr(leaf, "shape", None) for leaf in (self.state, self.valid))
        if self.slots is None and rows and lanes and rows[0] != lanes[0]:
            raise ValueError(f"state: expected a row for each of {lanes[0]} lanes, or slots, got {rows[0]} rows")

    @property
    def tokens(self) -> int:
        """T, with padding."""
        return self.query.shape[1]

    @property
    def lengths(self) -> Int32[Array, "lane"]:
        return jnp.sum(self.valid, axis=1, dtype=jnp.int32)


class RecurrenceOutputs(NamedTuple):
    """Results of a linear recurrence.

    Attributes:
        output: reads of the state; zero at padding.
        state: S after the last real token, as `RowStates`; None with `keep_state` from a kernel, or with slots.
    """

    output: ValueVectors
    state: Any


Surroundings = tuple[HeadGates, Float32[Array, "value_head"]]
"""Factors of SSD: time step on written, D on added values."""
RecurrenceForm = Callable[[RecurrenceInputs], RecurrenceOutputs]


def over_slots(form: RecurrenceForm, inputs: RecurrenceInputs, keep_state: bool = False) -> RecurrenceOutputs:
    """Run a form without slots on the lanes' rows; with `keep_state` none is written."""
    if inputs.slots is None:
        return form(inputs)
    output, state = form(replace(inputs, state=take_rows(inputs.state, inputs.slots), slots=None))
    return RecurrenceOutputs(output, None if keep_state else put_rows(inputs.state, inputs.slots, state))
