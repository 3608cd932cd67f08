"""Operands and results of a linear recurrence: one pair of structs for every form of the delta rule and of SSD.

A linear recurrence keeps a matrix S [value, key] for each lane and value head. A token decays it, adds `value key^T`
and reads it with its query. The token form, the chunked form and the reference take `RecurrenceInputs` and return
`RecurrenceOutputs`; a step that verifies drafts runs the same forms once more over the accepted tokens.

The contract of every form: padding tokens are never used, whatever they hold, and their outputs are zero; the state of
a fresh lane is never used; the state of a lane without real tokens comes back unchanged, bit for bit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Float32, Int32

from models.sharding.devices import SINGLE_DEVICE, Devices
from models.state.shapes import LaneMask, TokenMask

KeyVectors = Float32[Array, "lane token key_head key"]
ValueVectors = Float32[Array, "lane token value_head value"]
HeadGates = Float32[Array, "lane token value_head"]
ChannelGates = Float32[Array, "lane token value_head key"]
RowStates = Float32[Array, "row value_head value key"]


@struct.dataclass
class RecurrenceInputs:
    """Operands of a linear recurrence over the T tokens of a step, all float32.

    Attributes:
        query: read vectors, scaled by the caller; C in SSD.
        key: write vectors; B in SSD. The delta rule has a key head for each value head and l2-normalised keys; in SSD
            a key head is a group, and value head h belongs to group `h // (value_heads / groups)`.
        value: values; in SSD x, scaled by the time step of its head.
        log_decay: g <= 0, finite; per head, or per channel of the key (delta rule only).
        state: S before the first token; row i is of lane i, or with `slots` of the lane that names it.
        valid: mask of the real tokens, a prefix of each lane.
        fresh: mask of the lanes that start from zero, whatever their state holds; they have a real token.
        beta: write strength of the delta rule; None in SSD.
        devices: of the model: their platform, and whether they run kernels.
        slots: the row of each lane in `state`, in bounds; lanes with real tokens have different ones. Rows that no lane
            names, and those of lanes without real tokens, come back unchanged, bit for bit. None: row i is of lane i.

    Raises:
        ValueError: there are no slots, and not as many rows as lanes.
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
        # JAX makes structs of other things than arrays, too
        rows, lanes = (getattr(one, "shape", None) for one in (self.state, self.valid))
        if self.slots is None and rows and lanes and rows[0] != lanes[0]:
            raise ValueError(f"state: expected a row for each of {lanes[0]} lanes, or slots, got {rows[0]} rows")

    @property
    def tokens(self) -> int:
        """T, the tokens of each lane, padding included."""
        return self.query.shape[1]

    @property
    def lengths(self) -> Int32[Array, "lane"]:
        """Real tokens of each lane."""
        return jnp.sum(self.valid, axis=1, dtype=jnp.int32)


class RecurrenceOutputs(NamedTuple):
    """Results of a linear recurrence.

    Attributes:
        output: the state as each token's query reads it; zero at padding tokens.
        state: S after each lane's last real token, in the rows of the operand, as `RowStates`; None of a kernel that
            was to keep the state before.
    """

    output: ValueVectors
    state: Any


class Surroundings(NamedTuple):
    """Factors by which an SSD layer scales its values before the recurrence and adds them to the outputs behind it.

    Attributes:
        scale: factor on values that are written: the time step.
        skip: factor on values that are added to the outputs: D.
    """

    scale: HeadGates
    skip: Float32[Array, "value_head"]


RecurrenceForm = Callable[[RecurrenceInputs], RecurrenceOutputs]


def over_slots(form: RecurrenceForm, inputs: RecurrenceInputs) -> RecurrenceOutputs:
    """Run a form that has the states of lanes: over the rows that slots name where there are slots."""
    if inputs.slots is None:
        return form(inputs)
    found = form(replace(inputs, state=inputs.state[inputs.slots], slots=None))
    after = None if found.state is None else inputs.state.at[inputs.slots].set(found.state)
    return RecurrenceOutputs(found.output, after)
