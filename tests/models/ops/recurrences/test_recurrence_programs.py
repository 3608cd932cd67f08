"""Bytes that XLA's programs of recurrences without kernels move on an H100; none is needed."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from card_kernels import array, operations_on

from models import Devices
from models.ops.recurrences.delta_rule import delta_rule_step
from models.ops.recurrences.recurrence import RecurrenceInputs
from models.ops.recurrences.ssd import ssd_step

pytestmark = pytest.mark.target_cuda
GPU = Devices(platform="gpu")


@pytest.mark.parametrize("step", [delta_rule_step, ssd_step])
def test_a_state_is_updated_in_place_by_its_reader(step: Callable[..., Any]) -> None:
    lanes, heads, size = 64, 8, 128

    def run(q, k, v, g, b, state, valid, fresh):
        return step(RecurrenceInputs(q, k, v, g, state, valid, fresh, b, devices=GPU))

    vectors, gates, state = array(lanes, 1, heads, size), array(lanes, 1, heads), array(lanes, heads, size, size)
    mask = array(lanes, 1, dtype=jnp.bool_), array(lanes, dtype=jnp.bool_)
    scratch, result = operations_on(
        "nvidia-h100", run, vectors, vectors, vectors, gates, gates, state, *mask, donated=(5,)
    )
    states = 4 * lanes * heads * size * size
    assert scratch < states / 4
    assert result.moved < (3.2 if step is delta_rule_step else 2.2) * states


@pytest.mark.parametrize("step", [delta_rule_step, ssd_step])
def test_states_by_slot_are_copied_once(step: Callable[..., Any]) -> None:
    """Rows are read and copied, then updated by a scatter: XLA fuses no read of a pool into its scatter."""
    lanes, heads, size = 64, 8, 128

    def run(q, k, v, g, b, state, valid, fresh, slots):
        beta = b if step is delta_rule_step else None
        return tuple(step(RecurrenceInputs(q, k, v, g, state, valid, fresh, beta, GPU, slots)))

    vectors, gates, pool = array(lanes, 1, heads, size), array(lanes, 1, heads), array(80, heads, size, size)
    each = array(lanes, 1, dtype=jnp.bool_), array(lanes, dtype=jnp.bool_), array(lanes, dtype=jnp.int32)
    scratch, result = operations_on(
        "nvidia-h100", run, vectors, vectors, vectors, gates, gates, pool, *each, donated=(5,)
    )
    states = 4 * lanes * heads * size * size
    assert scratch < 1.1 * states
    assert result.moved < 4.2 * states
