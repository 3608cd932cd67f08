"""Operands of a recurrence: executed annotations, and a pytree."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from models.ops.recurrences.recurrence import RecurrenceInputs


def operands(**changes: jax.Array) -> RecurrenceInputs:
    heads = jnp.zeros((2, 3, 4), jnp.float32)
    vectors = jnp.zeros((2, 3, 4, 5), jnp.float32)
    arrays: dict[str, Any] = {"query": vectors, "key": vectors, "value": vectors, "log_decay": heads, "beta": heads}
    arrays |= {"state": jnp.zeros((2, 4, 5, 5), jnp.float32), "valid": jnp.ones((2, 3), bool)}
    arrays |= {"fresh": jnp.zeros((2,), bool)} | changes
    return RecurrenceInputs(**arrays)


def test_it_is_a_pytree_of_its_arrays() -> None:
    inputs = operands()
    assert inputs.tokens == 3
    assert len(jax.tree.leaves(inputs)) == 8
    assert len(jax.tree.leaves(dataclasses.replace(inputs, beta=None))) == 7


@pytest.mark.parametrize("field", ["key", "value", "log_decay", "valid", "fresh", "beta"])
def test_arrays_that_do_not_fit_each_other_are_refused(field: str) -> None:
    right = getattr(operands(), field)
    with pytest.raises(TypeCheckError, match=field):
        operands(**{field: jnp.concatenate([right, right])})


def test_rows_match_lanes_or_of_slots() -> None:
    state = operands().state
    extra = jnp.concatenate([state, state])
    with pytest.raises(ValueError, match="state: expected a row for each of 2 lanes, or slots, got 4"):
        operands(state=extra)
    assert operands(state=extra, slots=jnp.array([3, 1], jnp.int32)).tokens == 3
